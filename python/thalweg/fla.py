"""Drop-in for the functions of flash-linear-attention and causal-conv1d that Hugging Face transformers looks for, with
their signatures. They take torch tensors and NumPy arrays, forward only.

q, k, v are [B,T,H,D] and may be strided views; states are [N,HV,K,V] as FLA has them, [N,HV,V,K] with state_v_first;
convolutions are channels first. What an argument means is said by the packages named above; one that Thalweg does not
know how to honor raises thalweg.Error, and so does an unknown keyword or a value that a conversion would change.
"""

import sys

import numpy

from . import ops
from ._arrays import dims, empty, error, is_torch, is_whole, refuse_sparse

__all__ = [
    "FusedRMSNormGated",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
]

# Keywords that versions of FLA or functions of its signature honor, and what to pass instead; None and False ask for
# nothing.
REFUSED = {
    "gk": "None: gates are per head",
    "gv": "None: gates are per head",
    "cp_context": "None",
    "head_first": "False: arrays are [B,T,H,D]",
    "transpose_state_layout": "state_v_first, its newer name",
    "ssm_state_indices": "None: states in their order, or thalweg.ops with state_indices",
    "inplace_final_state": "False: the final state is returned",
    "num_accepted_tokens": "None",
    "seq_idx": "None",
}
# These do not affect the result.
_IGNORED = ("cu_seqlens_cpu", "chunk_indices", "chunk_size")


