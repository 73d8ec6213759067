"""The MTP layer of the models of these families in PyTorch, and what it is trained for (tools/train_mtp.py trains it).

    x_i = fc [norm(embedding(t_i+1)) | norm(h_i)],  m_i = norm(layer(x)_i),  logits of t_i+2 = head m_i

with t the tokens and h the trunk's hidden states behind its final norm (docs/speculation.md). Further drafts come from
m in the place of h. Parameters have the names of published files behind "mtp.".

What the layer learns is the trunk's own distribution of the token that it foresees, not the text's: a draft is right if
it is what the trunk chooses. Needs torch alone.
"""

import json
import math
import os

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

    def rotate(self, x, start):
        half = self.rotated // 2
        frequencies = self.theta ** (-torch.arange(half, device=x.device).float() / half)
        angles = torch.arange(start, start + x.shape[1], device=x.device).float()[:, None] * frequencies
        cos, sin = angles.cos()[None, :, None].to(x.dtype), angles.sin()[None, :, None].to(x.dtype)
        a, b, rest = x[..., :half], x[..., half : self.rotated], x[..., self.rotated :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def forward(self, x, past):
        """x [B,T,D] of one draft; past holds keys and values [B,>=T,H,W] of the drafts before, and gets these. Row i
        of draft n is at position i + n - 1. It sees the first draft's rows up to i, and row i of the later ones."""
        batch, tokens, _ = x.shape
        start = len(past)
        q, gate = self.q_proj(x).view(batch, tokens, self.heads, 2 * self.width).chunk(2, -1)
        k = self.k_proj(x).view(batch, tokens, self.kv_heads, self.width)
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.width)
        q, k = self.rotate(self.q_norm(q), start), self.rotate(self.k_norm(k), start)
        past.append(tuple(t.repeat_interleave(self.heads // self.kv_heads, 2) for t in (k, v)))
        (k, v), *own = [(k[:, :tokens], v[:, :tokens]) for k, v in past]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).float()
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
        scores = [scores.masked_fill(future, float("-inf"))]
        scores += [(q * k).float().sum(-1).transpose(1, 2)[..., None] for k, _ in own]
        shares = (torch.cat(scores, -1) / math.sqrt(self.width)).softmax(-1).to(x.dtype)
        out = torch.einsum("bhqk,bkhd->bqhd", shares[..., :tokens], v)
        for n, (_, v) in enumerate(own):
            out = out + shares[..., tokens + n].transpose(1, 2)[..., None] * v
        return self.o_proj((out * torch.sigmoid(gate)).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(inner, hidden),
            linear(inner, hidden),
            linear(hidden, inner),
        )

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
    def __init__(self, config, dense):
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        # A dense layer may go with a trunk that has experts: its width is then `intermediate_size`.
        self.mlp = Mlp(config.hidden_size, config.intermediate_size) if dense else MoeMlp(config)

    def forward(self, x, past):
        x = x + self.self_attn(self.input_layernorm(x), past)
        return x + self.mlp(self.post_attention_layernorm(x))


class MtpLayer(nn.Module):
    """`dense`: a feed-forward part without experts, also where the trunk has them."""

    def __init__(self, config, dense=False):
        super().__init__()
        dense = dense or getattr(config, "num_experts", 0) == 0
        size = config.hidden_size
        self.pre_fc_norm_embedding = Norm(size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm(size, config.rms_norm_eps)
        self.fc = linear(size, 2 * size)
        self.layers = nn.ModuleList([Layer(config, dense)])
        self.norm = Norm(size, config.rms_norm_eps)

    def forward(self, embedding, hidden, past):
        """m [B,T,D] of one draft, from the embeddings of its tokens and the states before it; past begins as [], and
        goes from each draft to the next."""
        both = torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1)
        return self.norm(self.layers[0](self.fc(both), past))


def losses(layer, embed, head, ids, hidden, weights, depth):
    """(loss, [share of rows where the likeliest token is the trunk's] by draft), of ids [B,T], hidden [B,T,D] behind
    the trunk's final norm and weights [B,T] of what follows each token. Draft n of row i stands for token i + 1 + n. It
    sees what it sees in decoding whose drafts so far were right: rows of the trunk's states up to i, its own behind."""
    with torch.no_grad():
        wanted = head(hidden).float().log_softmax(-1)  # of row i: token i + 1
    loss, right, state, past = 0.0, [], hidden, []
    for n in range(1, depth + 1):
        rows = ids.shape[1] - n
        state = layer(embed(ids[:, n:]), state[:, :rows], past)
        own = head(state).float().log_softmax(-1)
        target, weight = wanted[:, n:], weights[:, n:].float()
        total = weight.sum().clamp(min=1e-6)
        loss = loss - 0.8 ** (n - 1) * ((target.exp() * own).sum(-1) * weight).sum() / total
        right.append((((own.argmax(-1) == target.argmax(-1)) * weight).sum() / total).detach())
    return loss, right


@torch.no_grad()
def accepted(layer, embed, head, ids, hidden, depth):
    """[depth,B,T] bool: whether drafts 1 to n, made behind token i + 1 of a row, all are the tokens of the row. Drafts
    of which an earlier one was wrong do not count, so that the tokens of the row may stand for the drafts."""
    so_far, result, state, past = None, [], hidden, []
    for n in range(1, depth + 1):
        rows = ids.shape[1] - n
        state = layer(embed(ids[:, n:]), state[:, :rows], past)
        right = head(state[:, :-1]).argmax(-1) == ids[:, n + 1 :]
        so_far = right if so_far is None else so_far[:, : rows - 1] & right
        result.append(functional.pad(so_far, (0, ids.shape[1] - so_far.shape[1])))
    return torch.stack(result)


def save_layer(tensors, folder, dense_size=0):
    """Puts the layer's tensors, "mtp.*", beside the shards of the model in `folder`."""
    from safetensors.torch import load_file, save_file

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
    text = config.get("text_config", config)
    text["mtp_num_hidden_layers"] = 1
    if dense_size:
        text["intermediate_size"] = dense_size
    for path, value in ((index_path, index), (config_path, config)):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
