#!/usr/bin/env python3
"""Makes tests/io/goldens: model files as other implementations write them.

    python3 -m venv venv
    venv/bin/pip install gguf==0.19.0 safetensors==0.8.0 numpy
    venv/bin/python tools/make_io_goldens.py tests/io/goldens

types.gguf                a value of each metadata type, a tensor of each format, and one of a format that the library
                          does not compute with; data aligned to 64 bytes
plain.gguf                the same values and formats, in the default layout: what the library's writer must repeat to the byte
split-0000N-of-00003.gguf five tensors in three parts
tool-0000N-of-00004.gguf  the same tensors as llama.cpp's llama-gguf-split cuts them, the first part without tensors;
                          only with --gguf-split PROGRAM
types.safetensors         a tensor of each type that the library reads, and some of types that it only lists
sharded/                  two shards and their index

Byte i of tensor t (counted from 0 in each file or model) is (7 i + 13 t + 1) mod 256; tests/io makes the same.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import gguf
import numpy as np
from safetensors import TensorSpec, serialize_file

FORMATS = ["F32", "F16", "BF16", "I32", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
           "IQ4_NL", "IQ4_XS", "MXFP4"]


def pattern(tensor, count):
    return ((7 * np.arange(count, dtype=np.int64) + 13 * tensor + 1) % 256).astype(np.uint8)


def add_tensor(writer, number, name, kind, shape):
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    row = shape[-1] // block_size * block_bytes
    bytes_shape = (*shape[:-1], row)
    data = pattern(number, int(np.prod(bytes_shape))).reshape(bytes_shape)
    writer.add_tensor(name, data, raw_dtype=kind)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_gguf_types(path, plain):
    writer = gguf.GGUFWriter(path, "qwen35moe")
    if not plain:
        writer.add_custom_alignment(64)
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -100)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4000000000)
    writer.add_int32("test.i32", -2000000000)
    writer.add_uint64("test.u64", 1 << 63)
    writer.add_int64("test.i64", -(1 << 62))
    writer.add_float32("test.f32", 1.5)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "snow ☃")
    writer.add_array("test.integers", [11, 11, 10, 0])
    writer.add_array("test.floats", [0.25, -2.0])
    writer.add_array("test.bools", [True, False, True])
    writer.add_array("test.strings", ["a", "", "ccc"])
    for number, name in enumerate(FORMATS):
        kind = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[kind][0]
        # A plain type may have odd rows.
        add_tensor(writer, number, f"tensor.{name}", kind, (3, 2, size if size > 1 else 5))
    if not plain:
        add_tensor(writer, len(FORMATS), "tensor.foreign", gguf.GGMLQuantizationType.IQ2_XXS, (2, 256))
    write(writer)


def make_gguf_split(path, tensors_per_part):
    writer = gguf.GGUFWriter(path, "qwen35moe", split_max_tensors=tensors_per_part)
    writer.add_uint32("test.u32", 7)
    for number in range(5):
        add_tensor(writer, number, f"blk.{number}.weight", gguf.GGMLQuantizationType.Q8_0, (number + 1, 64))
    write(writer)


def make_gguf_split_by(program, folder):
    with tempfile.TemporaryDirectory() as scratch:
        whole = pathlib.Path(scratch) / "whole.gguf"
        make_gguf_split(whole, 0)
        options = ["--split", "--split-max-tensors", "2", "--no-tensor-first-split"]
        subprocess.run([program, *options, whole, folder / "tool"], check=True)


def save(path, tensors, metadata=None):
    specs = {}
    keep = []
    for number, name, kind, shape, size in tensors:
        data = pattern(number, int(np.prod(shape)) * size)
        keep.append(data)
        specs[name] = TensorSpec(dtype=kind, shape=list(shape), data_ptr=data.ctypes.data, data_len=data.nbytes)
    serialize_file(specs, path, metadata)


def make_safetensors(folder):
    save(folder / "types.safetensors", [
        (0, "f32", "float32", (2, 3), 4),
        (1, "f16", "float16", (5,), 2),
        (2, "bf16", "bfloat16", (2, 1, 4), 2),
        (3, "i32", "int32", (3,), 4),
        (4, "scalar", "float32", (), 4),
        (5, "empty", "float32", (0, 7), 4),
        (6, "i64", "int64", (2,), 8),
        (7, "u8", "uint8", (3,), 1),
        (8, "bool", "bool", (2,), 1),
        (9, "f64", "float64", (1,), 8),
        (10, "f8", "float8_e4m3fn", (4,), 1),
        (11, "rank6", "float32", (1, 1, 2, 1, 1, 1), 4),
    ], {"format": "pt"})
    sharded = folder / "sharded"
    sharded.mkdir(exist_ok=True)
    shards = [
        ("model-00001-of-00002.safetensors", [(0, "embed.weight", "bfloat16", (4, 3), 2), (1, "norm", "float32", (3,), 4)]),
        ("model-00002-of-00002.safetensors", [(2, "head.weight", "bfloat16", (4, 3), 2)]),
    ]
    weight_map = {}
    for file, tensors in shards:
        save(sharded / file, tensors, {"format": "pt"})
        weight_map.update({name: file for _, name, *_ in tensors})
    index = {"metadata": {"total_size": 60}, "weight_map": weight_map}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gguf-split", type=pathlib.Path, help="llama.cpp's llama-gguf-split")
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    make_gguf_types(folder / "types.gguf", plain=False)
    make_gguf_types(folder / "plain.gguf", plain=True)
    make_gguf_split(folder / "split.gguf", 2)
    if options.gguf_split:
        make_gguf_split_by(options.gguf_split.resolve(), folder)
    make_safetensors(folder)


if __name__ == "__main__":
    main()
