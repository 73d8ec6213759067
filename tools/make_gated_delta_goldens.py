#!/usr/bin/env python3
"""Makes tests/ops/goldens/gated_delta_rule.json: what Hugging Face transformers computes for the gated delta rule.

    python3 tools/make_gated_delta_goldens.py [output]

Needs torch and transformers (made with 5.17). The functions torch_chunk_gated_delta_rule and
torch_recurrent_gated_delta_rule of its Qwen3-Next model compute in float32, whatever they are given, on inputs that anyone
can make again: see value(). Only their outputs are stored, rounded to 9 digits.
"""

import json
import sys

import torch
import transformers
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next


def value(stream: int, index: int) -> float:
    """A number in [-1, 1): a multiplicative hash, the same in C++ (tests/ops/goldens_test.cc)."""
    x = ((index + 1) * 2654435761 + stream * 40503) % 2**32
    x = (x ^ (x >> 15)) * 2246822519 % 2**32
    x = (x ^ (x >> 13)) * 3266489917 % 2**32
    x ^= x >> 16
    return x / 2**31 - 1.0


def tensor(stream: int, *shape: int) -> torch.Tensor:
    count = 1
    for extent in shape:
        count *= extent
    return torch.tensor([value(stream, i) for i in range(count)], dtype=torch.float64).reshape(shape)


def make_case(name, function, batch, tokens, hk, hv, k, v, decay, initial):
    q, key, val = tensor(1, batch, tokens, hk, k), tensor(2, batch, tokens, hk, k), tensor(3, batch, tokens, hv, v)
    g = decay * (tensor(4, batch, tokens, hv) - 1.0) / 2.0  # in (-decay, 0]
    beta = (tensor(5, batch, tokens, hv) + 1.0) / 2.0
    # The functions keep their states as [K,V] and expect one key head per value head: grouped.
    state = tensor(6, batch, hv, v, k).transpose(-1, -2).contiguous() if initial else None
    repeat = hv // hk
    q, key = q.repeat_interleave(repeat, dim=2), key.repeat_interleave(repeat, dim=2)
    arguments = dict(initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    o, final = function(q, key, val, g=g, beta=beta, **arguments)
    listed = lambda x: [float(f"{y:.9g}") for y in x.double().flatten().tolist()]
    return {
        "name": name, "batch": batch, "tokens": tokens, "hk": hk, "hv": hv, "k": k, "v": v, "decay": decay,
        "initial_state": initial, "o": listed(o), "final_state": listed(final.transpose(-1, -2)),
    }


def main() -> None:
    chunk, recurrent = qwen3_next.torch_chunk_gated_delta_rule, qwen3_next.torch_recurrent_gated_delta_rule
    cases = [
        make_case("chunk_70", chunk, 1, 70, 1, 2, 32, 16, 0.1, True),
        make_case("chunk_batch", chunk, 2, 17, 2, 4, 16, 32, 1.0, False),
        make_case("chunk_strong", chunk, 1, 65, 1, 1, 16, 16, 20.0, True),
        make_case("chunk_ungated", chunk, 1, 64, 1, 3, 16, 16, 0.0, True),
        make_case("recurrent_9", recurrent, 2, 9, 1, 2, 32, 16, 0.1, True),
        make_case("recurrent_1", recurrent, 1, 1, 2, 6, 16, 32, 2.0, True),
    ]
    output = sys.argv[1] if len(sys.argv) > 1 else "tests/ops/goldens/gated_delta_rule.json"
    with open(output, "w") as file:
        json.dump({"transformers": transformers.__version__, "torch": torch.__version__, "cases": cases}, file)
        file.write("\n")
    print(output, "written with transformers", transformers.__version__)


if __name__ == "__main__":
    main()
