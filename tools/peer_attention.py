#!/usr/bin/env python3
"""Times torch's scaled_dot_product_attention on the shapes of docs/performance.md: 16 query and 2 key heads of 256,
bf16, causal, medians of nine runs. Needs torch with CUDA.

    python3 tools/peer_attention.py
    build/cuda/bin/thalweg bench --backend cuda --op attention --case 'new_(2048|8192|32768)_S'     # ours, beside it
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

QUERY_HEADS, KEY_HEADS, WIDTH = 16, 2, 256


def median_us(run, runs=9):
    times = []
    for i in range(3 + runs):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(1e3 * begin.elapsed_time(end))
    return sorted(times)[runs // 2]


def main():
    for tokens in (2048, 8192, 32768):
        def normals(heads):
            return torch.randn(1, heads, tokens, WIDTH, device="cuda", dtype=torch.bfloat16)

        q, k, v = normals(QUERY_HEADS), normals(KEY_HEADS), normals(KEY_HEADS)
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
            with sdpa_kernel(backend):
                us = median_us(lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
            print(f"{tokens:6} {backend.name:16} {us:10.1f} us {2e-6 * QUERY_HEADS * WIDTH * tokens**2 / us:6.0f} TFLOP/s")


if __name__ == "__main__":
    main()
