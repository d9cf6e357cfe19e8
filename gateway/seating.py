"""A place among several gateways, taken: what is loaded by those alone that have others.

How a process reaches Redis and who decides there is the cluster's affair; here the parts meet.
"""

from collections.abc import Callable, Mapping

from gateway.cluster.follower import Phase
from gateway.cluster.inner import inner_id
from gateway.cluster.joining import joined
from gateway.cluster.member import Member
from gateway.cluster.seat import Seat
from gateway.core.messages import ScaleAdvised
from gateway.core.scheduler import Scheduler
from gateway.runtime.dispatcher import Dispatcher
from gateway.settings_document import RedisSection
from gateway.tenancy.limits import Limits
from gateway.tenancy.shared import SharedLimits


def taken(
    redis: RedisSection,
    scheduler: Scheduler,
    limits: Limits,
    *,
    clock: Callable[[], float],
    wall: Callable[[], float],
    advised: Callable[[ScaleAdvised], None],
) -> tuple[Dispatcher, Seat, SharedLimits]:
    """What decides about requests, the place among several, and the limits that are shared.

    Nothing is connected yet. Raises OSError where certificates of Redis cannot be read.
    """
    assert redis.url is not None
    joins = joined(redis.url, prefix=redis.prefix, name=redis.name)
    post = joins.transport.post
    member = Member(joins.gateway, scheduler, post, is_bundled=lambda: limits.has_caps)
    dispatcher = Dispatcher(scheduler, clock, decider=member, advised=advised)
    carry_out = dispatcher.carry_out
    seat = Seat(member, joins.transport, joins.lease, carry_out=carry_out, clock=clock)
    return dispatcher, seat, joins.limits(limits, clock, wall, gateways=lambda: member.sharers)


class SeatFellows:
    """The other gateways, as the operators' side sees them; see `Fellows`."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def others(self) -> Mapping[str, str]:
        """See `Fellows.others`."""
        member = self._member
        return {name: about for name, about in member.gateways.items() if name != member.name}

    def leader_of(self, model: str) -> str | None:
        """See `Fellows.leader_of`."""
        pool = self._member.pool_of(model)
        follower = None if pool is None else self._member.followers.get(pool)
        return follower.leader if follower and follower.phase is Phase.FOLLOWING else None

    def leads(self, model: str) -> bool:
        """Whether nobody knows better about the queues and replicas of `model`."""
        return self.leader_of(model) is None

    def acts_for(self, model: str) -> bool:
        """See `Fellows.acts_for`: whoever leads, and nobody while each decides alone."""
        pool = self._member.pool_of(model)
        follower = None if pool is None else self._member.followers.get(pool)
        return follower is not None and follower.phase is Phase.LEADING

    def key_here(self, request_id: str) -> str:
        """See `Fellows.key_here`."""
        return request_id

    def key_there(self, request_id: str) -> str:
        """See `Fellows.key_there`."""
        return inner_id(self._member.name, request_id)

    def waits(self, request_id: str) -> bool:
        """See `Fellows.waits`."""
        member = self._member
        return request_id in member.away and request_id not in member.scheduler.granted
