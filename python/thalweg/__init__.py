"""Compute kernels of hybrid linear-attention language models.

ops: every operation on arrays of NumPy, torch, CuPy and whatever speaks DLPack. Model: text from model files. Engine: many requests at once.
Ranks: several processes that run one model.
quantize, dequantize: GGUF's block formats. fla, patch_transformers: for Hugging Face transformers.
"""

from . import ops
from ._arrays import Blocks, DeviceArray
from ._core import Error, Ranks, backends
from .engine import Engine, Output
from .model import Model, Sequence
from .ops import dequantize, quantize
from .transformers import patch_transformers, unpatch

__version__ = "0.2.0"
__all__ = [
    "Blocks",
    "DeviceArray",
    "Engine",
    "Error",
    "Model",
    "Output",
    "Ranks",
    "Sequence",
    "backends",
    "dequantize",
    "fla",
    "ops",
    "patch_transformers",
    "quantize",
    "unpatch",
]


def __getattr__(name: str):
    if name == "fla":
        from importlib import import_module

        return import_module(".fla", __name__)
    raise AttributeError(f"module 'thalweg' has no attribute '{name}'")
