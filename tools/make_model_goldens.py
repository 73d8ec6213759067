#!/usr/bin/env python3
"""Makes tests/model/goldens: tiny random models and what Hugging Face transformers computes with them, in float32.

    python3 tools/make_model_goldens.py [output [name ...]]

Needs torch, transformers (made with 5.17, those of SCALINGS with 5.23) and safetensors; a CPU is enough, and without FLA's package transformers takes
its own float32 path. Per model: config.json, model.safetensors and goldens.safetensors, which holds

    prompt.<n>.ids      I32 [n]        a prompt of n tokens
    prompt.<n>.logits   F32 [vocab]    behind its last token
    prompt.<n>.greedy   I32 [20]       what greedy decoding continues with
    prompt.<n>.margin   F32 [20]       by how much the best logit led the second, per step
    batch.ids, .mask    I32 [3, 24]    a batch padded on the left (mask 0)
    batch.logits        F32 [3, vocab] behind the last token of each row

Weights are rounded to bf16 before anything is computed, so that a file in either type holds them exactly.
"""

import json
import os
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCABULARY = 300
PROMPTS = (1, 2, 3, 17, 64, 65, 130, 300)
STEPS = 20

# name: (family, linear key heads, value heads, linear head dim, query heads, KV heads, head dim, tied, layers, file)
# Layers: l = Gated DeltaNet, a = attention. File: the type that is stored; "nested" as in the checkpoints with vision.
MODELS = {
    "next-r1-tied": ("next", 2, 2, 64, 4, 2, 64, True, "lla", "bf16"),
    "next-r2": ("next", 1, 2, 64, 2, 1, 64, False, "lal", "f32"),
    "next-r3-dense-layer": ("next", 1, 3, 64, 4, 1, 64, False, "lla", "bf16"),
    "next-r4-d128": ("next", 1, 4, 128, 2, 2, 128, True, "la", "bf16"),
    "qwen35-r1": ("dense", 2, 2, 64, 4, 4, 64, False, "la", "bf16"),
    "qwen35-r2-d128-tied": ("dense", 1, 2, 128, 2, 1, 128, True, "lla", "bf16 nested"),
    "qwen35-r3-tied": ("dense", 2, 6, 64, 6, 2, 64, True, "la", "bf16"),
    "qwen35-r4": ("dense", 1, 4, 64, 4, 1, 64, False, "llla", "bf16"),
    "qwen35moe-r1-tied": ("moe", 1, 1, 128, 2, 1, 128, True, "lla", "bf16"),
    "qwen35moe-r2": ("moe", 2, 4, 64, 4, 2, 64, False, "la", "bf16 nested"),
    "qwen35moe-r3": ("moe", 1, 3, 64, 3, 1, 64, False, "lal", "bf16"),
    "qwen35moe-r4-tied": ("moe", 1, 4, 64, 4, 2, 64, True, "lla", "bf16"),
    "next-yarn": ("next", 1, 2, 64, 2, 1, 128, True, "la", "bf16"),
    "qwen35-yarn-mscale": ("dense", 1, 2, 64, 2, 1, 128, True, "la", "bf16 nested"),
    "qwen35moe-yarn-attention": ("moe", 1, 2, 64, 2, 1, 128, True, "la", "bf16"),
    "qwen35moe-linear": ("moe", 1, 2, 64, 2, 1, 64, True, "la", "bf16"),
}

# Scaled rotary embeddings. The longest prompts go far beyond the original context.
SCALINGS = {
    "next-yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "qwen35-yarn-mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 100,
        "beta_fast": 4.0,
        "beta_slow": 0.01,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
    "qwen35moe-yarn-attention": {
        "rope_type": "yarn",
        "factor": 2.5,
        "original_max_position_embeddings": 128,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "attention_factor": 1.3,
    },
    "qwen35moe-linear": {"rope_type": "linear", "factor": 3.0},
}


