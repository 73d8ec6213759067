"""Arrays of any library: shapes, memory of the same library, streams. Imports no library that is not imported yet."""

import contextlib
import functools
import inspect
import sys

import numpy

from . import _core
from ._core import Error


_DLPACK_CUDA, _DLPACK_CUDA_MANAGED = 2, 13


class Blocks:
    """Weights packed as in a GGUF file.

    data: uint8 [..., bytes of a row], any array library's. dtype: "Q4_K" and so on, or "BF16" for NumPy, which has no
    such type (data is then uint8 or uint16). `shape` counts weights.
    """

    def __init__(self, data, dtype: str):
        if not isinstance(dtype, str):
            raise error("Blocks", "dtype", "the name of a dtype", repr(dtype))
        size, block_bytes, _ = _core.dtype_info(dtype)
        if not dims("Blocks", "data", data):
            raise error("Blocks", "data", "1 dimension or more", "0")
        row = data.shape[-1] * data.itemsize
        if row % block_bytes:
            raise error("Blocks", "data", f"rows of whole blocks of {block_bytes} bytes", f"{row} bytes")
        self.data = data
        self.dtype = dtype
        self.shape = (*data.shape[:-1], row // block_bytes * size)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Blocks({self.dtype} {list(self.shape)})"


class DeviceArray:
    """Memory on a CUDA device, contiguous, for results beside arrays that cannot be written (JAX's): whatever takes
    DLPack takes it, `jax.dlpack.from_dlpack(y)` for one, without a copy.

    shape: its sizes. dtype: "float32", "float16", "bfloat16", "int32" or "uint8".
    """

    def __init__(self, shape, dtype: str, device: int):
        self._memory = _core.device_memory(list(shape), dtype, device)
        self.shape = tuple(shape)
        self.dtype = dtype

    def __dlpack__(self, **options):
        return self._memory.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory.__dlpack_device__()

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype} {list(self.shape)})"


def is_torch(x) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_cupy(x) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def is_jax(x) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def gpu_of(x) -> int | None:
    """The CUDA device that an array lives on; None if it lives elsewhere."""
    if is_torch(x):
        return x.device.index if x.device.type == "cuda" else None
    if is_cupy(x):
        return x.device.id
    if isinstance(x, numpy.ndarray | tuple) or not hasattr(x, "__dlpack_device__"):
        return None
    kind, index = x.__dlpack_device__()
    return index if int(kind) in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED) else None


def dims(operation: str, name: str, x, rank: int | None = None) -> tuple[int, ...]:
    """The shape of an argument that determines an output's shape."""
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


def is_whole(value) -> bool:
    """An int of Python's or NumPy's, not a bool."""
    return isinstance(value, int | numpy.integer) and not isinstance(value, bool)


def empty(like, shape, dtype: str | None = None):
    """Memory beside `like`, of its dtype or of dtype "float32" and so on. Libraries whose arrays cannot be written
    (JAX) get NumPy arrays, as float32 where NumPy lacks the dtype, on a GPU DeviceArrays."""
    if isinstance(like, Blocks):
        like, dtype = like.data, dtype or "float32"
    if is_torch(like):
        torch = sys.modules["torch"]
        if like.layout != torch.strided:
            like = torch.empty(0, dtype=like.dtype, device=like.device)
        return like.new_empty(shape, dtype=getattr(torch, dtype) if dtype else None, requires_grad=False)
    name = dtype or str(like.dtype)
    if is_cupy(like):
        module = sys.modules["cupy"]
    elif (device := gpu_of(like)) is not None:
        return DeviceArray(shape, name, device)
    else:
        module = numpy
    return module.empty(shape, dtype=name if name in ("float16", "float32", "int32", "uint8") else "float32")


def argument(value):
    """An argument in the form that the extension takes."""
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


def refuse_sparse(operation: str, name: str, x) -> None:
    if is_torch(x) and x.layout != sys.modules["torch"].strided:
        raise error(operation, name, "a dense tensor", f"one of layout {x.layout}")


def stream_of(operation: str, stream, gpu) -> int:
    """The handle of the stream to run on: that which was given, or the current one of the library that `gpu` is of."""
    if stream is None:
        if is_torch(gpu) and gpu.device.type == "cuda":
            return sys.modules["torch"].cuda.current_stream(gpu.device).cuda_stream
        if is_cupy(gpu):
            return sys.modules["cupy"].cuda.get_current_stream().ptr
        return 0
    if gpu is None:
        raise error(operation, "stream", "None for arrays on the CPU", type(stream).__name__)
    device = getattr(getattr(stream, "device", None), "index", getattr(stream, "device_id", None))
    if isinstance(device, int) and device >= 0 and device != gpu_of(gpu):
        raise error(operation, "stream", f"a stream of CUDA device {gpu_of(gpu)}", f"one of device {device}")
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        handle = (protocol() if callable(protocol) else protocol)[1]
    else:
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if not is_whole(handle) or not 0 <= handle < 2**64:
        raise error(operation, "stream", "a stream or its handle", repr(stream))
    return handle


