"""tools/mtp_file.py: what it takes out of the shipped file, it puts back with the same bytes."""

import argparse
import sys
from pathlib import Path

import pytest

gguf = pytest.importorskip("gguf")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mtp_file  # noqa: E402

SHIPPED = ROOT / "models/story-q4_k.gguf"


def strip(file, out):
    mtp_file.strip(argparse.Namespace(file=str(file), out=str(out)))
    return out


def append(file, layer, out):
    mtp_file.append(argparse.Namespace(file=str(file), layer=str(layer), out=str(out)))
    return out


def test_a_layer_that_was_taken_out_is_put_back(tmp_path):
    trunk = strip(SHIPPED, tmp_path / "trunk.gguf")
    assert trunk.stat().st_size < SHIPPED.stat().st_size
    again = append(trunk, SHIPPED, tmp_path / "again.gguf")
    assert again.read_bytes() == SHIPPED.read_bytes()
    assert strip(trunk, tmp_path / "twice.gguf").read_bytes() == trunk.read_bytes()


def test_the_trunk_keeps_its_bytes(tmp_path):
    whole = mtp_file.File(str(SHIPPED))
    trunk = mtp_file.File(str(strip(SHIPPED, tmp_path / "trunk.gguf")))
    assert whole.counts["nextn_predict_layers"] == 1 and "nextn_predict_layers" not in trunk.counts
    assert trunk.counts["block_count"] == whole.counts["block_count"] - 1 == whole.trunk_layers
    layer = set(whole.layer_names)
    assert {"blk.8.nextn.eh_proj.weight", "blk.8.attn_q.weight", "blk.8.ffn_down.weight"} <= layer
    assert trunk.tensors == {name: tensor for name, tensor in whole.tensors.items() if name not in layer}
    counts = {whole.key(name) for name in mtp_file.COUNTS}
    assert {k: v for k, v in trunk.keys.items() if k not in counts} == {
        k: v for k, v in whole.keys.items() if k not in counts
    }


def test_files_that_do_not_go_together(tmp_path):
    trunk = strip(SHIPPED, tmp_path / "trunk.gguf")
    out = tmp_path / "out.gguf"
    with pytest.raises(SystemExit, match="has a layer already"):
        append(SHIPPED, SHIPPED, out)
    with pytest.raises(SystemExit, match="expected one MTP layer"):
        append(trunk, trunk, out)
    other = tmp_path / "other.gguf"
    file = mtp_file.File(str(SHIPPED))
    key = file.key("embedding_length")
    file.keys[key] = file.keys[key][:-4] + (128).to_bytes(4, "little")
    mtp_file.write(str(other), file.keys, file.tensors)
    with pytest.raises(SystemExit, match="expected the shapes of"):
        append(trunk, other, out)
    assert not out.exists()
