"""JAX arrays through DLPack, in and out; skipped where JAX is not installed. Those of a GPU are in test_cuda.py."""

import numpy as np
import oracle
import pytest
from oracle import assert_close, f64

import thalweg
from thalweg import fla, ops

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def normal(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rule(dtype):
    q, k, v = (normal(i, 1, 40, heads, 32, dtype=dtype) / 6 for i, heads in enumerate((2, 2, 4)))
    g, beta = -jnp.abs(normal(3, 1, 40, 4)), jax.nn.sigmoid(normal(4, 1, 40, 4))
    exact, _ = oracle.gated_delta_rule(*map(f64, (q, k, v, g, beta)), head_map="grouped")
    o = ops.chunk_gated_delta_rule(q, k, v, g, beta, head_map="grouped")
    assert isinstance(o, np.ndarray)
    assert_close(o, exact, {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype])
    with pytest.raises(thalweg.Error, match="torch tensor or a NumPy array"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta)


def test_what_comes_out_goes_back():
    x = normal(0, 1, 3, 2, 16)
    y = ops.l2norm(x)
    back = jax.dlpack.from_dlpack(y)
    np.testing.assert_array_equal(np.asarray(back), y)
    assert_close(ops.l2norm(back), oracle.l2norm(y, 1e-6))


def test_inputs_are_not_copied():
    """Big enough that a copy would show in the peak of the process."""
    import resource

    x = jnp.ones((1, 1 << 16, 16, 16), jnp.float32).block_until_ready()  # 64 MiB
    y = np.empty(x.shape, np.float32)
    y.fill(0)
    ops.l2norm(x[:, :16], y=y[:, :16])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ops.l2norm(x, y=y)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
    assert_close(y, np.full(x.shape, 0.25))


def test_they_cannot_be_written():
    x = normal(0, 1, 3, 2, 16)
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(x, y=normal(1, 1, 3, 2, 16))
    assert raised.value.argument == "y"


def test_wrong_dtypes_name_the_argument():
    with pytest.raises(thalweg.Error) as raised:
        ops.l2norm(jnp.ones((1, 1, 1, 16), jnp.int8))
    assert raised.value.argument == "x"
