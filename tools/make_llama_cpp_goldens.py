#!/usr/bin/env python3
"""Makes tests/model/goldens/llama_cpp: what llama.cpp computes with files that Thalweg wrote, and files that its own
converter wrote.

    python3 tools/make_llama_cpp_goldens.py [--only story] [--converter SOURCES]

Needs build/release/bin/thalweg and PyPI's llama-cpp-python (made with 0.3.36: see llama_cpp_peer.py), numpy and
safetensors. Per model and type of file <model>.<type>.safetensors, from the shipped file (story-q4_k) or from
`thalweg quantize` of the tiny models beside it, which the test repeats:

    prompt.<n>.ids      I32 [n]        a prompt of n tokens
    prompt.<n>.logits   F32 [vocab]    behind its last token
    prompt.<n>.greedy   I32 [20]       what greedy decoding continues with
    prompt.<n>.margin   F32 [20]       by how much the best logit led the second, per step

The shipped file is given to llama.cpp without its MTP layer, which it refuses (tools/mtp_file.py).

With --converter, a folder with llama.cpp's convert_hf_to_gguf.py (the package's source has it in vendor/llama.cpp; needs
torch, transformers and sentencepiece), every tiny model is converted by both; differences are printed, and what that
converter makes of the models in THEIRS is kept as <model>.gguf.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import mtp_file
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
THALWEG = ROOT / "build/release/bin/thalweg"
GOLDENS = ROOT / "tests/model/goldens"
OUTPUT = GOLDENS / "llama_cpp"
STORY = ROOT / "models/story-q4_k.gguf"
STEPS = 20
TINY_PROMPTS = (1, 2, 17, 65, 300)
STORY_QUESTIONS = 6
# qwen3next files without experts in every layer are beyond llama.cpp.
BEYOND = {"next-r3-dense-layer"}
# Without experts: in a random mixture of experts some router always has near ties, and what rounding of activations to
# 8 bits makes of them is chance. llama.cpp itself chooses other experts from the same weights in F32.
QUANTISED = {"qwen35-r1": "Q5_1", "qwen35-r2-d128-tied": "IQ4_NL", "qwen35-r3-tied": "Q8_0", "qwen35-r4": "Q4_0"}
# Models whose value heads their converter puts into another order, and what it is told besides.
THEIRS = {"qwen35-r3-tied": [], "qwen35moe-r2": ["--fuse-qkv", "--fuse-gate-up-exps"]}


def tiny_tokenizer(vocabulary):
    """llama.cpp loads no file without one: the letters of the 256 bytes, one merge, and no ids left free, which
    transformers would number anew."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    tokens = [*letters, "th", *(f"unused{i}" for i in range(len(letters) + 1, vocabulary - 1))]
    end = {"id": vocabulary - 1, "content": "<|endoftext|>", "special": True, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [end | {"single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["t h"]},
    }


def tiny_models():
    names = sorted(folder.name for folder in GOLDENS.iterdir() if (folder / "config.json").exists())
    return [name for name in names if name not in BEYOND]


def with_tokenizer(name, folder):
    """The tiny model's folder with a tokenizer."""
    copied = pathlib.Path(folder) / name
    shutil.copytree(GOLDENS / name, copied, ignore=shutil.ignore_patterns("goldens.safetensors"))
    config = json.loads((copied / "config.json").read_text())
    tokenizer = tiny_tokenizer(config.get("text_config", config)["vocab_size"])
    (copied / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    return copied


def quantize(source, target, kind):
    subprocess.run([THALWEG, "quantize", source, target, kind], check=True, capture_output=True)
    return target


def goldens_of(peer, prompts):
    goldens = {}
    for ids in prompts:
        peer.clear()
        logits = peer.eval(ids)
        greedy, margins = [], []
        key = f"prompt.{len(ids)}"
        goldens[f"{key}.ids"] = np.array(ids, np.int32)
        goldens[f"{key}.logits"] = logits
        for _ in range(STEPS):
            second, best = np.argsort(logits, kind="stable")[-2:]
            greedy.append(int(best))
            margins.append(logits[best] - logits[second])
            logits = peer.eval([greedy[-1]])
        goldens[f"{key}.greedy"] = np.array(greedy, np.int32)
        goldens[f"{key}.margin"] = np.array(margins, np.float32)
    return goldens


def record(file, name, prompts_of, context):
    import llama_cpp
    from llama_cpp_peer import LlamaCpp

    peer = LlamaCpp(file, context)
    prompts = prompts_of(peer)
    goldens = goldens_of(peer, prompts)
    print(f"{name}: {peer.text_of(goldens[f'prompt.{len(prompts[-1])}.greedy'])!r}")
    peer.close()
    save_file(goldens, OUTPUT / f"{name}.safetensors", metadata={"llama-cpp-python": llama_cpp.__version__})


def story_prompts(peer):
    """The first stories, up to their questions, and one token alone."""
    prompts = [peer.tokenize("Anna")]
    for line in (ROOT / "models/eval/perplexity.txt").read_text().splitlines():
        question = peer.tokenize(line[: line.index("?") + 1])
        if "?" not in line[:-1] or len(question) in map(len, prompts):
            continue
        prompts.append(question)
        if len(prompts) > STORY_QUESTIONS:
            return prompts


def tiny_prompts(peer):
    random = np.random.default_rng(7)
    return [random.integers(0, peer.vocabulary - 1, n).tolist() for n in TINY_PROMPTS]


def convert_as_they_do(sources, folder, target, options=()):
    # The converter recognizes tokenizers by a hash of what they do with a text; a tiny one is not on its list.
    arguments = ["convert", str(folder), "--outfile", str(target), "--outtype", "bf16", "--no-mtp", *options]
    program = (
        "import runpy, sys; import conversion.base as base; base.TextModel.get_vocab_base_pre = lambda *_: 'qwen35'; "
        f"sys.argv = {arguments}; runpy.run_path({str(sources / 'convert_hf_to_gguf.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=sources, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"their converter fails on {folder}:\n{done.stderr}")


def as_floats(tensor):
    data = np.asarray(tensor.data)
    if tensor.tensor_type.name == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).ravel()
    return data.astype(np.float32).ravel()


def compare_files(name, ours, theirs):
    from gguf import GGUFReader

    ours, theirs = GGUFReader(ours), GGUFReader(theirs)
    a = {tensor.name: tensor for tensor in ours.tensors}
    b = {tensor.name: tensor for tensor in theirs.tensors}
    differ = [f"only in one: {tensor}" for tensor in sorted(a.keys() ^ b.keys())]
    for tensor in sorted(a.keys() & b.keys()):
        shapes = [[int(n) for n in x[tensor].shape if n != 1] for x in (a, b)]
        if shapes[0] != shapes[1]:
            differ.append(f"{tensor}: {shapes[0]} here, {shapes[1]} there")
        elif not np.allclose(as_floats(a[tensor]), as_floats(b[tensor]), rtol=2e-7, atol=0):
            differ.append(f"{tensor}: other values")
        elif a[tensor].tensor_type != b[tensor].tensor_type:
            differ.append(f"{tensor}: {a[tensor].tensor_type.name} here, {b[tensor].tensor_type.name} there")
    for key in sorted(ours.fields.keys() | theirs.fields.keys()):
        if key.startswith("GGUF."):
            continue
        values = [reader.fields[key].contents() if key in reader.fields else None for reader in (ours, theirs)]
        if values[0] != values[1]:
            if all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
                values = [[i, x[i]] for x, y in (values, values[::-1]) for i in range(len(x)) if x[i] != y[i]]
            short = [str(value)[:60] for value in values]
            differ.append(f"{key}: {short[0]} here, {short[1]} there")
    print(f"{name}: {len(a)} tensors\n  " + "\n  ".join(differ or ["no difference"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("story",), help="the shipped file alone")
    parser.add_argument("--converter", type=pathlib.Path, help="llama.cpp's sources: compare its converter with ours")
    options = parser.parse_args()
    OUTPUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.converter:
            for name in tiny_models():
                source = with_tokenizer(name, folder)
                theirs = pathlib.Path(folder) / f"{name}.gguf"
                convert_as_they_do(options.converter.resolve(), source, theirs)
                compare_files(name, quantize(source, f"{folder}/ours.gguf", "BF16"), theirs)
                if name in THEIRS:
                    convert_as_they_do(options.converter.resolve(), source, OUTPUT / theirs.name, THEIRS[name])
            return
        trunk = f"{folder}/{STORY.name}"
        mtp_file.strip(argparse.Namespace(file=str(STORY), out=trunk))
        record(trunk, STORY.stem, story_prompts, 1024)
        for name in () if options.only else tiny_models():
            source = with_tokenizer(name, folder)
            for kind in ("F32", QUANTISED.get(name)):
                if kind:
                    file = quantize(source, f"{folder}/{name}.gguf", kind)
                    record(file, f"{name}.{kind}", tiny_prompts, 512)


if __name__ == "__main__":
    main()
