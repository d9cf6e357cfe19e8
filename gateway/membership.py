"""A gateway's place among several, put together, and how its other parts see it.

Who decides about a request is the cluster's affair; here is only what is made of its settings, and
what `/readyz`, metrics and operators are told of it.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.admin.fellows import Address, Fellows, NoFellows
from gateway.api.readiness import ClusterReadiness, PoolReadiness
from gateway.cluster.address import address_of
from gateway.core.messages import ScaleAdvised
from gateway.core.scheduler import Scheduler
from gateway.runtime.berth import Berth
from gateway.runtime.dispatcher import Dispatcher
from gateway.settings import Settings
from gateway.settings_rules import is_loopback
from gateway.telemetry.metrics import Metrics
from gateway.tenancy.limits import Limits
from gateway.tenancy.shared import SharedLimits

if TYPE_CHECKING:
    from gateway.cluster.seat import Seat

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
) -> "tuple[Dispatcher, Seat | None, SharedLimits | None]":
    """What decides about requests, the place among several, and their limits; None: it is alone.

    Nothing is connected yet. Raises OSError where certificates of Redis cannot be read.
    """
    redis = settings.redis
    if redis.url is None:
        return Dispatcher(scheduler, clock, advised=advised), None, None
    from gateway.seating import taken  # noqa: PLC0415 - who is alone does without two megabytes

    return taken(redis, scheduler, limits, clock=clock, wall=wall, advised=advised)


def readiness_of(seat: "Seat | None") -> ClusterReadiness | None:
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


def fellows_of(seat: "Seat | None", metrics: Metrics) -> Fellows:
    """The others, for operators; and metrics tell only of what this gateway knows best."""
    if seat is None:
        return NoFellows()
    from gateway.seating import SeatFellows  # noqa: PLC0415 - as in `seated`

    fellows = SeatFellows(seat.member)
    metrics.leads = fellows.leads
    metrics.tell_also(seat.families)
    return fellows


def told_where(seat: "Seat | None", settings: Settings, port: int, berth: Berth | None) -> None:
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
