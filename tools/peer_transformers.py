#!/usr/bin/env python3
"""Models of Hugging Face transformers on this machine's GPU: with Thalweg, with FLA and as transformers are alone.

    pip install . -Ccmake.define.THALWEG_CUDA=ON        # Thalweg
    pip install torch transformers flash-linear-attention
    python3 tools/peer_transformers.py [--tokens 4096] [--layers 4] [--timed FAMILY...] [--json FILE]

First, for tiny Qwen3-Next and Qwen3.5-MoE models with random weights: the greedy text with and without
thalweg.patch_transformers(), and the logits against those that transformers alone have of the same weights in f32. In
bf16 random weights part the texts wherever two tokens are nearly as likely; the gap says how nearly, in f32 and in
units of the logits' root mean square.

Then the time of a prefill of one sequence: of one gated delta layer as transformers have it (projections, convolution,
rule, norm), and of a model of such layers, every fourth one with full attention, with few experts so that the layers
count. 16 key heads and 32 value heads of 128, bf16. The layer's outputs are compared with those of transformers alone
in f32. Each way runs in a process of its own, since transformers choose FLA when they are imported; times are medians
after a warm-up in which FLA's kernels are tuned. FLA is left out where it is not installed.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = ("torch", "fla", "thalweg")
EXACT = "torch in f32"
FAMILIES = ("qwen3_next", "qwen3_5_moe")
LAYER = {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128}  # fmt: skip


def make_model(family, layers, *, seed=0, **sizes):
    import torch
    import transformers

    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    torch.manual_seed(seed)
    if family == "qwen3_next":
        return transformers.Qwen3NextForCausalLM(
            transformers.Qwen3NextConfig(num_hidden_layers=layers, layer_types=kinds, **sizes)
        ).eval()
    return transformers.Qwen3_5MoeForCausalLM(
        transformers.Qwen3_5MoeTextConfig(num_hidden_layers=layers, layer_types=kinds, **sizes)
    ).eval()


def relative(x, exact):
    return float((x.double() - exact).norm() / exact.norm())


def compare_text(family) -> list[dict]:
    """A tiny model, f32 and bf16, with and without the patch. All experts are used, so that no choice of experts hangs
    on a rounding."""
    import torch

    import thalweg

    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = {
        "vocab_size": 256, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    }  # fmt: skip
    tokens = torch.randint(0, 256, (1, 100), generator=torch.Generator().manual_seed(1)).to(device)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model(family, 4, **sizes).to(device, dtype)

        def run(model=model):
            return model(tokens).logits, model.generate(tokens, max_new_tokens=32, do_sample=False)[:, 100:]

        plain, text = run()
        thalweg.patch_transformers()
        try:
            patched, patched_text = run()
        finally:
            thalweg.unpatch()
        exact = model.float()(tokens).logits.double()
        same = int((text == patched_text).cumprod(1).sum())
        apart = 0.0
        if same < text.shape[1]:  # how far apart, in f32, the two tokens are that the texts go on with
            last = model(torch.cat([tokens, text[:, :same]], 1)).logits[0, -1]
            apart = float((last[text[0, same]] - last[patched_text[0, same]]).abs() / last.norm() * last.numel() ** 0.5)
        rows.append({
            "family": family, "dtype": str(dtype).split(".")[1], "same_tokens": same, "of": text.shape[1],
            "apart": apart, "error": relative(plain, exact), "patched_error": relative(patched, exact),
        })  # fmt: skip
    return rows


def median_ms(function, runs=15) -> float:
    import torch

    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def time_way(way, family, tokens, layers, output_file) -> dict:
    """In a process of its own. A layer's output goes to a file, to be compared."""
    if way == "fla":
        os.environ.setdefault("FLA_FLASH_QLA", "0")  # else FLA may hand the work to FlashQLA
        importlib.import_module("fla")
    else:
        sys.modules["fla"] = None  # as if it were not installed
    import torch

    torch.set_grad_enabled(False)
    if way == "thalweg":
        import thalweg

        thalweg.patch_transformers()
    with torch.device("cuda"):
        model = make_model(
            family, layers, vocab_size=1024, hidden_size=2048, num_attention_heads=16, num_key_value_heads=2,
            head_dim=256, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=512,
            shared_expert_intermediate_size=512, **LAYER,
        ).to(torch.bfloat16)  # fmt: skip
    text = torch.randint(0, 1024, (1, tokens), generator=torch.Generator().manual_seed(2)).cuda()
    layer = model.model.layers[0].linear_attn
    x = torch.randn(1, tokens, 2048, generator=torch.Generator().manual_seed(3)).to("cuda", torch.bfloat16)
    if way == EXACT:
        output = layer.float()(x.float())
        torch.save(output[0, -512:].cpu(), output_file)
        return {}
    for _ in range(3):
        output = layer(x)
        model(text, use_cache=True)
    torch.save(output[0, -512:].float().cpu(), output_file)
    cache = model(text, use_cache=True).past_key_values
    for _ in range(5):
        layer(x[:, :1], cache_params=cache)
    return {
        "layer_ms": median_ms(lambda: layer(x)),
        "model_ms": median_ms(lambda: model(text, use_cache=True)),
        "step_ms": median_ms(lambda: layer(x[:, :1], cache_params=cache), 100),
        "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
    }


