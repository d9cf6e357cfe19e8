"""What a request log holds: which of its lines are traffic that can be asked again, and which not.

Counts all it leaves out. Knows nothing of policies, and does not guess.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import Annotated

import msgspec

NAMED_MAX = 10
"""Bad lines that a survey names."""
NAMES_MAX = 64
"""Tiers and models that a survey tells apart."""
LEFT = frozenset({"cancelled", "client_stalled", "response_cancelled"})
"""Outcomes of clients that did not wait for the end."""
LIMITED = frozenset({"rate_limit_exceeded", "insufficient_quota", "request_exceeds_limit"})
"""Outcomes of limits and budgets, which hold under any policy."""
COMES_BACK = frozenset({408, 429})
"""Statuses below 500 that another policy might have spared its client."""

Amount = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Used(msgspec.Struct, frozen=True):
    """`usage` of a line."""

    prompt_tokens: Count = 0
    """0: not reported."""
    output_tokens: Count = 0


class Logged(msgspec.Struct, frozen=True):
    """What a replay reads of a line; the other fields of `SettledRequest` are passed over."""

    arrived_at: Amount
    tier: str
    outcome: str
    duration_s: Amount
    tenant: str = "default"
    user: str = "anonymous"
    model: str = ""
    status: int = 200
    usage: Used | None = None
    output_tokens_max: Count | None = None
    body_bytes: Count = 0
    session: str | None = None
    prefix: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int | None:
        """None: nobody counted it."""
        return None if self.usage is None else self.usage.prompt_tokens or None

    @property
    def output_tokens(self) -> int | None:
        """How long the answer wanted to be; None: it was broken off, or never begun."""
        return None if self.usage is None or self.outcome != "done" else self.usage.output_tokens

    @property
    def is_work(self) -> bool:
        """Whether an engine would work on it under some policy."""
        if self.outcome in LEFT:
            return True
        is_refused = 400 <= self.status < 500 and self.status not in COMES_BACK
        return not is_refused and self.outcome not in LIMITED


@dataclass(slots=True)
class Survey:
    """What a log holds, and what of it is played."""

    lines: int = 0
    """All that are not blank: `played`, `bad` and `left_out` together."""
    played: int = 0
    bad: int = 0
    """Lines that cannot be read, or that lack what a replay needs."""
    named: list[str] = field(default_factory=list)
    """The first `NAMED_MAX` bad ones: their numbers, and what is wrong."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Why -> lines: the outcome of what is no work, or `another model`."""
    guessed: int = 0
    """Played with a guessed length: refused, failed or given up before their end."""
    began_at: float = inf
    """Unix time of the first arrival that is played."""
    ended_at: float = 0.0
    """Of the last."""
    tiers: Counter[str] = field(default_factory=Counter)
    """Tier -> lines, known ones and others."""
    models: Counter[str] = field(default_factory=Counter)

    def reject(self, number: int, why: str) -> None:
        """Count a bad line."""
        self.bad += 1
        if len(self.named) < NAMED_MAX:
            self.named.append(f"line {number}: {why}")

    def see(self, line: Logged) -> None:
        """Count a line that can be read under its names."""
        for counts, name in ((self.tiers, line.tier), (self.models, line.model)):
            if name in counts or len(counts) < NAMES_MAX:
                counts[name] += 1

    def told(self) -> list[str]:
        """What is not played, one reason a line."""
        unnamed = self.bad - len(self.named)
        more = [f"and {unnamed} more bad lines"] if unnamed else []
        left_out = [f"{count} left out: {why}" for why, count in sorted(self.left_out.items())]
        return [*self.named, *more, *left_out]
