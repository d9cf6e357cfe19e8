"""What the operators' routes answer from, in one place; it decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from gateway.admin.door import ATTEMPT, REQUEST_ID, WHO
from gateway.admin.events import Happenings
from gateway.admin.fellows import Fellows
from gateway.admin.history import History
from gateway.admin.idempotency import Attempt
from gateway.admin.registry import Registry
from gateway.admin.upstreams import Upstreams
from gateway.api.relay import Relay
from gateway.core.messages import Event
from gateway.core.scheduler import Scheduler
from gateway.settings import Settings
from gateway.tenancy.store.port import Answer, Deed
from gateway.upstream.fleet import Fleet
from gateway.upstream.roster import Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The parts of a running gateway that operators look at."""

    scheduler: Scheduler
    tell: Callable[[Event], None]
    place_of: Callable[[str], tuple[int, float | None]]
    """(position, expected wait in seconds) of a waiting request; (0, None) otherwise."""
    relay: Relay
    fleet: Fleet
    roster: Roster
    registry: Registry
    settings: Callable[[], Settings]
    happenings: Happenings
    history: History
    upstreams: Upstreams
    fellows: Fellows
    """The other gateways of the cluster."""
    clock: Callable[[], float]
    """Seconds of the scheduler's clock."""
    wall: Callable[[], float]
    """Seconds since 1970, UTC."""

    def deed(self, request: Request, action: str) -> Deed:
        """Who does what now, for the audit."""
        scope = request.scope
        return Deed(at=self.wall(), who=scope[WHO], action=action, request_id=scope[REQUEST_ID])

    def wall_at(self, instant: float) -> float:
        """An instant of the scheduler's clock as seconds since 1970."""
        return self.wall() - (self.clock() - instant)


def answer_of(request: Request, status: int, body: bytes) -> tuple[str, Answer] | None:
    """What the commit is told of the answer, where the request has an idempotency key."""
    attempt: Attempt | None = request.scope.get(ATTEMPT)
    return None if attempt is None else attempt.answer(status, body)
