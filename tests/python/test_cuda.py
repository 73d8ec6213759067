"""Arrays on a CUDA device, of torch, CuPy and JAX: nothing is copied, and calls run on the library's stream. Skipped
without a device or without the library."""

import gc
import importlib.util

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import assert_close

import thalweg
from thalweg import fla, ops

if not any(name == "cuda" and available for name, available, _ in thalweg.backends()):
    pytest.skip("no CUDA device, or a build without CUDA", allow_module_level=True)

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
BOUND = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 8e-3}


def library(name):
    """What the tests need of a library: to its device, to NumPy."""
    module = pytest.importorskip(name)
    if name == "torch":
        if not module.cuda.is_available():
            pytest.skip("torch without CUDA")
        return (lambda x: module.from_numpy(np.ascontiguousarray(x)).cuda()), (lambda x: x.cpu().numpy())
    if name == "cupy":
        return module.asarray, module.asnumpy
    if module.default_backend() != "gpu":
        pytest.skip("jax without CUDA")
    return module.numpy.asarray, (lambda x: np.asarray(module.dlpack.from_dlpack(x)))


@pytest.fixture(params=["torch", "cupy", "jax"])
def arrays(request):
    return library(request.param)


@pytest.fixture
def torch():
    library("torch")
    return importlib.import_module("torch")


def rule_inputs(seed, tokens, hk=2, hv=4, size=64, width=64, batch=1):
    rng = np.random.default_rng(seed)
    q, v = rng.standard_normal((batch, tokens, hk, size)), rng.standard_normal((batch, tokens, hv, width))
    k = oracle.l2norm(rng.standard_normal((batch, tokens, hk, size)), 1e-6)
    g, beta = -rng.exponential(0.3, (batch, tokens, hv)), rng.random((batch, tokens, hv))
    return [x.astype(np.float32) for x in (q, k, v, g, beta)]


# ---- Each library's arrays against the oracle


@pytest.mark.parametrize("operation", ["chunk_gated_delta_rule", "recurrent_gated_delta_rule"])
def test_rule(arrays, operation):
    to, back = arrays
    inputs = rule_inputs(0, 130)
    o = getattr(ops, operation)(*map(to, inputs), head_map="grouped")
    assert_close(back(o), oracle.gated_delta_rule(*inputs, head_map="grouped")[0], 2e-5)


def test_convolution_and_norms(arrays):
    to, back = arrays
    rng = np.random.default_rng(1)
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 70, 36), (36, 4), (36,)))
    y = ops.causal_conv1d(to(x), to(weight), to(bias), activation="silu")
    assert_close(back(y), oracle.causal_conv1d(x, weight, bias, None, "silu")[0])
    rows, z, scale = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 3, 128), (9, 3, 128), (128,)))
    y = ops.gated_rms_norm(to(rows), to(z), to(scale))
    assert_close(back(y), oracle.rms_norm(rows, scale, 1e-6) * oracle.silu(z))
    y = ops.l2norm(to(rows[None]))
    assert_close(back(y), oracle.l2norm(rows[None], 1e-6))


def test_results_feed_the_next_call(arrays):
    to, back = arrays
    inputs = rule_inputs(2, 65)
    k = ops.l2norm(to(inputs[1]))
    o = ops.chunk_gated_delta_rule(to(inputs[0]), k, *map(to, inputs[2:]), head_map="tiled")
    assert_close(back(o), oracle.gated_delta_rule(*inputs, head_map="tiled")[0], 2e-5)


def test_states_are_updated_in_place():
    for name in ("torch", "cupy"):
        if importlib.util.find_spec(name) is None:
            continue
        to, back = library(name)
        inputs = rule_inputs(3, 20)
        before = np.random.default_rng(3).standard_normal((1, 4, 64, 64)).astype(np.float32)
        state = to(before)
        _, exact = oracle.gated_delta_rule(*inputs, head_map="grouped", initial_state=before)
        ops.chunk_gated_delta_rule(*map(to, inputs), head_map="grouped", initial_state=state, final_state=state)
        assert_close(back(state), exact, 2e-5)


def test_jax_arrays_cannot_be_written():
    to, _ = library("jax")
    x = to(np.ones((1, 1, 2, 16), np.float32))
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(x, y=x)
    assert raised.value.argument == "y"


