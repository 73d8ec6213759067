"""Operations on NumPy arrays of random shapes and strides against the float64 oracle."""

import inspect

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import assert_close, f64, with_strides

import thalweg
from thalweg import _core, ops

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
seeds = st.integers(0, 2**32 - 1)
small = st.integers(0, 5)
dtypes = st.sampled_from([np.float32, np.float16])
head_maps = st.sampled_from(["grouped", "tiled"])
sizes = st.sampled_from([16, 32, 64])
BOUND = {np.float32: 2e-5, np.float16: 2e-3}


def normal(rng, *shape, dtype=np.float32):
    return with_strides(rng.standard_normal(shape).astype(dtype), rng)


def rule_inputs(rng, batch, tokens, hk, group, size, width, dtype):
    hv = hk * group
    q = normal(rng, batch, tokens, hk, size, dtype=dtype)
    k = with_strides(oracle.l2norm(rng.standard_normal((batch, tokens, hk, size)), 1e-6).astype(dtype), rng)
    v = normal(rng, batch, tokens, hv, width, dtype=dtype)
    g = with_strides(-rng.exponential(0.3, (batch, tokens, hv)).astype(np.float32), rng)
    beta = with_strides(rng.random((batch, tokens, hv), np.float32), rng)
    return q, k, v, g, beta


@pytest.mark.parametrize("operation", ["chunk_gated_delta_rule", "recurrent_gated_delta_rule"])
@SETTINGS
@given(seeds, st.integers(1, 2), st.integers(0, 70), st.integers(1, 2), st.integers(1, 3), sizes, sizes, dtypes,
       head_maps, st.sampled_from(["vk", "kv"]))  # fmt: skip
def test_gated_delta_rule(operation, seed, batch, tokens, hk, group, size, width, dtype, head_map, layout):
    rng = np.random.default_rng(seed)
    q, k, v, g, beta = rule_inputs(rng, batch, tokens, hk, group, size, width, dtype)
    state = rng.standard_normal((batch, hk * group, width, size), np.float32)
    exact, exact_state = oracle.gated_delta_rule(q, k, v, g, beta, head_map=head_map, initial_state=state)
    given_state = state if layout == "vk" else np.ascontiguousarray(state.swapaxes(2, 3))
    final = np.empty_like(given_state)
    o = getattr(ops, operation)(
        q, k, v, g, beta, head_map=head_map, initial_state=given_state, final_state=final, state_layout=layout
    )
    assert o.dtype == dtype
    assert_close(o, exact, BOUND[dtype])
    assert_close(final if layout == "vk" else final.swapaxes(2, 3), exact_state, 2e-5)


@SETTINGS
@given(seeds, st.lists(st.integers(0, 80), min_size=1, max_size=3), sizes, sizes, head_maps)
def test_stages_make_the_rule(seed, lengths, size, width, head_map):
    """The seven stages, called one after the other on a ragged batch, equal the recurrence."""
    rng = np.random.default_rng(seed)
    bounds = np.cumsum([0, *lengths]).astype(np.int32)
    q, k, v, g, beta = rule_inputs(rng, 1, int(bounds[-1]), 2, 2, size, width, np.float32)
    k = ops.l2norm(k)
    exact, exact_state = oracle.gated_delta_rule(q, k, v, g, beta, head_map=head_map, bounds=bounds)
    total = ops.chunk_local_cumsum(g, bounds)
    a = ops.chunk_scaled_dot_kkt(k, beta, total, bounds, head_map=head_map)
    a_inv = ops.solve_tril(a, bounds)
    w, u = ops.recompute_w_u(k, v, beta, total, a_inv, bounds, head_map=head_map)
    final = np.empty((len(lengths), 4, width, size), np.float32)
    h, v_new = ops.chunk_state(k, w, u, total, cu_seqlens=bounds, head_map=head_map, final_state=final)
    o = ops.chunk_output(q, k, v_new, h, total, bounds, head_map=head_map)
    assert_close(o, exact)
    assert_close(final, exact_state)


