"""A model of Hugging Face transformers with Thalweg's kernels: needs torch and transformers 5."""

import torch
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

import thalweg

config = Qwen3_5MoeTextConfig(
    vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=32, linear_value_head_dim=32, num_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
)  # fmt: skip
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Qwen3_5MoeForCausalLM(config).to(device).eval()
prompt = torch.randint(0, config.vocab_size, (1, 100), device=device)

with torch.no_grad():
    expected = model.generate(prompt, max_new_tokens=16, do_sample=False)
    thalweg.patch_transformers()
    text = model.generate(prompt, max_new_tokens=16, do_sample=False)
    thalweg.unpatch()
assert torch.equal(text, expected)
print("the same 16 tokens with and without Thalweg")
