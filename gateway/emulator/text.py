"""What an emulated engine says: the next token as a pure function of the tokens before it.

So a broken answer that is continued from its token ids, on another emulator, goes on with the very
tokens it would have had. Sampling and the penalties that count output only do not have that
property in a real engine, and so neither here: they mix the position within the output in.
"""

from collections.abc import Sequence
from hashlib import sha256

from gateway.emulator.vocabulary import LEAD, TAILS, Vocabulary

_MASK = (1 << 64) - 1
# Multipliers of Knuth's MMIX generator and of splitmix64's finaliser.
_FOLD = 6364136223846793005
_MIX = 0xBF58476D1CE4E5B9

REPLACEMENT = "\ufffd"


def mixed(value: int) -> int:
    """A 32-bit number that any bit of `value` changes."""
    value = ((value ^ (value >> 31)) * _MIX) & _MASK
    return value >> 32


def fingerprint(value: bytes) -> int:
    """64 bits that stand for `value`, the same in every process."""
    return int.from_bytes(sha256(value).digest()[:8], "big")


class Generator:
    """Tokens after a prompt, one at a time."""

    __slots__ = ("_last", "_position", "_produced", "_salt", "_state")

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], *, salt: int = 0) -> None:
        state = 1
        for id in prompt:
            state = (state * _FOLD + id + 1) & _MASK
        self._produced = vocabulary.produced
        self._state = state
        self._last = prompt[-1] if prompt else 0
        self._salt = salt
        self._position = 0

    @property
    def state(self) -> int:
        """A hash of all tokens so far."""
        return self._state

    def next_id(self) -> int:
        """Produce one more token. After half a character always comes the other half."""
        self._position += 1
        draw = mixed(self._state + self._salt * self._position)
        if self._last == LEAD:
            id = TAILS[draw % len(TAILS)]
        else:
            id = self._produced[draw % len(self._produced)]
        self._state = (self._state * _FOLD + id + 1) & _MASK
        self._last = id
        return id


class Output:
    """One choice of an answer: hands out tokens and text as the engine's steps allow."""

    __slots__ = (
        "_generator",
        "_ids",
        "_lead_open",
        "_texts",
        "_vocabulary",
        "finish_reason",
        "n_tokens",
        "stop_reason",
        "text_left",
    )

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], *, salt: int = 0) -> None:
        self._vocabulary = vocabulary
        self._texts = vocabulary.texts
        self._generator = Generator(vocabulary, prompt, salt=salt)
        self._ids: list[int] | None = None
        self._lead_open = False
        self.n_tokens = 0
        self.finish_reason = "length"
        self.stop_reason: str | None = None
        self.text_left: int | None = None
        """Characters that may still be sent before the stop string; None: no bound."""

    @property
    def state(self) -> int:
        """A hash of prompt and output so far."""
        return self._generator.state

    def stop_at(self, stops: Sequence[str], limit: int) -> int:
        """Look ahead for the first stop string within `limit` tokens; returns the length."""
        ids: list[int] = []
        text = ""
        longest = max(map(len, stops))
        while len(ids) < limit:
            ids.append(self._generator.next_id())
            seen = max(0, len(text) - longest)
            text += self._piece(ids[-1])
            found = [(at, stop) for stop in stops if (at := text.find(stop, seen)) >= 0]
            if found:
                self.text_left, self.stop_reason = min(found)
                self.finish_reason = "stop"
                break
        self._ids = ids[::-1]
        self._lead_open = False
        return len(ids)

    def recite(self, ids: Sequence[int]) -> None:
        """Say exactly these tokens, whatever would follow from the prompt."""
        self._ids = list(ids[::-1])
        self.finish_reason = "stop"

    def take(self, n: int) -> tuple[list[int], str]:
        """The next `n` tokens and the text that they complete."""
        ids = [self._next_id() for _ in range(n)]
        text = "".join([self._piece(id) for id in ids])
        self.n_tokens += n
        if self.text_left is not None:
            text = text[: self.text_left]
            self.text_left -= len(text)
        return ids, text

    def _next_id(self) -> int:
        return self._ids.pop() if self._ids else self._generator.next_id()

    def _piece(self, id: int) -> str:
        """Text of one token: that of half a character comes with its other half."""
        if id == LEAD:
            self._lead_open = True
            return ""
        if id in TAILS:
            # The first half was the prompt's last token: this half alone is no character.
            complete, self._lead_open = self._lead_open, False
            return self._vocabulary.decode((LEAD, id)) if complete else REPLACEMENT
        return self._texts[id]
