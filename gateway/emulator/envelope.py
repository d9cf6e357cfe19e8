"""What every part of one answer repeats, and what a writer of streamed answers is.

Pure. Refuses to know any route's shape; there is one module for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.emulator.calls import Call, Card
from gateway.emulator.refusals import Refusal
from gateway.emulator.text import Output, fingerprint

KEEP_ALIVE = b": keep-alive\n\n"

Said = tuple[Output, list[int], str]
"""A finished choice: its output, token ids and text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every part of one answer repeats."""

    id: str
    created: int
    """Unix time, in seconds."""
    fingerprint: str
    call: Call
    card: Card

    def prompt_of(self, choice: int) -> tuple[int, ...]:
        """Choices are numbered prompt by prompt."""
        return self.call.prompts[choice // self.call.n]

    def derived_id(self, prefix: str) -> str:
        """An id for a part of the answer; the same whenever it is asked for."""
        return f"{prefix}{fingerprint(self.id.encode()):016x}"


class Writer(Protocol):
    """Writes the events of one stream; each goes out as a chunk of its own."""

    keep_alive: bytes
    """What breaks the silence of a stalled stream."""

    def at_once(self) -> list[bytes]:
        """What is sent before the engine has looked at the request."""

    def opening(self) -> list[bytes]:
        """What comes with the first token, before it."""

    def token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The next tokens of a choice that goes on."""

    def last_token(self, choice: int, output: Output, ids: Sequence[int], text: str) -> list[bytes]:
        """The tokens that end a choice."""

    def closing(self, output_tokens: int) -> list[bytes]:
        """What comes after the last token of all choices."""

    def failure(self, refusal: Refusal, sent: int) -> list[bytes]:
        """The end of a stream that fails after so many events."""
