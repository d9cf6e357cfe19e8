"""A gateway's place among several, put together, and how its other parts see it.

Who decides about a request is the cluster's affair; here is only what is made of its settings, and
what `/readyz`, metrics and operators are told of it.
"""

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from gateway.admin.fellows import Address, Fellows, NoFellows
from gateway.api.readiness import ClusterReadiness, PoolReadiness
from gateway.cluster.address import address_of
from gateway.cluster.follower import Phase
from gateway.cluster.inner import inner_id
from gateway.cluster.joining import joined
from gateway.cluster.member import Member
from gateway.cluster.seat import Seat
from gateway.core.messages import ScaleAdvised
from gateway.core.scheduler import Scheduler
from gateway.runtime.berth import Berth
from gateway.runtime.dispatcher import Dispatcher
from gateway.settings import Settings
from gateway.settings_rules import is_loopback
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.limits import Limits
from gateway.tenancy.shared import SharedLimits

ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on
DISCARD_PORT = 9


def seated(
    settings: Settings,
    scheduler: Scheduler,
    limits: Limits,
    *,
    clock: Callable[[], float],
    wall: Callable[[], float],
    advised: Callable[[ScaleAdvised], None],
) -> tuple[Dispatcher, Seat | None, SharedLimits | None]:
    """What decides about requests, the place among several, and their limits; None: it is alone.

    Nothing is connected yet. Raises OSError where certificates of Redis cannot be read.
    """
    redis = settings.redis
    if redis.url is None:
        return Dispatcher(scheduler, clock, advised=advised), None, None
    joins = joined(redis.url, prefix=redis.prefix, name=redis.name)
    post = joins.transport.post
    member = Member(joins.gateway, scheduler, post, is_bundled=lambda: limits.has_caps)
    dispatcher = Dispatcher(scheduler, clock, decider=member, advised=advised)
    carry_out = dispatcher.carry_out
    seat = Seat(member, joins.transport, joins.lease, carry_out=carry_out, clock=clock)
    return dispatcher, seat, joins.limits(limits, clock, wall, gateways=lambda: member.sharers)


def readiness_of(seat: Seat | None) -> ClusterReadiness | None:
    """What `/readyz` says of it."""
    if seat is None:
        return None
    member = seat.member
    pools = {}
    for pool, each in member.followers.items():
        led = member.led.get(pool)
        leader = each.leader if led is None else member.name
        pools[pool] = PoolReadiness(
            phase=each.phase.value,
            leader=leader or None,
            epoch=each.epoch,
            followers=0 if led is None else len(led.guests),
        )
    return ClusterReadiness(
        gateway=member.name,
        gateways=tuple(sorted(member.gateways)),
        degraded=seat.is_degraded,
        pools=pools,
    )


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


def fellows_of(seat: Seat | None, metrics: Metrics) -> Fellows:
    """The others, for operators; and metrics tell only of what this gateway knows best."""
    if seat is None:
        return NoFellows()
    fellows = SeatFellows(seat.member)
    metrics.leads = fellows.leads
    metrics.tell_also(seat.families)
    return fellows


def told_where(seat: Seat | None, settings: Settings, port: int, berth: Berth | None) -> None:
    """Tell the others that this gateway listens to operators on `port`; a worker has a socket."""
    if seat is not None:
        sock = None if berth is None else str(berth.socket)
        seat.member.about = _where(settings, port, sock)
        seat.member.deciders.company.sharers_min = 1 if berth is None else berth.of


def _where(settings: Settings, port: int, sock: str | None) -> str:
    host = settings.listen.host
    machine = socket.gethostname()
    if host in ANY_ADDRESS:
        host = _towards(settings.redis.url) or machine
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return Address(url=url, socket=sock, machine=machine if is_loopback(host) else None).written()


def _towards(url: str | None) -> str | None:
    """The address from which this machine would reach Redis: most likely others reach it there."""
    if url is None or not (spots := address_of(url).spots):
        return None
    with suppress(OSError):
        found = socket.getaddrinfo(spots[0][0], DISCARD_PORT, type=socket.SOCK_DGRAM)
        for family, kind, _, _, address in found:
            with socket.socket(family, kind) as tried:
                tried.connect(address)  # of a datagram socket: nothing is sent
                return str(tried.getsockname()[0])
    return None
