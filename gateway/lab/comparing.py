"""Tellings of the same requests side by side, for each tier, tenant and user.

Percentiles are over those that got that far; who did not is counted beside them, so that nobody
looks better for being refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from gateway.lab.sides import Side
from gateway.sim.world.outcome import Outcome, Status, percentile

PERCENTILES = (0.5, 0.95, 0.99)
REST = "(the rest)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some of the requests, under one name."""

    kind: str
    """`all`, `tier`, `tenant` or `user`."""
    name: str
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one group got in one telling; seconds, None where nobody got that far."""

    requests: int
    ended: Mapping[str, int]
    """By how they ended."""
    ttft_s: Mapping[str, float | None]
    e2e_s: Mapping[str, float | None]
    wait_s: Mapping[str, float | None]
    service: float
    """Share of all service, 0..1."""

    def values(self) -> dict[str, object]:
        """For JSON."""
        return {
            "requests": self.requests,
            "ended": dict(self.ended),
            "ttft_s": dict(self.ttft_s),
            "e2e_s": dict(self.e2e_s),
            "wait_s": dict(self.wait_s),
            "service": self.service,
        }


def groups_of(outcome: Outcome, tiers: Sequence[str], *, top: int) -> list[Group]:
    """All, each tier, and the `top` tenants and users with the most requests; the rest as one."""
    size = outcome.n
    found = [Group(kind="all", name="all", numbers=range(size))]
    by_tier: dict[int, list[int]] = {}
    by_tenant: dict[str, list[int]] = {}
    by_user: dict[str, list[int]] = {}
    for row, number in enumerate(outcome.number):
        by_tier.setdefault(outcome.tier[row], []).append(number)
        tenant, user = outcome.users[outcome.user[row]]
        by_tenant.setdefault(tenant, []).append(number)
        by_user.setdefault(f"{tenant}/{user}", []).append(number)
    found += [
        Group(kind="tier", name=tiers[rank], numbers=by_tier[rank]) for rank in sorted(by_tier)
    ]
    found += _largest("tenant", by_tenant, top)
    found += _largest("user", by_user, top)
    return found


def figures_of(side: Side, group: Group, total: float) -> Figures:
    """What `group` got on `side`, whose whole service is `total`."""
    numbers = group.numbers
    ended = dict.fromkeys((status.name.lower() for status in Status), 0)
    for number in numbers:
        ended[Status(side.status[number]).name.lower()] += 1
    return Figures(
        requests=len(numbers),
        ended={name: count for name, count in ended.items() if count},
        ttft_s=_percentiles(side.ttft_s, numbers),
        e2e_s=_percentiles(side.e2e_s, numbers),
        wait_s=_percentiles(side.wait_s, numbers),
        service=sum(side.service[number] for number in numbers) / total if total else 0.0,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns under their heads: the first flush left, the others right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def seconds(value: float | None) -> str:
    """A duration with three digits that count; `-` for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _largest(kind: str, found: Mapping[str, list[int]], top: int) -> list[Group]:
    names = sorted(found, key=lambda name: (-len(found[name]), name))
    groups = [Group(kind=kind, name=name, numbers=found[name]) for name in names[:top]]
    rest = sorted(number for name in names[top:] for number in found[name])
    return [*groups, Group(kind=kind, name=REST, numbers=rest)] if rest else groups


def _percentiles(column: Sequence[float], numbers: Sequence[int]) -> dict[str, float | None]:
    values = sorted(column[number] for number in numbers if not isnan(column[number]))
    return {
        f"p{share * 100:g}": percentile(values, share) if values else None for share in PERCENTILES
    }
