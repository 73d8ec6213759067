#!/usr/bin/env python3
"""Makes tests/quant/goldens: what other implementations of the block formats give.

    python3 -m venv venv
    venv/bin/pip install gguf==0.19.0 numpy llama-cpp-python==0.3.36
    venv/bin/python tools/make_quant_goldens.py tests/quant/goldens

<FORMAT>.blocks  random valid blocks, edge cases among them
<FORMAT>.values  the same, unpacked by the package gguf: little-endian f32
pack_rmse.txt    the root mean square error that a reference packer leaves: the package gguf where it packs the format,
                 otherwise ggml's own quantiser without an importance matrix, from the library inside llama-cpp-python

The values that are packed come from splitmix64, as in src/cases/random.h; tests/quant/pack_test.cc makes the same.
"""

import argparse
import ctypes
import importlib.util
import math
import pathlib

import gguf
import numpy as np

FORMATS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
           "IQ4_XS", "MXFP4"]

# Offsets of the f16 fields of a block.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}

# One and a half, its negative, zeros, the smallest and largest subnormal, the smallest normal, the largest finite.
EDGE_HALVES = [0x3E00, 0xBE00, 0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF]

COUNT = 4096
DISTRIBUTIONS = ["normal", "laplace", "uniform", "outliers", "shifted", "positive", "groups", "sparse", "constant",
                 "zeros", "tiny", "small", "large"]


def make_blocks(name, random):
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if block_size == 1:
        # Every 61st pattern but the NaNs, whose payload differs between machines.
        words = np.arange(0, 65536, 61, dtype=np.uint16)
        infinity = {"F16": 0x7C00, "BF16": 0x7F80}[name]
        words = np.append(words[(words & 0x7FFF) < infinity], [infinity, infinity | 0x8000]).astype("<u2")
        return words.view(np.uint8).reshape(-1, 2)
    count = 24 if block_size == 32 else 16
    blocks = random.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for offset in HALVES.get(name, []):
        # Random finite halves, then every pair of edge values in the first blocks.
        blocks[:, offset + 1] &= 0xBF
        for i, half in enumerate(EDGE_HALVES):
            half = EDGE_HALVES[(i * 3 + 1) % 8] if offset == HALVES[name][-1] and offset != HALVES[name][0] else half
            blocks[i, offset:offset + 2] = (half & 0xFF, half >> 8)
    if name == "MXFP4":
        blocks[:8, 0] = [0, 1, 2, 3, 126, 127, 128, 251]
        blocks[8:, 0] = np.minimum(blocks[8:, 0], 251)  # 2^(255 - 128) times 12 is not finite
    # Lowest and highest codes and group scales, under ordinary f16 scales.
    for block, filler in ((-1, 0xFF), (-2, 0x00)):
        blocks[block] = filler
        for offset in HALVES.get(name, []):
            blocks[block, offset:offset + 2] = (0x66, 0x2E)
        if name == "MXFP4":
            blocks[block, 0] = 127
    return blocks


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53

    def normal(self):
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())


def draw(distribution, count):
    random = Random(1 + DISTRIBUTIONS.index(distribution))
    values = np.empty(count, np.float32)
    scale = 1.0
    for i in range(count):
        x = random.normal()
        u = random.uniform()
        if i % 16 == 0:
            scale = math.exp(x)
        values[i] = {
            "normal": lambda: 0.02 * x,
            "laplace": lambda: (0.02 if x < 0.0 else -0.02) * math.log(1.0 - u),
            "uniform": lambda: 2.0 * u - 1.0,
            "outliers": lambda: 20.0 * x if u < 0.01 else x,
            "shifted": lambda: x - 3.0,
            "positive": lambda: abs(x),
            "groups": lambda: scale * x,
            "sparse": lambda: x if u < 0.1 else 0.0,
            "constant": lambda: -0.7,
            "zeros": lambda: 0.0,
            "tiny": lambda: 1e-30 * x,
            "small": lambda: 1e-4 * x,
            "large": lambda: 1e4 * x,
        }[distribution]()
    return values


def load_ggml(path):
    if path is None:
        spec = importlib.util.find_spec("llama_cpp")
        folder = pathlib.Path(spec.submodule_search_locations[0])
        path = next(iter(sorted(folder.glob("lib/*ggml-base*"))))
    library = ctypes.CDLL(str(path))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


def pack_with_ggml(library, values, kind):
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros(values.size // block_size * block_bytes, np.uint8)
    address = ctypes.c_void_p
    library.ggml_quantize_chunk(ctypes.c_int(kind), values.ctypes.data_as(address), blocks.ctypes.data_as(address),
                                ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_int64(values.size), None)
    return blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ggml-base", help="the shared library; that of the installed llama-cpp-python if not given")
    arguments = parser.parse_args()
    library = load_ggml(arguments.ggml_base)
    arguments.folder.mkdir(parents=True, exist_ok=True)

    random = np.random.default_rng(20)
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name]
        blocks = make_blocks(name, random)
        values = gguf.dequantize(blocks.reshape(1, -1), kind).astype("<f4").reshape(-1)
        assert name in ("F16", "BF16") or np.isfinite(values).all(), name
        blocks.tofile(arguments.folder / f"{name}.blocks")
        values.tofile(arguments.folder / f"{name}.values")

    rows = ["# format, distribution, root mean square error, packer"]
    for name in FORMATS:
        if name == "IQ4_XS":
            continue
        kind = gguf.GGMLQuantizationType[name]
        for distribution in DISTRIBUTIONS:
            values = draw(distribution, COUNT)
            try:
                blocks, packer = gguf.quantize(values.reshape(1, -1), kind), "gguf"
            except NotImplementedError:
                blocks, packer = pack_with_ggml(library, values, kind), "ggml"
            unpacked = gguf.dequantize(blocks.view(np.uint8).reshape(1, -1), kind).reshape(-1)
            error = math.sqrt(np.mean((values.astype(np.float64) - unpacked.astype(np.float64))**2))
            rows.append(f"{name} {distribution} {error!r} {packer}")
    (arguments.folder / "pack_rmse.txt").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
