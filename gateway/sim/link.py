"""One request's connection to one engine, as both ends see it: in order, one hop late, breakable.

It knows what was said, not what it means; that is the gateway's affair.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from gateway.sim.asks import Ask
from gateway.sim.clock import Clock


class Word(StrEnum):
    """What an engine, or the network in its place, can say."""

    REFUSED = "refused"
    """Nobody listens there."""
    RESET = "reset"
    """The connection broke."""
    STATUS = "status"
    """An answer with an error status, before anything else."""
    TOKENS = "tokens"
    """Events of a stream."""
    ERROR = "error"
    """An error event on a stream, which a proper end may follow."""
    DONE = "done"
    """The proper end of a stream, whatever came before."""
    ANSWER = "answer"
    """The whole answer to one that does not stream."""


class Said(NamedTuple):
    """One thing that was said. A tuple, because there is one for every step of every stream."""

    word: Word
    code: int = 0
    is_leaving: bool = False
    """An error that says that the engine shuts down."""
    tokens: tuple[tuple[int, int], ...] = ()
    """(choice, position) of each."""


class Link:
    """A connection that carries one request to an engine and its answer back."""

    __slots__ = (
        "_clock", "_hear", "_is_broken", "ask", "hop_s", "id", "is_left", "last_made_at", "open",
        "produced", "start",
    )  # fmt: skip

    def __init__(
        self, id: str, ask: Ask, clock: Clock, *, hop_s: float, hear: Callable[[Said], object]
    ) -> None:
        self.id = id
        self.ask = ask
        self.hop_s = hop_s
        """Seconds that everything takes, each way."""
        self.start = 0
        """Output that the prompt contains already: this continues a stream."""
        self.produced = [0] * ask.sequences
        """Engine: tokens of each choice, without those at the start."""
        self.open = ask.sequences
        """Engine: choices that have not ended."""
        self.last_made_at: float | None = None
        self.is_left = False
        """Gateway: it hung up, and hears nothing more."""
        self._is_broken = False
        self._clock = clock
        self._hear = hear

    def say(self, said: Said) -> None:
        """Engine: it arrives one hop later, unless the connection breaks before."""
        self._clock.after(self.hop_s, partial(self._arrive, said))

    def break_off(self) -> None:
        """The connection is reset, and what is on the way is lost."""
        self._is_broken = True
        self.say(Said(Word.RESET))

    def _arrive(self, said: Said) -> None:
        if self.is_left or (self._is_broken and said.word is not Word.RESET):
            return
        self._hear(said)