def chunk_gated_delta_rule(
    q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None,
    cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, use_gate_in_kernel=False, A_log=None, dt_bias=None,
    chunk_size=64, **kwargs,
):  # fmt: skip
    """(o [B,T,HV,V], final state [N,HV,K,V] float32 or None). With cu_seqlens [N+1], an array or a list of ints, B
    is 1. The chunk size, chunk indices and the host's copy of cu_seqlens do not affect the result and are ignored."""
    _check_keywords("chunk_gated_delta_rule", {"cp_context": cp_context, **kwargs})
    return _rule(
        "chunk_gated_delta_rule", ops.chunk_gated_delta_rule, q, k, v, g, beta, scale, initial_state,
        output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, state_v_first, cu_seqlens,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule(
    q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, output_final_state=False,
    use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, dt_bias=None,
    use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, cu_seqlens=None, **kwargs,
):  # fmt: skip
    """The same, token by token. Gates per channel, gk and gv, are refused."""
    _check_keywords("fused_recurrent_gated_delta_rule", {"gk": gk, "gv": gv, **kwargs})
    return _rule(
        "fused_recurrent_gated_delta_rule", ops.recurrent_gated_delta_rule, q, k, v, g, beta, scale, initial_state,
        output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel,
        allow_neg_eigval, state_v_first, cu_seqlens,
    )  # fmt: skip


def _check_keywords(operation, keywords) -> None:
    for name, value in keywords.items():
        if name in _IGNORED or (name in REFUSED and (value is None or value is False)):
            continue
        if name in REFUSED:
            given = repr(value) if isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"
            raise error(operation, name, REFUSED[name], given)
        raise error(operation, name, "an argument that the function has", "an unknown name")


def _rule(
    name, operation, q, k, v, g, beta, scale, initial_state, output_final_state, l2norm, raw_gate, a_log, dt_bias,
    raw_beta, neg_eigval, state_v_first, cu_seqlens,
):  # fmt: skip
    _check_arrays(name, q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state, A_log=a_log, dt_bias=dt_bias)
    _check_bools(
        name, output_final_state=output_final_state, use_qk_l2norm_in_kernel=l2norm, use_gate_in_kernel=raw_gate,
        use_beta_sigmoid_in_kernel=raw_beta, allow_neg_eigval=neg_eigval, state_v_first=state_v_first,
    )  # fmt: skip
    batch, tokens, heads, width = dims(name, "v", v, 4)
    head_size = dims(name, "k", k, 4)[3]
    if g is not None:
        g = _float32(name, "g", g)
        if raw_gate:
            if a_log is None:
                raise error(name, "A_log", "an array [HV] with use_gate_in_kernel", "None")
            bias = 0 if dt_bias is None else _float32(name, "dt_bias", dt_bias)
            g = -_exp(_float32(name, "A_log", a_log)) * _softplus(g + bias)
    else:
        g = _filled(v, (batch, tokens, heads), 0.0)
    if beta is None:
        beta = _filled(v, (batch, tokens, heads), 1.0)
    beta = _float32(name, "beta", beta)
    if raw_beta:
        beta = 1 / (1 + _exp(-beta))
    if neg_eigval:
        beta = beta * 2
    if cu_seqlens is not None:
        cu_seqlens = _int32(name, "cu_seqlens", cu_seqlens, v)
        if cu_seqlens.shape[0] < 2:
            raise error(name, "cu_seqlens", "2 bounds or more", str(cu_seqlens.shape[0]))
    if initial_state is not None:
        initial_state = _rows(_float32(name, "initial_state", initial_state))
    final_state = None
    if output_final_state:
        sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        shape = (width, head_size) if state_v_first else (head_size, width)
        final_state = empty(v, (sequences, heads, *shape), "float32")
    o = operation(
        _rows(q), _rows(k), _rows(v), _rows(g), _rows(beta), head_map="grouped", initial_state=initial_state,
        cu_seqlens=cu_seqlens, final_state=final_state, state_layout="vk" if state_v_first else "kv", scale=scale,
        qk_norm="l2" if l2norm else "none",
    )  # fmt: skip
    return o, final_state


def causal_conv1d_fn(
    x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, final_states_out=None,
    activation=None,
):  # fmt: skip
    """x [B,C,T], weight [C,W], bias [C], initial_states [B,C,W-1] -> [B,C,T], with return_final_states a pair of it
    and the final states [B,C,W-1]. seq_idx is refused: several sequences in a row have no meaning for the state."""
    name = "causal_conv1d_fn"
    _check_arrays(
        name, x=x, weight=weight, bias=bias, initial_states=initial_states, final_states_out=final_states_out
    )
    _check_bools(name, return_final_states=return_final_states)
    if seq_idx is not None:
        raise error(name, "seq_idx", "None", "an array")
    batch, channels, _ = dims(name, "x", x, 3)
    final = None
    if return_final_states:
        shape = (batch, channels, dims(name, "weight", weight, 2)[1] - 1)
        final = final_states_out
        if final is None or not _has_rows(final):
            final = empty(x, shape) if final is None else empty(final, tuple(final.shape))
    y = ops.causal_conv1d(
        _rows(_channels_last(x)), _rows(weight), bias,
        None if initial_states is None else _rows(initial_states), final_state=final,
        activation=_activation(name, activation),
    )  # fmt: skip
    y = _channels_last(y)
    if not return_final_states:
        return y
    if final_states_out is not None and final is not final_states_out:
        final_states_out[...] = final
        final = final_states_out
    return y, final


def causal_conv1d_update(
    x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None
):
    """x [B,C] or [B,C,T], conv_state [B or slots,C,at least W-1], updated -> like x. A circular state, cache_seqlens,
    is refused."""
    name = "causal_conv1d_update"
    _check_arrays(name, x=x, conv_state=conv_state, weight=weight, bias=bias)
    if cache_seqlens is not None:
        raise error(name, "cache_seqlens", "None: a circular state is not known", "an array")
    single = len(dims(name, "x", x)) == 2
    if single:
        x = x[:, :, None]
    taps = dims(name, "weight", weight, 2)[1] - 1
    older = dims(name, "conv_state", conv_state, 3)[2] - taps
    if older < 0:
        raise error(name, "conv_state", f"at least {taps} inputs", str(older + taps))
    indices = None if conv_state_indices is None else _int32(name, "conv_state_indices", conv_state_indices, x)
    slots = None
    if indices is not None and older > 0:
        slots = indices.long() if is_torch(indices) else indices
        if bool((slots >= conv_state.shape[0]).any()):
            raise error(name, "conv_state_indices", f"slots below {conv_state.shape[0]}", str(int(slots.max())))
    kept = None
    if older > 0:
        # The operation updates the last W-1 inputs; the earlier ones are shifted here.
        kept = _shifted(conv_state, x, slots)[:, :, :older]
    state = conv_state[:, :, older:]
    # States whose innermost dimension has a stride are updated in a copy.
    rows = _rows(state)
    y = ops.causal_conv1d_update(
        _rows(_channels_last(x)), _rows(weight), bias, indices, conv_state=rows,
        activation=_activation(name, activation),
    )  # fmt: skip
    if rows is not state:
        state[...] = rows
    if kept is not None:
        if slots is None:
            conv_state[:, :, :older] = kept
        else:
            used = slots >= 0
            conv_state[slots[used], :, :older] = kept[used]
    y = _channels_last(y)
    return y[:, :, 0] if single else y


def _shifted(conv_state, x, indices):
    state = conv_state if indices is None else conv_state[indices]
    size = state.shape[2]
    if is_torch(x):
        return sys.modules["torch"].cat([state, x.to(state.dtype)], 2)[:, :, -size:]
    return numpy.concatenate([state, x.astype(state.dtype)], 2)[:, :, -size:]


def _activation(name, activation) -> str:
    if activation not in (None, "silu", "swish"):
        raise error(name, "activation", "None, 'silu' or 'swish'", repr(activation))
    return "silu" if activation else "none"


def _check_arrays(operation, **arrays) -> None:
    torch = sys.modules.get("torch")
    gradients = torch is not None and torch.is_grad_enabled()
    for name, value in arrays.items():
        if value is not None and not is_torch(value) and not isinstance(value, numpy.ndarray):
            raise error(operation, name, "a torch tensor or a NumPy array", type(value).__name__)
        refuse_sparse(operation, name, value)
        if gradients and is_torch(value) and value.requires_grad:
            raise error(operation, name, "no gradients: Thalweg is forward only, call it under torch.no_grad()",
                        "a tensor that requires them")  # fmt: skip


# Functions whose names differ between torch and NumPy.


def _float32(operation, name, x):
    """float32 of any float; float64 loses digits, and other kinds are not gates or states."""
    kind = str(x.dtype).removeprefix("torch.")
    if kind not in ("float32", "float16", "bfloat16"):
        raise error(operation, name, "float32, float16 or bfloat16", kind)
    return x.to(sys.modules["torch"].float32) if is_torch(x) else x.astype("float32", copy=False)


def _int32(operation, name, x, like):
    """int32 [N], beside `like`, of an array of ints or of a list or tuple of ints, none of which may change."""
    if isinstance(x, list | tuple):
        if wrong := [value for value in x if not is_whole(value)]:
            raise error(operation, name, "ints", repr(wrong[0]))
        x = _beside(like, x, operation, name)
    elif not is_torch(x) and not isinstance(x, numpy.ndarray):
        raise error(operation, name, "a torch tensor, a NumPy array or a list of ints", type(x).__name__)
    refuse_sparse(operation, name, x)
    dims(operation, name, x, 1)
    kind = str(x.dtype).removeprefix("torch.")
    if not kind.startswith(("int", "uint")):
        raise error(operation, name, "ints", kind)
    if kind == "int32":
        return x
    # In NumPy, uint64 is compared exactly; torch's wider than int64 is not known to its comparisons.
    if is_torch(x):
        torch = sys.modules["torch"]
        wide = x.to(torch.int64)
        narrow = wide.to(torch.int32)
        same = (narrow == wide).all() if kind != "uint64" else ((wide >= 0) & (narrow == wide)).all()
    else:
        wide, narrow = x, x.astype("int32")
        same = (narrow.astype(object) == wide.astype(object)).all() if kind == "uint64" else (narrow == wide).all()
    if not bool(same):
        raise error(operation, name, "values that int32 can hold", f"{kind} values up to {int(wide.max())}")
    return narrow


def _beside(like, values, operation, name):
    out_of_range = [value for value in values if not -(2**31) <= value < 2**31]
    if out_of_range:
        raise error(operation, name, "values that int32 can hold", str(out_of_range[0]))
    values = [int(value) for value in values]
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.tensor(values, dtype=torch.int32, device=like.device)
    return numpy.array(values, numpy.int32)


def _check_bools(operation, **values) -> None:
    for name, value in values.items():
        if not isinstance(value, bool | numpy.bool_):
            raise error(operation, name, "a bool", repr(value))


def _filled(like, shape, value):
    array = empty(like, shape, "float32")
    array[...] = value
    return array


def _exp(x):
    return x.exp() if is_torch(x) else numpy.exp(x)


def _softplus(x):
    if is_torch(x):
        return sys.modules["torch"].nn.functional.softplus(x)
    return numpy.where(x > 20, x, numpy.log1p(numpy.exp(numpy.minimum(x, 20)))).astype(numpy.float32)


def _strides(x) -> tuple[int, ...]:
    return tuple(x.stride()) if is_torch(x) else tuple(stride // x.itemsize for stride in x.strides)


def _has_rows(x) -> bool:
    return x.shape[-1] <= 1 or _strides(x)[-1] == 1


def _rows(x):
    """The array itself if its innermost dimension is contiguous, else a copy."""
    if not hasattr(x, "shape") or len(x.shape) == 0 or _has_rows(x):
        return x
    return x.contiguous() if is_torch(x) else numpy.ascontiguousarray(x)


def _channels_last(x):
    return x.transpose(1, 2) if is_torch(x) else x.swapaxes(1, 2)


def __getattr__(name: str):
    """FusedRMSNormGated imports torch; nothing else here does."""
    if name != "FusedRMSNormGated":
        raise AttributeError(f"module 'thalweg.fla' has no attribute '{name}'")
    from ._torch import FusedRMSNormGated

    return FusedRMSNormGated
