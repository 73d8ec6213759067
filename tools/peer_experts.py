#!/usr/bin/env python3
"""Times ggml's MUL_MAT_ID on this machine's GPU, on the shapes of `thalweg bench --suite experts`.

    python3 tools/peer_experts.py --ggml FOLDER --csv docs/data/peers-experts.csv   # needs numpy

FOLDER has ggml's shared libraries, built with CUDA: those of ggml, of llama.cpp or of a llama-cpp-python. As in the
suite, a row's runs rotate over copies of its weights and over eight draws of experts, 1 GB or more, so that no cache
holds them. All runs of a row are nodes of one graph, which ggml sends to the GPU by itself, as a CUDA graph where it
can; a time is the median over repetitions of that graph, on the host's clock, divided by the nodes.
"""

import argparse
import csv
import ctypes
import statistics
import time
from pathlib import Path

import numpy as np

SHAPES = [(128, 8, 2048, 4096), (256, 8, 512, 2048), (256, 8, 2048, 512)]  # experts, of a token, N, K
TOKENS = [1, 8, 32, 128, 256, 512, 2048, 8192]
DRAWS = 8
WEIGHT_BYTES = 1 << 30  # of all copies
SECONDS = 0.3           # of a row
GPU = 1                 # ggml_backend_dev_type


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load(folder):
    """The functions of ggml's libraries, with the types that matter: pointers and sizes are 64 bits."""
    base, ggml = (ctypes.CDLL(str(next(Path(folder).rglob(f"lib{name}.so"))), mode=ctypes.RTLD_GLOBAL)
                  for name in ("ggml-base", "ggml"))
    pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    for library, name, result, arguments in [
            (base, "ggml_init", pointer, [InitParams]),
            (base, "ggml_free", None, [pointer]),
            (base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, integer, integer]),
            (base, "ggml_new_tensor_3d", pointer, [pointer, ctypes.c_int, integer, integer, integer]),
            (base, "ggml_mul_mat_id", pointer, [pointer, pointer, pointer, pointer]),
            (base, "ggml_new_graph_custom", pointer, [pointer, size, ctypes.c_bool]),
            (base, "ggml_build_forward_expand", None, [pointer, pointer]),
            (base, "ggml_type_name", ctypes.c_char_p, [ctypes.c_int]),
            (base, "ggml_row_size", size, [ctypes.c_int, integer]),
            (base, "ggml_quantize_chunk", size,
             [ctypes.c_int, pointer, pointer, integer, integer, integer, pointer]),
            (base, "ggml_backend_alloc_ctx_tensors", pointer, [pointer, pointer]),
            (base, "ggml_backend_buffer_free", None, [pointer]),
            (base, "ggml_backend_tensor_set", None, [pointer, pointer, size, size]),
            (base, "ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
            (base, "ggml_backend_name", ctypes.c_char_p, [pointer]),
            (ggml, "ggml_backend_init_by_type", pointer, [ctypes.c_int, ctypes.c_char_p])]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(ggml, name, function)
    return ggml


def set_tensor(ggml, tensor, array, offset=0):
    array = np.ascontiguousarray(array)
    ggml.ggml_backend_tensor_set(tensor, array.ctypes.data, offset, array.nbytes)


def type_of(ggml, name):
    for kind in range(40):  # ggml_type up to MXFP4; beyond its last one it must not be asked
        if (ggml.ggml_type_name(kind) or b"").decode().upper() == name:
            return kind
    raise SystemExit(f"ggml has no type {name}")


def pack(ggml, kind, values):
    """Bytes of `values` [N,K] in a format."""
    rows, k = values.shape
    packed = np.empty(rows * ggml.ggml_row_size(kind, k), np.uint8)
    ggml.ggml_quantize_chunk(kind, values.ctypes.data, packed.ctypes.data, 0, rows, k, None)
    return packed


