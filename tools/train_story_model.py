#!/usr/bin/env python3
"""Trains the small hybrid model that ships with this repository, on stories that tools/stories.py makes up.

    python3 tools/train_story_model.py tokenizer --out build/story-model
    python3 tools/train_story_model.py train --tokenizer build/story-model --work build/story-work --out build/story-model
    python3 tools/train_story_model.py evaluate --model build/story-model --stories 500
    python3 tools/train_story_model.py mtp-texts --model build/story-model --out build/mtp-texts.jsonl
    python3 tools/train_story_model.py train-mtp --model build/story-model --texts build/mtp-texts.jsonl --out build/mtp
    python3 tools/train_story_model.py add-mtp --model build/story-model --layer build/mtp/best.safetensors
    python3 tools/train_story_model.py unpack --file models/story-q4_k.gguf --out build/story-base

Half of the documents are conversations in the model's chat format, by tools/conversations.py. `unpack` makes a GGUF file
a folder to go on from (`train --init`), for which it needs the package gguf. The commands with mtp in their names add an
MTP layer to a folder, whose other weights stay as they are (tools/train_mtp.py).

The model is Hugging Face transformers' own Qwen3.5-MoE text module; nothing of it is redefined, only faster kernels are
put behind some of its functions (FLA's, from the package flash-linear-attention, and a grouped expert product whose
backward pass gathers instead of scattering). Training may run in pieces: `--minutes 9` stops after nine minutes with a
checkpoint in --work, and the same command goes on from there; --total-minutes is what the schedules are laid out for.
Needs torch, transformers 5.17, flash-linear-attention, tokenizers and one NVIDIA GPU.
"""

import argparse
import json
import math
import os
import random
import shutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import conversations
import stories

os.environ.setdefault("FLA_FLASH_QLA", "0")  # FLA's optional second backend; the Triton kernels are what we want
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

VOCABULARY = 3072
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The pre-tokenizer of Qwen3.5.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENS_PER_STEP = 98304
BUCKETS = (128, 256, 512, 1024, 2048, 3072, 4608)
# From which share of the training on, how much of it (in tokens) goes to each length.
CURRICULUM = (
    (0.00, (0.60, 0.40, 0.00, 0.00, 0.00, 0.00, 0.00)),
    (0.06, (0.25, 0.30, 0.30, 0.15, 0.00, 0.00, 0.00)),
    (0.15, (0.15, 0.15, 0.25, 0.25, 0.20, 0.00, 0.00)),
    (0.35, (0.10, 0.10, 0.15, 0.20, 0.15, 0.12, 0.18)),
    (0.58, (0.07, 0.07, 0.11, 0.20, 0.19, 0.16, 0.20)),
)
STORY, ANSWER = 1, 2
CONVERSATIONS = 0.5  # share of the documents
CHAT_TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "story_chat_template.jinja")
EVALUATION = (50, 200, 500, 1000, 2000, 4000)
OTHER_SETS = ("inverse", "sums", "conversations")


# -- tokenizer ---------------------------------------------------------------------------------------------------------


def byte_level(model):
    """A tokenizer of a BPE model, with Qwen3.5's rules around it."""
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return tokenizer


def make_tokenizer(folder: str):
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = byte_level(models.BPE())

    def corpus():
        for index in range(6000):
            rng = random.Random(f"tokenizer {index}")
            yield "".join(text for text, _ in stories.training_document(rng, 500))

    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer, folder: str):
    tokenizer.add_special_tokens(SPECIAL)
    os.makedirs(folder, exist_ok=True)
    shutil.copy(CHAT_TEMPLATE, os.path.join(folder, "chat_template.jinja"))
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "unk_token": None,
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file, indent=2)
        file.write("\n")


# -- data --------------------------------------------------------------------------------------------------------------


def make_row(tokenizer, rng, length, end):
    """(inputs, targets, weights) of one document. Behind the last token of an answer the target is always the end of
    text, whatever the document goes on with."""
    size = rng.randint(24, 118) if length == BUCKETS[0] else int(length * rng.uniform(0.55, 0.95))
    parts = []
    while not parts:
        parts = stories.training_document(rng, size)
    encoded = tokenizer.encode_batch([text for text, _ in parts], add_special_tokens=False)
    ids, targets, weights = [], [], []
    for (_, is_answer), part in zip(parts, encoded):
        tokens = part.ids
        if ids:
            if is_answer or ids[-1] == end:
                targets.append(tokens[0])
                weights.append(ANSWER if is_answer else 0)
            else:  # the answer before ended here
                targets.append(end)
                weights.append(ANSWER)
        ids += tokens
        targets += tokens[1:]
        weights += [ANSWER if is_answer else STORY] * (len(tokens) - 1)
        if is_answer and rng.random() < 0.5:
            targets.append(end)
            weights.append(ANSWER)
            ids.append(end)
    targets.append(end)
    weights.append(0 if ids[-1] == end else ANSWER)
    return ids[:length], targets[:length], weights[:length]


