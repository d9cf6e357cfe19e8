"""How fast this machine is beside the one on which the targets were set; nginx is the yardstick.

A figure divided by its factor is an estimate of what the other machine would show, not a
measurement of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.bench.figures import CPU_PER_EVENT_5K, CPU_PER_EVENT_20K, CPU_PER_REQUEST, Figure

YARDSTICK = "nginx"
REFERENCE_US = {
    CPU_PER_REQUEST.key: 17.0,
    CPU_PER_EVENT_5K.key: 17.5,
    CPU_PER_EVENT_20K.key: 12.7,
}
"""What nginx 1.22 needed on the machine on which the targets were set (AMD EPYC, pinned core)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """By CPU figure, how many times the reference machine's CPU time nginx needs here."""

    factors: dict[str, float]

    def scaled(self, figure: Figure, value: float | None) -> float | None:
        """`value` at the reference machine's speed; None where there is no factor for it."""
        factor = self.factors.get(figure.scaled_by or "")
        return None if value is None or factor is None else value / factor

    def in_words(self) -> str:
        """One sentence; empty without a factor."""
        names = {
            CPU_PER_REQUEST.key: "a request",
            CPU_PER_EVENT_5K.key: "an event at 5k/s",
            CPU_PER_EVENT_20K.key: "an event at 20k/s",
        }
        told = [
            f"{self.factors[key]:.2f} times for {name}"
            for key, name in names.items()
            if key in self.factors
        ]
        if not told:
            return ""
        return (
            f"machine factor: {YARDSTICK} needs here, of the CPU time that it needs where the "
            f"targets were set, {', '.join(told)}"
        )


def machine_speed(yardstick: Callable[[Figure], float | None]) -> Speed:
    """The factors that follow from nginx's figures in the same run; none where it did not run."""
    here = {
        figure.key: yardstick(figure)
        for figure in (CPU_PER_REQUEST, CPU_PER_EVENT_5K, CPU_PER_EVENT_20K)
    }
    return Speed(factors={key: us / REFERENCE_US[key] for key, us in here.items() if us})