class _Handle:
    """A stream in the protocol for foreign streams of CuPy."""

    def __init__(self, handle: int):
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


def _current(handle: int, gpu):
    """Makes a stream the current one of the library that `gpu` is of."""
    if is_torch(gpu):
        cuda = sys.modules["torch"].cuda
        stream = cuda.ExternalStream(handle, device=gpu.device) if handle else cuda.default_stream(gpu.device)
        return cuda.stream(stream)
    if is_cupy(gpu):
        cuda = sys.modules["cupy"].cuda
        if not handle:
            return cuda.Stream.null
        if hasattr(cuda.Stream, "from_external"):
            return cuda.Stream.from_external(_Handle(handle))
        return cuda.ExternalStream(handle, gpu.device.id)  # CuPy 13
    return contextlib.nullcontext()


# The text of help() for arguments that many functions have.
_SHARED = {
    "head_map": 'head_map: value head h reads key head h // (HV/HK), "grouped" (Hugging Face), or h % HK, "tiled".',
    "cu_seqlens": "cu_seqlens [N+1] int32: where packed sequences begin and end, from 0 to T; B is 1.",
    "state_indices": "state_indices [N] int32: the slots of a pool of states; -1 for no state, nothing is written.",
    "fault": "fault [1] int32, on a GPU: set, never cleared, where cu_seqlens, slots or expert ids are out of range.",
    "state_layout": 'state_layout: the last two dimensions of states, "vk" ([..., V, K]) or "kv".',
    "chunk_size": "chunk_size: 16, 32 or 64.",
    "rounding": 'rounding: "f32", or "seed", to bfloat16 where the kernels that Thalweg began with round.',
    "precision": 'precision: "exact", or "fast": 8-bit activations against Blocks, on the CPU.',
    "activation": 'activation: "none" or "silu".',
    "stream": "stream: on a GPU, a stream or its handle; by default the array library's current one.",
    "threads": "threads: on the CPU, 0 for all; the result does not depend on it.",
}
_RAISES = "Raises thalweg.Error, whose `argument` is the first that breaks the contract; nothing is written then."


def public(function):
    """For the functions of ops: a given stream is the library's current one during the call, so that results and
    scratch memory come from the library's pool for that stream, and are not used by two streams at once."""

    @functools.wraps(function)
    def call(*args, stream=None, **options):
        if stream is None:
            return function(*args, **options)
        gpu = next((value for value in (*args, *options.values()) if gpu_of(argument(value)) is not None), None)
        with _current(stream_of(function.__name__, stream, gpu), argument(gpu)):
            return function(*args, stream=stream, **options)

    shared = [text for name, text in _SHARED.items() if name in inspect.signature(function).parameters]
    call.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n\n" + "\n".join([*shared, _RAISES])
    return call


def _refuse_written_jax(operation: str, given) -> None:
    """JAX arrays are immutable, which not every version reports through DLPack."""
    for name in _core.fields(operation)[1]:
        if is_jax(given.get(name)):
            raise error(operation, name, "a writable array", "one of JAX")


def run(operation: str, stream, threads: int, **arguments) -> None:
    """Runs an operation on its stream, with scratch memory from the arrays' own library on a GPU."""
    for name, value in arguments.items():
        refuse_sparse(operation, name, value)
    given = {name: argument(value) for name, value in arguments.items() if value is not None}
    if "jax" in sys.modules:
        _refuse_written_jax(operation, given)
    gpu = next((value for value in given.values() if gpu_of(value) is not None), None)
    native = stream_of(operation, stream, gpu)
    if not is_whole(threads) or not 0 <= threads < 2**31:
        raise error(operation, "threads", "an int of 0 or more", repr(threads))
    if gpu is None:
        _core.run(operation, given, threads)
        return
    # Libraries without a current stream: waits for the inputs before the call and for the result after it.
    alone = not (is_torch(gpu) or is_cupy(gpu))
    if alone:
        for value in given.values():
            if is_jax(value):
                value.block_until_ready()
    _core.run(operation, given, threads, native, lambda size: empty(gpu, (size,), "uint8"))
    if alone:
        _core.synchronize(gpu_of(gpu), native)
