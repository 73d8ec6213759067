"""Text from a hybrid model file."""

import codecs
from collections.abc import Iterator, Sequence as List
from os import PathLike, fspath

from . import _core
from ._core import Sequence

__all__ = ["Model", "Sequence"]


class Model(_core.Model):
    """Qwen3-Next, Qwen3.5 and Qwen3.6 from a .gguf file or a Hugging Face directory.

    threads: 0 for all. context: most tokens of a sequence, 0 for what the file says, at most 32768. sequences: how
    many are alive at once. exact: no 8-bit or 16-bit activations. batch_invariant: on a GPU too, a sequence's bits do
    not depend on the sequences beside it; slower. kv_type: of cached keys and values, "f16", "bf16",
    "f32" or "q8_0" (8 bits, 32 to a scale); None for "f32" if exact, else "f16". state_type: of recurrent states, "f32" or "bf16". device: "cpu", "cuda",
    "cuda:1", or "auto" for a GPU that the model fits on and else the CPU; info["device"] says which it is. ranks: a
    thalweg.Ranks, of several processes that run the model together, each with the same options but for `threads`; of
    them 0 is this rank's share of the machine's, and device "cuda" the GPU of its local rank. rank_split: what they share, "tensor" for heads and experts of every
    layer, "sequence" for the tokens of long prompts. Raises thalweg.Error, naming the argument or the file's key or
    tensor.

        model = Model("models/story-q4_k.gguf")
        for text in model.generate_text("Anna put the ball in the box. Where is the ball?", max_tokens=16):
            print(text, end="")
    """

    def __init__(self, path: str | PathLike, **options):
        super().__init__(fspath(path), **options)

    def detokenize(self, tokens: List[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode(errors="replace")

    def generate(
        self, prompt: str | List[int], *, max_tokens: int = 128, sequence: Sequence | None = None, **sampling
    ) -> Iterator[int]:
        """The tokens after a prompt, one by one, without the end token. Every token that was yielded is part of the
        sequence's state.

        prompt: text, or a list of tokens; may be empty if the sequence has tokens. sequence: to go on with; by default
        a new one. sampling: temperature, top_k, top_p, min_p, repeat_penalty, repeat_last, seed, as sample() has them;
        by default the likeliest token.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        if sequence is None:
            sequence = self.start()
        if tokens:
            self.prefill(sequence, tokens)
        room = self.context - len(sequence.tokens)
        for _ in range(min(max_tokens, room)):
            token = self.sample(sequence, **sampling)
            if self.is_end_token(token):
                return
            self.step([sequence], [token])
            yield token

    def generate_text(self, prompt: str | List[int], **options) -> Iterator[str]:
        """As generate(), but yields text in whole characters."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in self.generate(prompt, **options):
            if text := decoder.decode(self.token_bytes(token)):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text