def make_conversation_row(tokenizer, rng, length):
    """(inputs, targets, weights) of one conversation; what follows the end of an answer is given, not learnt."""
    size = rng.randint(40, 110) if length == BUCKETS[0] else int(length * rng.uniform(0.55, 0.95))
    parts = conversations.chat_parts(*conversations.training_conversation(rng, size))
    encoded = tokenizer.encode_batch([text for text, _ in parts], add_special_tokens=False)
    ids, weights = [], []
    for (_, is_answer), part in zip(parts, encoded):
        ids += part.ids
        weights += [ANSWER if is_answer else STORY] * len(part.ids)
        if not is_answer:  # the line break behind the answer before
            weights[-len(part.ids)] = 0
    targets, weights = ids[1:] + [0], weights[1:] + [0]
    return ids[:length], targets[:length], weights[:length]


def curriculum(progress: float):
    return [shares for start, shares in CURRICULUM if progress >= start][-1]


class Batches:
    """An endless stream of batches, for a DataLoader; `progress` is shared with the trainer."""

    def __init__(self, tokenizer_path, run, progress):
        self.tokenizer_path, self.run, self.progress = tokenizer_path, run, progress

    def __iter__(self):
        import numpy
        import tokenizers
        import torch

        tokenizer = tokenizers.Tokenizer.from_file(self.tokenizer_path)
        end = tokenizer.token_to_id(SPECIAL[0])
        worker = torch.utils.data.get_worker_info().id
        rng = random.Random(f"train {self.run} {worker}")
        torch.set_num_threads(1)
        while True:
            length = rng.choices(BUCKETS, curriculum(self.progress.value))[0]
            rows = TOKENS_PER_STEP // length
            batch = numpy.zeros((3, rows, length), dtype=numpy.int16)
            batch[0] = end
            for row in range(rows):
                talk = rng.random() < CONVERSATIONS
                made = make_conversation_row(tokenizer, rng, length) if talk else make_row(tokenizer, rng, length, end)
                for plane, values in enumerate(made):
                    batch[plane, row, : len(values)] = values
            yield torch.from_numpy(batch)


def encode_conversation(tokenizer, row):
    """(prompt ids, answer ids) of a row of conversations.test_set."""
    messages = list(row["messages"])
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
    said = [message["content"] for message in messages] + [row["answer"]]
    *before, (answer, _) = conversations.chat_parts(system, list(zip(said[::2], said[1::2])))
    prompt = "".join(text for text, _ in before)
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in (prompt, answer)]


def test_rows(job):
    """Tokenized test stories: (name, [(prompt ids, answer ids, kind)]), generated, or read from a file of JSON lines."""
    import tokenizers

    path, name, count, seed = job
    tokenizer = tokenizers.Tokenizer.from_file(path)
    end = tokenizer.token_to_id(SPECIAL[0])
    if name.endswith(".jsonl"):
        with open(name, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        name = os.path.basename(name).removesuffix(".jsonl").removeprefix("stories-")
        every = 0
    else:
        special = {"sums": stories.sums_set, "inverse": stories.inverse_set, "conversations": conversations.test_set}
        special = special.get(name)
        rows = special(seed, count) if special else stories.test_set(seed, count, int(name))
        every = 3
    result = []
    for index, row in enumerate(rows):
        if "messages" in row:
            result.append((*encode_conversation(tokenizer, row), row["kind"]))
            continue
        # Every third generated prompt ends in a newline, so that both ways of asking are measured.
        newline = every and index % every == every - 1
        prompt = tokenizer.encode(row["prompt"] + ("\n" if newline else ""), add_special_tokens=False).ids
        answer = tokenizer.encode(("" if newline else " ") + row["answer"], add_special_tokens=False).ids
        result.append((prompt, answer + [end], row["kind"]))
    return name, result


def test_sets(path, count, seed=20, workers=7, folder=None):
    import multiprocessing

    if folder:
        names = [f"stories-{n}.jsonl" for n in EVALUATION] + [f"{name}.jsonl" for name in OTHER_SETS]
        return dict(test_rows((path, os.path.join(folder, name), 0, 0)) for name in names)
    jobs = [(path, str(n), count, seed) for n in EVALUATION] + [(path, name, count, seed) for name in OTHER_SETS]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return dict(pool.map(test_rows, jobs, chunksize=1))


# -- model -------------------------------------------------------------------------------------------------------------


def make_config(vocabulary):
    from transformers import Qwen3_5MoeTextConfig

    return Qwen3_5MoeTextConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        num_experts=16,
        num_experts_per_tok=4,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        full_attention_interval=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        eos_token_id=vocabulary - len(SPECIAL),
        pad_token_id=None,
    )