def in_own_process(arguments) -> dict | None:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def versions() -> str:
    import torch

    names = ["torch", "transformers", "flash-linear-attention", "thalweg"]
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    smi = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(smi, capture_output=True, text=True, check=False).stdout.split()
    where = [torch.cuda.get_device_name(), f"driver {driver[0]}" if driver else ""]
    return ", ".join(filter(None, where + found + [f"CUDA {torch.version.cuda}"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=FAMILIES, help="whose text is compared")
    parser.add_argument("--timed", nargs="*", choices=FAMILIES, default=FAMILIES[:1], help="whose prefill is timed")
    parser.add_argument("--way", choices=(*WAYS, EXACT), help=argparse.SUPPRESS)
    parser.add_argument("--text", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.text:
        sys.modules["fla"] = None
        import torch

        torch.set_grad_enabled(False)
        print(json.dumps([row for family in options.families for row in compare_text(family)]))
        return
    if options.way:
        print(json.dumps(time_way(options.way, options.timed[0], options.tokens, options.layers, options.output)))
        return

    import torch

    print(versions(), "\n")
    result = {"versions": versions(), "text": [], "times": []}
    if options.families:
        result["text"] = in_own_process(["--text", "--families", *options.families]) or []
    print("| tiny model | dtype | same greedy tokens | where they part: gap | logits from f32, transformers alone | "
          "with Thalweg |")  # fmt: skip
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for row in result["text"]:
        apart = f"{row['apart']:.1e}" if row["same_tokens"] < row["of"] else ""
        print(f"| {row['family']} | {row['dtype']} | {row['same_tokens']} of {row['of']} | {apart} | "
              f"{row['error']:.1e} | {row['patched_error']:.1e} |")  # fmt: skip
    print(f"\n| prefill of {options.tokens} tokens | way | layer, ms | model of {options.layers} layers, ms | "
          "layer, one token more, ms | peak MiB | layer from f32 |")  # fmt: skip
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for family in options.timed:
            outputs = {}
            for way in (EXACT, *WAYS):
                file = Path(folder) / f"{family}-{way}.pt"
                times = in_own_process(["--way", way, "--timed", family, "--tokens", str(options.tokens),
                                        "--layers", str(options.layers), "--output", str(file)])  # fmt: skip
                if times is None:
                    print(f"| {family} | {way} | not run | | | | |")
                    continue
                outputs[way] = torch.load(file).double()
                if way == EXACT:
                    continue
                error = relative(outputs[way], outputs[EXACT])
                result["times"].append({"family": family, "way": way, **times, "error": error})
                print(f"| {family} | {way} | {times['layer_ms']:.2f} | {times['model_ms']:.2f} | "
                      f"{times['step_ms']:.2f} | {times['peak_mb']:.0f} | {error:.1e} |", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