@SETTINGS
@given(st.integers(0, 2**32 - 1), st.integers(0, 150), st.sampled_from([16, 32, 64, 128]),
       st.sampled_from(["float32", "float16", "bfloat16"]), st.booleans())  # fmt: skip
def test_strided_views(torch, seed, tokens, size, dtype, ragged):
    """q, k and v as slices of a fused projection, at any sizes."""
    kind = getattr(torch, dtype)
    inputs = rule_inputs(seed, tokens, size=size, width=size)
    parts = [x.reshape(1, tokens, x.shape[2] * size) for x in inputs[:3]]
    fused = torch.from_numpy(np.concatenate(parts, -1)).cuda().to(kind)
    q, k, v = (part.unflatten(-1, (-1, size)) for part in fused.split([2 * size, 2 * size, 4 * size], -1))
    g, beta = (torch.from_numpy(x).cuda() for x in inputs[3:])
    bounds = sorted(np.random.default_rng(seed).integers(0, tokens + 1, 2)) if ragged else None
    bounds = None if bounds is None else [0, *map(int, bounds), tokens]
    exact, exact_state = oracle.gated_delta_rule(
        *(x.double().cpu().numpy() for x in (q, k, v, g, beta)), head_map="grouped", bounds=bounds
    )
    cu_seqlens = None if bounds is None else torch.tensor(bounds, device="cuda")
    o, state = fla.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=cu_seqlens, output_final_state=True)
    assert o.dtype == kind and o.is_cuda
    assert_close(o.double().cpu(), exact, BOUND[dtype])
    assert_close(state.double().cpu().numpy().swapaxes(2, 3), exact_state, BOUND[dtype])


# ---- Streams


def slow(torch):
    """Keeps the current stream busy for some 50 ms."""
    torch.cuda._sleep(100_000_000)


