"""The functions that import torch."""

import torch

from . import ops
from ._arrays import error
from .fla import _activation, _check_arrays, _rows


def _gated_norm(name, x_name, x, gate_name, gate, weight, eps):
    _check_arrays(name, **{x_name: x, gate_name: gate, "weight": weight})
    size = weight.shape[0]
    if x.shape[-1:] != (size,) or gate.shape != x.shape:
        raise error(name, gate_name, f"the shape of {x_name}, [..., {size}]",
                    f"{x_name} {list(x.shape)} and {gate_name} {list(gate.shape)}")  # fmt: skip
    rows = (-1, 1, size)
    wide = torch.promote_types(x.dtype, gate.dtype)  # the operation takes one dtype; neither array is rounded
    y = ops.gated_rms_norm(_rows(x.to(wide).reshape(rows)), _rows(gate.to(wide).reshape(rows)), weight, eps=eps)
    return y.reshape(x.shape).to(x.dtype)


def rms_norm_gated_forward(self, hidden_states, gate):
    """The forward pass of transformers' RMSNormGated modules."""
    return _gated_norm(
        type(self).__name__, "hidden_states", hidden_states, "gate", gate, self.weight, self.variance_epsilon
    )


class FusedRMSNormGated(torch.nn.Module):
    """x * rsqrt(mean x^2 + eps) * weight * silu(g) over the last dimension, in float32, rounded once. Forward only."""

    def __init__(self, hidden_size, elementwise_affine=True, eps=1e-5, activation="swish", device=None, dtype=None):
        super().__init__()
        if _activation("FusedRMSNormGated", activation) != "silu":
            raise error("FusedRMSNormGated", "activation", "'silu' or 'swish'", repr(activation))
        self.hidden_size = hidden_size
        self.eps = eps
        self.activation = activation
        weight = torch.ones(hidden_size, device=device, dtype=dtype)
        if elementwise_affine:
            self.weight = torch.nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight, persistent=False)

    def forward(self, x, g):
        """x, g [..., hidden_size] -> like x."""
        return _gated_norm("FusedRMSNormGated", "x", x, "g", g, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, activation={self.activation!r}"
