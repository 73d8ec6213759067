#!/usr/bin/env python3
"""Puts an MTP layer into a GGUF file, or takes it out; whatever else the file has keeps its bytes.

    python3 tools/mtp_file.py append --file models/story-q4_k.gguf --layer build/story-mtp.gguf --out build/story.gguf
    python3 tools/mtp_file.py strip --file models/story-q4_k.gguf --out build/story-without-layer.gguf

--layer is a file of the same model with the layer, as `thalweg quantize` writes it: the block behind the trunk's is
taken from it. `strip` is for programs that refuse the layer: llama.cpp refuses one without experts in a model with
experts. Needs the package gguf.
"""

import argparse
import struct

ALIGNMENT = 32
UINT32 = 4
COUNTS = ("block_count", "nextn_predict_layers", "feed_forward_length")


class File:
    """A file's keys, as bytes from key to value, and its tensors: (dims, type, bytes) by name, in the file's order."""

    def __init__(self, path):
        import gguf

        reader = gguf.GGUFReader(path)
        if reader.alignment != ALIGNMENT or reader.byte_order != "I":
            raise SystemExit(f"{path}: expected little-endian data aligned to {ALIGNMENT}")
        self.path = path
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        self.keys = {key: b"".join(part.tobytes() for part in field.parts) for key, field in fields.items()}
        self.architecture = fields["general.architecture"].contents()
        self.counts = {name: fields[self.key(name)].contents() for name in COUNTS if self.key(name) in fields}
        self.tensors = {
            t.name: (tuple(int(n) for n in t.shape), int(t.tensor_type), t.data.tobytes()) for t in reader.tensors
        }

    def key(self, name):
        return f"{self.architecture}.{name}"

    @property
    def trunk_layers(self):
        return self.counts["block_count"] - self.counts.get("nextn_predict_layers", 0)

    @property
    def layer_names(self):
        return [name for name in self.tensors if name.startswith(f"blk.{self.trunk_layers}.")]

    def same_shapes(self, other):
        """Whether the keys of the architecture agree, but for those that an MTP layer brings."""
        own, others = (
            {k: v for k, v in f.keys.items() if k.startswith(f.architecture) and k not in map(f.key, COUNTS)}
            for f in (self, other)
        )
        return own == others and self.trunk_layers == other.trunk_layers


def text_bytes(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def with_counts(file, counts):
    """The file's keys with these counts, None for none, those of an MTP layer behind the number of blocks."""
    keys = {}
    for key, data in file.keys.items():
        if key not in map(file.key, COUNTS):
            keys[key] = data
        if key == file.key("block_count"):
            for name in COUNTS:
                if counts.get(name) is not None:
                    keys[file.key(name)] = text_bytes(file.key(name)) + struct.pack("<II", UINT32, counts[name])
    return keys


def write(path, keys, tensors):
    infos, at = [], 0
    for name, (dims, kind, data) in tensors.items():
        infos.append(text_bytes(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at))
        at += -(-len(data) // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys.values()) + b"".join(infos)
    with open(path, "wb") as out:
        for data in (head, *(data for _, _, data in tensors.values())):
            out.write(data + bytes(-len(data) % ALIGNMENT))


def append(options):
    file, layer = File(options.file), File(options.layer)
    if file.layer_names:
        raise SystemExit(f"{file.path}: has a layer already: strip it first")
    if layer.counts.get("nextn_predict_layers") != 1 or not layer.layer_names:
        raise SystemExit(f"{layer.path}: expected one MTP layer")
    if not file.same_shapes(layer):
        raise SystemExit(f"{layer.path}: expected the shapes of {file.path}")
    counts = file.counts | {"block_count": file.trunk_layers + 1, "nextn_predict_layers": 1}
    if "feed_forward_length" in layer.counts:
        counts["feed_forward_length"] = layer.counts["feed_forward_length"]
    tensors = file.tensors | {name: layer.tensors[name] for name in layer.layer_names}
    write(options.out, with_counts(file, counts), tensors)
    return file, set(layer.layer_names)


def strip(options):
    file = File(options.file)
    names = set(file.layer_names)
    counts = file.counts | {"block_count": file.trunk_layers, "nextn_predict_layers": None}
    if not any(name.endswith(".ffn_gate.weight") for name in file.tensors if name not in names):
        counts["feed_forward_length"] = None
    write(options.out, with_counts(file, counts), {n: t for n, t in file.tensors.items() if n not in names})
    return file, names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for run in (append, strip):
        part = commands.add_parser(run.__name__)
        part.set_defaults(run=run)
        part.add_argument("--file", required=True)
        if run is append:
            part.add_argument("--layer", required=True, help="a file of the same model that has the layer")
        part.add_argument("--out", required=True)
    options = parser.parse_args()
    file, changed = options.run(options)
    out = File(options.out)
    trunk = [name for name in file.tensors if name not in changed]
    others = [key for key in file.keys if key not in map(file.key, COUNTS)]
    if any(out.tensors[n] != file.tensors[n] for n in trunk) or any(out.keys[k] != file.keys[k] for k in others):
        raise SystemExit(f"{options.out}: does not have the bytes of {file.path}")
    size = sum(len(data) for _, _, data in out.tensors.values())
    done = "added" if options.run is append else "left out"
    kept = f"{len(trunk)} tensors and {len(others)} keys with the bytes of {file.path}"
    print(f"{options.out}: {kept}, {len(changed)} tensors {done}, {size} bytes of tensors")


if __name__ == "__main__":
    main()