@SETTINGS
@given(seeds, st.integers(1, 3), head_maps)
def test_prep_step(seed, batch, head_map):
    rng = np.random.default_rng(seed)
    hk, hv, size, width = 2, 4, 32, 16
    x = normal(rng, batch, 1, 2 * hk * size + hv * width)
    a, b = normal(rng, batch, 1, hv), normal(rng, batch, 1, hv)
    a_log, dt_bias = normal(rng, hv), normal(rng, hv)
    state = rng.standard_normal((batch, hv, width, size), np.float32)
    q, k, v = np.split(f64(x), [hk * size, 2 * hk * size], -1)
    q = oracle.l2norm(q.reshape(batch, 1, hk, size), 1e-6)
    k = oracle.l2norm(k.reshape(batch, 1, hk, size), 1e-6)
    g = -np.exp(f64(a_log)) * oracle.softplus(f64(a) + dt_bias)
    exact, exact_state = oracle.gated_delta_rule(
        q, k, v.reshape(batch, 1, hv, width), g, oracle.sigmoid(b), head_map=head_map, initial_state=state, scale=0.25
    )
    y = ops.gated_delta_prep_step(
        x, a, b, a_log, dt_bias, state, state, head_map=head_map, qk_norm="l2", scale=0.25
    )
    assert_close(y, exact)
    assert_close(state, exact_state)


@SETTINGS
@given(seeds, st.integers(1, 3), st.integers(0, 9), st.integers(1, 9), st.integers(2, 8),
       st.sampled_from(["none", "silu"]), st.booleans())  # fmt: skip
def test_causal_conv1d(seed, batch, tokens, channels, taps, activation, with_bias):
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, batch, tokens, channels), normal(rng, channels, taps)
    bias = normal(rng, channels) if with_bias else None
    state = rng.standard_normal((batch, channels, taps - 1), np.float32)
    exact, exact_state = oracle.causal_conv1d(x, weight, bias, state, activation)
    final = np.empty_like(state)
    y = ops.causal_conv1d(x, weight, bias, state, final_state=final, activation=activation)
    assert_close(y, exact)
    np.testing.assert_array_equal(final, exact_state.astype(np.float32))
    y = ops.causal_conv1d_update(x, weight, bias, conv_state=state, activation=activation)
    assert_close(y, exact)
    np.testing.assert_array_equal(state, final)


@SETTINGS
@given(seeds, small, st.integers(1, 3), st.integers(1, 40), dtypes)
def test_norms(seed, tokens, heads, size, dtype):
    rng = np.random.default_rng(seed)
    x, z = normal(rng, tokens, heads, size, dtype=dtype), normal(rng, tokens, heads, size, dtype=dtype)
    weight = normal(rng, size)
    assert_close(ops.rms_norm(x, weight), oracle.rms_norm(x, weight, 1e-6), BOUND[dtype])
    assert_close(ops.rms_norm(x, weight, eps=0.1, weight_plus_one=True), oracle.rms_norm(x, 1 + f64(weight), 0.1),
                 BOUND[dtype])  # fmt: skip
    assert_close(ops.gated_rms_norm(x, z, weight), oracle.rms_norm(x, weight, 1e-6) * oracle.silu(z), BOUND[dtype])
    y = x.copy()
    assert ops.rms_norm(y, weight, y=y) is y
    np.testing.assert_array_equal(y, ops.rms_norm(x, weight))


