"""One request on one granted replica: what an engine says, as the gateway reads it.

The rules of `api/exchange.py`. Before the first output an error may be a busy engine, a faulty one
or a request that is wrong; after it everything but a proper end is a break.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.messages import Fault, Usage
from gateway.sim.asks import Ask
from gateway.sim.desk import Desk
from gateway.sim.link import Link, Said, Word
from gateway.sim.server import BUSY, Server

TPOT_TOKENS_MIN = 2
"""Fewer tokens have no time between two of them."""


class Meaning(StrEnum):
    """What the gateway takes from it."""

    OUTPUT = "output"
    """Some of a stream."""
    WHOLE = "whole"
    """All of a plain answer."""
    END = "end"
    """The proper end of a stream."""
    BUSY = "busy"
    WRONG = "wrong"
    """The request is refused as such: no other replica would take it."""
    BROKEN = "broken"
    """The engine, or the way to it, failed."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing that an exchange came to."""

    meaning: Meaning
    why: str = ""
    fault: Fault | None = None
    """What of the engine is to blame."""
    tokens: tuple[tuple[int, int], ...] = ()


class Exchange:
    """From the grant to the end of the upstream. `read` is called with all that counts."""

    def __init__(
        self, desk: Desk, ask: Ask, replica: str, *, start: int, read: Callable[[Reading], object]
    ) -> None:
        self.replica = replica
        self.tokens = 0
        """Output so far, of all choices."""
        self._desk = desk
        self._ask = ask
        self._start = start
        self._read = read
        self._server: Server | None = None
        self.link: Link | None = None
        self._sent_at: float | None = None
        self._first_at: float | None = None
        self._last_at: float | None = None
        self._is_erring = False
        """An error event came after output: the end that follows is none."""

    @property
    def heard_at(self) -> float | None:
        """When output last came."""
        return self._last_at

    @property
    def silent_since(self) -> float | None:
        """When output last came, or it was sent; None before that."""
        return self._sent_at if self._last_at is None else self._last_at

    @property
    def usage(self) -> Usage:
        """What the engine reports, or what was counted."""
        return Usage(prompt_tokens=self._ask.prompt_tokens + self._start, output_tokens=self.tokens)

    @property
    def tpot_s(self) -> float | None:
        """Mean time between two tokens; None where there is none."""
        if self.tokens < TPOT_TOKENS_MIN or self._first_at is None or self._last_at is None:
            return None
        return (self._last_at - self._first_at) / (self.tokens - 1)

    def send(self, attempt_id: str) -> None:
        """Ask the engine."""
        desk = self._desk
        self._sent_at = desk.clock.now
        self._server = desk.servers.get(self.replica)
        if self._server is None:
            self._read(Reading(Meaning.BROKEN, "the replica was removed"))
            return
        self.link = Link(
            f"{attempt_id}.{desk.number()}",
            self._ask,
            desk.clock,
            hop_s=desk.wires.hop_s,
            hear=self._hear,
        )
        self.link.start = self._start
        self._server.connect(self.link)

    def hang_up(self) -> None:
        """Leave the engine: nothing that it says arrives any more."""
        if self.link is not None and not self.link.is_left:
            assert self._server is not None
            self._server.hang_up(self.link)

    def _hear(self, said: Said) -> None:
        self._desk.heard(self.replica, said)
        match said.word:
            case Word.TOKENS:
                self._output(said.tokens)
                self._read(Reading(Meaning.OUTPUT, tokens=said.tokens))
            case Word.ANSWER:
                self.tokens = len(said.tokens)
                self._read(Reading(Meaning.WHOLE, tokens=said.tokens))
            case Word.DONE:
                self._read(self._ended())
            case Word.STATUS:
                self._read(_problem(said))
            case Word.ERROR:
                if self.tokens:
                    self._is_erring = True
                else:
                    # Before any output it is as good as a status.
                    self._read(_problem(said))
            case Word.REFUSED:
                self._read(Reading(Meaning.BROKEN, "refused", Fault.REFUSED))
            case Word.RESET:
                self._read(Reading(Meaning.BROKEN, "reset", Fault.BROKE_OFF))

    def _output(self, tokens: tuple[tuple[int, int], ...]) -> None:
        self._last_at = self._desk.clock.now
        if not self.tokens:
            self._first_at = self._last_at
        self.tokens += len(tokens)

    def _ended(self) -> Reading:
        if self._is_erring:
            return Reading(Meaning.BROKEN, "an error event", Fault.SERVER_ERROR)
        if not self.tokens:
            return Reading(Meaning.BROKEN, "ended before it began", Fault.BROKE_OFF)
        return Reading(Meaning.END)


def _problem(said: Said) -> Reading:
    why = f"status {said.code}"
    if said.code == BUSY:
        return Reading(Meaning.BUSY)
    if said.code < 500:
        return Reading(Meaning.WRONG, why)
    return Reading(Meaning.BROKEN, why, Fault.DRAINING if said.is_leaving else Fault.SERVER_ERROR)
