"""The MTP layer of the models of these families in PyTorch, and its training with the trunk frozen.

    x_i = fc [norm(embedding(t_i+1)) | norm(h_i)],  m_i = norm(layer(x)_i),  logits of t_i+2 = head m_i

with t the tokens and h the trunk's hidden states behind its final norm (docs/speculation.md). Further drafts come from
m in the place of h. Parameters have the names of published files behind "mtp.".

What the layer learns is the trunk's own distribution of the token that it foresees, not the text's: a draft is right if
it is what the trunk chooses. Needs torch alone.
"""

import json
import math
import os
import time

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """RMS norm with the weight 1 + w."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * (1 + self.weight.float())).to(x.dtype)


def linear(rows, columns):
    return nn.Linear(columns, rows, bias=False)


class Attention(nn.Module):
    """Causal, with a gate for each output; q and gate of a head lie side by side."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads, self.width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        rope = config.rope_parameters
        self.rotated = int(self.width * rope["partial_rotary_factor"])
        self.theta = rope["rope_theta"]
        self.q_proj = linear(2 * self.heads * self.width, config.hidden_size)
        self.k_proj = linear(self.kv_heads * self.width, config.hidden_size)
        self.v_proj = linear(self.kv_heads * self.width, config.hidden_size)
        self.o_proj = linear(config.hidden_size, self.heads * self.width)
        self.q_norm = Norm(self.width, config.rms_norm_eps)
        self.k_norm = Norm(self.width, config.rms_norm_eps)

    def rotate(self, x):
        half = self.rotated // 2
        frequencies = self.theta ** (-torch.arange(half, device=x.device).float() / half)
        angles = torch.arange(x.shape[1], device=x.device).float()[:, None] * frequencies
        cos, sin = angles.cos()[None, :, None].to(x.dtype), angles.sin()[None, :, None].to(x.dtype)
        a, b, rest = x[..., :half], x[..., half : self.rotated], x[..., self.rotated :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, gate = self.q_proj(x).view(batch, tokens, self.heads, 2 * self.width).chunk(2, -1)
        k = self.k_proj(x).view(batch, tokens, self.kv_heads, self.width)
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.width)
        q, k = self.rotate(self.q_norm(q)), self.rotate(self.k_norm(k))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).float() / math.sqrt(self.width)
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        shares = scores.masked_fill(future, float("-inf")).softmax(-1).to(x.dtype)
        out = torch.einsum("bhqk,bkhd->bqhd", shares, v) * torch.sigmoid(gate)
        return self.o_proj(out.reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(inner, hidden), linear(inner, hidden), linear(hidden, inner)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, count, hidden, inner):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * inner, hidden) / math.sqrt(hidden))
        self.down_proj = nn.Parameter(torch.randn(count, hidden, inner) / math.sqrt(inner))


class MoeMlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config.hidden_size
        self.used = config.num_experts_per_tok
        self.gate = linear(config.num_experts, hidden)
        self.experts = Experts(config.num_experts, hidden, config.moe_intermediate_size)
        self.shared_expert = Mlp(hidden, config.shared_expert_intermediate_size)
        self.shared_expert_gate = linear(1, hidden)
        self.balance = torch.zeros(())

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        shares = self.gate(rows).float().softmax(-1)
        weights, chosen = shares.topk(self.used, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        count = shares.shape[-1]
        for expert in range(count):
            at, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (rows[at] @ self.experts.gate_up_proj[expert].T).chunk(2, -1)
            y = (functional.silu(gate) * up) @ self.experts.down_proj[expert].T
            out = out.index_add(0, at, y * weights[at, place, None])
        used = torch.bincount(chosen.reshape(-1), minlength=count).float() / chosen.numel()
        self.balance = (used * shares.mean(0)).sum() * count  # 1 where all experts have equal shares
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        sparse = getattr(config, "num_experts", 0) > 0
        self.mlp = MoeMlp(config) if sparse else Mlp(config.hidden_size, config.intermediate_size)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class MtpLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.pre_fc_norm_embedding = Norm(size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm(size, config.rms_norm_eps)
        self.fc = linear(size, 2 * size)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = Norm(size, config.rms_norm_eps)

    def forward(self, embedding, hidden):
        both = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1)
        return self.norm(self.layers[0](self.fc(both)))


def losses(layer, embed, head, ids, hidden, counted, depth):
    """(loss, [share of rows where the likeliest token is the trunk's] by draft), of ids [B,T], hidden [B,T,D] behind the
    trunk's final norm and counted [B,T]: whether what follows a token counts. Draft n of row i stands for token
    i + 1 + n. From the second one on the layer sees its own outputs in all rows, where in decoding earlier rows have
    the trunk's."""
    with torch.no_grad():
        wanted = head(hidden).float().log_softmax(-1)  # of row i: token i + 1
    loss, right, state = 0.0, [], hidden
    for n in range(1, depth + 1):
        rows = ids.shape[1] - n
        state = layer(embed(ids[:, n:]), state[:, :rows])
        own = head(state).float().log_softmax(-1)
        target, mask = wanted[:, n:], counted[:, n:].float()
        total = mask.sum().clamp(min=1)
        loss = loss - ((target.exp() * own).sum(-1) * mask).sum() / total / n
        right.append((((own.argmax(-1) == target.argmax(-1)) * mask).sum() / total).detach())
    return loss, right


def train_layer(layer, embed, head, trunk, batches, options, log=print):
    """Trains until options.minutes or options.steps are over. batches yield (ids, counted); trunk(ids) gives hidden."""
    matrices = [p for p in layer.parameters() if p.dim() >= 2]
    small = [p for p in layer.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": small, "weight_decay": 0.0}], options.lr, (0.9, 0.98)
    )
    start, report, curve = time.time(), time.time(), []
    for step in range(1, options.steps + 1):
        share = max((step - 1) / options.steps, (time.time() - start) / 60 / options.minutes)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, step / options.warmup) * max(0.02, min(1.0, 2 * (1 - share)))
        ids, counted = next(batches)
        with torch.no_grad():
            hidden = trunk(ids)
        loss, right = losses(layer, embed, head, ids, hidden, counted, options.depth)
        balance = getattr(layer.layers[0].mlp, "balance", 0.0)
        optimizer.zero_grad(set_to_none=True)
        (loss + 0.01 * balance).backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        curve.append(float(loss))
        if step in (1, 10) or time.time() - report > 10:
            report = time.time()
            shares = " ".join(f"{float(r):.3f}" for r in right)
            log(f"{(report - start) / 60:6.2f} min step {step:6d} loss {curve[-1]:.4f} right by draft {shares}")
    return curve


def save_layer(layer, folder, dtype=torch.bfloat16):
    """Puts the layer beside the shards of the model in `folder`."""
    from safetensors.torch import load_file, save_file

    tensors = {"mtp." + name: p.detach().to(dtype).contiguous().cpu() for name, p in layer.named_parameters()}
    own = "model-mtp.safetensors"
    save_file(tensors, os.path.join(folder, own), {"format": "pt"})
    index_path = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index_path):
        with open(index_path, encoding="utf-8") as file:
            index = json.load(file)
    else:
        whole = load_file(os.path.join(folder, "model.safetensors"))
        index = {"metadata": {}, "weight_map": {name: "model.safetensors" for name in whole}}
    index["weight_map"].update({name: own for name in tensors})
    config_path = os.path.join(folder, "config.json")
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    config.get("text_config", config)["mtp_num_hidden_layers"] = 1
    for path, value in ((index_path, index), (config_path, config)):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")


def train(options, stream):
    """Adds a layer to the model in options.model. `stream` makes batches from the path of a tokenizer, a seed and a
    shared number, as tools/train_story_model.py has them."""
    import multiprocessing

    from transformers import Qwen3_5MoeForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    iterable = type("Stream", (stream, torch.utils.data.IterableDataset), {})
    data = iterable(os.path.join(options.model, "tokenizer.json"), f"mtp {options.seed}", multiprocessing.Value("d", 1.0))
    loader = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=options.workers))
    model = Qwen3_5MoeForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).to(device).requires_grad_(False)

    def batches():
        while True:
            ids, _, weights = next(loader).to(device).long().unbind(0)
            rows = max(1, options.tokens // ids.shape[1])
            for start in range(0, len(ids), rows):
                yield ids[start : start + rows], weights[start : start + rows] > 0

    layer = MtpLayer(model.config).to(device)
    with torch.autocast(device, torch.bfloat16):
        train_layer(
            layer,
            model.get_input_embeddings(),
            model.lm_head,
            lambda ids: model.model(input_ids=ids, use_cache=False).last_hidden_state,
            batches(),
            options,
        )
    save_layer(layer, options.model)
