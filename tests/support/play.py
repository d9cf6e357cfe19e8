"""A script in which requests are also taken back, adopted, and replicas advised."""

from typing import Any, Self

from gateway.core.messages import (
    Adopted,
    Decision,
    Recalled,
    RecallDone,
    RecallTooLate,
    ReplicaFound,
    ReplicaReport,
    ReplicaReported,
    Request,
    ScaleAdvised,
    Usage,
)
from gateway.core.policy import Policy
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from tests.support.script import Script


class Play(Script):
    """A scheduler, its clock, and everything it ever says."""

    def __init__(self, policy: Policy | None = None) -> None:
        super().__init__(policy)
        self.recalls: list[tuple[str, str]] = []
        """(id, replica) that were to be taken back."""
        self.advice: list[ScaleAdvised] = []

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

    def recall_done(self, id: str) -> Self:
        """The request was taken back before it began."""
        if self.running.pop(id, None) is not None:
            self.waiting.add(id)
        return self.tell(RecallDone(id))

    def too_late(self, id: str) -> Self:
        """The request had begun."""
        return self.tell(RecallTooLate(id))

    def adopt(
        self, id: str, *, on: str = "r", output_tokens: int = 0, **fields: Any
    ) -> Self:
        """A request runs there already; `running_s` and `is_started` may be told."""
        how = {name: fields.pop(name) for name in ("running_s", "is_started") if name in fields}
        given: dict[str, Any] = {
            "model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": self.now,
            "prompt_tokens": 10, "streams": True, **fields,
        }  # fmt: skip
        request = Request(id=id, **given)
        self._requests[id] = request
        self._truth[id] = Usage(prompt_tokens=request.prompt_tokens or 0, output_tokens=10)
        if on in self.scheduler.replicas and self.scheduler.pool_of(request.model):
            self.running.setdefault(id, on)
        return self.tell(Adopted(request=request, replica=on, output_tokens=output_tokens, **how))

    def _heard(self, decision: Decision) -> None:
        if isinstance(decision, Recalled):
            assert self.running[decision.request_id] == decision.replica, "recalled from elsewhere"
            self.recalls.append((decision.request_id, decision.replica))
        elif isinstance(decision, ScaleAdvised):
            self.advice.append(decision)
        else:
            super()._heard(decision)
