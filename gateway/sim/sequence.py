"""One sequence inside the engine model: what was asked, and how far it is.

Decides nothing; `replica.py` is the only one that changes a `Run`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """What the engine is asked for, its length included, which no real engine knows."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """How many tokens it will produce before it ends; 0 for work that only reads (embeddings)."""
    priority: int = 0
    """Lower is served first, under the priority policy; ignored under fcfs."""

    def __post_init__(self) -> None:
        assert self.prompt_tokens >= 1
        assert self.output_tokens >= 0


class TokenOut(NamedTuple):
    """What one step gave one sequence. A tuple, because there is one for every token produced."""

    sequence_id: str
    n_tokens: int
    finished: bool


class State(Enum):
    """Where a sequence is; GONE covers finished and aborted."""

    WAITING = "waiting"
    RUNNING = "running"
    GONE = "gone"


class Run:
    """A sequence's progress; owned by one `Engine`."""

    __slots__ = (
        "blocks",
        "computed",
        "preemptions",
        "produced",
        "rank",
        "scheduled",
        "sequence",
        "state",
        "total",
    )

    def __init__(self, sequence: Sequence, rank: tuple[int, int]) -> None:
        self.sequence = sequence
        self.rank = rank
        """(priority, arrival): smaller is served first, larger is preempted first."""
        self.state = State.WAITING
        self.total = sequence.prompt_tokens
        """Prompt and what was produced so far: all this must be computed before the next token."""
        self.computed = 0
        """Tokens whose KV is held."""
        self.produced = 0
        self.blocks = 0
        self.scheduled = 0
        """Tokens of it in the step in flight."""
        self.preemptions = 0

    @property
    def decodes(self) -> bool:
        """Whether only its newest token is missing: it is past its prefill, or past a recompute."""
        return self.produced > 0 and self.total - self.computed == 1
