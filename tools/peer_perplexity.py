#!/usr/bin/env python3
"""Perplexity of the shipped model on models/eval/perplexity.txt: Thalweg, llama.cpp and Hugging Face transformers side
by side; with --write in models/README.md, between <!-- perplexity --> and <!-- /perplexity -->.

    python3 tools/peer_perplexity.py [--hf FOLDER] [--model FILE] [--write] [--text]

Needs build/release/bin/thalweg, llama-cpp-python (see llama_cpp_peer.py), torch, transformers and gguf; a CPU is enough.
All score the same tokens in the same windows, each of which begins without a past. Transformers computes in float32,
from the unpacked weights of the file, put back into its own layout; and, with --hf, from the folder that the file was
quantized from. --text writes the text anew, from tools/stories.py.
"""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
THALWEG = ROOT / "build/release/bin/thalweg"
MODEL = ROOT / "models/story-q4_k.gguf"
TEXT = ROOT / "models/eval/perplexity.txt"
CARD = ROOT / "models/README.md"
WINDOW = 1024


def make_text():
    """Test stories, which share no combination of person, object and place with training."""
    import stories

    rows = [*stories.test_set(4242, 14, 200), *stories.test_set(4242, 8, 500)]
    TEXT.write_text("".join(f"{row['prompt']} {row['answer']}\n" for row in rows))


def windows(ids):
    cut = [ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]
    return [window for window in cut if len(window) > 1]


def perplexity(logits_of, ids):
    """By the logits [n, vocabulary] behind each token of a window."""
    nats, count = 0.0, 0
    for window in windows(ids):
        logits = np.asarray(logits_of(window), np.float64)[:-1]
        most = logits.max(-1, keepdims=True)
        log_sum = np.log(np.exp(logits - most).sum(-1)) + most[:, 0]
        nats += (log_sum - logits[np.arange(len(window) - 1), window[1:]]).sum()
        count += len(window) - 1
    return math.exp(nats / count), count


def by_thalweg(model, *options):
    command = [THALWEG, "perplexity", "-m", model, "-f", TEXT, "--window", str(WINDOW), "--json", *options]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result["perplexity"], result["scored"]


def by_llama_cpp(model):
    """Of the file without its MTP layer, which llama.cpp takes with experts alone."""
    import mtp_file
    from llama_cpp_peer import LlamaCpp

    with tempfile.TemporaryDirectory() as folder:
        trunk = str(pathlib.Path(folder) / "trunk.gguf")
        mtp_file.strip(argparse.Namespace(file=str(model), out=trunk))
        return by_llama_cpp_peer(LlamaCpp(trunk, WINDOW))


def by_llama_cpp_peer(peer):
    ids = peer.tokenize(TEXT.read_text())

    def logits_of(window):
        peer.clear()
        return peer.eval(window, every=True)

    result = perplexity(logits_of, ids)
    peer.close()
    return result, ids


def grouped_heads(tensor, axis, key_heads, value_heads):
    """Value heads from the file's order, h % key_heads, into that of transformers, h / (value_heads / key_heads)."""
    shape = tensor.shape
    width = shape[axis] // value_heads
    split = tensor.reshape(*shape[:axis], value_heads // key_heads, key_heads, width, *shape[axis + 1 :])
    return np.ascontiguousarray(split.swapaxes(axis, axis + 1)).reshape(shape)


def transformers_state(path):
    """(metadata, state dict) of a qwen35moe file, without its MTP layer, which transformers has no module for."""
    import gguf
    import torch

    reader = gguf.GGUFReader(path)
    meta = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("tokenizer.")}
    get = lambda key: meta["qwen35moe." + key]
    meta["qwen35moe.block_count"] -= meta.pop("qwen35moe.nextn_predict_layers", 0)
    hk, hv, dk = get("ssm.group_count"), get("ssm.time_step_rank"), get("ssm.state_size")
    weights = {t.name: np.array(gguf.quants.dequantize(t.data, t.tensor_type), np.float32) for t in reader.tensors}
    mtp = f"blk.{get('block_count')}."
    weights = {name: values for name, values in weights.items() if not name.startswith(mtp)}

    def value_rows(rows):  # q | k | v: the value heads are behind
        start = 2 * hk * dk
        return np.concatenate([rows[:start], grouped_heads(rows[start:], 0, hk, hv)])

    heads = lambda axis: lambda w: grouped_heads(w, axis, hk, hv)
    minus_one = lambda w: w - 1
    same = lambda w: w
    parts = {
        "attn_norm.weight": ("input_layernorm.weight", minus_one),
        "post_attention_norm.weight": ("post_attention_layernorm.weight", minus_one),
        "attn_q.weight": ("self_attn.q_proj.weight", same),
        "attn_k.weight": ("self_attn.k_proj.weight", same),
        "attn_v.weight": ("self_attn.v_proj.weight", same),
        "attn_output.weight": ("self_attn.o_proj.weight", same),
        "attn_q_norm.weight": ("self_attn.q_norm.weight", minus_one),
        "attn_k_norm.weight": ("self_attn.k_norm.weight", minus_one),
        "attn_qkv.weight": ("linear_attn.in_proj_qkv.weight", value_rows),
        "attn_gate.weight": ("linear_attn.in_proj_z.weight", heads(0)),
        "ssm_alpha.weight": ("linear_attn.in_proj_a.weight", heads(0)),
        "ssm_beta.weight": ("linear_attn.in_proj_b.weight", heads(0)),
        "ssm_conv1d.weight": ("linear_attn.conv1d.weight", lambda w: value_rows(w)[:, None]),
        "ssm_dt.bias": ("linear_attn.dt_bias", heads(0)),
        "ssm_a": ("linear_attn.A_log", lambda w: heads(0)(np.log(-w))),
        "ssm_norm.weight": ("linear_attn.norm.weight", same),
        "ssm_out.weight": ("linear_attn.out_proj.weight", heads(1)),
        "ffn_gate_inp.weight": ("mlp.gate.weight", same),
        "ffn_down_exps.weight": ("mlp.experts.down_proj", same),
        "ffn_gate_inp_shexp.weight": ("mlp.shared_expert_gate.weight", lambda w: w.reshape(1, -1)),
        "ffn_gate_shexp.weight": ("mlp.shared_expert.gate_proj.weight", same),
        "ffn_up_shexp.weight": ("mlp.shared_expert.up_proj.weight", same),
        "ffn_down_shexp.weight": ("mlp.shared_expert.down_proj.weight", same),
    }
    state = {
        "model.embed_tokens.weight": weights.pop("token_embd.weight"),
        "model.norm.weight": weights.pop("output_norm.weight") - 1,
    }
    state["lm_head.weight"] = weights.pop("output.weight", state["model.embed_tokens.weight"])
    for name, values in weights.items():
        _, layer, part = name.split(".", 2)
        to = f"model.layers.{layer}."
        if part == "ffn_gate_exps.weight":
            both = [values, weights[name.replace("gate", "up")]]
            state[to + "mlp.experts.gate_up_proj"] = np.concatenate(both, axis=1)
        elif part != "ffn_up_exps.weight":
            target, change = parts[part]
            state[to + target] = change(values)
    return meta, {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in state.items()}


