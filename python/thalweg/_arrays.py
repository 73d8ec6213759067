"""Arrays of whatever library: their shapes, memory like theirs, their stream. Imports only what is already imported."""

import sys

import numpy

from . import _core
from ._core import Error


class Blocks:
    """Weights packed as in a GGUF file.

    data: uint8 [..., bytes of a row], any array library's. dtype: "Q4_K" and so on, or "BF16" for NumPy, which has no
    such type (data is then uint8 or uint16). `shape` counts weights.
    """

    def __init__(self, data, dtype: str):
        size, block_bytes, _ = _core.dtype_info(dtype)
        row = data.shape[-1] * data.itemsize
        if row % block_bytes:
            raise Error(f"Blocks: data: expected rows of whole blocks of {block_bytes} bytes, got {row} bytes")
        self.data = data
        self.dtype = dtype
        self.shape = (*data.shape[:-1], row // block_bytes * size)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Blocks({self.dtype} {list(self.shape)})"


def is_torch(x) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_cupy(x) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def on_gpu(x) -> bool:
    if is_torch(x):
        return x.device.type not in ("cpu", "meta")
    return is_cupy(x)


def dims(operation: str, name: str, x, rank: int | None = None) -> tuple[int, ...]:
    """The shape of an argument that outputs are sized by."""
    shape = getattr(x, "shape", None)
    if shape is None:
        raise error(operation, name, "an array", type(x).__name__)
    if rank is not None and len(shape) != rank:
        raise error(operation, name, f"{rank} dimensions", str(len(shape)))
    return tuple(shape)


def error(operation: str, argument: str, expected: str, given: str) -> Error:
    raised = Error(f"{operation}: {argument}: expected {expected}, got {given}")
    raised.operation, raised.argument = operation, argument
    return raised


def empty(like, shape, dtype: str | None = None):
    """Memory beside `like`, of its dtype or of dtype "float32" and so on. Libraries whose arrays cannot be written
    (JAX) get NumPy arrays, as float32 where NumPy lacks the dtype."""
    if isinstance(like, Blocks):
        like, dtype = like.data, dtype or "float32"
    if is_torch(like):
        torch = sys.modules["torch"]
        return like.new_empty(shape, dtype=getattr(torch, dtype) if dtype else None, requires_grad=False)
    module = sys.modules["cupy"] if is_cupy(like) else numpy
    name = dtype or str(like.dtype)
    return module.empty(shape, dtype=name if name in ("float16", "float32", "int32", "uint8") else "float32")


def argument(value):
    """What the extension takes for an argument."""
    if isinstance(value, Blocks):
        return (value.data, value.dtype)
    if isinstance(value, numpy.ndarray) and value.dtype.name == "bfloat16":  # of ml_dtypes
        return (value.view(numpy.uint16), "BF16")
    if is_torch(value):
        if value.requires_grad:
            value = value.detach()
        if value.is_conj() or value.is_neg():
            value = value.resolve_conj().resolve_neg()
    return value


def stream_of(operation: str, stream, gpu) -> int:
    """The handle of the stream to run on: that which was given, or the library's current one."""
    if stream is None:
        if is_torch(gpu) and gpu.device.type == "cuda":
            return sys.modules["torch"].cuda.current_stream(gpu.device).cuda_stream
        if is_cupy(gpu):
            return sys.modules["cupy"].cuda.get_current_stream().ptr
        return 0
    if gpu is None:
        raise error(operation, "stream", "None for arrays on the CPU", type(stream).__name__)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return (protocol() if callable(protocol) else protocol)[1]
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            stream = getattr(stream, name)
    if not isinstance(stream, int) or stream < 0:
        raise error(operation, "stream", "a stream or its handle", repr(stream))
    return stream


def run(operation: str, stream, threads: int, **arguments) -> None:
    """Runs an operation on its stream, with scratch memory from the arrays' own library on a GPU."""
    given = {name: argument(value) for name, value in arguments.items() if value is not None}
    gpu = next((value for value in given.values() if on_gpu(value)), None)
    native = stream_of(operation, stream, gpu)
    workspace = None
    if gpu is not None:
        size = _core.workspace_size(operation, given)
        workspace = empty(gpu, (max(size, 1),), "uint8")
    if not isinstance(threads, int) or threads < 0:
        raise error(operation, "threads", "an int of 0 or more", repr(threads))
    _core.run(operation, given, threads, native, workspace)
