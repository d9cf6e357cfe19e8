"""What an emulated engine says: the next token as a pure function of the tokens before it.

So a broken answer that is continued from its token ids, on another emulator, goes on with the very
tokens it would have had. Sampling and the penalties that count output only do not have that
property in a real engine, and so neither here: they mix the position within the output in.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

from gateway.emulator.vocabulary import (
    CHARACTER_TOKENS_MAX,
    REPLACEMENT,
    SPELLINGS,
    Vocabulary,
)

_MASK = (1 << 64) - 1
# Multipliers of Knuth's MMIX generator and of splitmix64's finaliser.
_FOLD = 6364136223846793005
_MIX = 0xBF58476D1CE4E5B9
_ENDING = 0x9E3779B97F4A7C15
"""Makes the draw for the end another than that for the next token."""
END_OF_TEXT = 0


def mixed(value: int) -> int:
    """A 32-bit number that any bit of `value` changes."""
    value = ((value ^ (value >> 31)) * _MIX) & _MASK
    return value >> 32


def fingerprint(value: bytes) -> int:
    """64 bits that stand for `value`, the same in every process."""
    return int.from_bytes(sha256(value).digest()[:8], "big")


class Generator:
    """Tokens after a prompt, one at a time."""

    __slots__ = ("_due", "_position", "_produced", "_salt", "_state")

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], *, salt: int = 0) -> None:
        state = 1
        for id in prompt:
            state = (state * _FOLD + id + 1) & _MASK
        self._produced = vocabulary.produced
        self._state = state
        self._due = _due_after(prompt)
        self._salt = salt
        self._position = 0

    @property
    def state(self) -> int:
        """A hash of all tokens so far."""
        return self._state

    def next_id(self) -> int:
        """Produce one more token. A character that was begun is always completed."""
        self._position += 1
        draw = mixed(self._state + self._salt * self._position)
        if self._due:
            id = self._due[0][draw % len(self._due[0])]
            self._due = self._due[1:]
        else:
            id = self._produced[draw % len(self._produced)]
            if id in SPELLINGS:
                self._due = SPELLINGS[id]
        self._state = (self._state * _FOLD + id + 1) & _MASK
        return id

    def ends(self, mean_tokens: int) -> bool:
        """Whether the answer ends here by itself, as one of so many tokens on average does."""
        draw = mixed((self._state + self._salt * (self._position + 1)) ^ _ENDING)
        return not self._due and draw < (1 << 32) // mean_tokens


class TextStream:
    """Text of tokens as they come. What is no whole character yet is held back.

    A prompt that ends within a character makes the engine say the whole prompt again with the first
    text, since its decoder knows no place before that to begin from.
    """

    __slots__ = ("_held", "_pieces", "_texts")

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        self._pieces = vocabulary.pieces
        self._texts = vocabulary.texts
        self._held = b""
        if prompt and vocabulary.decode(prompt[-CHARACTER_TOKENS_MAX:]).endswith(REPLACEMENT):
            self._held = b"".join([vocabulary.pieces[id] for id in prompt])

    def text_of(self, id: int) -> str:
        """What one more token adds to the text that may be sent."""
        if self._held:
            held = self._held + self._pieces[id]
            text = held.decode("utf-8", "replace")
            self._held = held if text.endswith(REPLACEMENT) else b""
        else:
            text = self._texts[id]
            if text.endswith(REPLACEMENT):
                self._held = self._pieces[id]
        return "" if self._held else text


class Output:
    """One choice of an answer: hands out tokens and text as the engine's steps allow."""

    __slots__ = (
        "_generator",
        "_ids",
        "_kept_back",
        "_stream",
        "_streams",
        "_unsent",
        "finish_reason",
        "n_tokens",
        "stop_reason",
        "text_left",
    )

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], *, salt: int = 0) -> None:
        self._generator = Generator(vocabulary, prompt, salt=salt)
        self._streams = partial(TextStream, vocabulary, prompt)
        self._stream = self._streams()
        self._ids: list[int] | None = None
        self._kept_back = 0
        self._unsent = ""
        self.n_tokens = 0
        self.finish_reason = "length"
        self.stop_reason: str | None = None
        self.text_left: int | None = None
        """Characters that may still be sent before the stop string; None: no bound."""

    @property
    def state(self) -> int:
        """A hash of prompt and output so far."""
        return self._generator.state

    def look_ahead(
        self,
        limit: int,
        *,
        stops: Sequence[str] = (),
        mean_tokens: int | None = None,
        min_tokens: int = 0,
    ) -> int:
        """Find the end within `limit` tokens; returns the length.

        Args:
            limit: most tokens.
            stops: strings before which the text ends. Text that could be the beginning of one
                is sent only when it is known not to be.
            mean_tokens: how long answers are on average that end by themselves, which costs a token
                without text; None: they do not.
            min_tokens: no end by itself before so many.
        """
        ids: list[int] = []
        text, stream, longest = "", self._streams(), max(map(len, stops), default=0)
        self._kept_back = max(0, longest - 1)
        while len(ids) < limit:
            if mean_tokens and len(ids) >= min_tokens and self._generator.ends(mean_tokens):
                ids.append(END_OF_TEXT)
                self.finish_reason = "stop"
                break
            ids.append(self._generator.next_id())
            if not stops:
                continue
            seen = max(0, len(text) - longest)
            text += stream.text_of(ids[-1])
            found = [(at, stop) for stop in stops if (at := text.find(stop, seen)) >= 0]
            if found:
                self.text_left, self.stop_reason = min(found)
                self.finish_reason = "stop"
                break
        self._ids = ids[::-1]
        return len(ids)

    def recite(self, ids: Sequence[int]) -> None:
        """Say exactly these tokens, whatever would follow from the prompt."""
        self._ids = list(ids[::-1])
        self.finish_reason = "stop"

    def take(self, n: int, *, ended: bool = True) -> tuple[list[int], str]:
        """The next `n` tokens, the last of which may be the `ended` one, and the text to send."""
        ids = [self._next_id() for _ in range(n)]
        text_of = self._stream.text_of
        text = "".join([text_of(id) for id in ids])
        self.n_tokens += n
        if self.text_left is not None:
            text = text[: self.text_left]
            self.text_left -= len(text)
        if self._kept_back:
            text = self._unsent + text
            sent = len(text) if ended else max(0, len(text) - self._kept_back)
            text, self._unsent = text[:sent], text[sent:]
        return ids, text

    def _next_id(self) -> int:
        return self._ids.pop() if self._ids else self._generator.next_id()


def _due_after(prompt: Sequence[int]) -> tuple[range, ...]:
    """What a character that the prompt ends within still needs."""
    for back in range(1, min(CHARACTER_TOKENS_MAX, len(prompt) + 1)):
        spelling = SPELLINGS.get(prompt[-back])
        if spelling is not None:
            given = prompt[len(prompt) - back + 1 :]
            fits = all(id in tail for id, tail in zip(given, spelling, strict=False))
            return spelling[len(given) :] if fits else ()
    return ()
