"""The operations in float64, written for reading."""

import numpy as np


def f64(x):
    return np.asarray(x, np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-f64(x)))


def silu(x):
    return f64(x) * sigmoid(x)


def softplus(x):
    return np.logaddexp(0, f64(x))


def l2norm(x, eps):
    return f64(x) / np.sqrt((f64(x) ** 2).sum(-1, keepdims=True) + eps)


def rms_norm(x, weight, eps):
    return f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + eps) * f64(weight)


def key_head(h, hk, hv, head_map):
    return h // (hv // hk) if head_map == "grouped" else h % hk


def gated_delta_rule(q, k, v, g, beta, *, head_map, initial_state=None, scale=None, bounds=None):
    """(o [B,T,HV,V], final state [N,HV,V,K]): the recurrence, token by token."""
    batch, tokens, hk, size = k.shape
    hv, width = v.shape[2:]
    scale = size**-0.5 if scale is None else scale
    spans = [(b, 0, tokens) for b in range(batch)]
    if bounds is not None:
        spans = [(0, begin, end) for begin, end in zip(bounds, bounds[1:], strict=False)]
    o = np.zeros(v.shape)
    states = np.zeros((len(spans), hv, width, size)) if initial_state is None else f64(initial_state).copy()
    for n, (b, begin, end) in enumerate(spans):
        for h in range(hv):
            state = states[n, h]
            j = key_head(h, hk, hv, head_map)
            for t in range(begin, end):
                state *= np.exp(f64(g[b, t, h]))
                d = f64(beta[b, t, h]) * (f64(v[b, t, h]) - state @ f64(k[b, t, j]))
                state += np.outer(d, f64(k[b, t, j]))
                o[b, t, h] = scale * state @ f64(q[b, t, j])
    return o, states


def causal_conv1d(x, weight, bias, state, activation):
    """(y [B,T,C], final state [B,C,W-1])."""
    taps = weight.shape[1]
    before = np.zeros((x.shape[0], taps - 1, x.shape[2])) if state is None else f64(state).swapaxes(1, 2)
    whole = np.concatenate([before, f64(x)], 1)
    y = sum(f64(weight[:, j]) * whole[:, j : j + x.shape[1]] for j in range(taps))
    y = y + (0 if bias is None else f64(bias))
    return (silu(y) if activation == "silu" else y), whole[:, whole.shape[1] - taps + 1 :].swapaxes(1, 2)


def rope(x, positions, rotary_dim, theta=1e7, frequencies=None, scale=1.0):
    half = rotary_dim // 2
    plain = theta ** (-2 * np.arange(half) / rotary_dim)
    angle = f64(positions)[:, None] * (plain if frequencies is None else f64(frequencies))
    cos, sin = scale * np.cos(angle)[:, None], scale * np.sin(angle)[:, None]
    first, second, rest = f64(x[..., :half]), f64(x[..., half:rotary_dim]), f64(x[..., rotary_dim:])
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


def attention(q, k, v, gate):
    """One sequence from its start: q [T,HQ,D], k, v [T,HKV,D]."""
    tokens, heads, size = q.shape
    o = np.zeros(q.shape)
    for h in range(heads):
        j = h // (heads // k.shape[1])
        scores = f64(q[:, h]) @ f64(k[:, j]).T * size**-0.5
        scores[np.triu_indices(tokens, 1)] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        o[:, h] = p / p.sum(-1, keepdims=True) @ f64(v[:, j])
    return o * sigmoid(gate) if gate is not None else o


def softmax(x):
    p = np.exp(f64(x) - f64(x).max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def moe_ffn(x, router, gate, up, down, shared, top_k):
    p = softmax(f64(x) @ f64(router).T)
    y = np.zeros(x.shape)
    for t in range(x.shape[0]):
        chosen = np.argsort(-p[t], kind="stable")[:top_k]
        for e in chosen:
            hidden = silu(f64(gate[e]) @ f64(x[t])) * (f64(up[e]) @ f64(x[t]))
            y[t] += p[t, e] / p[t, chosen].sum() * (f64(down[e]) @ hidden)
        if shared is not None:
            s_gate, s_up, s_down, s_router = map(f64, shared)
            hidden = silu(s_gate @ f64(x[t])) * (s_up @ f64(x[t]))
            y[t] += sigmoid(f64(x[t]) @ s_router) * (s_down @ hidden)
    return y


def assert_close(result, exact, bound=1e-5):
    """The relative l2 error; arrays without elements have none. Exact zeros have to be zeros."""
    result, exact = f64(result), f64(exact)
    assert result.shape == exact.shape
    assert np.isfinite(result).all()
    error, size = np.linalg.norm(result - exact), np.linalg.norm(exact)
    assert error <= bound * size, f"relative error {error / size:.3g}" if size else f"error {error:.3g} of nothing"


def with_strides(x, rng):
    """The same values in a slice of something larger, the innermost dimension contiguous."""
    pads = [(0, int(rng.integers(0, 3))) for _ in x.shape]
    larger = np.full([n + p for n, (_, p) in zip(x.shape, pads, strict=True)], np.nan).astype(x.dtype)
    view = larger[tuple(slice(0, n) for n in x.shape)]
    view[...] = x
    return view
