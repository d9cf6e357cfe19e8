"""What changed about the replicas since the last look, once a second, for those who listen.

The scheduler tells nobody what becomes of a replica: that would be work for each of its events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.admin.events import Happenings
from gateway.core.breaker import Breaker
from gateway.core.replica import Replica
from gateway.upstream.replicas import ReplicaStatus

Told = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of one replica."""

    is_up: bool
    is_draining: bool
    breaker: str
    reason: str | None


class ReplicaWatch:
    """Remembers the last look."""

    def __init__(self, happenings: Happenings) -> None:
        self._happenings = happenings
        self._seen: dict[str, Sight] = {}

    def look(
        self, statuses: Mapping[str, ReplicaStatus], believed: Mapping[str, Replica], now: float
    ) -> None:
        """Tell what changed."""
        seen = {name: _sight(status, believed.get(name), now) for name, status in statuses.items()}
        before, self._seen = self._seen, seen
        if seen == before:
            return
        for name in sorted(before.keys() - seen.keys()):
            self._happenings.publish("replica.removed", {"replica": name})
        for name in sorted(seen):
            for kind, told in _changes(before.get(name), seen[name]):
                self._happenings.publish(kind, {"replica": name, **told})


def _sight(status: ReplicaStatus, believed: Replica | None, now: float) -> Sight:
    if believed is None:
        return Sight(status.up, False, Breaker.CLOSED.value, None)
    circuit = believed.circuit
    return Sight(status.up, believed.is_draining, circuit.state(now).value, circuit.reason)


def _changes(before: Sight | None, after: Sight) -> Iterator[Told]:
    if before is None:
        yield "replica.added", {}
        before = Sight(False, False, Breaker.CLOSED.value, None)
    if after.is_up != before.is_up:
        yield "replica.up" if after.is_up else "replica.down", {}
    if after.is_draining != before.is_draining:
        yield "replica.draining" if after.is_draining else "replica.undrained", {}
    if (after.breaker, after.reason) != (before.breaker, before.reason):
        yield "replica.breaker", {"state": after.breaker, "reason": after.reason}