@SETTINGS
@given(seeds, small, st.integers(1, 3), st.sampled_from([4, 16, 64]), st.integers(0, 40))
def test_rope(seed, tokens, heads, size, more):
    rng = np.random.default_rng(seed)
    x = normal(rng, tokens, heads, size + more)
    positions = rng.integers(0, 1000, tokens).astype(np.int32)
    exact = oracle.rope(x, positions, size, 1e4)
    assert_close(ops.rope(x, positions, rotary_dim=size, theta=1e4), exact, 1e-4)
    frequencies = rng.random(size // 2, np.float32)
    given = ops.rope(x, positions, frequencies, rotary_dim=size, scale=1.25)
    assert_close(given, oracle.rope(x, positions, size, frequencies=frequencies, scale=1.25), 1e-4)


@SETTINGS
@given(seeds, st.integers(1, 9), st.integers(1, 2), st.integers(1, 3), st.booleans())
def test_attention(seed, tokens, kv_heads, group, with_gate):
    rng = np.random.default_rng(seed)
    q = normal(rng, tokens, kv_heads * group, 32)
    k, v = normal(rng, 2, tokens + 3, kv_heads, 32), normal(rng, 2, tokens + 3, kv_heads, 32)
    gate = normal(rng, tokens, kv_heads * group, 32) if with_gate else None
    bounds, lengths = np.array([0, tokens], np.int32), np.array([tokens], np.int32)
    o = ops.attention(q, k, v, bounds, lengths, np.array([1], np.int32), gate)
    assert_close(o, oracle.attention(q, k[1, :tokens], v[1, :tokens], gate))


@SETTINGS
@given(seeds, st.integers(1, 9), st.integers(1, 5))
def test_attention_over_pages(seed, tokens, page):
    rng = np.random.default_rng(seed)
    count = -(-tokens // page)
    q, k, v = normal(rng, tokens + 1, 2, 16), normal(rng, tokens + 1, 1, 16), normal(rng, tokens + 1, 1, 16)
    pages = np.full((2, count + 1), -1, np.int32)  # the second sequence has none
    pages[0, :count] = rng.permutation(count + 2)[:count]
    k_cache, v_cache = (np.zeros((count + 2, page, 1, 16), np.float32) for _ in range(2))
    bounds, lengths = np.array([0, tokens, tokens + 1], np.int32), np.array([tokens, 99], np.int32)
    ops.store_kv(k, v, bounds, lengths, k_cache=k_cache, v_cache=v_cache, pages=pages)
    np.testing.assert_array_equal(k_cache[pages[0, :count]].reshape(-1, 1, 16)[:tokens], k[:tokens])
    o = ops.attention(q, k_cache, v_cache, bounds, lengths, pages=pages)
    assert_close(o[:tokens], oracle.attention(q[:tokens], k[:tokens], v[:tokens], None))
    assert not o[tokens].any()


@SETTINGS
@given(seeds, small, st.integers(1, 70), st.integers(0, 9), st.booleans())
def test_linear(seed, tokens, inputs, outputs, with_bias):
    rng = np.random.default_rng(seed)
    x = normal(rng, tokens, inputs)
    weight = rng.standard_normal((outputs, inputs), np.float32)
    bias = normal(rng, outputs) if with_bias else None
    assert_close(ops.linear(x, weight, bias), f64(x) @ f64(weight).T + (0 if bias is None else f64(bias)))


@SETTINGS
@given(seeds, small, st.integers(1, 70), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_projections(seed, tokens, inputs, outputs):
    rng = np.random.default_rng(seed)
    x = normal(rng, tokens, inputs)
    weights = [rng.standard_normal((n, inputs), np.float32) for n in outputs]
    given = [np.full((tokens, n), np.nan, np.float32) for n in outputs]
    ys = ops.projections(x, *weights, **{f"y_{i}": y for i, y in enumerate(given)})
    assert all(y is mine for y, mine in zip(ys, given, strict=True))
    for y, again, weight in zip(ops.projections(x, *weights), given, weights, strict=True):
        assert np.array_equal(y, again) and np.array_equal(y, ops.linear(x, weight))
    with pytest.raises(thalweg.Error, match="weight_0"):
        ops.projections(x, None, weights[0])


@SETTINGS
@given(seeds, small, st.integers(1, 40))
def test_swiglu(seed, tokens, size):
    rng = np.random.default_rng(seed)
    gate, up = normal(rng, tokens, size), normal(rng, tokens, size)
    assert_close(ops.swiglu(gate, up), oracle.silu(gate) * f64(up))


@SETTINGS
@given(seeds, small, st.integers(1, 3), dtypes)
def test_moving_rows(seed, tokens, heads, dtype):
    rng = np.random.default_rng(seed)
    a, b = normal(rng, tokens, 9, dtype=dtype), normal(rng, tokens, 9, dtype=dtype)
    np.testing.assert_array_equal(ops.add(a, b), (a.astype(np.float32) + b.astype(np.float32)).astype(dtype))
    x = normal(rng, tokens, heads, 2 * 4 + 2 * 6, dtype=dtype)
    parts = [np.empty((tokens, heads, size), dtype) for size in (4, 4, 6, 6)]
    ops.split_qkvz(x, q=parts[0], k=parts[1], v=parts[2], z=parts[3])
    np.testing.assert_array_equal(np.concatenate(parts, -1), x)
    k, v = normal(rng, tokens, heads, 8, dtype=dtype), normal(rng, tokens, heads, 8, dtype=dtype)
    k_cache, v_cache = (np.zeros((2, tokens + 3, heads, 8), dtype) for _ in range(2))
    bounds, lengths, slots = (np.array(n, np.int32) for n in ([0, tokens], [tokens + 2], [1]))
    ops.store_kv(k, v, bounds, lengths, slots, k_cache=k_cache, v_cache=v_cache)
    for new, cache in ((k, k_cache), (v, v_cache)):
        np.testing.assert_array_equal(cache[1, 2 : tokens + 2], new)
        assert not cache[0].any() and not cache[1, :2].any() and not cache[1, tokens + 2 :].any()


@SETTINGS
@given(seeds, small, st.integers(1, 20), st.data())
def test_routing(seed, tokens, experts, data):
    rng = np.random.default_rng(seed)
    top_k = data.draw(st.integers(1, experts))
    logits = normal(rng, tokens, experts)
    ids, weights = ops.route_top_k(logits, top_k, renormalize=False)
    p = oracle.softmax(logits) if tokens else np.zeros((0, experts))
    expected = np.argsort(-p, -1, kind="stable")[:, :top_k]
    np.testing.assert_array_equal(ids, expected)
    assert_close(weights, np.take_along_axis(p, expected, -1))
    offsets, rows = ops.expert_rows(ids, experts)
    np.testing.assert_array_equal(rows, np.argsort(ids.ravel(), kind="stable"))
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(ids.ravel(), minlength=experts))


@SETTINGS
@given(seeds, small, st.integers(1, 20), st.data())
def test_routing_by_sigmoid_and_bias(seed, tokens, experts, data):
    rng = np.random.default_rng(seed)
    top_k = data.draw(st.integers(1, experts))
    logits = normal(rng, tokens, experts)
    bias = rng.permutation(experts).astype(np.float32)  # a whole apart: scores between 0 and 1 cannot change the order
    ids, weights = ops.route_top_k(logits, top_k, bias, score="sigmoid")
    expected = np.broadcast_to(np.argsort(-bias, kind="stable")[:top_k], (tokens, top_k))
    if tokens:
        np.testing.assert_array_equal(ids, expected)
        chosen = np.take_along_axis(oracle.sigmoid(logits), expected, -1)
        assert_close(weights, chosen / chosen.sum(-1, keepdims=True))
    # Experts that are not here are in no list.
    here = np.where(ids % 2 == 0, ids, -1).astype(np.int32)
    offsets, rows = ops.expert_rows(here, experts)
    count = int((here >= 0).sum())
    assert offsets[-1] == count
    assert (here.ravel()[rows[:count]] >= 0).all()


@SETTINGS
@given(seeds, small, st.integers(1, 300), st.data())
def test_sampling(seed, rows, vocabulary, data):
    rng = np.random.default_rng(seed)
    logits = np.round(normal(rng, rows, vocabulary), 1)  # with ties
    tokens = ops.sample_tokens(logits)
    np.testing.assert_array_equal(tokens, np.argmax(logits, -1) if rows else tokens)
    k = data.draw(st.integers(1, vocabulary))
    settings = {
        "temperature": np.full(rows, 1.5, np.float32),
        "top_k": np.full(rows, k, np.int32),
        "seed": rng.integers(-(2**31), 2**31, (rows, 2)).astype(np.int32),
    }
    lengths = rng.integers(0, 1000, rows).astype(np.int32)
    drawn = ops.sample_tokens(logits, lengths, **settings)
    np.testing.assert_array_equal(drawn, ops.sample_tokens(logits, lengths, **settings))
    logprob, likeliest, top = ops.logprobs(logits, drawn, k)
    p = oracle.softmax(logits) if rows else np.zeros((0, vocabulary))
    np.testing.assert_array_equal(likeliest, np.argsort(-logits, -1, kind="stable")[:, :k])
    assert (likeliest == drawn[:, None]).any(-1).all()
    assert_close(top, np.log(np.take_along_axis(p, likeliest.astype(np.int64), -1)))
    assert_close(logprob, np.log(np.take_along_axis(p, drawn[:, None].astype(np.int64), -1))[:, 0])
    allowed = np.zeros((rows, (vocabulary + 31) // 32), np.uint32)
    for row, tokens in enumerate(likeliest):
        np.bitwise_or.at(allowed[row], tokens // 32, np.uint32(1) << (tokens % 32).astype(np.uint32))
    np.testing.assert_array_equal(drawn, ops.sample_tokens(logits, lengths, **settings, allowed=allowed.view(np.int32)))
    if k < vocabulary:
        # Tokens with so large a penalty lose to all others.
        positive = logits - logits.min(initial=0) + 1
        settings = {"repeat_penalty": np.full(rows, 1e6, np.float32), "repeat_last": np.full(rows, -1, np.int32)}
        other = ops.sample_tokens(positive, np.full(rows, k, np.int32), likeliest, **settings)
        assert not (other[:, None] == likeliest).any()


def test_sampling_of_absent_sequences():
    logits = np.zeros((3, 5), np.float32)
    np.testing.assert_array_equal(ops.sample_tokens(logits, slots=np.array([2, -1, 0], np.int32)), [0, -1, 0])
    logprob, tokens, top = ops.logprobs(logits, np.array([1, -1, 4], np.int32), 2)
    np.testing.assert_array_equal(tokens, [[0, 1], [-1, -1], [0, 1]])
    np.testing.assert_array_equal(top[1], [0, 0])
    assert_close(logprob, [-np.log(5), 0, -np.log(5)])
    assert ops.logprobs(logits)[0] is None


def test_advance():
    arrays = {name: np.array(values, np.int32) for name, values in
              {"ids": [9, 9, 9], "positions": [4, 5, 6], "lengths": [5, 6, 7], "slots": [1, -1, 0]}.items()}  # fmt: skip
    history = np.zeros((2, 8), np.int32)
    ops.advance(np.array([3, 3, 2], np.int32), np.array([2], np.int32), history=history, **arrays)
    np.testing.assert_array_equal(arrays["ids"], [3, 9, 9])
    np.testing.assert_array_equal(arrays["positions"], [5, 5, 6])
    np.testing.assert_array_equal(arrays["lengths"], [6, 6, 7])
    np.testing.assert_array_equal(arrays["slots"], [1, -1, -1])
    assert history[1, 5] == 3 and history.sum() == 3


@pytest.mark.parametrize("operation", ["mul_mat_id", "mul_mm_id", "mul_mv_id"])
@SETTINGS
@given(seeds, small, st.integers(1, 5), st.integers(1, 3), st.sampled_from([None, "Q4_K", "Q8_0", "IQ4_NL"]))
def test_expert_matmul(operation, seed, tokens, experts, slots, packed):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((experts, 7, 256), np.float32)
    x = normal(rng, tokens, slots, 256)
    ids = rng.integers(0, experts, (tokens, slots)).astype(np.int32)
    if packed:
        weight = thalweg.quantize(weight, packed)
    exact = np.einsum("tsnk,tsk->tsn", f64(thalweg.dequantize(weight) if packed else weight)[ids], f64(x))
    assert_close(getattr(ops, operation)(weight, x, ids), exact)


@SETTINGS
@given(seeds, st.integers(1, 5), st.integers(1, 6), st.booleans(), st.data())
def test_moe_ffn(seed, tokens, experts, with_shared, data):
    rng = np.random.default_rng(seed)
    top_k = data.draw(st.integers(1, experts))
    x, router = normal(rng, tokens, 32), rng.standard_normal((experts, 32), np.float32)
    gate, up = (rng.standard_normal((experts, 24, 32), np.float32) for _ in range(2))
    down = rng.standard_normal((experts, 32, 24), np.float32)
    shared = None
    if with_shared:
        shapes = [(16, 32), (16, 32), (32, 16), (32,)]
        shared = [rng.standard_normal(shape, np.float32) for shape in shapes]
    y = ops.moe_ffn(x, router, gate, up, down, *(shared or []), top_k=top_k)
    assert_close(y, oracle.moe_ffn(x, router, gate, up, down, shared, top_k))


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
                                   "IQ4_NL", "MXFP4", "F16", "BF16"])  # fmt: skip
def test_blocks(dtype):
    values = np.random.default_rng(3).standard_normal((2, 3, 512), np.float32)
    blocks = thalweg.quantize(values, dtype)
    assert blocks.shape == (2, 3, 512) and blocks.data.dtype == np.uint8
    back = thalweg.dequantize(blocks)
    worst = {"Q2_K": 0.4, "Q3_K": 0.25, "MXFP4": 0.2, "F16": 1e-3, "BF16": 1e-2}.get(dtype, 0.15)
    assert_close(back, values, worst)
    again = thalweg.quantize(back, dtype) if dtype in ("F16", "BF16", "MXFP4") else blocks
    np.testing.assert_array_equal(again.data, blocks.data)
    ids = np.array([2, 0], np.int32)
    np.testing.assert_array_equal(ops.embedding(ids, thalweg.Blocks(blocks.data[0], dtype)), back[0, ids])
    assert thalweg.dequantize(thalweg.quantize(values[:0], dtype)).shape == (0, 3, 512)


def test_threads_make_no_difference():
    rng = np.random.default_rng(0)
    inputs = rule_inputs(rng, 1, 200, 2, 2, 64, 64, np.float32)
    results = [ops.chunk_gated_delta_rule(*inputs, head_map="grouped", threads=threads) for threads in (1, 2, 3)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_every_field_is_an_argument():
    """The functions have every field of the C++ structs, and nothing else but what makes outputs."""
    extra = {"stream", "threads"}
    made_by = {"route_top_k": {"top_k"}, "expert_rows": {"experts"}, "logprobs": {"top"}}
    for operation in _core.operations():
        if operation in ("quantize", "dequantize"):
            continue  # functions of values, not of outputs
        inputs, outputs, options = _core.fields(operation)
        parameters = set(inspect.signature(getattr(ops, operation)).parameters)
        assert parameters == {*inputs, *outputs, *options} | extra | made_by.get(operation, set()), operation
        assert getattr(ops, operation).__doc__


def test_explain():
    x = np.zeros((2, 3), np.float32)
    kernels = ops.explain("linear", x=x, weight=x, y=np.zeros((2, 2), np.float32))
    assert sum(chosen for *_, chosen in kernels) == 1
