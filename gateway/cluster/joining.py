"""From a URL to all that a gateway needs of Redis to be one of several: one line for all of it."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from gateway.cluster.address import address_of
from gateway.cluster.connect import Door, Facts
from gateway.cluster.counters import CORRECT, RESERVE, RedisCounters
from gateway.cluster.keys import Keys
from gateway.cluster.lease import BEAT, RedisLease
from gateway.cluster.link import Link
from gateway.cluster.transport import RedisTransport
from gateway.tenancy.limits import Limits
from gateway.tenancy.shared import SharedLimits

HOST_CHARACTERS: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What goes over one line."""

    gateway: str
    """By which name the others know this process, and no other one ever."""
    link: Link
    transport: RedisTransport
    lease: RedisLease
    counters: RedisCounters

    def limits(
        self,
        limits: Limits,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        gateways: Callable[[], int],
    ) -> SharedLimits:
        """`limits`, with the same clocks, over all gateways. Before `transport.run`, once.

        `gateways`: among how many they are shared out while Redis is lost.
        """
        shared = SharedLimits(limits, self.counters, gateways=gateways, clock=clock, wall=wall)
        self.counters.follow(shared)
        return shared


def joined(url: str, *, prefix: str, name: str | None) -> Joined:
    """Nothing is connected before `transport.run`.

    `name` comes from the settings; None: host and process. Raises ValueError for a URL that is no
    address of Redis, and OSError where its certificates cannot be read.
    """
    gateway = unique_name(name)
    keys = Keys(prefix)
    door = Door(address_of(url), name=f"fairgate:{gateway}", slot_key=keys.of("gateways"))
    link = Link(door, inbox=keys.inbox(gateway), scripts=(BEAT, RESERVE, CORRECT))
    return Joined(
        gateway=gateway,
        link=link,
        transport=RedisTransport(link, keys, gateway),
        lease=RedisLease(link, keys),
        counters=RedisCounters(link, keys, gateway),
    )


async def looked_at(url: str, *, prefix: str) -> tuple[str, Facts]:
    """Where Redis is, without credentials, and what it says of itself.

    Raises NoRedisError, and OSError where its certificates cannot be read.
    """
    address = address_of(url)
    door = Door(address, name="fairgate:check", slot_key=Keys(prefix).of("gateways"))
    line, facts = await door.open(_nobody, _nobody)
    line.end("it was looked at")
    return str(address), facts


def unique_name(name: str | None) -> str:
    """A name of this process alone: two that are configured alike, or one started again, differ."""
    if name is None:
        host = "".join(each if each.isalnum() or each in "._-" else "-" for each in _host())
        name = f"{host[:HOST_CHARACTERS]}-{os.getpid()}"
    return f"{name}-{token_hex(3)}"


def _nobody(_: object) -> None:
    """Nobody listens."""


def _host() -> str:
    found = socket.gethostname()
    return found if found.isascii() and found else "gateway"
