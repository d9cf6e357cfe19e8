"""What can be turned of a policy, and the positions that are tried: a grid for each knob.

Positions are in the order of their size, so that a neighbour is a small change. Whether they make a
policy together is judged by the settings' own rules.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Knob:
    """One place in a policy document, and what may stand there."""

    path: Path
    positions: tuple[Any, ...]

    @property
    def label(self) -> str:
        """`scheduling.ageing.after_s`; tiers by their rank."""
        return ".".join(map(str, self.path))

    def of(self, document: Mapping[str, Any]) -> Any:
        """Where it stands."""
        found: Any = document
        for key in self.path:
            found = found[key]
        return found

    def near(self, document: Mapping[str, Any]) -> list[Any]:
        """The positions beside the present one; of what is not on the grid, those around it."""
        here = self.of(document)
        if not isinstance(here, (int, float)) or isinstance(here, bool) or here in self.positions:
            if here not in self.positions:
                return list(self.positions[:1])
            at = self.positions.index(here)
            return [*self.positions[max(0, at - 1) : at], *self.positions[at + 1 : at + 2]]
        sized = [each for each in self.positions if each is not None]
        below = [each for each in sized if each < here]
        above = [each for each in sized if each > here]
        return [*below[-1:], *above[:1]]


def turned(document: Mapping[str, Any], knob: Knob, position: Any) -> dict[str, Any]:
    """Another document, with one knob there."""
    copy: dict[str, Any] = deepcopy(dict(document))
    found: Any = copy
    for key in knob.path[:-1]:
        found = found[key]
    found[knob.path[-1]] = position
    return copy


def knobs_of(document: Mapping[str, Any]) -> Sequence[Knob]:
    """All knobs of a complete document."""
    scheduling = [
        Knob(("scheduling", name), positions)
        for name, positions in (
            ("headroom_max", (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)),
            ("headroom_decay", (None, 0.0, 0.4, 0.8, 1.5, 3.0)),
            ("lend", (False, True)),
            ("hold_s", (5.0, 15.0, 60.0, 300.0)),
            ("order", ("strict", "weighted")),
            ("within_user", ("fcfs", "shortest")),
            ("prefill_limit_s", (0.25, 0.5, 1.0, 2.0, 4.0)),
            ("recall", (False, True)),
        )
    ]
    ageing = Knob(("scheduling", "ageing", "after_s"), (2.0, 5.0, 15.0, 30.0, 60.0, 180.0, None))
    return [*scheduling, ageing, *(knob for rank in range(len(document["tiers"]))
                                   for knob in _of_tier(rank))]  # fmt: skip


def _of_tier(rank: int) -> Sequence[Knob]:
    """`rank` 0 has no floor: nobody is above it."""
    found = [
        Knob(("tiers", rank, "queue_limit"), (0, 1, 2, 3, 4, 6, 8, 12)),
        Knob(("tiers", rank, "tpot_limit_ms"), (30.0, 50.0, 75.0, 100.0, 150.0, 250.0, 400.0)),
        Knob(("tiers", rank, "weight"), (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
    ]
    if rank:
        found.append(Knob(("tiers", rank, "min_share"), (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)))
    return found