def gate_backward(q, k, v, do, h, dh, w, g, dv, scale, **_):
    """One stage of the backward pass of FLA's chunked gated delta rule, in plain matrix products: the gradients of q, k,
    w and the cumulative gate g (base 2), from the states h before and their gradients dh behind each chunk of 64. FLA's own kernel for it
    refuses Hopper GPUs with Triton 3.4 to 3.7.0, which miscompile it."""
    import torch

    batch, tokens, heads, dim = k.shape
    chunks = tokens // 64

    def split(x):  # [B, T, H, D] -> [B, N, H, 64, D]
        return x.view(batch, chunks, 64, heads, -1).transpose(2, 3)

    def join(x, dtype):
        return x.transpose(2, 3).reshape(batch, tokens, heads, -1).to(dtype)

    q_, k_, v_, do_, dv_ = split(q), split(k), split(v), split(do), split(dv)
    h, dh = h.view(batch, chunks, heads, dim, -1), dh.view(batch, chunks, heads, dim, -1).to(v.dtype)
    h = h.to(v.dtype)
    gate = g.view(batch, chunks, 64, heads).transpose(2, 3)
    last = gate[..., -1:]
    causal = torch.ones(64, 64, dtype=torch.bool, device=q.device).tril()
    difference = (gate.unsqueeze(-1) - gate.unsqueeze(-2)).masked_fill(~causal, float("-inf"))
    ds = ((do_ @ v_.mT).float() * torch.exp2(difference) * scale).to(k.dtype)
    dw = -(dv_ @ h.mT)
    dq = (do_ @ h.mT).float() * (torch.exp2(gate) * scale).unsqueeze(-1)
    dk = (v_ @ dh.mT).float() * torch.exp2(last - gate).unsqueeze(-1)
    of_last = (h.float() * dh.float()).sum((-1, -2)) * torch.exp2(last.squeeze(-1)) + (dk * k_.float()).sum((-1, -2))
    dq = dq + (ds @ k_).float()
    dk = dk + (ds.mT @ q_).float()
    dg = (dq * q_.float()).sum(-1) - (dk * k_.float()).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + of_last.unsqueeze(-1)], -1)
    dg = dg.transpose(2, 3).reshape(batch, tokens, heads)
    return join(dq, q.dtype), join(dk, k.dtype), join(dw, k.dtype), dg


