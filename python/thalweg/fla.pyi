"""Types of thalweg.fla; what the arguments mean is said there."""

from typing import Any, Literal, TypeAlias

# A torch tensor or a NumPy array; results are of the same library.
Array: TypeAlias = Any

def chunk_gated_delta_rule(
    q: Array, k: Array, v: Array, g: Array, beta: Array, scale: float | None = None,
    initial_state: Array | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
    cu_seqlens: Array | None = None, cu_seqlens_cpu: Array | None = None, chunk_indices: Array | None = None,
    cp_context: None = None, use_gate_in_kernel: bool = False, A_log: Array | None = None,
    dt_bias: Array | None = None, chunk_size: int = 64, **kwargs: Any,
) -> tuple[Array, Array | None]: ...  # fmt: skip
def fused_recurrent_gated_delta_rule(
    q: Array, k: Array, v: Array, g: Array | None = None, gk: None = None, gv: None = None, beta: Array | None = None,
    scale: float | None = None, initial_state: Array | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False, A_log: Array | None = None,
    dt_bias: Array | None = None, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
    state_v_first: bool = False, cu_seqlens: Array | None = None, **kwargs: Any,
) -> tuple[Array, Array | None]: ...  # fmt: skip
def causal_conv1d_fn(
    x: Array, weight: Array, bias: Array | None = None, seq_idx: None = None, initial_states: Array | None = None,
    return_final_states: bool = False, final_states_out: Array | None = None,
    activation: Literal["silu", "swish"] | None = None,
) -> Array | tuple[Array, Array]: ...  # fmt: skip
def causal_conv1d_update(
    x: Array, conv_state: Array, weight: Array, bias: Array | None = None,
    activation: Literal["silu", "swish"] | None = None, cache_seqlens: None = None,
    conv_state_indices: Array | None = None,
) -> Array: ...  # fmt: skip

class FusedRMSNormGated:
    """A torch.nn.Module."""

    def __init__(
        self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5, activation: str = "swish",
        device: Any = None, dtype: Any = None,
    ) -> None: ...  # fmt: skip
    def __call__(self, x: Array, g: Array) -> Array: ...
    def __getattr__(self, name: str) -> Any: ...