def test_the_current_stream_orders_the_call(torch):
    """Inputs that come late on a stream other than the default one, and a result that is used at once."""
    x = torch.zeros(1, 64, 8, 128, device="cuda")
    late = torch.randn(x.shape, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for _ in range(2):  # kernels are loaded when first used, which waits
        with torch.cuda.stream(side):
            slow(torch)
            x.copy_(late)
            y = ops.l2norm(x)
            x.zero_()  # after the call, on its stream: must not be seen by it
            doubled = y * 2
            busy = not side.query()
        side.synchronize()
    assert busy, "the call waited for the device"
    exact = oracle.l2norm(late.cpu().numpy(), 1e-6)
    assert_close(y.cpu(), exact)
    assert_close(doubled.cpu(), 2 * exact)


@pytest.mark.parametrize("form", ["torch", "handle", "protocol", "cupy"])
def test_a_given_stream(torch, form):
    x = torch.zeros(1, 64, 8, 128, device="cuda")
    late = torch.randn(x.shape, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        slow(torch)
        x.copy_(late)

    class Protocol:
        def __cuda_stream__(self):
            return (0, side.cuda_stream)

    given_stream = {"torch": side, "handle": side.cuda_stream, "protocol": Protocol()}.get(form)
    if form == "cupy":
        given_stream = pytest.importorskip("cupy").cuda.Stream.from_external(Protocol())
    y = ops.l2norm(x, stream=given_stream)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    side.synchronize()
    assert_close(y.cpu(), oracle.l2norm(late.cpu().numpy(), 1e-6))


def test_memory_of_a_given_stream(torch):
    """Results of calls on a busy stream do not share memory with what the current stream makes meanwhile."""
    x = torch.randn(1, 64, 8, 128, device="cuda")
    exact = oracle.l2norm(x.cpu().numpy(), 1e-6)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for _ in range(5):
        torch.empty_like(x)  # goes back to the pool of the current stream at once
        with torch.cuda.stream(side):
            slow(torch)
        y = ops.l2norm(x, stream=side)
        others = [torch.full_like(x, 7.0) for _ in range(4)]
        side.synchronize()
        assert_close(y.cpu(), exact)
        assert all(bool((other == 7.0).all()) for other in others)


def test_cupy_streams():
    cupy = pytest.importorskip("cupy")
    library("cupy")
    values = np.random.default_rng(4).standard_normal((1, 64, 8, 128)).astype(np.float32)
    x = cupy.asarray(values)
    cupy.cuda.Device().synchronize()
    exact = oracle.l2norm(values, 1e-6)
    with cupy.cuda.Stream(non_blocking=True) as side:
        y = ops.l2norm(x)
        side.synchronize()
    assert_close(cupy.asnumpy(y), exact)
    other = cupy.cuda.Stream(non_blocking=True)
    y = ops.l2norm(x, stream=other)
    other.synchronize()
    assert_close(cupy.asnumpy(y), exact)


def test_calls_can_be_captured(torch):
    """A graph holds what was enqueued on the captured stream; anything on another one would break the capture."""
    inputs = [torch.from_numpy(x).cuda() for x in rule_inputs(5, 64)]
    ops.chunk_gated_delta_rule(*inputs, head_map="grouped")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = ops.chunk_gated_delta_rule(*inputs, head_map="grouped")
    fresh = rule_inputs(6, 64)
    for to, x in zip(inputs, fresh, strict=True):
        to.copy_(torch.from_numpy(x))
    graph.replay()
    torch.cuda.synchronize()
    assert_close(o.cpu(), oracle.gated_delta_rule(*fresh, head_map="grouped")[0], 2e-5)


# ---- Misuse


def test_mixed_devices(torch):
    x = torch.ones(1, 2, 3, 16, device="cuda")
    weight = torch.ones(16)
    with pytest.raises(thalweg.Error) as raised:
        ops.gated_rms_norm(x[0], x[0], weight)
    assert raised.value.argument == "weight"
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(x, y=torch.empty(1, 2, 3, 16))
    assert raised.value.argument == "y"
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(x, y=np.empty((1, 2, 3, 16), np.float32))
    assert raised.value.argument == "y"
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(torch.empty(1, 2, 3, 16, device="meta"))
    assert raised.value.argument == "x"


class Closed:
    """As cuda.core's streams are after close()."""

    def __cuda_stream__(self):
        return (0, None)


@pytest.mark.parametrize("stream", ["a string", -1, 1.5, object(), Closed()])
def test_what_is_no_stream(torch, stream):
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(torch.ones(1, 2, 3, 16, device="cuda"), stream=stream)
    assert raised.value.argument == "stream"


def test_streams_of_another_device(torch):
    class Elsewhere:
        device_id = 1
        ptr = 0

    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(torch.ones(1, 2, 3, 16, device="cuda"), stream=Elsewhere())
    assert raised.value.argument == "stream"


def test_work_that_the_device_refuses(torch):
    """More memory than the device has: the error names it, and the device stays usable."""
    with pytest.raises(thalweg.Error):
        thalweg.DeviceArray((1 << 50,), "uint8", 0)
    with pytest.raises(thalweg.Error):
        thalweg.DeviceArray((4,), "uint8", 99)
    x = torch.ones(1, 1, 1, 16, device="cuda")
    assert_close(ops.l2norm(x).cpu(), np.full((1, 1, 1, 16), 0.25))


# ---- Lifetime


def test_nothing_leaks(torch):
    x = torch.randn(1, 4, 2, 16, device="cuda")
    inputs = [torch.from_numpy(x).cuda() for x in rule_inputs(7, 3, size=16, width=16)]

    def calls(count):
        for _ in range(count):
            ops.l2norm(x)
            ops.recurrent_gated_delta_rule(*inputs, head_map="grouped")
        torch.cuda.synchronize()
        gc.collect()
        runtime = torch.cuda.cudart()
        free = runtime.cudaMemGetInfo(0)[0]
        return torch.cuda.memory_allocated(), len(gc.get_objects()), free

    allocated, objects, free = calls(1000)
    allocated_later, objects_later, free_later = calls(10_000)
    assert allocated_later == allocated
    assert objects_later - objects < 100
    assert free - free_later < 1 << 22


def test_device_arrays_free_their_memory(torch):
    thalweg.DeviceArray((1,), "uint8", 0)
    torch.cuda.synchronize()
    free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
    for _ in range(20):
        array = thalweg.DeviceArray((1 << 28,), "float32", 0)
        view = torch.from_dlpack(array)
        del array
        view.fill_(1.0)
        assert float(view[-1]) == 1.0
        del view
    assert free - torch.cuda.cudart().cudaMemGetInfo(0)[0] < 1 << 22
