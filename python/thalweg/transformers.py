"""Thalweg's kernels in the models of Hugging Face transformers."""

import functools
import importlib
import importlib.util
import inspect

from ._arrays import error

__all__ = ["patch_transformers", "unpatch"]

_MODELS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
# The names under which the models' code looks up the functions: of transformers 5, then of 4.57, whose models look
# them up when they are constructed.
_NAMES = {
    "torch_chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "causal_conv1d_fn": "causal_conv1d_fn",
    "causal_conv1d_update": "causal_conv1d_update",
    "chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
}
# Each model has its own class of the gated norm; patching it changes existing instances too. 4.57 prefers FLA's
# class where FLA is installed, and asks for the current CUDA device then; patched, it takes its own.
_NORMS = ("Qwen3NextRMSNormGated", "Qwen3_5RMSNormGated", "Qwen3_5MoeRMSNormGated")
_replaced: list[tuple[object, str, object]] = []


def patch_transformers() -> list[str]:
    """Makes the Qwen3-Next, Qwen3.5 and Qwen3.5-MoE models of transformers run the gated delta rule, its convolution
    and its norm with Thalweg: models that exist already too, with transformers 5. Returns what was replaced. A second
    call changes nothing. Raises ImportError without transformers and torch."""
    if _replaced:
        return _names()
    importlib.import_module("transformers")
    from . import fla
    from ._torch import rms_norm_gated_forward

    for model in _MODELS:
        module_name = f"transformers.models.{model}"
        if importlib.util.find_spec(module_name) is None:
            continue
        module = importlib.import_module(f"{module_name}.modeling_{model}")
        for there, ours in _NAMES.items():
            if hasattr(module, there):
                _replace(module, there, _accepting_all(getattr(fla, ours)))
        if getattr(module, "FusedRMSNormGated", None) is not None:
            _replace(module, "FusedRMSNormGated", None)
        for norm in _NORMS:
            if hasattr(module, norm):
                _replace(getattr(module, norm), "forward", rms_norm_gated_forward)
    return _names()


def unpatch() -> None:
    """Undoes patch_transformers()."""
    while _replaced:
        owner, name, original = _replaced.pop()
        setattr(owner, name, original)


def _replace(owner, name, ours) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, ours)


def _names() -> list[str]:
    """module.name, or module.class.name"""
    places = [(getattr(owner, "__module__", None), owner.__name__, name) for owner, name, _ in _replaced]
    return [".".join(filter(None, place)) for place in places]


def _accepting_all(function):
    """Models pass all their keywords on; drops those that the function does not name, but not those that would change
    its result: they are refused by name."""
    from .fla import REFUSED

    named = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args, **kwargs):
        known = {name: value for name, value in kwargs.items() if name in named}
        for name in REFUSED.keys() & kwargs.keys() - named:
            value = kwargs[name]
            # Models pass seq_idx to all of a layer's functions; it is the convolution's, which refuses it.
            if name != "seq_idx" and value is not None and value is not False:
                raise error(function.__name__, name, REFUSED[name], f"a {type(value).__name__}")
        return function(*args, **known)

    return call
