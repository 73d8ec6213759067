"""The drop-in for transformers, with NumPy arrays against the oracle."""

import inspect

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import assert_close, f64, with_strides

import thalweg
from thalweg import fla

SIGNATURES = {
    "chunk_gated_delta_rule": "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel "
    "use_beta_sigmoid_in_kernel allow_neg_eigval state_v_first cu_seqlens cu_seqlens_cpu chunk_indices cp_context "
    "use_gate_in_kernel A_log dt_bias chunk_size kwargs",
    "fused_recurrent_gated_delta_rule": "q k v g gk gv beta scale initial_state output_final_state "
    "use_qk_l2norm_in_kernel use_gate_in_kernel A_log dt_bias use_beta_sigmoid_in_kernel allow_neg_eigval "
    "state_v_first cu_seqlens kwargs",
    "causal_conv1d_fn": "x weight bias seq_idx initial_states return_final_states final_states_out activation",
    "causal_conv1d_update": "x conv_state weight bias activation cache_seqlens conv_state_indices",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    assert list(inspect.signature(getattr(fla, name)).parameters) == SIGNATURES[name].split()


@pytest.mark.parametrize("name", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.booleans(), st.booleans(), st.booleans(), st.booleans(),
       st.booleans())  # fmt: skip
def test_gated_delta_rule(name, seed, tokens, l2norm, raw_gate, raw_beta, neg_eigval, v_first):
    rng = np.random.default_rng(seed)
    q, k = (with_strides(rng.standard_normal((2, tokens, 2, 32), np.float32) / 6, rng) for _ in range(2))
    v = with_strides(rng.standard_normal((2, tokens, 4, 16), np.float32), rng)
    g = rng.standard_normal((2, tokens, 4), np.float32) if raw_gate else -rng.random((2, tokens, 4), np.float32)
    beta = rng.standard_normal((2, tokens, 4), np.float32) if raw_beta else rng.random((2, tokens, 4), np.float32) / 2
    a_log, dt_bias = rng.random(4, np.float32), rng.random(4, np.float32)
    state = rng.standard_normal((2, 4, 16, 32), np.float32)

    exact_g = -np.exp(f64(a_log)) * oracle.softplus(f64(g) + dt_bias) if raw_gate else g
    exact_beta = (oracle.sigmoid(beta) if raw_beta else f64(beta)) * (2 if neg_eigval else 1)
    norm = (lambda x: oracle.l2norm(x, 1e-6)) if l2norm else f64
    exact, exact_state = oracle.gated_delta_rule(
        norm(q), norm(k), v, exact_g, exact_beta, head_map="grouped", initial_state=state
    )
    gates = {"use_gate_in_kernel": True, "A_log": a_log, "dt_bias": dt_bias} if raw_gate else {}
    o, final = getattr(fla, name)(
        q, k, v, g=g, beta=beta, initial_state=state if v_first else state.swapaxes(2, 3), output_final_state=True,
        use_qk_l2norm_in_kernel=l2norm, use_beta_sigmoid_in_kernel=raw_beta, allow_neg_eigval=neg_eigval,
        state_v_first=v_first, **gates,
    )  # fmt: skip
    assert_close(o, exact, 1e-4)
    assert_close(final if v_first else final.swapaxes(2, 3), exact_state, 1e-4)


def test_ragged_batches():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 20, 2, 16), np.float32) / 4 for _ in range(3))
    g, beta = -rng.random((1, 20, 2), np.float32), rng.random((1, 20, 2), np.float32)
    bounds = np.array([0, 7, 7, 20], np.int64)
    exact, exact_state = oracle.gated_delta_rule(q, k, v, g, beta, head_map="grouped", bounds=bounds)
    o, final = fla.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=bounds, output_final_state=True)
    assert_close(o, exact)
    assert_close(final.swapaxes(2, 3), exact_state)
    o, none = fla.fused_recurrent_gated_delta_rule(q, k, v)
    assert none is None
    ones = np.ones((1, 20, 2), np.float32)
    assert_close(o, oracle.gated_delta_rule(q, k, v, 0 * ones, ones, head_map="grouped")[0], 1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(2, 4), st.sampled_from([None, "silu", "swish"]))
