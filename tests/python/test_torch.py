"""torch tensors and the models of transformers; skipped where torch is not installed."""

import numpy as np
import oracle
import pytest
from oracle import assert_close

import thalweg
from thalweg import fla, ops

torch = pytest.importorskip("torch")


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


def test_tensors_are_not_copied():
    x = torch.arange(6, dtype=torch.float32).reshape(1, 1, 2, 3)
    y = torch.zeros(1, 1, 2, 3)
    assert ops.l2norm(x, y=y) is y and y.abs().sum() > 0
    made = ops.l2norm(x)
    assert isinstance(made, torch.Tensor) and made.dtype == x.dtype
    np.testing.assert_array_equal(made, y)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gated_delta_rule(device, dtype):
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    fused = torch.randn(2, 65, 2 * 2 * 64 + 4 * 64, device=device).to(kind)
    q, k, v = (part.unflatten(-1, (-1, 64)) for part in fused.split([128, 128, 256], -1))
    g, beta = -torch.rand(2, 65, 4, device=device), torch.rand(2, 65, 4, device=device).to(kind)
    o, final = fla.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
    assert o.dtype == kind and o.device == q.device and final.dtype == torch.float32
    arrays = [x.double().cpu().numpy() for x in (q, k, v, g, beta)]
    exact, state = oracle.gated_delta_rule(
        oracle.l2norm(arrays[0], 1e-6), oracle.l2norm(arrays[1], 1e-6), *arrays[2:], head_map="grouped"
    )
    bound = {"float32": 1e-5, "bfloat16": 6e-3, "float16": 1e-3}[dtype]
    assert_close(o.double().cpu(), exact, bound)
    assert_close(final.double().cpu().numpy().swapaxes(2, 3), state, bound)


def test_norm_module():
    torch.manual_seed(0)
    norm = fla.FusedRMSNormGated(32, eps=1e-6)
    x, z = torch.randn(2, 3, 4, 32), torch.randn(2, 3, 4, 32)
    with torch.no_grad():
        norm.weight.normal_()
        y = norm(x, z)
    exact = oracle.rms_norm(x, norm.weight.detach(), 1e-6) * oracle.silu(z)
    assert_close(y, exact)
    assert list(norm.state_dict()) == ["weight"]
    with pytest.raises(thalweg.Error, match="torch.no_grad"):
        norm(x, z)
    with pytest.raises(thalweg.Error, match="activation"):
        fla.FusedRMSNormGated(32, activation="sigmoid")


def test_gradients_are_refused():
    q = torch.randn(1, 2, 1, 16, requires_grad=True)
    g = torch.zeros(1, 2, 1)
    for call in (fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule):
        with pytest.raises(thalweg.Error, match="forward only") as raised:
            call(q, q, q, g, beta=g)
        assert raised.value.argument == "q"
        with torch.no_grad():
            call(q, q, q, g, beta=g)


def tiny_model(family):
    transformers = pytest.importorskip("transformers", minversion="5.0")
    shapes = {
        "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }  # fmt: skip
    torch.manual_seed(0)
    if family == "qwen3_next":
        return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**shapes)).eval()
    return transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**shapes)).eval()


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_patched_models_say_the_same(family, device, dtype):
    model = tiny_model(family).to(device, getattr(torch, dtype))
    tokens = torch.randint(0, 256, (2, 70), generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        logits = model(tokens).logits.float()
        text = model.generate(tokens, max_new_tokens=12, do_sample=False)
        assert len(thalweg.patch_transformers()) >= 8
        try:
            patched = model(tokens).logits.float()
            patched_text = model.generate(tokens, max_new_tokens=12, do_sample=False)
        finally:
            thalweg.unpatch()
        again = model(tokens).logits.float()
    assert_close(patched.cpu(), logits.cpu(), 1e-5 if dtype == "float32" else 2e-2)
    if dtype == "float32":
        assert torch.equal(text, patched_text)
    assert torch.equal(again, logits)
