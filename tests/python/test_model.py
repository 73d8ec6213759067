"""The model that ships: text, logits, states."""

import json
from pathlib import Path

import numpy as np
import pytest

import thalweg

GOLDENS = Path(__file__).parents[1] / "model" / "goldens" / "next-r1-tied"
MODEL = Path(__file__).parents[2] / "models" / "story-q4_k.gguf"
PROMPT = "Anna put the red ball in the kitchen. Tom took the lamp to the attic. Where is the red ball?"


@pytest.fixture(scope="module")
def model():
    return thalweg.Model(MODEL, sequences=2, context=256)


def test_generates_text(model):
    pieces = list(model.generate_text(PROMPT, max_tokens=24))
    assert "kitchen" in "".join(pieces)
    assert len(pieces) > 3


def test_generate_is_lazy_and_bounded(model):
    sequence = model.start()
    tokens = model.generate(PROMPT, max_tokens=24, sequence=sequence)
    first = next(tokens)
    prompt = model.tokenize(PROMPT)
    assert sequence.tokens == [*prompt, first]
    tokens.close()
    assert len(list(model.generate([], max_tokens=3, sequence=sequence))) == 3
    assert len(sequence.tokens) == len(prompt) + 4


def test_generate_stops_at_the_context():
    model = thalweg.Model(MODEL, context=40)
    sequence = model.start()
    list(model.generate([5] * 30, max_tokens=100, sequence=sequence, temperature=5.0, seed=1))
    assert len(sequence.tokens) <= 40


def test_sampling_repeats(model):
    options = {"max_tokens": 12, "temperature": 20.0, "seed": 7}
    first = list(model.generate(PROMPT, **options))
    assert first == list(model.generate(PROMPT, **options))
    assert first != list(model.generate(PROMPT, **(options | {"seed": 8})))


def test_tokens_and_text(model):
    tokens = model.tokenize(PROMPT)
    assert model.detokenize(tokens) == PROMPT
    chat = model.detokenize(model.chat_prompt([("user", "Hello")]))
    assert "user" in chat and "Hello" in chat


def test_logits(model):
    tokens = model.tokenize(PROMPT)
    sequence = model.start()
    assert sequence.logits().shape == (0,)
    each = model.logits(sequence, tokens)
    assert each.shape == (len(tokens), model.info["vocabulary"]) and each.dtype == np.float32
    np.testing.assert_array_equal(each[-1], sequence.logits())
    assert model.sample(sequence) == int(np.argmax(each[-1]))
    sequence.clear()
    exact = each.astype(np.float64)
    log_p = exact - np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True)) \
        - exact.max(-1, keepdims=True)  # fmt: skip
    expected = log_p[np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(model.score(sequence, tokens), expected, atol=1e-4)


def test_state_is_saved_and_restored(model, tmp_path):
    first, second = model.start(), model.start()
    model.prefill(first, model.tokenize(PROMPT))
    path = str(tmp_path / "state")
    first.save(path)
    second.restore(path)
    assert second.tokens == first.tokens
    np.testing.assert_array_equal(second.logits(), first.logits())
    token = model.sample(first)
    model.step([first, second], [token, token])
    np.testing.assert_array_equal(second.logits(), first.logits())
    damaged = bytearray(Path(path).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path(path).write_bytes(damaged)
    before = second.tokens
    with pytest.raises(thalweg.Error):
        second.restore(path)
    assert second.tokens == before


def test_sequences_outlive_the_model():
    model = thalweg.Model(MODEL, context=64)
    sequence = model.start()
    model.prefill(sequence, [1, 2, 3])
    del model
    assert sequence.tokens == [1, 2, 3] and np.isfinite(sequence.logits()).all()


def test_kv_type():
    """f16 by default, f32 with exact; the bytes, and other logits close by."""
    logits, size = {}, {}
    for exact in (False, True):
        for kv_type in ("f16", "f32", "q8_0", None):
            model = thalweg.Model(MODEL, context=64, exact=exact, kv_type=kv_type)
            sequence = model.start()
            logits[exact, kv_type] = model.logits(sequence, model.tokenize(PROMPT))
            size[exact, kv_type] = model.info["cache_token_bytes"]
    for exact, default in ((False, "f16"), (True, "f32")):
        assert size[exact, "f32"] == 2 * size[exact, "f16"] > 0
        assert size[exact, None] == size[exact, default]
        np.testing.assert_array_equal(logits[exact, None], logits[exact, default])
        assert 32 * size[exact, "q8_0"] == 17 * size[exact, "f16"]  # blocks of 32 codes and a scale of 2 bytes
        full = logits[exact, "f32"]
        for kv_type, bound in (("f16", 1e-2), ("q8_0", 5e-2)):
            # Most tokens: where two experts are close, one may go to another, which moves its logits far.
            moved = np.median(np.abs(logits[exact, kv_type] - full).max(axis=1))
            assert 0 < moved < bound * np.abs(full).max()


@pytest.mark.parametrize("kv_type", ["f32", None])
def test_exact_logits_are_those_of_transformers(kv_type):
    data = (GOLDENS / "goldens.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    goldens = {
        name: np.frombuffer(data[begin:], {"F32": np.float32, "I32": np.int32}[entry["dtype"]],
                            int(np.prod(entry["shape"])), entry["data_offsets"][0])
        for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"
    }  # fmt: skip
    prompts = [name.removesuffix(".ids") for name in goldens if name.startswith("prompt.") and name.endswith(".ids")]
    assert len(prompts) >= 8
    model = thalweg.Model(GOLDENS, exact=True, kv_type=kv_type)
    for prompt in prompts:
        sequence = model.start()
        model.prefill(sequence, goldens[f"{prompt}.ids"].tolist())
        expected = goldens[f"{prompt}.logits"]
        assert np.abs(sequence.logits() - expected).max() < 2e-4 * np.ptp(expected)
        del sequence


@pytest.mark.parametrize("kv_type", ["bf8", "F16", "", 16, np.float16])
def test_kv_types_that_do_not_exist(kv_type):
    with pytest.raises(thalweg.Error, match="Model: kv_type: expected 'f16', 'bf16', 'f32', 'q8_0' or None") as raised:
        thalweg.Model(MODEL, kv_type=kv_type)
    assert raised.value.argument == "kv_type"


def test_misuse_raises(model):
    with pytest.raises(thalweg.Error, match="file"):
        thalweg.Model("/no/such/file.gguf")
    with pytest.raises(thalweg.Error, match="kernel|sequences|threads|context"):
        thalweg.Model(MODEL, context=-1)
    first, second = model.start(), model.start()
    with pytest.raises(thalweg.Error):
        model.start()
    with pytest.raises(thalweg.Error):
        model.prefill(first, [model.info["vocabulary"]])
    with pytest.raises(thalweg.Error, match="sequences"):
        model.step([None], [1])
    del second
    model.start()
