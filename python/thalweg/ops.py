"""Every operation, on arrays of NumPy, torch, CuPy and every library with DLPack. Nothing is copied.

Arrays may be strided views, innermost dimension contiguous, and live on one device, which decides where the operation
runs. Weights may be Blocks. Outputs are made beside the first array unless they are given; given ones are written.
Sizes: B batch, T tokens, N sequences, HK key heads, HV value heads, K and V head sizes, C chunk, E experts, S experts
of a token. float: float32, float16 or bfloat16. The contracts in full are those of the C++ headers, by the same names.

stream: on a GPU, a stream or its handle; by default the array library's current one. The call only enqueues.
threads: on the CPU, 0 for all; results do not depend on it. The interpreter's lock is released meanwhile.

Every function raises thalweg.Error, naming the argument, before anything is written.
"""

import numpy

from . import _core
from ._arrays import Blocks, dims, empty, error, is_whole, public, run


def explain(operation: str, **arguments) -> list[tuple[str, bool, str, bool]]:
    """(kernel, whether it could run these arguments, why not, whether it will) in order of preference. Takes all of an
    operation's arguments, outputs too."""
    from ._arrays import argument

    return _core.explain(operation, {name: argument(value) for name, value in arguments.items() if value is not None})


def _check_chunk_size(operation: str, chunk_size: int) -> None:
    if not is_whole(chunk_size) or chunk_size not in (16, 32, 64):
        raise error(operation, "chunk_size", "16, 32 or 64", repr(chunk_size))


