"""Misuse raises, names the argument and writes nothing; calls neither leak nor hold the interpreter's lock."""

import gc
import resource
import threading
import time

import numpy as np
import pytest

import thalweg
from thalweg import ops

X = np.ones((2, 4), np.float32)
W = np.ones((3, 4), np.float32)


class NotAnArray:
    shape = (2, 4)


class DeadStream:
    cuda_stream = 1


def chunk_state(cu_seqlens, **options):
    k, g = np.zeros((1, 2, 1, 16), np.float32), np.zeros((1, 2, 1), np.float32)
    return ops.chunk_state(k, k, k, g, cu_seqlens=cu_seqlens, head_map="grouped", **options)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("x", lambda: ops.linear(X.astype(np.float64), W, y=np.empty((2, 3), np.float32))),
        ("x", lambda: ops.linear(X[0], W)),
        ("x", lambda: ops.linear(NotAnArray(), W, y=np.empty((2, 3), np.float32))),
        ("x", lambda: ops.linear([[1.0]], W)),
        ("x", lambda: ops.linear(None, W, y=np.empty((2, 3), np.float32))),
        ("x", lambda: ops.linear(X.T, W)),
        ("weight", lambda: ops.linear(X, W[:, :3].copy())),
        ("weight", lambda: ops.linear(X, W.astype(np.int32))),
        ("weight", lambda: ops.linear(X, (np.ones((3, 5), np.uint8), "Q8_0"), y=np.empty((2, 3), np.float32))),
        ("weight", lambda: ops.linear(X, (np.ones((3, 5), np.uint8), "Q9"), y=np.empty((2, 3), np.float32))),
        ("bias", lambda: ops.linear(X, W, np.ones(2, np.float32))),
        ("y", lambda: ops.linear(X, W, y=np.empty((2, 4), np.float32))),
        ("y", lambda: ops.linear(X, W, y=X[:, :3])),
        ("precision", lambda: ops.linear(X, W, precision="fastest")),
        ("stream", lambda: ops.linear(X, W, stream=DeadStream())),
        ("threads", lambda: ops.linear(X, W, threads=-1)),
        ("x", lambda: ops.l2norm(np.ones((1,) * 6, np.float32))),
        ("eps", lambda: ops.rms_norm(X, W[0], eps="small")),
        ("top_k", lambda: ops.route_top_k(X)),
        ("top_k", lambda: ops.moe_ffn(X, W, W[None], W[None], W.T.copy()[None], top_k=2.5)),
        ("experts", lambda: ops.expert_rows(np.zeros((1, 1), np.int32))),
        ("operation", lambda: ops.explain("nothing")),
        ("z", lambda: ops.explain("linear", x=X, weight=W, y=X, z=X)),
        ("dtype", lambda: thalweg.quantize(X, "Q9")),
        ("dtype", lambda: thalweg.quantize(X, "IQ4_XS")),
        ("values", lambda: thalweg.quantize(X, "Q8_0")),
        ("values", lambda: thalweg.quantize(X.astype(np.float64), "F16")),
        ("blocks", lambda: thalweg.dequantize(X)),
        ("dtype", lambda: thalweg.quantize(X, 8)),
        ("dtype", lambda: thalweg.Blocks(X, 8)),
        ("data", lambda: thalweg.Blocks([1, 2], "Q8_0")),
        ("threads", lambda: ops.linear(X, W, threads=True)),
        ("threads", lambda: ops.linear(X, W, threads=2**40)),
        ("threads", lambda: ops.linear(X, W, threads=1.0)),
        ("eps", lambda: ops.rms_norm(X, W[0], eps="1e-6")),
        ("eps", lambda: ops.rms_norm(X, W[0], eps=True)),
        ("eps", lambda: ops.rms_norm(X, W[0], eps=np.complex64(1e-6))),
        ("eps", lambda: ops.rms_norm(X, W[0], eps=1e-60)),
        ("weight_plus_one", lambda: ops.rms_norm(X, W[0], weight_plus_one=1)),
        ("top_k", lambda: ops.route_top_k(X, True)),
        ("top_k", lambda: ops.moe_ffn(X, W, W[None], W[None], W.T.copy()[None], top_k=np.float32(2.5))),
        ("top_k", lambda: ops.moe_ffn(X, W, W[None], W[None], W.T.copy()[None], top_k=True)),
        ("top_k", lambda: ops.moe_ffn(X, W, W[None], W[None], W.T.copy()[None], top_k=2**40)),
        ("experts", lambda: ops.expert_rows(np.zeros((1, 1), np.int32), True)),
        ("rotary_dim", lambda: ops.rope(X[None], np.zeros(1, np.int32), rotary_dim=np.float32(2))),
        ("positions", lambda: ops.rope(X[None], np.zeros(1, np.int64), rotary_dim=2)),
        ("chunk_size", lambda: ops.chunk_local_cumsum(X[None], chunk_size=np.float32(16))),
        ("chunk_size", lambda: chunk_state(None, chunk_size=64.0)),
        ("cu_seqlens", lambda: chunk_state([0, 2])),
        ("cu_seqlens", lambda: chunk_state(np.array([], np.int32))),
        ("cu_seqlens", lambda: chunk_state(np.array([0, 1.5]))),
        ("cu_seqlens", lambda: chunk_state(np.array([0, 2**31 - 1], np.int32))),
    ],
)
def test_the_argument_is_named(argument, call):
    with pytest.raises(thalweg.Error) as raised:
        call()
    assert raised.value.argument == argument
    assert argument in str(raised.value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("expected", "call"),
    [
        ("x: expected F32, F16 or BF16 .*, got float64", lambda: ops.linear(X.astype(float), W)),
        ("weight: expected any dtype but I32 .*, got int64", lambda: ops.linear(X, W.astype(np.int64))),
        ("ids: expected I32 .*, got int64", lambda: ops.embedding(np.zeros(2, np.int64), W)),
        ("x: expected F32, F16 or BF16 .*, got bool", lambda: ops.linear(X > 0, W)),
        ("g: expected F32 .*, got float64", lambda: ops.chunk_local_cumsum(np.zeros((1, 2, 2)))),
    ],
)
def test_the_dtype_expected_is_one_that_is_taken(expected, call):
    with pytest.raises(thalweg.Error, match=expected):
        call()