def transformers_model(path):
    """The GGUF file's model in transformers; its unpacked weights must fill every parameter."""
    import torch
    import transformers

    meta, state = transformers_state(path)
    get = lambda key: meta["qwen35moe." + key]
    layers, interval = get("block_count"), get("full_attention_interval")
    rope = {
        "rope_type": "default",
        "rope_theta": get("rope.freq_base"),
        "partial_rotary_factor": get("rope.dimension_count") / get("attention.key_length"),
        "mrope_section": get("rope.dimension_sections")[:3],
        "mrope_interleaved": True,
    }
    config = transformers.Qwen3_5MoeTextConfig(
        vocab_size=state["model.embed_tokens.weight"].shape[0],
        hidden_size=get("embedding_length"),
        num_hidden_layers=layers,
        num_attention_heads=get("attention.head_count"),
        num_key_value_heads=get("attention.head_count_kv"),
        head_dim=get("attention.key_length"),
        linear_conv_kernel_dim=get("ssm.conv_kernel"),
        linear_num_key_heads=get("ssm.group_count"),
        linear_num_value_heads=get("ssm.time_step_rank"),
        linear_key_head_dim=get("ssm.state_size"),
        linear_value_head_dim=get("ssm.inner_size") // get("ssm.time_step_rank"),
        num_experts=get("expert_count"),
        num_experts_per_tok=get("expert_used_count"),
        moe_intermediate_size=get("expert_feed_forward_length"),
        shared_expert_intermediate_size=get("expert_shared_feed_forward_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        layer_types=["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)],
        max_position_embeddings=get("context_length"),
        rope_parameters=rope,
    )
    model = transformers.Qwen3_5MoeForCausalLM(config).to(torch.float32)
    model.load_state_dict(state, strict=True)
    return model


def by_transformers(model, ids):
    import torch

    @torch.no_grad()
    def logits_of(window):
        return model(input_ids=torch.tensor([window]), use_cache=False).logits[0].numpy()

    model.eval()
    return perplexity(logits_of, ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--hf", type=pathlib.Path, help="the bf16 export that the file was quantized from")
    parser.add_argument("--text", action="store_true", help="write the text anew")
    parser.add_argument("--write", action="store_true", help="fill in the table of the model card")
    options = parser.parse_args()
    if options.text:
        make_text()

    import llama_cpp
    import torch
    import transformers

    rows = []

    def add(who, weights, arithmetic, result):
        value, count = result
        rows.append((who, weights, arithmetic, value, count))
        print(f"{who}, {weights}, {arithmetic}: {value:.4f} over {count} tokens", flush=True)

    result, ids = by_llama_cpp(options.model)
    name = options.model.name
    add("Thalweg", name, "activations in 8 bits", by_thalweg(options.model))
    add(f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", name, "activations in 8 bits", result)
    add("Thalweg", name, "`--exact`", by_thalweg(options.model, "--exact"))
    add(f"transformers {transformers.__version__}", f"{name}, unpacked", "float32",
        by_transformers(transformers_model(options.model), ids))
    if options.hf:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.hf)
        if tokenizer(TEXT.read_text(), add_special_tokens=False).input_ids != ids:
            raise SystemExit("the tokens of transformers are others than those of llama.cpp")
        add("Thalweg", "bf16", "`--exact`", by_thalweg(options.hf, "--exact"))
        model = transformers.AutoModelForCausalLM.from_pretrained(options.hf, dtype=torch.float32)
        add(f"transformers {transformers.__version__}", "bf16", "float32", by_transformers(model, ids))
    if len({count for *_, count in rows}) != 1:
        raise SystemExit("the implementations did not score the same number of tokens")
    if not options.write:
        return
    lines = ["| implementation | weights | arithmetic | perplexity |", "| --- | --- | --- | ---: |"]
    lines += [f"| {who} | {weights} | {arithmetic} | {value:.4f} |" for who, weights, arithmetic, value, _ in rows]
    card = CARD.read_text()
    start, end = "<!-- perplexity -->\n", "<!-- /perplexity -->"
    head, rest = card.split(start)
    CARD.write_text(head + start + "\n".join(lines) + "\n" + end + rest.split(end)[1])


if __name__ == "__main__":
    main()
