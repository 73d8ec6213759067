"""Many requests at once on one model."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence as List
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike, fspath

from . import _core

__all__ = ["Engine", "Output"]


@dataclass
class Output:
    """What a request gave since its last output.

    text: whole characters. tokens: list of int. logprobs: for each token ((token, logprob), [(token, logprob), ...]),
    the chosen one and the likeliest, if asked for. finish: of the last output, "end", "stop", "length" or "cancelled".
    usage: prompt_tokens, cached_tokens (of them, not computed), generated_tokens, queue_seconds, prompt_seconds and
    generation_seconds so far.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    finish: str | None = None
    usage: dict = field(default_factory=dict)


def _output(fields: dict) -> Output:
    error = fields.pop("error")
    if fields["finish"] == "error":
        raise RuntimeError(error)
    return Output(**fields)


class Engine(_core.Engine):
    """Runs `sequences` requests of one model together; prompts that begin as earlier ones are not computed again.

    queue: how many requests may wait. cache_bytes: of host memory for what is kept of prompts, 0 for none.
    cache_device_bytes: of a GPU's memory for the same, -1 for a quarter of what is free. cache_dir: a folder that keeps
    it beyond the process, with at most cache_dir_bytes. prompt_share: the part of the time that
    prompts get while other requests generate. cache_answers: the next turn of a conversation goes on from the answer
    that it begins with, by other roundings than a cold run. Everything else as Model has it; with `ranks`, this is
    rank 0, and the others call Model(...).follow() with the same options. A request's tokens do not depend on
    what else runs. Safe to use from several threads.

        engine = Engine("models/story-q4_k.gguf")
        for output in engine.generate("Anna put the ball in the box. Where is the ball?", max_tokens=16):
            print(output.text, end="")
    """

    def __init__(self, path: str | PathLike, **options):
        if "cache_dir" in options:
            options["cache_dir"] = fspath(options["cache_dir"])
        super().__init__(fspath(path), **options)
        # A thread for each request that is waited for by asyncio; made when they are needed.
        self._waiting = ThreadPoolExecutor(options.get("sequences", 8) + options.get("queue", 256))

    def _submit(self, prompt: str | List[int], options: dict) -> _core.TokenStream:
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        return self.submit(tokens, **options)

    def generate(self, prompt: str | List[int], **options) -> Iterator[Output]:
        """The outputs of a request as they come; leaving the loop cancels it.

        prompt: text, or a list of tokens. options: max_tokens (128; -1 for all that the context has room for), stop
        (texts that end the answer), logprobs (also of so many of the likeliest tokens), ignore_end, boundaries
        (positions in the prompt up to which later prompts are likely to be equal), and temperature, top_k, top_p,
        min_p, repeat_penalty, repeat_last, seed. Raises thalweg.Error for a request that cannot run.
        """
        stream = self._submit(prompt, options)

        def outputs():
            try:
                while (fields := stream.next()) is not None:
                    yield _output(fields)
            finally:
                stream.cancel()

        return outputs()

    async def generate_async(self, prompt: str | List[int], **options) -> AsyncIterator[Output]:
        """As generate(), for `async for`."""
        stream = self._submit(prompt, options)
        loop = asyncio.get_running_loop()
        try:
            while (fields := await loop.run_in_executor(self._waiting, stream.next)) is not None:
                yield _output(fields)
        finally:
            stream.cancel()

    def complete(self, prompt: str | List[int], **options) -> Output:
        """All outputs of a request as one."""
        return _joined(self.generate(prompt, **options))

    async def complete_async(self, prompt: str | List[int], **options) -> Output:
        """All outputs of a request as one."""
        return _joined([output async for output in self.generate_async(prompt, **options)])

    def detokenize(self, tokens: List[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")


def _joined(outputs) -> Output:
    all_of_it = Output()
    for output in outputs:
        all_of_it.text += output.text
        all_of_it.tokens += output.tokens
        all_of_it.logprobs += output.logprobs
        all_of_it.finish = output.finish
        all_of_it.usage = output.usage
    return all_of_it
