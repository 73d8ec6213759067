"""What needs torch to be imported."""

import torch

from . import ops
from ._arrays import error
from .fla import _activation, _refuse_gradients, _rows


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
        _refuse_gradients("FusedRMSNormGated", x=x, g=g, weight=self.weight)
        if x.shape[-1:] != (self.hidden_size,) or g.shape != x.shape:
            raise error("FusedRMSNormGated", "g", f"the shape of x, [..., {self.hidden_size}]",
                        f"x {list(x.shape)} and g {list(g.shape)}")  # fmt: skip
        rows = (-1, 1, self.hidden_size)
        y = ops.gated_rms_norm(_rows(x.reshape(rows)), _rows(g.to(x.dtype).reshape(rows)), self.weight, eps=self.eps)
        return y.reshape(x.shape)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, activation={self.activation!r}"
