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


def test_sparse_and_eight_bit_tensors_are_refused():
    q, g = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1)
    for call in (fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule):
        with pytest.raises(thalweg.Error, match="q: expected a dense tensor, got one of layout torch.sparse_coo"):
            call(q.to_sparse(), q, q, g, beta=g)
    with pytest.raises(thalweg.Error, match="x: expected a dense tensor"):
        ops.l2norm(q.to_sparse())
    with pytest.raises(thalweg.Error, match="q: expected F32, F16 or BF16 .*, got float8_e4m3fn"):
        fla.chunk_gated_delta_rule(q.to(torch.float8_e4m3fn), q, q, g, g)
    with pytest.raises(thalweg.Error, match="q: expected F32, F16 or BF16 .*, got float64"):
        fla.chunk_gated_delta_rule(q.double(), q, q, g, g)


def test_bounds_are_not_converted():
    q, g = torch.randn(1, 9, 1, 16), torch.zeros(1, 9, 1)
    for bounds in (torch.tensor([0, 2**32 + 9]), torch.tensor([0, 4.7, 9.2]), torch.tensor([], dtype=torch.int64)):
        with pytest.raises(thalweg.Error) as raised:
            fla.chunk_gated_delta_rule(q, q, q, g, g, cu_seqlens=bounds)
        assert raised.value.argument == "cu_seqlens"
    o, _ = fla.chunk_gated_delta_rule(q, q, q, g, g + 1, cu_seqlens=torch.tensor([0, 4, 9]))
    again, _ = fla.chunk_gated_delta_rule(q, q, q, g, g + 1, cu_seqlens=[0, 4, 9])
    assert torch.equal(o, again)


def test_the_norm_does_not_round_its_gate():
    torch.manual_seed(0)
    x, z = torch.randn(3, 32).bfloat16(), torch.randn(3, 32)
    with torch.no_grad():
        y = fla.FusedRMSNormGated(32, eps=1e-6)(x, z)
    exact = oracle.rms_norm(x.double(), np.ones(32), 1e-6) * oracle.silu(z.double())
    assert torch.equal(y, torch.as_tensor(exact).to(torch.float32).bfloat16())


def test_the_patch_drops_what_models_pass_on_but_not_what_would_change_the_result():
    from thalweg.transformers import _accepting_all

    q, g = torch.randn(1, 9, 1, 16), torch.zeros(1, 9, 1)
    call = _accepting_all(fla.chunk_gated_delta_rule)
    plain, _ = fla.chunk_gated_delta_rule(q, q, q, g, g)
    o, _ = call(q, q, q, g, g, position_ids=g, use_cache=True, output_attentions=False, gk=None, head_first=False)
    assert torch.equal(o, plain)
    for name in ("gk", "head_first", "ssm_state_indices"):
        with pytest.raises(thalweg.Error) as raised:
            call(q, q, q, g, g, **{name: True})
        assert raised.value.argument == name
    with pytest.raises(thalweg.Error, match="seq_idx"):
        _accepting_all(fla.causal_conv1d_fn)(q[0], q[0, 0, :, :4], seq_idx=g)


FAMILIES = {"qwen3_next": ("Qwen3Next", "Qwen3Next"), "qwen3_5_moe": ("Qwen3_5Moe", "Qwen3_5MoeText")}


def tiny_model(family):
    """Of transformers 4.57, which has Qwen3-Next alone, or later."""
    transformers = pytest.importorskip("transformers", minversion="4.57")
    name, config = FAMILIES[family]
    if not hasattr(transformers, f"{name}ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    shapes = {
        "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    }  # fmt: skip
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{config}Config")(**shapes)).eval()


def decoded(model, tokens, steps):
    """The logits of a prefill and of `steps` cached steps, and the tokens of generate()."""
    with torch.no_grad():
        out = model(tokens[:, :-steps], use_cache=True)
        logits = [out.logits]
        for i in range(tokens.shape[1] - steps, tokens.shape[1]):
            out = model(
                tokens[:, i : i + 1], use_cache=True, past_key_values=out.past_key_values,
                cache_position=torch.tensor([i], device=tokens.device),
            )  # fmt: skip
            logits.append(out.logits)
        text = model.generate(tokens, max_new_tokens=12, do_sample=False)
    return torch.cat(logits, 1).float(), text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_patched_models_say_the_same(family, device, dtype):
    """Those made before the patch, with transformers 5, and after it."""
    model = tiny_model(family).to(device, getattr(torch, dtype))
    tokens = torch.randint(0, 256, (2, 70), generator=torch.Generator().manual_seed(1)).to(device)
    logits, text = decoded(model, tokens, 6)
    assert len(thalweg.patch_transformers()) >= 5
    try:
        made = tiny_model(family).to(device, getattr(torch, dtype))
        made.load_state_dict(model.state_dict())
        results = [decoded(made, tokens, 6), decoded(model, tokens, 6)]
    finally:
        thalweg.unpatch()
    again, _ = decoded(model, tokens, 6)
    for patched, patched_text in results:
        assert_close(patched.cpu(), logits.cpu(), 1e-5 if dtype == "float32" else 2e-2)
        if dtype == "float32":
            assert torch.equal(text, patched_text)
    if dtype == "float32":
        assert not torch.equal(results[0][0], logits)  # Thalweg's kernels did run
    assert torch.equal(again, logits)
