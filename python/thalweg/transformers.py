"""Thalweg's kernels in the models of Hugging Face transformers."""

import functools
import importlib
import importlib.util
import inspect

__all__ = ["patch_transformers", "unpatch"]

_MODELS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
# The names that the models' code looks functions up by: of transformers 5, then of 4.57, whose models pick them up when
# they are made.
_NAMES = {
    "torch_chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "causal_conv1d_fn": "causal_conv1d_fn",
    "causal_conv1d_update": "causal_conv1d_update",
    "chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "FusedRMSNormGated": "FusedRMSNormGated",
}
_replaced: list[tuple[object, str, object]] = []


def patch_transformers() -> list[str]:
    """Makes the Qwen3-Next, Qwen3.5 and Qwen3.5-MoE models of transformers run the gated delta rule and its convolution
    with Thalweg: models that exist already too, with transformers 5. Returns what was replaced. A second call changes
    nothing. Raises ImportError without transformers and torch."""
    from . import fla

    if _replaced:
        return _names()
    importlib.import_module("transformers")
    for model in _MODELS:
        module_name = f"transformers.models.{model}"
        if importlib.util.find_spec(module_name) is None:
            continue
        module = importlib.import_module(f"{module_name}.modeling_{model}")
        for there, ours in _NAMES.items():
            if hasattr(module, there):
                _replaced.append((module, there, getattr(module, there)))
                function = getattr(fla, ours)
                setattr(module, there, function if isinstance(function, type) else _accepting_all(function))
    return _names()


def unpatch() -> None:
    """Undoes patch_transformers()."""
    while _replaced:
        module, name, original = _replaced.pop()
        setattr(module, name, original)


def _names() -> list[str]:
    return [f"{module.__name__}.{name}" for module, name, _ in _replaced]


def _accepting_all(function):
    """Models hand all their keywords on; those that the function does not name are not meant for it."""
    named = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **{name: value for name, value in kwargs.items() if name in named})

    return call