def use_fast_kernels():
    """Puts faster functions of the same results behind transformers' module. Returns what is in use, for the log."""
    import torch
    import triton
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.layernorm import rms_norm
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

    def conv(hidden_states, weight, bias=None, activation=None, **_):
        y, _ = causal_conv1d(hidden_states.transpose(1, 2).contiguous(), weight, bias, activation=activation)
        return y.transpose(1, 2)

    def norm(self, x):
        shape = x.shape
        y = rms_norm(x.reshape(-1, shape[-1]), 1.0 + self.weight.float(), None, eps=self.eps)
        return y.view(shape).type_as(x)

    def gated_norm(self, hidden_states, gate):
        return rms_norm_gated(hidden_states, gate.contiguous(), self.weight, None, "swish", eps=self.variance_epsilon)

    class Dispatch(torch.autograd.Function):
        """Rows of x in the order of the experts; backward: a gather and a sum."""

        @staticmethod
        def forward(ctx, x, order, inverse, k):
            ctx.save_for_backward(inverse)
            ctx.k = k
            return x[order // k]

        @staticmethod
        def backward(ctx, grad):
            (inverse,) = ctx.saved_tensors
            return grad[inverse].view(-1, ctx.k, grad.shape[-1]).sum(1), None, None, None

    class Combine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, order, inverse):
            ctx.save_for_backward(order)
            return y[inverse]

        @staticmethod
        def backward(ctx, grad):
            (order,) = ctx.saved_tensors
            return grad[order], None, None

    @torch.compile(dynamic=True)
    def silu_times(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    @torch.compile(dynamic=True)
    def weighted_sum(y, weights):
        return (y * weights.unsqueeze(-1)).sum(1)

    def experts(self, hidden_states, top_k_index, top_k_weights):
        k = top_k_index.shape[-1]
        sorted_ids, order = torch.sort(top_k_index.reshape(-1).to(torch.uint8))
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        edges = torch.arange(1, self.num_experts + 1, device=order.device)
        offsets = torch.searchsorted(sorted_ids.int(), edges.int()).int()
        x = Dispatch.apply(hidden_states, order, inverse, k)
        gate_up = torch.nn.functional.grouped_mm(x, self.gate_up_proj.transpose(-2, -1), offs=offsets)
        y = torch.nn.functional.grouped_mm(silu_times(gate_up), self.down_proj.transpose(-2, -1), offs=offsets)
        y = Combine.apply(y, order, inverse)
        return weighted_sum(y.view(-1, k, y.shape[-1]), top_k_weights)

    version = tuple(int(n) for n in triton.__version__.split(".")[:3])
    if torch.cuda.get_device_capability()[0] == 9 and (3, 4, 0) <= version < (3, 7, 1):
        sys.modules["fla.ops.gated_delta_rule.chunk"].chunk_bwd_dqkwg = torch.compile(gate_backward, dynamic=True)
    fla_rule = modeling.torch_chunk_gated_delta_rule
    modeling.causal_conv1d_fn = conv
    modeling.Qwen3_5MoeRMSNorm.forward = norm
    modeling.Qwen3_5MoeRMSNormGated.forward = gated_norm
    ALL_EXPERTS_FUNCTIONS["story_grouped"] = experts
    names = [c.cell_contents.__module__ for c in fla_rule.__closure__ or () if callable(c.cell_contents)]
    return f"gated delta rule from {names}"


# -- optimizer ---------------------------------------------------------------------------------------------------------


def orthogonalize(g, steps=5):
    """Newton-Schulz iteration towards the nearest orthogonal matrix, for a stack of matrices."""
    import torch

    x = g.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.mT if tall else x


def round_blocks(w, bits):
    """w as a block format of `bits` would store it: blocks of 32 weights along the rows, a scale and a minimum each."""
    b = w.view(-1, 32)
    low, high = b.amin(1, keepdim=True).clamp(max=0), b.amax(1, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-8)
    return (((b - low) / scale).round() * scale + low).view_as(w)


class Optimizer:
    """Muon for matrices (experts are matrices each), Adam for the rest; f32 masters of the bf16 model.

    `quantized(True)` puts weights rounded to 4 and 5 bits in place of the masters: training on both makes the weights
    bear quantisation."""

    def __init__(self, model, bits_of_all=None):
        import torch

        self.groups, small, stacks = [], [], {}
        for name, p in model.named_parameters():
            matrix = p.dim() >= 2 and "embed" not in name and "conv1d" not in name
            if not matrix or min(p.shape[-2:]) < 64 or "gate.weight" in name:
                small.append(p)
                continue
            if name.endswith("experts.gate_up_proj"):
                shape = (p.shape[1] // 2, p.shape[2])
            else:
                shape = tuple(p.shape[-2:])
            bits = 4 if name.endswith(("gate_up_proj", "gate_proj.weight", "up_proj.weight")) else 5
            stacks.setdefault((shape, bits_of_all or bits), []).append(p)
        for (shape, bits), params in stacks.items():
            master = torch.cat([p.detach().reshape(-1, *shape) for p in params]).float()
            self.groups.append({"params": params, "shape": shape, "bits": bits, "w": master, "m": torch.zeros_like(master)})
        self.small = small
        flat = torch.cat([p.detach().reshape(-1) for p in small]).float()
        self.flat = {"w": flat, "m": torch.zeros_like(flat), "v": torch.zeros_like(flat)}
        self.steps = 0

    def step(self, lr_matrix, lr_small, decay=0.05, momentum=0.95):
        import torch

        self.steps += 1
        for group in self.groups:
            g = torch.cat([p.grad.reshape(-1, *group["shape"]) for p in group["params"]]).float()
            g = torch.nan_to_num_(g, 0.0, 0.0, 0.0)
            group["m"].lerp_(g, 1 - momentum)
            update = orthogonalize(g.lerp_(group["m"], momentum))
            scale = 0.2 * math.sqrt(max(group["shape"]))
            group["w"].mul_(1 - lr_matrix * decay).add_(update, alpha=-lr_matrix * scale)
        g = torch.cat([p.grad.reshape(-1) for p in self.small]).float()
        g = torch.nan_to_num_(g, 0.0, 0.0, 0.0)
        flat = self.flat
        flat["m"].lerp_(g, 0.1)
        flat["v"].lerp_(g * g, 0.02)
        bias = 1 - 0.9**self.steps, 1 - 0.98**self.steps
        flat["w"].add_((flat["m"] / bias[0]) / ((flat["v"] / bias[1]).sqrt() + 1e-8), alpha=-lr_small)

    def write(self, quantized=False):
        """Puts the masters into the model."""
        import torch

        with torch.no_grad():
            for group in self.groups:
                w = round_blocks(group["w"], group["bits"]) if quantized else group["w"]
                at = 0
                for p in group["params"]:
                    count = p.numel() // math.prod(group["shape"])
                    p.copy_(w[at : at + count].reshape(p.shape))
                    at += count
            at = 0
            for p in self.small:
                p.copy_(self.flat["w"][at : at + p.numel()].view(p.shape))
                at += p.numel()

    def state(self):
        return {"steps": self.steps, "groups": [(g["w"], g["m"]) for g in self.groups], "flat": self.flat}

    def load(self, state):
        self.steps = state["steps"]
        for group, (w, m) in zip(self.groups, state["groups"]):
            group["w"].copy_(w)
            group["m"].copy_(m)
        for key in self.flat:
            self.flat[key].copy_(state["flat"][key])


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluate(model, sets, end):
    """Share of exact answers by set. An answer is exact when every token, and the end behind it, is the likeliest one
    given the tokens before: which is what greedy decoding then produces."""
    import torch

    model.eval()
    device = model.device
    result, wrong = {}, []
    with torch.no_grad():
        for name, rows in sets.items():
            longest = -(-max(len(p) + len(a) for p, a, _ in rows) // 64) * 64
            per_batch = max(1, (131072 if device.type == "cuda" else 4096) // longest)
            exact = 0
            kinds = {}
            for start in range(0, len(rows), per_batch):
                part = rows[start : start + per_batch]
                ids = torch.full((len(part), longest), end, dtype=torch.long)
                for r, (p, a, _) in enumerate(part):
                    ids[r, : len(p) + len(a)] = torch.tensor(p + a)
                hidden = model.model(input_ids=ids.to(device), use_cache=False).last_hidden_state
                at_row = torch.tensor([r for r, (p, a, _) in enumerate(part) for _ in a])
                at = torch.tensor([len(p) - 1 + i for p, a, _ in part for i in range(len(a))])
                best = model.lm_head(hidden[at_row.to(device), at.to(device)]).argmax(-1).cpu().tolist()
                i = 0
                for p, a, kind in part:
                    right = best[i : i + len(a)] == a
                    exact += right
                    tally = kinds.setdefault(kind, [0, 0])
                    tally[0] += right
                    tally[1] += 1
                    if not right and len(wrong) < 400:
                        wrong.append((name, kind, p, a, best[i : i + len(a)]))
                    i += len(a)
            counts = {k: v[1] for k, v in kinds.items()}
            result[name] = {"questions": len(rows), "exact": exact / len(rows), "counts": counts}
            result[name]["kinds"] = {k: v[0] / v[1] for k, v in kinds.items()}
    model.train()
    return result, wrong


def table(result):
    return "  ".join(f"{name}: {100 * r['exact']:.1f}" for name, r in result.items())


PROMPTS = [
    "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Where is the red ball?",
    "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Where is the lamp?",
    "Mary moved to the bathroom. John went to the hallway. Where is Mary?",
    "Lena has a green apple. Lena gave the green apple to Paul. Who has the green apple?",
    "The keys were on the table. Later Jack put them in the drawer. Where are the keys?",
    "My sister Jenny left her violin in the car. Her brother Max carried the violin into the house.\nWhere is the violin?",
    "Sam gave the book to Nora. Then Nora gave the book to Ali.\n\nQuestion: Who has the book?\nAnswer:",
    "What is 17 plus 5?",
    "Peter has 5 apples. Mary gives Peter 3 more. How many apples does Peter have now?",
    "The cat is on the sofa. The dog is in the garden. Where is the cat?",
    "Tom is in the garden. Anna is in the kitchen. Who is in the garden?",
    "Anna put the red ball in the kitchen. Tom took the lamp to the attic. What is in the attic?",
]
CHATS = [
    ["Hello!", "Anna put the red ball in the kitchen.", "Where is the red ball?", "And the lamp?", "Thanks!"],
    ["Anna put the red ball in the kitchen. Tom has a lamp. Where is the lamp?", "No, Anna has the lamp.", "Who has it?"],
    ["What is 17 plus 5?", "Who are you?", "What is the capital of France?", "Where is Tom?", "Bye"],
]


def go_on(model, ids, end, most=32):
    """The ids with what greedy decoding appends to them."""
    import torch

    with torch.no_grad():
        for _ in range(most):
            best = model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
            if best.item() == end:
                break
            ids = torch.cat([ids, best.view(1, 1)], 1)
    return ids


def show(model, tokenizer, end, prompts=PROMPTS):
    import torch

    model.eval()
    for prompt in prompts:
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids]).to(model.device)
        ids = go_on(model, ids, end)
        print("   ", tokenizer.decode(ids[0].tolist()).replace("\n", " / "))
    close = tokenizer.token_to_id(SPECIAL[2])
    for chat in CHATS:
        text = ""
        for said in chat:
            text += f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids]).to(model.device)
            answer = tokenizer.decode(go_on(model, ids, close)[0, ids.shape[1] :].tolist())
            print(f"    {said} -> {answer}")
            text += f"{answer}<|im_end|>\n"
        print()
    model.train()