def test_causal_conv1d(seed, tokens, taps, activation):
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((2, 6, tokens), np.float32), rng.standard_normal((6, taps), np.float32)
    bias, state = rng.standard_normal(6, np.float32), rng.standard_normal((2, 6, taps - 1), np.float32)
    kind = "silu" if activation else "none"
    exact, exact_state = oracle.causal_conv1d(x.swapaxes(1, 2), weight, bias, state, kind)
    y, final = fla.causal_conv1d_fn(
        x, weight, bias, initial_states=state, return_final_states=True, activation=activation
    )
    assert_close(y, exact.swapaxes(1, 2))
    np.testing.assert_array_equal(final, exact_state.astype(np.float32))
    y = fla.causal_conv1d_fn(x, weight, activation=activation)
    assert_close(y, oracle.causal_conv1d(x.swapaxes(1, 2), weight, None, None, kind)[0].swapaxes(1, 2))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(3, 6), st.booleans())
def test_causal_conv1d_update(seed, tokens, length, by_index):
    """States may hold more inputs than the kernel is wide; tokens = 0 stands for x [B,C]."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 6, max(tokens, 1)), np.float32)
    weight, pool = rng.standard_normal((6, 4), np.float32), rng.standard_normal((3, 6, length), np.float32)
    indices = np.array([2, 0], np.int32) if by_index else None
    rows = [2, 0] if by_index else [0, 1]
    before = pool.copy()
    exact, _ = oracle.causal_conv1d(x.swapaxes(1, 2), weight, None, before[rows][:, :, length - 3 :], "silu")
    state = pool if by_index else pool[:2]
    y = fla.causal_conv1d_update(
        x if tokens else x[:, :, 0], state, weight, activation="silu", conv_state_indices=indices
    )
    exact = exact.swapaxes(1, 2)
    assert_close(y, exact if tokens else exact[:, :, 0])
    expected = before.copy()
    expected[rows] = np.concatenate([before[rows], x], 2)[:, :, -length:]
    np.testing.assert_array_equal(pool, expected)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("cp_context", lambda z, g: fla.chunk_gated_delta_rule(z, z, z, g, g, cp_context=object())),
        ("gk", lambda z, g: fla.fused_recurrent_gated_delta_rule(z, z, z, g, gk=g)),
        ("gv", lambda z, g: fla.fused_recurrent_gated_delta_rule(z, z, z, g, gv=g)),
        ("A_log", lambda z, g: fla.chunk_gated_delta_rule(z, z, z, g, g, use_gate_in_kernel=True)),
        ("v", lambda z, g: fla.chunk_gated_delta_rule(z, z, z[0], g, g)),
        ("seq_idx", lambda z, g: fla.causal_conv1d_fn(z[0], z[0, 0], seq_idx=g)),
        ("activation", lambda z, g: fla.causal_conv1d_fn(z[0], z[0, 0], activation="gelu")),
        ("cache_seqlens", lambda z, g: fla.causal_conv1d_update(z[0], z[0], z[0, 0], cache_seqlens=g)),
        ("conv_state", lambda z, g: fla.causal_conv1d_update(z[0], z[0][:, :, :2], z[0, 0])),
    ],
)
def test_what_is_not_known_is_refused(argument, call):
    with pytest.raises(thalweg.Error) as raised:
        call(np.zeros((1, 2, 3, 16), np.float32), np.zeros((1, 2, 3), np.float32))
    assert raised.value.argument == argument


Q = np.zeros((1, 9, 2, 16), np.float32)
G = np.zeros((1, 9, 2), np.float32)
RULES = [fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("argument", "given", "options"),
    [
        ("cu_seqlens", "4294967305", {"cu_seqlens": np.array([0, 2**32 + 9])}),
        ("cu_seqlens", "uint64", {"cu_seqlens": np.array([0, 2**64 - 1], np.uint64)}),
        ("cu_seqlens", "float64", {"cu_seqlens": np.array([0, 4.7, 9.2])}),
        ("cu_seqlens", "bool", {"cu_seqlens": np.array([False, True])}),
        ("cu_seqlens", "4.7", {"cu_seqlens": [0, 4.7, 9]}),
        ("cu_seqlens", "True", {"cu_seqlens": [0, True, 9]}),
        ("cu_seqlens", str(2**32 + 9), {"cu_seqlens": (0, 2**32 + 9)}),
        ("cu_seqlens", "str", {"cu_seqlens": "09"}),
        ("cu_seqlens", "2", {"cu_seqlens": np.array([[0, 9]])}),
        ("cu_seqlens", "got 0", {"cu_seqlens": []}),
        ("cu_seqlens", "got 0", {"cu_seqlens": np.array([], np.int32), "output_final_state": True}),
        ("cu_seqlens", "got 1", {"cu_seqlens": [9]}),
        ("g", "float64", {"g": G.astype(np.float64)}),
        ("g", "int32", {"g": G.astype(np.int32)}),
        ("beta", "float64", {"beta": G.astype(np.float64)}),
        ("A_log", "float64", {"use_gate_in_kernel": True, "A_log": np.zeros(2)}),
        ("dt_bias", "int64", {"use_gate_in_kernel": True, "A_log": G[0, 0], "dt_bias": np.zeros(2, np.int64)}),
        ("initial_state", "float64", {"initial_state": np.zeros((1, 2, 16, 16))}),
        ("scale", "True", {"scale": True}),
        ("scale", "'1.5'", {"scale": "1.5"}),
        ("scale", "1e+39", {"scale": 1e39}),
        ("scale", "1e-50", {"scale": 1e-50}),
        ("output_final_state", "got 1", {"output_final_state": 1}),
        ("state_v_first", "'no'", {"state_v_first": "no"}),
        ("gk", "ndarray", {"gk": G}),
        ("gv", "ndarray", {"gv": G}),
        ("head_first", "True", {"head_first": True}),
        ("transpose_state_layout", "True", {"transpose_state_layout": True}),
        ("ssm_state_indices", "ndarray", {"ssm_state_indices": np.zeros(1, np.int32)}),
        ("initial_stat", "unknown", {"initial_stat": Q}),
        ("initial_stat", "unknown", {"initial_stat": None}),
    ],
)
def test_nothing_is_converted_or_ignored(rule, argument, given, options):
    with pytest.raises(thalweg.Error, match=argument) as raised:
        rule(Q, Q, Q, **{"g": G, "beta": G} | options)
    assert raised.value.operation in (rule.__name__, "recurrent_gated_delta_rule")
    assert raised.value.argument == argument
    assert given in str(raised.value).split("got ")[1] or given in str(raised.value)


@pytest.mark.parametrize("rule", RULES)
def test_what_asks_for_nothing_is_accepted(rule):
    rng = np.random.default_rng(2)
    q, g = rng.standard_normal((1, 9, 2, 16), np.float32), -rng.random((1, 9, 2), np.float32)
    plain, _ = rule(q, q, q, g, beta=-g, cu_seqlens=np.array([0, 4, 9], np.int32))
    for bounds in ([0, 4, 9], (0, np.int64(4), 9), np.array([0, 4, 9], np.uint64), np.array([0, 4, 9], np.uint8)):
        o, _ = rule(
            q, q, q, g, beta=-g, cu_seqlens=bounds, chunk_size=32, chunk_indices=None, cu_seqlens_cpu=None,
            head_first=False, ssm_state_indices=None, scale=np.float32(0.25),
        )  # fmt: skip
        np.testing.assert_array_equal(o, plain)


def test_float64_is_not_offered_what_is_refused_next():
    for kind in (np.float64, np.int64):
        with pytest.raises(thalweg.Error, match=f"q: expected F32, F16 or BF16 .*, got {np.dtype(kind)}"):
            fla.chunk_gated_delta_rule(Q.astype(kind), Q, Q, G, G)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("conv_state_indices", {"conv_state_indices": np.array([2**32])}),
        ("conv_state_indices", {"conv_state_indices": np.array([0.5])}),
        ("conv_state_indices", {"conv_state_indices": [0.0]}),
        ("conv_state_indices", {"conv_state_indices": [7]}),
    ],
)
def test_slots_are_not_converted(argument, options):
    state = np.ones((2, 6, 4), np.float32)
    with pytest.raises(thalweg.Error) as raised:
        fla.causal_conv1d_update(np.zeros((1, 6), np.float32), state, np.zeros((6, 4), np.float32), **options)
    assert raised.value.argument == argument
    assert (state == 1).all()


@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("indices", [None, [2, 0], np.array([2, 0])])
def test_states_with_channels_innermost(length, indices):
    """As transformers 4.57 has them; updated in place."""
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((2, 6, 1), np.float32), rng.standard_normal((6, 4), np.float32)
    memory = rng.standard_normal((3, length, 6), np.float32)
    state = memory.swapaxes(1, 2) if indices is not None else memory[:2].swapaxes(1, 2)
    rows = state.copy(order="C")
    expected = fla.causal_conv1d_update(x, rows, weight, activation="silu", conv_state_indices=indices)
    before = state.copy()
    y = fla.causal_conv1d_update(x, state, weight, activation="silu", conv_state_indices=indices)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(state, rows)
    assert (state != before).any() and np.shares_memory(state, memory)