def _chunks(operation: str, tokens: int, cu_seqlens, chunk_size: int) -> int:
    _check_chunk_size(operation, chunk_size)
    if cu_seqlens is None:
        return -(-tokens // chunk_size)
    dims(operation, "cu_seqlens", cu_seqlens, 1)
    bounds = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else list(cu_seqlens)
    if not all(map(is_whole, bounds)):
        raise error(operation, "cu_seqlens", "int32", str(getattr(cu_seqlens, "dtype", "no ints")))
    if bounds and not 0 <= min(bounds) <= max(bounds) <= tokens:
        raise error(operation, "cu_seqlens", f"bounds from 0 to {tokens}", f"from {min(bounds)} to {max(bounds)}")
    return sum(-(-(end - begin) // chunk_size) for begin, end in zip(bounds, bounds[1:], strict=False))


# Stages of the chunk form of the gated delta rule.


@public
def chunk_local_cumsum(g, cu_seqlens=None, *, g_cumsum=None, chunk_size=64, stream=None, threads=0):
    """Cumulative sum of g within each chunk. g [B,T,HV] float32 -> [B,T,HV] float32."""
    op = "chunk_local_cumsum"
    if g_cumsum is None:
        g_cumsum = empty(g, dims(op, "g", g))
    run(op, stream, threads, g=g, cu_seqlens=cu_seqlens, g_cumsum=g_cumsum, chunk_size=chunk_size)
    return g_cumsum


@public
def l2norm(x, *, y=None, eps=1e-6, stream=None, threads=0):
    """x * rsqrt(sum x^2 + eps) over the innermost dimension. x [B,T,H,K] float -> like x."""
    if y is None:
        y = empty(x, dims("l2norm", "x", x))
    run("l2norm", stream, threads, x=x, y=y, eps=eps)
    return y


@public
def chunk_scaled_dot_kkt(
    k, beta, g_cumsum, cu_seqlens=None, *, head_map, a=None, chunk_size=64, rounding="f32", stream=None, threads=0
):
    """beta_i (k_i . k_j) exp(G_i - G_j) below the diagonal of each chunk. k [B,T,HK,K] float; beta, g_cumsum [B,T,HV]
    float32 -> [B,T,HV,C] float32."""
    op = "chunk_scaled_dot_kkt"
    if a is None:
        _check_chunk_size(op, chunk_size)
        a = empty(beta, (*dims(op, "beta", beta, 3), chunk_size))
    run(
        op, stream, threads, k=k, beta=beta, g_cumsum=g_cumsum, cu_seqlens=cu_seqlens, a=a, chunk_size=chunk_size,
        head_map=head_map, rounding=rounding,
    )  # fmt: skip
    return a


@public
def solve_tril(a, cu_seqlens=None, *, a_inv=None, chunk_size=64, stream=None, threads=0):
    """(I + a)^-1 of each chunk, a strictly lower triangular. a [B,T,HV,C] float32 -> like a."""
    op = "solve_tril"
    if a_inv is None:
        a_inv = empty(a, dims(op, "a", a))
    run(op, stream, threads, a=a, cu_seqlens=cu_seqlens, a_inv=a_inv, chunk_size=chunk_size)
    return a_inv


@public
def recompute_w_u(
    k, v, beta, g_cumsum, a_inv, cu_seqlens=None, *, head_map, w=None, u=None, chunk_size=64, rounding="f32",
    stream=None, threads=0,
):  # fmt: skip
    """w = A_inv (beta k exp(G)), u = A_inv (beta v). k [B,T,HK,K], v [B,T,HV,V] float; beta, g_cumsum [B,T,HV]
    float32; a_inv [B,T,HV,C] -> (w [B,T,HV,K], u [B,T,HV,V])."""
    op = "recompute_w_u"
    if w is None:
        w = empty(k, (*dims(op, "v", v, 4)[:3], dims(op, "k", k, 4)[3]))
    if u is None:
        u = empty(v, dims(op, "v", v, 4))
    run(
        op, stream, threads, k=k, v=v, beta=beta, g_cumsum=g_cumsum, a_inv=a_inv, cu_seqlens=cu_seqlens, w=w, u=u,
        chunk_size=chunk_size, head_map=head_map, rounding=rounding,
    )  # fmt: skip
    return w, u


@public
def chunk_state(
    k, w, u, g_cumsum, initial_state=None, state_indices=None, cu_seqlens=None, *, head_map, h=None, v_new=None,
    final_state=None, chunk_size=64, state_layout="vk", rounding="f32", stream=None, threads=0,
):  # fmt: skip
    """The recurrence from chunk to chunk. k [B,T,HK,K], w [B,T,HV,K], u [B,T,HV,V] float; g_cumsum [B,T,HV] float32;
    initial_state [N,HV,V,K] -> (h [B,chunks,HV,V,K], v_new [B,T,HV,V]); final_state, if given, is written."""
    op = "chunk_state"
    batch, tokens, heads, width = dims(op, "u", u, 4)
    if h is None:
        chunks = _chunks(op, tokens, cu_seqlens, chunk_size)
        h = empty(k, (batch, chunks, heads, width, dims(op, "w", w, 4)[3]))
    if v_new is None:
        v_new = empty(u, (batch, tokens, heads, width))
    run(
        op, stream, threads, k=k, w=w, u=u, g_cumsum=g_cumsum, initial_state=initial_state,
        state_indices=state_indices, cu_seqlens=cu_seqlens, h=h, v_new=v_new, final_state=final_state,
        chunk_size=chunk_size, head_map=head_map, state_layout=state_layout, rounding=rounding,
    )  # fmt: skip
    return h, v_new


@public
def chunk_output(
    q, k, v_new, h, g_cumsum, cu_seqlens=None, *, head_map, o=None, scale=None, chunk_size=64, rounding="f32",
    stream=None, threads=0,
):  # fmt: skip
    """scale ((q exp(G)) h^T + tril(q k^T exp(G_i - G_j)) v_new). q, k [B,T,HK,K], v_new [B,T,HV,V], h
    [B,chunks,HV,V,K] float; g_cumsum [B,T,HV] float32 -> [B,T,HV,V]. scale: None for K^-1/2."""
    op = "chunk_output"
    if o is None:
        o = empty(v_new, dims(op, "v_new", v_new, 4))
    run(
        op, stream, threads, q=q, k=k, v_new=v_new, h=h, g_cumsum=g_cumsum, cu_seqlens=cu_seqlens, o=o, scale=scale,
        chunk_size=chunk_size, head_map=head_map, rounding=rounding,
    )  # fmt: skip
    return o


# Whole operations of the gated delta rule.


def _rule(operation, stream, threads, q, v, o, **arguments):
    if o is None:
        o = empty(v, dims(operation, "v", v, 4))
    run(operation, stream, threads, q=q, v=v, o=o, **arguments)
    return o


@public
def chunk_gated_delta_rule(
    q, k, v, g=None, beta=None, *, head_map, a=None, b=None, a_log=None, dt_bias=None, initial_state=None,
    state_indices=None, cu_seqlens=None, o=None, final_state=None, state_layout="vk", scale=None, qk_norm="none",
    qk_norm_eps=1e-6, q_norm_weight=None, k_norm_weight=None, fault=None, checkpoints=None, checkpoint_tokens=64,
    bf16_operands=False, stream=None, threads=0,
):  # fmt: skip
    """The gated delta rule, prefill. q, k [B,T,HK,K], v [B,T,HV,V] float; g (<= 0), beta [B,T,HV] float32, or the raw
    gates a, b [B,T,HV], a_log, dt_bias [HV] float; initial_state [N,HV,V,K] float32 or bfloat16, a pool with
    state_indices -> o [B,T,HV,V] of v's dtype. final_state, if given, is written, and may be initial_state itself.
    checkpoints [B,segments,HV,V,K], if given, gets the state before each segment of checkpoint_tokens tokens, a
    multiple of 64. bf16_operands: float32 q, k and v may be rounded to bfloat16 where bf16 products are faster.

    scale: of q, None for K^-1/2. qk_norm: of q and k in the operation, "none", "l2" or "rms", with qk_norm_eps; "rms"
    takes q_norm_weight, k_norm_weight [HK,K] float."""
    return _rule(
        "chunk_gated_delta_rule", stream, threads, q, v, o, k=k, g=g, beta=beta, a=a, b=b, a_log=a_log,
        dt_bias=dt_bias, initial_state=initial_state, state_indices=state_indices, cu_seqlens=cu_seqlens,
        final_state=final_state, head_map=head_map, state_layout=state_layout, scale=scale, qk_norm=qk_norm,
        qk_norm_eps=qk_norm_eps, q_norm_weight=q_norm_weight, k_norm_weight=k_norm_weight, fault=fault,
        checkpoints=checkpoints, checkpoint_tokens=checkpoint_tokens, bf16_operands=bf16_operands,
    )  # fmt: skip


@public
def recurrent_gated_delta_rule(
    q, k, v, g=None, beta=None, *, head_map, a=None, b=None, a_log=None, dt_bias=None, initial_state=None,
    state_indices=None, cu_seqlens=None, o=None, final_state=None, state_layout="vk", scale=None, qk_norm="none",
    qk_norm_eps=1e-6, q_norm_weight=None, k_norm_weight=None, fault=None, snapshots=None, stream=None, threads=0,
):  # fmt: skip
    """The gated delta rule, token by token: decode. q, k [B,T,HK,K], v [B,T,HV,V] float; g (<= 0), beta [B,T,HV]
    float32, or the raw gates a, b [B,T,HV], a_log, dt_bias [HV] float; initial_state [N,HV,V,K] float32 or bfloat16, a
    pool with state_indices -> o [B,T,HV,V] of v's dtype. final_state, if given, is written, and may be initial_state
    itself; snapshots [B,T,HV,V,K], if given, gets the state after each token.

    scale: of q, None for K^-1/2. qk_norm: of q and k in the operation, "none", "l2" or "rms", with qk_norm_eps; "rms"
    takes q_norm_weight, k_norm_weight [HK,K] float."""
    return _rule(
        "recurrent_gated_delta_rule", stream, threads, q, v, o, k=k, g=g, beta=beta, a=a, b=b, a_log=a_log,
        dt_bias=dt_bias, initial_state=initial_state, state_indices=state_indices, cu_seqlens=cu_seqlens,
        final_state=final_state, head_map=head_map, state_layout=state_layout, scale=scale, qk_norm=qk_norm,
        qk_norm_eps=qk_norm_eps, q_norm_weight=q_norm_weight, k_norm_weight=k_norm_weight, fault=fault,
        snapshots=snapshots,
    )  # fmt: skip


@public
def gated_delta_prep_step(
    x, a, b, a_log, dt_bias, state_in, state_out, *, head_map, conv_weight=None, conv_state=None, q_norm_weight=None,
    k_norm_weight=None, state_indices=None, snapshots=None, z=None, norm_weight=None, y=None, fault=None,
    state_layout="vk", scale=None, qk_norm="none", qk_norm_eps=1e-6, norm_eps=1e-6, cu_seqlens=None, replay_x=None,
    replay_a=None, replay_b=None, replay_counts=None, drafts=False, stream=None, threads=0,
):  # fmt: skip
    """Fused decode: convolution, SiLU, split, norm of q and k, gates, recurrence, gated norm. x [B,T,2*HK*K + HV*V]
    float; the raw gates a, b [B,T,HV], a_log, dt_bias [HV] float; state_in [B,HV,V,K] float32 or bfloat16, or a pool
    with state_indices; state_out, written, may be state_in -> y [B,T,HV,V] of x's dtype. snapshots [B,T,HV,V,K], if
    given, gets the state after each token.

    conv_weight [channels,W] float and conv_state [B,channels,W-1], updated: without them x is convolved already. z
    [B,T,HV,V] and norm_weight [V] float, with norm_eps: the gated norm, left out without them. scale: of q, None for
    K^-1/2. qk_norm: "none", "l2" or "rms", with qk_norm_eps; "rms" takes q_norm_weight, k_norm_weight [HK,K] float.

    cu_seqlens int32 [N+1], with B = 1: packed sequences. drafts: tokens after a sequence's first change no state, and
    are kept in replay_x [N or slots,R,channels], with their gates in replay_a, replay_b [N or slots,R,HV]; the next
    call replays the first replay_counts int32 [N] of them before its own."""
    op = "gated_delta_prep_step"
    if y is None:
        state = dims(op, "state_in", state_in, 4)
        width = state[3] if state_layout == "kv" else state[2]
        y = empty(x, (*dims(op, "x", x, 3)[:2], state[1], width))
    run(
        op, stream, threads, x=x, a=a, b=b, a_log=a_log, dt_bias=dt_bias, state_in=state_in, state_out=state_out,
        conv_weight=conv_weight, conv_state=conv_state, q_norm_weight=q_norm_weight, k_norm_weight=k_norm_weight,
        state_indices=state_indices, snapshots=snapshots, z=z, norm_weight=norm_weight, y=y, fault=fault,
        head_map=head_map, state_layout=state_layout, scale=scale, qk_norm=qk_norm, qk_norm_eps=qk_norm_eps,
        norm_eps=norm_eps, cu_seqlens=cu_seqlens, replay_x=replay_x, replay_a=replay_a, replay_b=replay_b,
        replay_counts=replay_counts, drafts=drafts,
    )  # fmt: skip
    return y


# Dense operations.


@public
def causal_conv1d(
    x, weight, bias=None, initial_state=None, state_indices=None, cu_seqlens=None, *, y=None, final_state=None,
    activation="none", stream=None, threads=0,
):  # fmt: skip
    """Causal depthwise convolution along T. x [B,T,C] float; weight [C,W], W from 2 to 8, and bias [C] of one float
    dtype; initial_state [N,C,W-1] float, or a pool with state_indices -> [B,T,C] of x's dtype. final_state, if given,
    is written, and may be initial_state itself."""
    op = "causal_conv1d"
    if y is None:
        y = empty(x, dims(op, "x", x))
    run(
        op, stream, threads, x=x, weight=weight, bias=bias, initial_state=initial_state, state_indices=state_indices,
        cu_seqlens=cu_seqlens, y=y, final_state=final_state, activation=activation,
    )  # fmt: skip
    return y


@public
def causal_conv1d_update(
    x, weight, bias=None, state_indices=None, *, conv_state, y=None, activation="none", stream=None, threads=0
):
    """Causal depthwise convolution of the next few tokens. x [B,T,C] float; weight [C,W], W from 2 to 8, and bias [C]
    of one float dtype; conv_state [B,C,W-1] float, or a pool with state_indices, updated -> [B,T,C] of x's dtype. y
    may be x."""
    op = "causal_conv1d_update"
    if y is None:
        y = empty(x, dims(op, "x", x))
    run(
        op, stream, threads, x=x, weight=weight, bias=bias, conv_state=conv_state, state_indices=state_indices, y=y,
        activation=activation,
    )  # fmt: skip
    return y


@public
def rms_norm(x, weight, delta=None, *, sum=None, y=None, eps=1e-6, weight_plus_one=False, stream=None, threads=0):
    """s * rsqrt(mean s^2 + eps) * weight, or * (1 + weight) with weight_plus_one; s is x, or x + delta, which `sum`
    receives if given. x [T,D] or [T,H,D], weight [D], delta of x's shape, all float -> like x; y may have any float
    dtype, and be x or delta itself; sum is like x and may be x itself."""
    if y is None:
        y = empty(x, dims("rms_norm", "x", x))
    run("rms_norm", stream, threads, x=x, delta=delta, weight=weight, sum=sum, y=y, eps=eps,
        weight_plus_one=weight_plus_one)  # fmt: skip
    return y


@public
def gated_rms_norm(x, z, weight, *, y=None, eps=1e-6, stream=None, threads=0):
    """x * rsqrt(mean x^2 + eps) * weight * silu(z) over D. x, z [T,H,D] of one float dtype, weight [D] float -> like
    x; y may be float32, or x or z itself."""
    if y is None:
        y = empty(x, dims("gated_rms_norm", "x", x))
    run("gated_rms_norm", stream, threads, x=x, z=z, weight=weight, y=y, eps=eps)
    return y


@public
def rope(
    x, positions, frequencies=None, norm_weight=None, *, rotary_dim, y=None, theta=1e7, scale=1.0, norm_eps=1e-6,
    norm_weight_plus_one=False, stream=None, threads=0,
):  # fmt: skip
    """Half-split rotary embedding of the first rotary_dim dimensions: the pair (i, i + rotary_dim/2) is rotated by
    position * frequencies[i], or theta^(-2i/rotary_dim) without them, and multiplied by scale. x [T,H,D] float,
    positions [T] int32, frequencies [rotary_dim/2] float32 -> like x; y may be x itself. With norm_weight [D] float
    each head is normalized first, as by rms_norm() with eps norm_eps and weight_plus_one norm_weight_plus_one."""
    if y is None:
        y = empty(x, dims("rope", "x", x))
    run("rope", stream, threads, x=x, positions=positions, frequencies=frequencies, norm_weight=norm_weight, y=y,
        rotary_dim=rotary_dim, theta=theta, scale=scale, norm_eps=norm_eps,
        norm_weight_plus_one=norm_weight_plus_one)  # fmt: skip
    return y


@public
def attention(
    q, k_cache, v_cache, cu_seqlens, lengths, slots=None, gate=None, *, pages=None, o=None, scale=None,
    bf16_operands=False, stream=None, threads=0,
):  # fmt: skip
    """Grouped-query causal attention of new tokens over a cache that holds their keys and values. q [T,HQ,D]; k_cache,
    v_cache [slots,S,HKV,D] float; cu_seqlens [N+1], lengths, slots [N] int32; gate [T,HQ,D], whose sigmoid o is times
    -> o [T,HQ,D] of q's dtype. lengths: tokens in the cache, the new ones included. scale: None for D^-1/2. pages
    [N,P] int32 instead of slots: position i of sequence n is i % S of page pages[n,i/S] of caches [pages,S,HKV,D].
    Of a sequence whose slot or first page is -1, o is zero. bf16_operands: q, keys and values may be rounded to
    bfloat16 where bf16 products are faster."""
    op = "attention"
    if o is None:
        o = empty(q, dims(op, "q", q))
    run(
        op, stream, threads, q=q, k_cache=k_cache, v_cache=v_cache, cu_seqlens=cu_seqlens, lengths=lengths,
        slots=slots, pages=pages, gate=gate, o=o, scale=scale, bf16_operands=bf16_operands,
    )  # fmt: skip
    return o


@public
def store_kv(k, v, cu_seqlens, lengths, slots=None, *, k_cache, v_cache, pages=None, stream=None, threads=0):
    """Writes the keys and values of new tokens into the cache that attention reads. k, v [T,HKV,D] float; cu_seqlens
    [N+1], lengths, slots [N] int32, or pages [N,P] instead of slots; k_cache, v_cache [slots,S,HKV,D] float, written.
    Sequences whose slot or first page is -1 are left out."""
    run(
        "store_kv", stream, threads, k=k, v=v, cu_seqlens=cu_seqlens, lengths=lengths, slots=slots, pages=pages,
        k_cache=k_cache, v_cache=v_cache,
    )  # fmt: skip


@public
def split_qkvz(x, *, q, k, v, z, stream=None, threads=0):
    """De-interleaves the rows of a projection by key head. x [T,HK,2*K + 2*RV]; q, k [T,HK,K] and v, z
    [T,HK,RV], of its dtype, are written."""
    run("split_qkvz", stream, threads, x=x, q=q, k=k, v=v, z=z)
    return q, k, v, z


@public
def linear(x, weight, bias=None, *, y=None, precision="exact", stream=None, threads=0):
    """x W^T (+ bias). x [T,K] float; weight [N,K] float or Blocks; bias [N] float32 -> [T,N]. precision: "exact", or
    "fast" for 8-bit activations with Blocks on the CPU."""
    if y is None:
        y = empty(x, (dims("linear", "x", x, 2)[0], dims("linear", "weight", weight, 2)[0]))
    run("linear", stream, threads, x=x, weight=weight, bias=bias, y=y, precision=precision)
    return y


@public
def projections(
    x, weight_0, weight_1=None, weight_2=None, weight_3=None, *, y_0=None, y_1=None, y_2=None, y_3=None,
    precision="exact", stream=None, threads=0,
):  # fmt: skip
    """x W^T for each of the matrices, in one call. x [T,K] float; weight_0, weight_1, weight_2, weight_3
    [N_i,K] float or Blocks, as of linear -> a tuple of as many [T,N_i] as there are weights. precision: of all
    products, as of linear."""
    op = "projections"
    weights = (weight_0, weight_1, weight_2, weight_3)
    ys = [y_0, y_1, y_2, y_3]
    for i, weight in enumerate(weights):
        if weight is not None and ys[i] is None:
            ys[i] = empty(x, (dims(op, "x", x, 2)[0], dims(op, f"weight_{i}", weight, 2)[0]))
    run(
        op, stream, threads, x=x, weight_0=weight_0, weight_1=weight_1, weight_2=weight_2, weight_3=weight_3,
        y_0=ys[0], y_1=ys[1], y_2=ys[2], y_3=ys[3], precision=precision,
    )  # fmt: skip
    return tuple(y for y in ys if y is not None)


@public
def embedding(ids, table, *, y=None, stream=None, threads=0):
    """table[ids], unpacked. ids [T] int32; table [vocabulary,D] float or Blocks -> [T,D], of the table's dtype or
    float32 for Blocks."""
    if y is None:
        y = empty(table, (dims("embedding", "ids", ids, 1)[0], dims("embedding", "table", table, 2)[1]))
    run("embedding", stream, threads, ids=ids, table=table, y=y)
    return y


@public
def add(a, b, *, y=None, stream=None, threads=0):
    """a + b. a, b [T,D] float -> [T,D]."""
    if y is None:
        y = empty(a, dims("add", "a", a))
    run("add", stream, threads, a=a, b=b, y=y)
    return y


@public
def swiglu(gate, up, *, y=None, stream=None, threads=0):
    """silu(gate) * up. gate, up [T,I] float -> [T,I]."""
    if y is None:
        y = empty(gate, dims("swiglu", "gate", gate))
    run("swiglu", stream, threads, gate=gate, up=up, y=y)
    return y


# Mixture of experts.


@public
def route_top_k(
    router_logits, top_k=None, bias=None, *, expert_ids=None, expert_weights=None, score="softmax", renormalize=True,
    stream=None, threads=0,
):  # fmt: skip
    """Each token's top_k experts in falling order, ties to the lower id. router_logits [T,E] float -> (expert_ids [T,S]
    int32, expert_weights [T,S] float32), which sum up to 1 with renormalize. score: "softmax" or "sigmoid". bias [E]
    float32 is added to the scores for the choice, not to the weights."""
    op = "route_top_k"
    if expert_ids is None or expert_weights is None:
        if not is_whole(top_k) or top_k < 1:
            raise error(op, "top_k", "an int of 1 or more", repr(top_k))
        shape = (dims(op, "router_logits", router_logits, 2)[0], top_k)
        expert_ids = empty(router_logits, shape, "int32") if expert_ids is None else expert_ids
        expert_weights = empty(router_logits, shape, "float32") if expert_weights is None else expert_weights
    run(
        op, stream, threads, router_logits=router_logits, bias=bias, expert_ids=expert_ids,
        expert_weights=expert_weights, score=score, renormalize=renormalize,
    )  # fmt: skip
    return expert_ids, expert_weights


@public
def expert_rows(expert_ids, experts=None, *, expert_offsets=None, rows=None, fault=None, stream=None, threads=0):
    """Which (token, slot) pairs each expert serves. expert_ids [T,S] int32, each below `experts`, or -1 for one that
    is not here -> (expert_offsets [E+1], rows [T*S]) int32; rows behind the last expert's are not written."""
    op = "expert_rows"
    if expert_offsets is None:
        if not is_whole(experts) or experts < 0:
            raise error(op, "experts", "an int of 0 or more", repr(experts))
        expert_offsets = empty(expert_ids, (experts + 1,), "int32")
    if rows is None:
        tokens, slots = dims(op, "expert_ids", expert_ids, 2)
        rows = empty(expert_ids, (tokens * slots,), "int32")
    run(op, stream, threads, expert_ids=expert_ids, expert_offsets=expert_offsets, rows=rows, fault=fault)
    return expert_offsets, rows


def _expert_matmul(op, weight, x, expert_ids, y, fault, precision, stream, threads):
    if y is None:
        y = empty(x, (*dims(op, "expert_ids", expert_ids, 2), dims(op, "weight", weight, 3)[1]))
    run(op, stream, threads, weight=weight, x=x, expert_ids=expert_ids, y=y, fault=fault, precision=precision)
    return y


@public
def mul_mm_id(weight, x, expert_ids, *, y=None, fault=None, precision="exact", stream=None, threads=0):
    """y[t,s] = weight[expert_ids[t,s]] x[t,(s)], for many tokens. weight [E,N,K] float or Blocks; x [T,K] or [T,S,K]
    float; expert_ids [T,S] int32 -> [T,S,N] of x's dtype."""
    return _expert_matmul("mul_mm_id", weight, x, expert_ids, y, fault, precision, stream, threads)


@public
def mul_mv_id(weight, x, expert_ids, *, y=None, fault=None, precision="exact", stream=None, threads=0):
    """y[t,s] = weight[expert_ids[t,s]] x[t,(s)], for few tokens. weight [E,N,K] float or Blocks; x [T,K] or [T,S,K]
    float; expert_ids [T,S] int32 -> [T,S,N] of x's dtype."""
    return _expert_matmul("mul_mv_id", weight, x, expert_ids, y, fault, precision, stream, threads)


@public
def mul_mat_id(weight, x, expert_ids, *, y=None, fault=None, precision="exact", stream=None, threads=0):
    """y[t,s] = weight[expert_ids[t,s]] x[t,(s)], for any number of tokens. weight [E,N,K] float or Blocks; x [T,K] or
    [T,S,K] float; expert_ids [T,S] int32 -> [T,S,N] of x's dtype."""
    return _expert_matmul("mul_mat_id", weight, x, expert_ids, y, fault, precision, stream, threads)


@public
def moe_ffn(
    x, router, gate, up, down, shared_gate=None, shared_up=None, shared_down=None, shared_router=None, *, top_k,
    y=None, renormalize=True, precision="exact", first_expert=0, score="softmax", router_bias=None, stream=None,
    threads=0,
):  # fmt: skip
    """The whole block: routing to top_k experts by score and router_bias ([E] float32), as of route_top_k, with weights
    that sum up to 1 if renormalize, those experts, and the shared expert if there is one. x [T,D] float; router [E,D], gate, up [E,I,D], down [E,D,I], shared_gate, shared_up
    [J,D], shared_down [D,J] float or Blocks; shared_router [D] float -> [T,D] of x's dtype. gate, up and down may be
    those of some of the router's experts, from first_expert on: the others add nothing."""
    op = "moe_ffn"
    if y is None:
        y = empty(x, dims(op, "x", x))
    run(
        op, stream, threads, x=x, router=router, gate=gate, up=up, down=down, shared_gate=shared_gate,
        shared_up=shared_up, shared_down=shared_down, shared_router=shared_router, y=y, top_k=top_k,
        renormalize=renormalize, precision=precision, first_expert=first_expert, score=score, router_bias=router_bias,
    )  # fmt: skip
    return y


# From logits to tokens.


@public
def sample_tokens(
    logits, lengths=None, history=None, slots=None, *, temperature=None, top_k=None, top_p=None, min_p=None,
    repeat_penalty=None, repeat_last=None, seed=None, allowed=None, tokens=None, fault=None, stream=None, threads=0,
):  # fmt: skip
    """The next token of each sequence: penalty, temperature, top-k, top-p, min-p, then a draw that depends on seed and
    length only. logits [N,V] float32; lengths [N] int32, the tokens so far; history [slots,C] int32, which tokens;
    slots [N] int32, rows of history, -1 for no sequence. Settings [N]: temperature (without it the likeliest token),
    top_p, min_p, repeat_penalty float32, top_k, repeat_last int32; seed [N,2] int32, low and high word; allowed
    [N,ceil(V/32)] int32, bit t % 32 of word t // 32 for each token t that may be chosen -> [N] int32."""
    op = "sample_tokens"
    if tokens is None:
        tokens = empty(logits, dims(op, "logits", logits, 2)[:1], "int32")
    run(
        op, stream, threads, logits=logits, lengths=lengths, history=history, slots=slots, temperature=temperature,
        top_k=top_k, top_p=top_p, min_p=min_p, repeat_penalty=repeat_penalty, repeat_last=repeat_last, seed=seed,
        allowed=allowed, tokens=tokens, fault=fault,
    )  # fmt: skip
    return tokens


@public
def logprobs(
    logits, tokens=None, top=0, *, logprob=None, top_tokens=None, top_logprobs=None, stream=None, threads=0
):
    """The logarithm of softmax(logits): of tokens, and of the `top` likeliest tokens in falling order. logits [N,V]
    float32, tokens [N] int32, -1 for none -> (logprob [N] float32, top_tokens [N,top] int32, top_logprobs [N,top]
    float32), None for what was not asked for."""
    op = "logprobs"
    if not is_whole(top) or top < 0:
        raise error(op, "top", "an int of 0 or more", repr(top))
    rows = dims(op, "logits", logits, 2)[0]
    if tokens is not None and logprob is None:
        logprob = empty(logits, (rows,), "float32")
    if top_tokens is not None:
        top = dims(op, "top_tokens", top_tokens, 2)[1]
    elif top_logprobs is not None:
        top = dims(op, "top_logprobs", top_logprobs, 2)[1]
    if top > 0 and top_tokens is None:
        top_tokens = empty(logits, (rows, top), "int32")
    if top > 0 and top_logprobs is None:
        top_logprobs = empty(logits, (rows, top), "float32")
    run(
        op, stream, threads, logits=logits, tokens=tokens, logprob=logprob, top_tokens=top_tokens,
        top_logprobs=top_logprobs,
    )  # fmt: skip
    return logprob, top_tokens, top_logprobs


@public
def advance(tokens, end_tokens=None, *, ids, positions, lengths, slots, history=None, stream=None, threads=0):
    """The next decode step's input from the tokens that were chosen, in place: ids become tokens, positions and lengths
    grow by 1, and slots become -1 where the token is -1 or an end token; a sequence with slot -1 stays as it is. All
    [N] int32; end_tokens [E] int32; history [slots,C] int32 gets the token at position lengths of its slot."""
    run(
        "advance", stream, threads, tokens=tokens, end_tokens=end_tokens, ids=ids, positions=positions, lengths=lengths,
        slots=slots, history=history,
    )  # fmt: skip
    return ids


# Block formats.


def quantize(values: numpy.ndarray, dtype: str, *, threads=0) -> Blocks:
    """Packs float32 [..., K] into blocks of `dtype` ("Q4_K"), K a multiple of the block size; rounds to nearest,
    deterministic. The values must be finite. Raises thalweg.Error, naming the argument."""
    if not isinstance(dtype, str):
        raise error("quantize", "dtype", "the name of a dtype", repr(dtype))
    size, block_bytes, packs = _core.dtype_info(dtype)
    if not packs:
        raise error("quantize", "dtype", "a dtype that can be packed", repr(dtype))
    if not isinstance(values, numpy.ndarray) or values.ndim < 1 or values.dtype != numpy.float32:
        given = f"{values.dtype} {list(values.shape)}" if hasattr(values, "dtype") else type(values).__name__
        raise error("quantize", "values", "a float32 NumPy array [..., K]", given)
    width = values.shape[-1]
    if width % size:
        raise error("quantize", "values", f"rows of a multiple of {size}", f"{width}")
    blocks = Blocks(numpy.empty((*values.shape[:-1], width // size * block_bytes), numpy.uint8), dtype)
    flat = Blocks(blocks.data.reshape(-1, width // size * block_bytes) if width else blocks.data.reshape(0, 0), dtype)
    if values.size:
        run("quantize", None, threads, values=values.reshape(-1, width), blocks=flat)
    return blocks


def dequantize(blocks: Blocks, *, threads=0) -> numpy.ndarray:
    """Unpacks blocks to float32 values [..., K], bit-exact. Raises thalweg.Error if they are not blocks."""
    if not isinstance(blocks, Blocks):
        raise error("dequantize", "blocks", "thalweg.Blocks", type(blocks).__name__)
    values = numpy.empty(blocks.shape, numpy.float32)
    if values.size:
        flat = Blocks(numpy.ascontiguousarray(blocks.data).reshape(-1, blocks.data.shape[-1]), blocks.dtype)
        run("dequantize", None, threads, blocks=flat, values=values.reshape(-1, blocks.shape[-1]))
    return values