class Weights:
    """Copies of the experts' matrices in the GPU's memory; all experts have the same values."""

    def __init__(self, ggml, backend, shape, kind, generator):
        experts, _, n, k = shape
        expert = pack(ggml, kind, generator.standard_normal((n, k), dtype=np.float32) / np.sqrt(np.float32(k)))
        copies = -(-WEIGHT_BYTES // (expert.nbytes * experts))
        self.ggml = ggml
        self.context = ggml.ggml_init(InitParams(1 << 20, None, True))
        self.tensors = [ggml.ggml_new_tensor_3d(self.context, kind, k, n, experts) for _ in range(copies)]
        self.buffer = ggml.ggml_backend_alloc_ctx_tensors(self.context, backend)
        for tensor in self.tensors:
            for i in range(experts):
                set_tensor(ggml, tensor, expert, i * expert.nbytes)

    def free(self):
        self.ggml.ggml_backend_buffer_free(self.buffer)
        self.ggml.ggml_free(self.context)


def time_row(ggml, backend, weights, shape, tokens, generator):
    """Microseconds of a product, and the experts that it hits on average."""
    experts, slots, _, k = shape
    context = ggml.ggml_init(InitParams(1 << 22, None, True))
    # Whole rounds through weights and draws, fewer the longer they take.
    nodes = len(weights.tensors) * DRAWS if tokens <= 512 else max(len(weights.tensors), DRAWS)
    f32, i32 = type_of(ggml, "F32"), type_of(ggml, "I32")
    x = ggml.ggml_new_tensor_3d(context, f32, k, 1, tokens)
    ids = [ggml.ggml_new_tensor_2d(context, i32, slots, tokens) for _ in range(DRAWS)]
    graph = ggml.ggml_new_graph_custom(context, nodes + 64, False)
    for i in range(nodes):
        product = ggml.ggml_mul_mat_id(context, weights.tensors[i % len(weights.tensors)], x, ids[i % DRAWS])
        ggml.ggml_build_forward_expand(graph, product)
    buffer = ggml.ggml_backend_alloc_ctx_tensors(context, backend)
    set_tensor(ggml, x, generator.standard_normal((tokens, k), dtype=np.float32))
    hits = 0
    for tensor in ids:
        drawn = np.argsort(generator.random((tokens, experts)), axis=1)[:, :slots].astype(np.int32)
        hits += len(np.unique(drawn)) / DRAWS
        set_tensor(ggml, tensor, drawn)

    def run():
        begin = time.perf_counter()
        if ggml.ggml_backend_graph_compute(backend, graph) != 0:
            raise SystemExit("ggml could not compute the graph")
        return time.perf_counter() - begin

    for _ in range(4):  # CUDA graphs are captured after some repetitions
        run()
    times = [run()]
    while sum(times) < SECONDS or len(times) < 5:
        times.append(run())
    ggml.ggml_backend_buffer_free(buffer)
    ggml.ggml_free(context)
    return 1e6 * statistics.median(times) / nodes, hits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", required=True, help="where libggml.so and libggml-base.so are, at any depth")
    parser.add_argument("--types", default="Q4_K,Q8_0,Q6_K,Q5_K,Q4_0,MXFP4,F16")
    parser.add_argument("--csv", help="where the times go")
    arguments = parser.parse_args()
    ggml = load(arguments.ggml)
    backend = ggml.ggml_backend_init_by_type(GPU, None)
    if not backend:
        raise SystemExit("ggml finds no GPU: are its libraries built with CUDA?")
    print(ggml.ggml_backend_name(backend).decode())
    generator = np.random.default_rng(0)
    rows = []
    for shape in SHAPES:
        for name in arguments.types.split(","):
            weights = Weights(ggml, backend, shape, type_of(ggml, name), generator)
            for tokens in TOKENS:
                us, hits = time_row(ggml, backend, weights, shape, tokens, generator)
                label = "E{}_S{}_N{}_K{}_".format(*shape) + f"{name}_M{tokens}"
                rows.append({"shape": label, "hits": f"{hits:.1f}", "us": f"{us:.3f}"})
                print(f"{label:<40} {hits:6.1f} experts {us:10.1f} us", flush=True)
            weights.free()
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, ["shape", "hits", "us"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
