"""One sequence inside the engine model: what was asked, and how far it is.

Decides nothing; `replica.py` and the parts of it are the only ones that change a `Run`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


@dataclass(slots=True, init=False)
class Sequence:
    """What the engine is asked for, its length included, which no real engine knows.

    Nobody changes one. Its `__init__` is written out, because simulations make millions.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    """How many tokens it will produce before it ends; 0 for work that only reads (embeddings)."""
    priority: int
    """Lower is served first, under the priority policy; ignored under fcfs."""
    prefix: tuple[int, ...]
    """Ids of its leading blocks for the prefix cache; those beyond the prompt do not count."""

    def __init__(
        self,
        *,
        id: str,
        prompt_tokens: int,
        output_tokens: int,
        priority: int = 0,
        prefix: tuple[int, ...] = (),
    ) -> None:
        assert prompt_tokens >= 1
        assert output_tokens >= 0
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.prefix = prefix


def computed_tokens(prompt_tokens: int, output_tokens: int) -> int:
    """Tokens whose KV a sequence has at its end: the last one produced is never computed."""
    return prompt_tokens + max(0, output_tokens - 1)


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
    """A sequence's progress; owned by one `Engine`.

    While `decodes`, the numbers are those of the round `since`: see `decoding.py`.
    """

    __slots__ = (
        "blocks",
        "computed",
        "decodes",
        "preemptions",
        "produced",
        "rank",
        "scheduled",
        "sequence",
        "shared",
        "since",
        "state",
    )

    def __init__(self, sequence: Sequence, rank: tuple[int, int]) -> None:
        self.sequence = sequence
        self.rank = rank
        """(priority, arrival): smaller is served first, larger is preempted first."""
        self.state = State.WAITING
        self.computed = 0
        """Tokens whose KV is held."""
        self.produced = 0
        self.blocks = 0
        """KV blocks of its own, those that are shared with others left out."""
        self.shared: tuple[int, ...] = ()
        """The blocks of the prefix cache that it holds."""
        self.scheduled = 0
        """Tokens of its prefill in the step in flight."""
        self.preemptions = 0
        self.decodes = False
        """Whether only its newest token is missing: it is past its prefill, or past a recompute."""
        self.since = 0
        """The round of decoding at which `computed` and `produced` were counted."""

    @property
    def total(self) -> int:
        """Prompt and what was produced: all this must be computed before the next token."""
        return self.sequence.prompt_tokens + self.produced
