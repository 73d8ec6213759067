"""Operations on NumPy arrays: a prompt through the gated delta rule at once, then one more token."""

import numpy as np

from thalweg import ops

T, HK, HV, K, V = 100, 2, 4, 64, 64  # tokens, key heads, value heads, head sizes
rng = np.random.default_rng(0)


def inputs(tokens):
    q, k = (rng.standard_normal((1, tokens, HK, K), np.float32) for _ in range(2))
    v = rng.standard_normal((1, tokens, HV, V), np.float32)
    g, beta = -rng.random((1, tokens, HV), np.float32), rng.random((1, tokens, HV), np.float32)
    return q, k, v, g, beta


prompt, token = inputs(T), inputs(1)
state = np.zeros((1, HV, V, K), np.float32)  # updated in place by both calls
options = {"head_map": "grouped", "qk_norm": "l2", "initial_state": state, "final_state": state}
ops.chunk_gated_delta_rule(*prompt, **options)
o = ops.recurrent_gated_delta_rule(*token, **options)

# The same in one call over all tokens.
both = [np.concatenate(pair, 1) for pair in zip(prompt, token, strict=True)]
whole = ops.chunk_gated_delta_rule(*both, head_map="grouped", qk_norm="l2")
error = np.linalg.norm(o - whole[:, -1:]) / np.linalg.norm(o)
print(f"o {o.shape}, relative difference of the two ways: {error:.1e}")
assert error < 1e-5
