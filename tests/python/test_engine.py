"""thalweg.Engine: the model's own text, several requests at once, from threads and from asyncio."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import thalweg

PATH = Path(__file__).resolve().parents[2] / "models" / "story-q4_k.gguf"
PROMPTS = [
    "Anna put the ball in the box. Where is the ball?",
    "John went to the kitchen. Mary went to the garden. Where is Mary?",
    "Daniel took the apple. Daniel went to the office. Where is the apple?",
    "Sandra moved to the hall.",
]


@pytest.fixture(scope="module")
def engine():
    return thalweg.Engine(PATH, sequences=3, context=2048, threads=2, device="cpu")


@pytest.fixture(scope="module")
def expected():
    model = thalweg.Model(PATH, context=2048, threads=2, device="cpu")
    return [list(model.generate(prompt, max_tokens=12)) for prompt in PROMPTS]


def test_is_the_models_text(engine, expected):
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        output = engine.complete(prompt, max_tokens=12)
        assert output.tokens == tokens
        assert output.text == engine.detokenize(tokens)
        assert output.usage["generated_tokens"] == len(tokens)


def test_threads_ask_at_once(engine, expected):
    with ThreadPoolExecutor(8) as threads:
        outputs = list(threads.map(lambda prompt: engine.complete(prompt, max_tokens=12), PROMPTS * 4))
    assert [output.tokens for output in outputs] == expected * 4


def test_asyncio(engine, expected):
    async def ask():
        return await asyncio.gather(*(engine.complete_async(prompt, max_tokens=12) for prompt in PROMPTS * 2))

    assert [output.tokens for output in asyncio.run(ask())] == expected * 2


def test_a_prompt_again_is_cached(engine):
    prompt = PROMPTS[0] * 20
    first = engine.complete(prompt, max_tokens=4, logprobs=2)
    again = engine.complete(prompt, max_tokens=4, logprobs=2)
    assert again.usage["cached_tokens"] > again.usage["prompt_tokens"] - 65
    assert again.logprobs == first.logprobs
    assert len(first.logprobs) == len(first.tokens)
    assert engine.stats()["prompt_tokens_cached"] > 0


def test_leaving_the_loop_cancels(engine):
    cancelled = engine.stats()["cancelled"]
    for output in engine.generate(PROMPTS[0], max_tokens=-1, ignore_end=True):
        assert output.tokens
        break
    assert engine.complete(PROMPTS[0], max_tokens=1).finish in ("length", "end")
    assert engine.stats()["cancelled"] == cancelled + 1


def test_stop(engine):
    text = engine.complete(PROMPTS[3], max_tokens=20, ignore_end=True).text
    output = engine.complete(PROMPTS[3], max_tokens=20, ignore_end=True, stop=[text[3:6]])
    assert output.finish == "stop"
    assert output.text == text[: text.index(text[3:6])]


def test_errors(engine):
    with pytest.raises(thalweg.Error, match="prompt: expected at least one token, got none"):
        engine.complete([])
    with pytest.raises(thalweg.Error, match="max_tokens"):
        engine.complete(PROMPTS[0], max_tokens=-5)
    with pytest.raises(thalweg.Error, match="prompt_share"):
        thalweg.Engine(PATH, prompt_share=2.0)


def test_drain_refuses_more():
    engine = thalweg.Engine(PATH, sequences=1, context=512, device="cpu")
    assert engine.drain(10)
    with pytest.raises(thalweg.Error, match="being stopped"):
        engine.complete(PROMPTS[0])


def test_a_turn_goes_on_from_the_answer():
    cached = []
    for cache_answers in (False, True):
        engine = thalweg.Engine(PATH, sequences=1, context=512, device="cpu", cache_answers=cache_answers)
        prompt = engine.tokenize(PROMPTS[0])
        answer = engine.complete(prompt, max_tokens=20, ignore_end=True)
        turn = engine.complete(prompt + answer.tokens + prompt, max_tokens=1)
        cached.append(turn.usage["cached_tokens"])
    assert cached[0] < len(prompt)
    assert cached[1] == len(prompt) + 19  # the last one has not been run


def test_a_folder_keeps_the_cache(tmp_path):
    prompt = PROMPTS[0] * 20
    outputs = []
    for _ in range(2):
        engine = thalweg.Engine(PATH, sequences=1, context=512, device="cpu", cache_dir=tmp_path / "cache")
        outputs.append(engine.complete(prompt, max_tokens=4, logprobs=2))
        assert engine.stats()["cache_dir_failures"] == 0
        del engine
    assert [output.usage["cached_tokens"] > 0 for output in outputs] == [False, True]
    assert outputs[0].logprobs == outputs[1].logprobs