def test_read_only_outputs_are_refused():
    y = np.zeros((2, 3), np.float32)
    y.flags.writeable = False
    x = X.copy()
    x.flags.writeable = False
    with pytest.raises(thalweg.Error) as raised:
        ops.linear(x, W, y=y)
    assert raised.value.argument == "y"
    assert ops.linear(x, W).shape == (2, 3)


def test_head_map_has_no_default():
    k = np.ones((1, 2, 1, 16), np.float32)
    gates = np.zeros((1, 2, 1), np.float32)
    with pytest.raises(TypeError, match="head_map"):
        ops.chunk_gated_delta_rule(k, k, k, gates, gates)
    with pytest.raises(thalweg.Error, match="head_map"):
        ops.chunk_gated_delta_rule(k, k, k, gates, gates, head_map="unset")


def test_nothing_leaks():
    def calls(count):
        for _ in range(count):
            ops.linear(X, W)
            with pytest.raises(thalweg.Error):
                ops.linear(X, W[:, :3])
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(gc.get_objects())

    memory, objects = calls(1000)
    more_memory, more_objects = calls(10_000)
    assert more_objects - objects < 100
    assert more_memory - memory < 4096  # KiB: 10,000 leaked tensors or messages would be more


def test_the_interpreter_runs_on():
    """While an operation runs, another thread counts."""
    big = np.ones((256, 2048), np.float32)
    weight = np.ones((2048, 2048), np.float32)
    counts, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counts[0] += 1
            time.sleep(0.0002)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        y = np.empty((256, 2048), np.float32)
        most = 0
        for _ in range(20):
            before = counts[0]
            ops.linear(big, weight, y=y, threads=1)
            most = max(most, counts[0] - before)
    finally:
        stop.set()
        thread.join()
    assert most > 10  # within one call; at its two ends the interpreter could switch in any case


def test_threads_at_once():
    results = [None] * 4

    def work(i):
        x = np.full((8, 64), float(i), np.float32)
        for _ in range(100):
            results[i] = ops.linear(x, np.ones((16, 64), np.float32))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full((8, 16), 64.0 * i))