# -- training ----------------------------------------------------------------------------------------------------------


def new_model(config, source=None):
    import torch
    from transformers import Qwen3_5MoeForCausalLM

    torch.manual_seed(1)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "story_grouped"
    if source:
        model = Qwen3_5MoeForCausalLM.from_pretrained(source, dtype=torch.bfloat16, attn_implementation="sdpa")
        model.config._experts_implementation = "story_grouped"
    else:
        model = Qwen3_5MoeForCausalLM(config).to(torch.bfloat16)
    return model.cuda()


def export(model, config, folder, log):
    config._experts_implementation = None
    os.makedirs(folder, exist_ok=True)
    model.save_pretrained(folder, max_shard_size="14MB")
    generation = {"eos_token_id": config.eos_token_id, "do_sample": False}
    with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
        json.dump(generation, file, indent=2)
        file.write("\n")
    with open(os.path.join(folder, "training.json"), "w", encoding="utf-8") as file:
        json.dump(log, file, indent=1)
        file.write("\n")
    config._experts_implementation = "story_grouped"


def train(options):
    import multiprocessing

    import tokenizers
    import torch

    began = time.time()
    path = os.path.join(options.tokenizer, "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    end = tokenizer.token_to_id(SPECIAL[0])
    os.makedirs(options.work, exist_ok=True)
    checkpoint = os.path.join(options.work, "checkpoint.pt")
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True) if os.path.exists(checkpoint) else None
    log = {"minutes": 0.0, "steps": 0, "tokens": 0, "runs": 0, "curve": [], "evaluations": []}
    if saved:
        log = saved["log"]
    elif options.init:
        with open(os.path.join(options.init, "training.json"), encoding="utf-8") as file:
            log = json.load(file)
    log["runs"] += 1
    progress = multiprocessing.Value("d", log["minutes"] / options.total_minutes)
    stream = type("Stream", (Batches, torch.utils.data.IterableDataset), {})
    data = stream(path, f"{options.seed} {log['runs']}", progress)
    loader = iter(
        torch.utils.data.DataLoader(
            data, batch_size=None, num_workers=options.workers, prefetch_factor=3, multiprocessing_context="fork"
        )
    )  # workers fork before CUDA starts
    first = next(loader)
    sets = test_sets(path, options.stories) if options.stories else {}
    print(f"data ready after {time.time() - began:.1f} s", flush=True)

    print(use_fast_kernels(), flush=True)
    model = new_model(make_config(tokenizer.get_vocab_size()), None if saved else options.init)
    config = model.config
    optimizer = Optimizer(model)
    if saved:
        optimizer.load(saved["optimizer"])
    elif options.init:
        optimizer.steps = 1000  # the moments are lost: the warm-up below makes them anew
    optimizer.write()
    routers = []
    for module in model.modules():
        if type(module).__name__ == "Qwen3_5MoeTopKRouter":
            module.register_forward_hook(lambda _, __, out: routers.append((out[0], out[2])))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f} M parameters, device {torch.cuda.get_device_name()}", flush=True)

    model.train()
    start, started_at = time.time(), log["minutes"]
    steps_here, report, last_report, last_test = 0, [], time.time(), time.time()
    limit = options.minutes * 60
    while True:
        now = time.time()
        log["minutes"] = started_at + (now - start) / 60
        share = min(1.0, log["minutes"] / options.total_minutes)
        progress.value = share
        if now - start > limit or share >= 1.0:
            break
        warm = min(1.0, (steps_here + 1) / options.warmup)
        rate = warm * min(1.0, max(0.02, (1 - share) / (1 - options.decay_from)))
        batch, first = (first, None) if first is not None else (next(loader), None)
        ids, targets, weights = batch.cuda(non_blocking=True).long().unbind(0)
        quantized = share > options.quantize_from and steps_here % 2 == 0
        if share > options.quantize_from:
            optimizer.write(quantized)

        routers.clear()
        logits = model(input_ids=ids, use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(
            logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1), reduction="none"
        )
        is_answer, is_story = (weights == ANSWER).view(-1).float(), (weights == STORY).view(-1).float()
        answer_loss = (losses * is_answer).sum() / is_answer.sum().clamp(min=1)
        story_loss = (losses * is_story).sum() / is_story.sum().clamp(min=1)
        balance = 0.0
        for router_logits, chosen in routers:
            used = torch.zeros(config.num_experts, device="cuda").index_add_(
                0, chosen.reshape(-1), torch.ones(chosen.numel(), device="cuda")
            )
            mean = torch.softmax(router_logits.float(), -1).mean(0)
            balance = balance + (used / chosen.numel() * mean).sum() * config.num_experts / len(routers)
        loss = answer_loss + options.story_weight * story_loss + 0.01 * balance
        loss.backward()
        optimizer.step(options.lr_matrix * rate, options.lr_small * rate)
        optimizer.write()
        for p in model.parameters():
            p.grad = None
        log["steps"] += 1
        log["tokens"] += ids.numel()
        steps_here += 1
        report.append((answer_loss.detach(), story_loss.detach(), balance.detach(), ids.numel()))
        if now - last_report > 10 or steps_here in (1, 10):
            values = [sum(float(r[i]) for r in report) / len(report) for i in range(3)]
            speed = sum(r[3] for r in report) / (time.time() - last_report)
            log["curve"].append([round(log["minutes"], 3), log["steps"], log["tokens"]] + [round(v, 4) for v in values])
            print(
                f"{log['minutes']:6.2f} min step {log['steps']:6d} answer {values[0]:.4f} story {values[1]:.3f} "
                f"balance {values[2]:.3f} rate {rate:.3f} {speed / 1e3:.0f} k tokens/s "
                f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB",
                flush=True,
            )
            report, last_report = [], time.time()
        if time.time() - last_test > options.test_every > 0:
            result, _ = evaluate(model, sets, end)
            log["evaluations"].append([round(log["minutes"], 3), {k: r["exact"] for k, r in result.items()}])
            print("  exact:", table(result), flush=True)
            last_test = time.time()

    optimizer.write()
    torch.save({"log": log, "optimizer": optimizer.state()}, checkpoint)
    export(model, config, options.out, log)
    print("saved", flush=True)
    show(model, tokenizer, end)
    if not sets:
        return
    result, wrong = evaluate(model, sets, end)
    log["evaluations"].append([round(log["minutes"], 3), {k: r["exact"] for k, r in result.items()}])
    print("exact:", table(result))
    for name in ("50", "1000", "4000"):
        print("  by kind at", name, {k: round(v, 3) for k, v in result[name]["kinds"].items()})
    optimizer.write(True)
    print("exact with rounded weights:", table(evaluate(model, sets, end)[0]))
    optimizer.write()
    torch.save({"log": log, "optimizer": optimizer.state()}, checkpoint)
    export(model, config, options.out, log)
    for name, kind, p, a, best in wrong[:6]:
        tail = tokenizer.decode(p[-40:]).replace("\n", " / ")
        print(f"  wrong ({name}, {kind}): ...{tail} [{tokenizer.decode(a)}] got [{tokenizer.decode(best)}]")
    print(f"done after {time.time() - began:.1f} s", flush=True)


