"""A scheduler that also decides what a test puts into its mouth, and remembers what it was told."""

from gateway.core.messages import Decision, Event, Progressed, Recalled
from gateway.core.scheduler import Scheduler
from tests.support.admitting import Gated

NOTHING = Progressed("nowhere", {})
"""An event that changes nothing."""


class Prompted:
    """Stands before a real scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.place_of = scheduler.place_of
        self.next: list[Decision] = []
        """Decided at the end of the next event, after what the scheduler itself decides."""
        self.told: list[Event] = []

    def handle(self, event: Event, now: float) -> list[Decision]:
        """See `Scheduler.handle`."""
        if event is not NOTHING:
            self.told.append(event)
        decisions = [*self._scheduler.handle(event, now), *self.next]
        self.next.clear()
        return decisions


class Recalling(Gated):
    """A gate whose scheduler takes back what the test names."""

    def __init__(self, slots: int = 1, *, patience_s: float = 1e6) -> None:
        super().__init__(slots, patience_s=patience_s)
        self.prompted = Prompted(self.scheduler)
        self.dispatcher.scheduler = self.prompted  # type: ignore[assignment]  # all that is used of it
        self.taken_back = 0
        self.gate._taken_back = self._count_taken_back

    def decide(self, *decisions: Decision) -> None:
        """The scheduler decides this now."""
        self.prompted.next += decisions
        self.dispatcher.tell(NOTHING)

    def recall(self, request_id: str = "q1", replica: str = "r") -> None:
        """The scheduler wants it back."""
        self.decide(Recalled(request_id, replica))

    @property
    def told(self) -> list[str]:
        """The kinds of all events but replicas found, in order."""
        kinds = [type(event).__name__ for event in self.prompted.told]
        return [kind for kind in kinds if kind != "ReplicaFound"]

    def _count_taken_back(self) -> None:
        self.taken_back += 1
