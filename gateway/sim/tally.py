"""Sums over many runs, in words."""

from collections import Counter
from dataclasses import dataclass, field

from gateway.sim.asks import End
from gateway.sim.faults import FaultKind
from gateway.sim.run import Outcome

SUMMED = (
    "requests", "tokens", "retries", "bounces", "recalls", "continuations", "moves", "stalls",
    "events",
)  # fmt: skip


@dataclass(slots=True)
class Tally:
    """What so many runs came to together."""

    runs: int = 0
    failures: list[Outcome] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
    ends: Counter[End] = field(default_factory=Counter)
    faults: Counter[FaultKind] = field(default_factory=Counter)
    virtual_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """One more run."""
        self.runs += 1
        if outcome.failure:
            self.failures.append(outcome)
        for name in SUMMED:
            self.sums[name] += getattr(outcome, name)
        self.ends.update(outcome.ends)
        self.faults.update(outcome.faults)
        self.virtual_s += outcome.virtual_s

    def text(self, took_s: float) -> str:
        """A few lines for people."""
        rate = self.runs / took_s if took_s > 0.0 else 0.0
        lines = [
            f"{self.runs} schedules in {took_s:.1f} s ({rate:.1f}/s), "
            f"{self.virtual_s / 3600:.1f} h of virtual time: {len(self.failures)} failed",
            ", ".join(f"{self.sums[name]} {name}" for name in SUMMED),
            "ends: " + _counted(self.ends),
            f"{sum(self.faults.values())} faults: " + _counted(self.faults),
        ]
        return "\n".join(lines)


def _counted(counter: Counter[End] | Counter[FaultKind]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counter.most_common())
