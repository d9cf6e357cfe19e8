"""A script with short ways to what tests of single core modules look at."""

from typing import Any, Self

from gateway.core.messages import Adopted, ReplicaFound, ReplicaReported
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.report import ReplicaReport
from tests.support.script import Script


class Play(Script):
    """A scheduler, its clock, and what it holds."""

    @property
    def recalls(self) -> list[tuple[str, str]]:
        """(id, replica) of all that was to be taken back so far."""
        return [(id, replica) for _, id, replica in self.recall_log]

    def known(self, name: str = "r") -> Replica:
        """What the scheduler believes of that replica."""
        return self.scheduler.replicas[name]

    def pool(self, model: str = "m") -> Pool:
        """The pool of that model, which must exist."""
        pool = self.scheduler.pool_of(model)
        assert pool is not None
        return pool

    def start_of(self, user: str, *, tier: int = 0, model: str = "m") -> float:
        """What that user of tenant t has been charged, over its weight."""
        return self.pool(model).queues[tier].tenants["t"].users[user].start

    def find(self, name: str, **fields: Any) -> Self:
        """A replica of model m is found; any field of the event may be told."""
        given: dict[str, Any] = {"models": frozenset({"m"}), **fields}
        return self.tell(ReplicaFound(replica=name, **given))

    def crowd(self, name: str, count: int, /, **fields: Any) -> Self:
        """`name0`, `name1` ... arrive at this instant, with any field of a request."""
        for number in range(count):
            self.arrive(f"{name}{number}", **fields)
        return self

    def scrape(self, name: str, *, round_trip_s: float, **figures: Any) -> Self:
        """A scrape that took this long comes back."""
        report = ReplicaReport(**figures)
        return self.tell(
            ReplicaReported(
                replica=name, sent_at=self.now, report=report, round_trip_s=round_trip_s
            )
        )

    def adopt(
        self,
        id: str,
        *,
        on: str = "r",
        output_tokens: int = 0,
        running_s: float = 0.0,
        is_started: bool = True,
        **fields: Any,
    ) -> Self:
        """A request runs there already, and has produced so much."""
        request = self._new(id, 10, fields)
        self.running[id] = on
        return self.tell(
            Adopted(
                request=request, replica=on, running_s=running_s, is_started=is_started,
                output_tokens=output_tokens,
            )
        )  # fmt: skip