def evaluate_export(options):
    """Plain transformers, in the type asked for, on the GPU if there is one."""
    import tokenizers
    import torch
    from transformers import Qwen3_5MoeForCausalLM

    path = os.path.join(options.model, "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    end = tokenizer.token_to_id(SPECIAL[0])
    sets = test_sets(path, options.stories, options.seed, folder=options.sets)
    model = Qwen3_5MoeForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    if options.bits:  # as a block format would store the matrices
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() >= 2 and min(p.shape[-2:]) >= 64:
                    p.copy_(round_blocks(p.detach().float().contiguous(), options.bits))
    result, wrong = evaluate(model, sets, end)
    print("exact:", table(result))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    with open(options.wrong, "w", encoding="utf-8") as file:
        for name, kind, p, a, best in wrong:
            row = {"set": name, "kind": kind, "question": tokenizer.decode(p[-40:])}
            row |= {"answer": tokenizer.decode(a), "got": tokenizer.decode(best)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    show(model, tokenizer, end)


def unpack(options):
    """The model and the tokenizer of a GGUF file as a folder of transformers, its training so far that of the file."""
    import gguf
    import torch
    from peer_perplexity import transformers_model
    from tokenizers import models

    fields = gguf.GGUFReader(options.file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    vocabulary = {token: index for index, token in enumerate(tokens) if token not in SPECIAL}
    tokenizer = byte_level(models.BPE(vocab=vocabulary, merges=merges))
    save_tokenizer(tokenizer, options.out)
    if [tokenizer.token_to_id(token) for token in tokens] != list(range(len(tokens))):
        raise SystemExit(f"{options.file}: the tokens do not keep their numbers")
    model = transformers_model(options.file).to(torch.bfloat16)
    model.config.tie_word_embeddings = True
    model.config.eos_token_id = tokens.index(SPECIAL[0])
    log = {"minutes": options.minutes, "steps": 0, "tokens": 0, "runs": 0, "curve": [], "evaluations": []}
    export(model, model.config, options.out, log)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("tokenizer")
    part.add_argument("--out", required=True)
    part = commands.add_parser("train")
    part.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    part.add_argument("--work", required=True, help="folder of the checkpoint")
    part.add_argument("--out", required=True, help="folder of the exported model")
    part.add_argument("--init", help="an exported model to go on from, where there is no checkpoint")
    part.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    part.add_argument("--total-minutes", type=float, default=40)
    part.add_argument("--seed", default="1")
    part.add_argument("--workers", type=int, default=13)
    part.add_argument("--stories", type=int, default=100, help="test stories per length; 0: no tests")
    part.add_argument("--test-every", type=float, default=60, help="seconds")
    part.add_argument("--lr-matrix", type=float, default=4e-3)
    part.add_argument("--lr-small", type=float, default=3e-3)
    part.add_argument("--warmup", type=int, default=100)
    part.add_argument("--decay-from", type=float, default=0.4)
    part.add_argument("--quantize-from", type=float, default=0.7)
    part.add_argument("--story-weight", type=float, default=0.2)
    part = commands.add_parser("unpack")
    part.add_argument("--file", required=True, help="a GGUF file of such a model")
    part.add_argument("--out", required=True, help="folder of the exported model")
    part.add_argument("--minutes", type=float, default=33, help="that it was trained for, of train's --total-minutes")
    part = commands.add_parser("evaluate")
    part.add_argument("--model", required=True)
    part.add_argument("--stories", type=int, default=500, help="generate so many per length")
    part.add_argument("--sets", help="folder of an evaluation set by tools/stories.py, to use that instead")
    part.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    part.add_argument("--bits", type=int, default=0, help="round matrices to blocks of 32 with so many bits first")
    part.add_argument("--seed", type=int, default=20, help="of the generated stories")
    part.add_argument("--json", help="file for the results")
    part.add_argument("--wrong", default=os.devnull, help="file for the questions answered wrongly")
    if sys.argv[1:2] and "mtp" in sys.argv[1]:  # needs torch, which "tokenizer" does without
        import train_mtp

        train_mtp.add_commands(commands)
    options = parser.parse_args()
    if hasattr(options, "run"):
        options.run(options)
    elif options.command == "tokenizer":
        make_tokenizer(options.out)
    elif options.command == "train":
        train(options)
    elif options.command == "unpack":
        unpack(options)
    else:
        evaluate_export(options)


if __name__ == "__main__":
    main()