def make_model(scaling, family, hk, hv, linear_dim, heads, kv_heads, head_dim, tied, layers):
    rotated = head_dim // 4 // 2
    sections = [rotated - 2 * (rotated // 3), rotated // 3, rotated // 3]
    common = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=len(layers),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        linear_num_key_heads=hk,
        linear_num_value_heads=hv,
        linear_key_head_dim=linear_dim,
        linear_value_head_dim=linear_dim,
        tie_word_embeddings=tied,
        layer_types=["linear_attention" if kind == "l" else "full_attention" for kind in layers],
        max_position_embeddings=1024,
        eos_token_id=VOCABULARY - 1,
        pad_token_id=None,
        bos_token_id=None,
    )
    experts = dict(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40
    )
    rope = {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25} | scaling
    if family == "next":
        extra = dict(intermediate_size=48, norm_topk_prob=True, decoder_sparse_step=1, rope_parameters=rope)
        extra["mlp_only_layers"] = [1] if layers == "lla" and not tied else []
        config = transformers.Qwen3NextConfig(**common, **experts, **extra)
        kind = transformers.Qwen3NextForCausalLM
    else:
        rope |= {"mrope_section": sections, "mrope_interleaved": True}
        if family == "dense":
            config = transformers.Qwen3_5TextConfig(**common, intermediate_size=72, rope_parameters=rope)
            kind = transformers.Qwen3_5ForCausalLM
        else:
            config = transformers.Qwen3_5MoeTextConfig(**common, **experts, rope_parameters=rope)
            kind = transformers.Qwen3_5MoeForCausalLM
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = kind(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("A_log"):
                p.copy_(torch.rand_like(p) * 3.0 - 2.0)
            elif name.endswith("dt_bias"):
                p.copy_(torch.randn_like(p) - 1.0)
            elif "norm" in name:
                p.add_(torch.randn_like(p) * 0.2)
            elif "conv1d" in name:
                p.copy_(torch.randn_like(p) * 0.5)
            elif "embed" in name or "lm_head" in name:
                p.copy_(torch.randn_like(p) * 0.3)
            else:
                p.copy_(torch.randn_like(p) * p.shape[-1] ** -0.5)
            p.copy_(p.bfloat16().float())
    return model, config


def save_model(model, config, folder, how, tied):
    model.save_pretrained(folder)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        written = json.load(file)
    dtype = torch.bfloat16 if "bf16" in how else torch.float32
    written["dtype"] = "bfloat16" if "bf16" in how else "float32"
    from safetensors.torch import load_file

    tensors = load_file(os.path.join(folder, "model.safetensors"))
    if "nested" in how:
        # As Qwen3.5's own checkpoints are: the text model inside one with vision, experts fused.
        tensors = {k: v for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
        tensors = {
            "model.language_model." + k.removeprefix("model.") if k.startswith("model.") else k: v.clone()
            for k, v in tensors.items()
        }
        architecture = written.pop("architectures")[0].replace("ForCausalLM", "ForConditionalGeneration")
        written = {
            "architectures": [architecture],
            "model_type": written["model_type"].removesuffix("_text"),
            "text_config": written,
            "tie_word_embeddings": tied,
        }
    # A_log and the gated norm's weight stay in float32, as in Qwen3.5's checkpoints.
    keep = ("A_log", "linear_attn.norm.weight")
    tensors = {k: v.contiguous() if k.endswith(keep) else v.to(dtype).contiguous() for k, v in tensors.items()}
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(written, file, indent=2)
        file.write("\n")
    for name in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))


@torch.no_grad()
def make_goldens(model):
    goldens = {}
    for length in PROMPTS:
        ids = torch.randint(0, VOCABULARY - 1, (1, length))
        output = model(input_ids=ids, use_cache=True)
        greedy, margins = [], []
        logits = output.logits[0, -1]
        goldens[f"prompt.{length}.ids"] = ids[0].int()
        goldens[f"prompt.{length}.logits"] = logits.clone()
        for _ in range(STEPS):
            best = torch.topk(logits, 2)
            greedy.append(best.indices[0].item())
            margins.append((best.values[0] - best.values[1]).item())
            output = model(
                input_ids=torch.tensor([[greedy[-1]]]), past_key_values=output.past_key_values, use_cache=True
            )
            logits = output.logits[0, -1]
        goldens[f"prompt.{length}.greedy"] = torch.tensor(greedy, dtype=torch.int32)
        goldens[f"prompt.{length}.margin"] = torch.tensor(margins)
    lengths, width = (24, 9, 2), 24
    ids = torch.randint(0, VOCABULARY - 1, (3, width))
    mask = torch.tensor([[int(i >= width - n) for i in range(width)] for n in lengths])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, -1]
    for row, n in enumerate(lengths):  # the padding must not matter
        alone = model(input_ids=ids[row : row + 1, width - n :], use_cache=False).logits[0, -1]
        error = ((alone - logits[row]).abs().max() / alone.abs().max()).item()
        if not error < 1e-4:
            raise SystemExit(f"the padded row {row} differs from the row alone by {error}")
    goldens |= {"batch.ids": ids.int(), "batch.mask": mask.int(), "batch.logits": logits.clone()}
    return goldens


def main():
    output = sys.argv[1] if len(sys.argv) > 1 else "tests/model/goldens"
    for index, (name, (*sizes, how)) in enumerate(MODELS.items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        torch.manual_seed(100 + index)
        model, config = make_model(SCALINGS.get(name, {}), *sizes)
        folder = os.path.join(output, name)
        os.makedirs(folder, exist_ok=True)
        save_model(model, config, folder, how, tied=sizes[7])
        goldens = make_goldens(model)
        save_file(goldens, os.path.join(folder, "goldens.safetensors"), metadata={"transformers": transformers.__version__})
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        spread = goldens["prompt.300.logits"]
        print(f"{name}: {size / 1000:.0f} kB, logits from {spread.min():.2f} to {spread.max():.2f}", flush=True)


if __name__ == "__main__":
    main()
