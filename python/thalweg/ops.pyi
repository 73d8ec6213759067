"""Types of thalweg.ops; what the arguments mean is said there."""

from typing import Any, Literal, TypeAlias

import numpy as np

from ._arrays import Blocks

# An array of NumPy, torch, CuPy, JAX or whatever speaks DLPack; results are of the first array's library.
Array: TypeAlias = Any
# One with __cuda_stream__, torch's or CuPy's, or a handle.
Stream: TypeAlias = Any
HeadMap: TypeAlias = Literal["grouped", "tiled"]

def explain(operation: str, **arguments: Any) -> list[tuple[str, bool, str, bool]]: ...
def chunk_local_cumsum(
    g: Array, cu_seqlens: Array | None = None, *, g_cumsum: Array | None = None, chunk_size: int = 64,
    stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def l2norm(
    x: Array, *, y: Array | None = None, eps: float = 1e-06, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def chunk_scaled_dot_kkt(
    k: Array, beta: Array, g_cumsum: Array, cu_seqlens: Array | None = None, *, head_map: HeadMap,
    a: Array | None = None, chunk_size: int = 64, rounding: Literal["f32", "seed"] = "f32",
    stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def solve_tril(
    a: Array, cu_seqlens: Array | None = None, *, a_inv: Array | None = None, chunk_size: int = 64,
    stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def recompute_w_u(
    k: Array, v: Array, beta: Array, g_cumsum: Array, a_inv: Array, cu_seqlens: Array | None = None, *,
    head_map: HeadMap, w: Array | None = None, u: Array | None = None, chunk_size: int = 64,
    rounding: Literal["f32", "seed"] = "f32", stream: Stream | None = None, threads: int = 0,
) -> tuple[Array, Array]: ...  # fmt: skip
def chunk_state(
    k: Array, w: Array, u: Array, g_cumsum: Array, initial_state: Array | None = None,
    state_indices: Array | None = None, cu_seqlens: Array | None = None, *, head_map: HeadMap, h: Array | None = None,
    v_new: Array | None = None, final_state: Array | None = None, chunk_size: int = 64,
    state_layout: Literal["vk", "kv"] = "vk", rounding: Literal["f32", "seed"] = "f32", stream: Stream | None = None,
    threads: int = 0,
) -> tuple[Array, Array]: ...  # fmt: skip
def chunk_output(
    q: Array, k: Array, v_new: Array, h: Array, g_cumsum: Array, cu_seqlens: Array | None = None, *, head_map: HeadMap,
    o: Array | None = None, scale: float | None = None, chunk_size: int = 64, rounding: Literal["f32", "seed"] = "f32",
    stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def chunk_gated_delta_rule(
    q: Array, k: Array, v: Array, g: Array | None = None, beta: Array | None = None, *, head_map: HeadMap,
    a: Array | None = None, b: Array | None = None, a_log: Array | None = None, dt_bias: Array | None = None,
    initial_state: Array | None = None, state_indices: Array | None = None, cu_seqlens: Array | None = None,
    o: Array | None = None, final_state: Array | None = None, state_layout: Literal["vk", "kv"] = "vk",
    scale: float | None = None, qk_norm: Literal["none", "l2", "rms"] = "none", qk_norm_eps: float = 1e-06,
    q_norm_weight: Array | None = None, k_norm_weight: Array | None = None, fault: Array | None = None,
    checkpoints: Array | None = None, checkpoint_tokens: int = 64, bf16_operands: bool = False,
    stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def recurrent_gated_delta_rule(
    q: Array, k: Array, v: Array, g: Array | None = None, beta: Array | None = None, *, head_map: HeadMap,
    a: Array | None = None, b: Array | None = None, a_log: Array | None = None, dt_bias: Array | None = None,
    initial_state: Array | None = None, state_indices: Array | None = None, cu_seqlens: Array | None = None,
    o: Array | None = None, final_state: Array | None = None, state_layout: Literal["vk", "kv"] = "vk",
    scale: float | None = None, qk_norm: Literal["none", "l2", "rms"] = "none", qk_norm_eps: float = 1e-06,
    q_norm_weight: Array | None = None, k_norm_weight: Array | None = None, fault: Array | None = None,
    snapshots: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def gated_delta_prep_step(
    x: Array, a: Array, b: Array, a_log: Array, dt_bias: Array, state_in: Array, state_out: Array, *, head_map: HeadMap,
    conv_weight: Array | None = None, conv_state: Array | None = None, q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None, state_indices: Array | None = None, snapshots: Array | None = None,
    z: Array | None = None, norm_weight: Array | None = None, y: Array | None = None, fault: Array | None = None,
    state_layout: Literal["vk", "kv"] = "vk", scale: float | None = None, qk_norm: Literal["none", "l2", "rms"] = "none",
    qk_norm_eps: float = 1e-06, norm_eps: float = 1e-06, cu_seqlens: Array | None = None, replay_x: Array | None = None,
    replay_a: Array | None = None, replay_b: Array | None = None, replay_counts: Array | None = None,
    drafts: bool = False, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def causal_conv1d(
    x: Array, weight: Array, bias: Array | None = None, initial_state: Array | None = None,
    state_indices: Array | None = None, cu_seqlens: Array | None = None, *, y: Array | None = None,
    final_state: Array | None = None, activation: Literal["none", "silu"] = "none", stream: Stream | None = None,
    threads: int = 0,
) -> Array: ...  # fmt: skip
def causal_conv1d_update(
    x: Array, weight: Array, bias: Array | None = None, state_indices: Array | None = None, *, conv_state: Array,
    y: Array | None = None, activation: Literal["none", "silu"] = "none", stream: Stream | None = None,
    threads: int = 0,
) -> Array: ...  # fmt: skip
def rms_norm(
    x: Array, weight: Array, delta: Array | None = None, *, sum: Array | None = None, y: Array | None = None,
    eps: float = 1e-06, weight_plus_one: bool = False, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def gated_rms_norm(
    x: Array, z: Array, weight: Array, *, y: Array | None = None, eps: float = 1e-06, stream: Stream | None = None,
    threads: int = 0,
) -> Array: ...  # fmt: skip
def rope(
    x: Array, positions: Array, frequencies: Array | None = None, norm_weight: Array | None = None, *,
    rotary_dim: int, y: Array | None = None, theta: float = 10000000.0, scale: float = 1.0, norm_eps: float = 1e-06,
    norm_weight_plus_one: bool = False, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def attention(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens: Array, lengths: Array, slots: Array | None = None,
    gate: Array | None = None, *, pages: Array | None = None, o: Array | None = None, scale: float | None = None,
    bf16_operands: bool = False, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def store_kv(
    k: Array, v: Array, cu_seqlens: Array, lengths: Array, slots: Array | None = None, *, k_cache: Array,
    v_cache: Array, pages: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> None: ...  # fmt: skip
def split_qkvz(
    x: Array, *, q: Array, k: Array, v: Array, z: Array, stream: Stream | None = None, threads: int = 0,
) -> tuple[Array, Array, Array, Array]: ...  # fmt: skip
def linear(
    x: Array, weight: Array | Blocks, bias: Array | None = None, *, y: Array | None = None,
    precision: Literal["exact", "fast"] = "exact", stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def projections(
    x: Array, weight_0: Array | Blocks, weight_1: Array | Blocks | None = None, weight_2: Array | Blocks | None = None,
    weight_3: Array | Blocks | None = None, *, y_0: Array | None = None, y_1: Array | None = None,
    y_2: Array | None = None, y_3: Array | None = None, precision: Literal["exact", "fast"] = "exact",
    stream: Stream | None = None, threads: int = 0,
) -> tuple[Array, ...]: ...  # fmt: skip
def embedding(
    ids: Array, table: Array | Blocks, *, y: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def add(a: Array, b: Array, *, y: Array | None = None, stream: Stream | None = None, threads: int = 0) -> Array: ...
def swiglu(
    gate: Array, up: Array, *, y: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def route_top_k(
    router_logits: Array, top_k: int | None = None, bias: Array | None = None, *, expert_ids: Array | None = None,
    expert_weights: Array | None = None, score: Literal["softmax", "sigmoid"] = "softmax", renormalize: bool = True,
    stream: Stream | None = None, threads: int = 0,
) -> tuple[Array, Array]: ...  # fmt: skip
def expert_rows(
    expert_ids: Array, experts: int | None = None, *, expert_offsets: Array | None = None, rows: Array | None = None,
    fault: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> tuple[Array, Array]: ...  # fmt: skip
def mul_mm_id(
    weight: Array | Blocks, x: Array, expert_ids: Array, *, y: Array | None = None, fault: Array | None = None,
    precision: Literal["exact", "fast"] = "exact", stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def mul_mv_id(
    weight: Array | Blocks, x: Array, expert_ids: Array, *, y: Array | None = None, fault: Array | None = None,
    precision: Literal["exact", "fast"] = "exact", stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def mul_mat_id(
    weight: Array | Blocks, x: Array, expert_ids: Array, *, y: Array | None = None, fault: Array | None = None,
    precision: Literal["exact", "fast"] = "exact", stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def moe_ffn(
    x: Array, router: Array | Blocks, gate: Array | Blocks, up: Array | Blocks, down: Array | Blocks,
    shared_gate: Array | Blocks | None = None, shared_up: Array | Blocks | None = None,
    shared_down: Array | Blocks | None = None, shared_router: Array | None = None, *, top_k: int,
    y: Array | None = None, renormalize: bool = True, precision: Literal["exact", "fast"] = "exact",
    first_expert: int = 0, score: Literal["softmax", "sigmoid"] = "softmax", router_bias: Array | None = None,
    stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def sample_tokens(
    logits: Array, lengths: Array | None = None, history: Array | None = None, slots: Array | None = None, *,
    temperature: Array | None = None, top_k: Array | None = None, top_p: Array | None = None,
    min_p: Array | None = None, repeat_penalty: Array | None = None, repeat_last: Array | None = None,
    seed: Array | None = None, allowed: Array | None = None, tokens: Array | None = None,
    fault: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def logprobs(
    logits: Array, tokens: Array | None = None, top: int = 0, *, logprob: Array | None = None,
    top_tokens: Array | None = None, top_logprobs: Array | None = None, stream: Stream | None = None,
    threads: int = 0,
) -> tuple[Array | None, Array | None, Array | None]: ...  # fmt: skip
def advance(
    tokens: Array, end_tokens: Array | None = None, *, ids: Array, positions: Array, lengths: Array, slots: Array,
    history: Array | None = None, stream: Stream | None = None, threads: int = 0,
) -> Array: ...  # fmt: skip
def quantize(values: np.ndarray, dtype: str, *, threads: int = 0) -> Blocks: ...
def dequantize(blocks: Blocks, *, threads: int = 0) -> np.ndarray: ...
