"""From an address to an open line: who is the master now, how one is let in, whether it will do.

Everything has a time limit, and nothing is tried twice here: whoever wants a line asks again.
"""

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from gateway.cluster.address import Address, Spot
from gateway.cluster.line import Heard, Line, LineLostError, RedisSaidError

OPEN_S: Final = 0.5
"""For the connection and all that is said until it can be used."""
ASK_S: Final = 0.25
"""For one sentinel, or one node of a cluster, to say where to go: the next is asked then."""
HOPS_MAX: Final = 5
"""From node to node of a cluster."""
VERSION_MIN: Final = (6, 2)
SHARDED_MIN: Final = (7, 0)
"""A cluster carries what is published to all of its nodes before that version."""
SAFE_EVICTION: Final = "noeviction"
FULL: Final = 0.9
"""Of its memory: from there on it is told."""
MOVED: Final = re.compile(r"MOVED \d+ (\S*):(\d{1,5})")


class NoRedisError(Exception):
    """No line could be had now; the text says why, without credentials."""


class UnfitError(NoRedisError):
    """What answers there will not do, however often it is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a Redis says of itself."""

    version: tuple[int, ...]
    eviction: str
    memory_max: int
    """0: no bound."""
    memory_used: int
    is_master: bool
    run_id: str

    def warnings(self) -> tuple[str, ...]:
        """How it may lose, or refuse, what gateways keep there."""
        found = []
        if self.memory_max and self.eviction != SAFE_EVICTION:
            found.append(
                f"evicts keys where memory runs out (maxmemory-policy {self.eviction}): leases and "
                f"what was used of limits would be forgotten; set it to {SAFE_EVICTION}"
            )
        if self.memory_max and self.memory_used > FULL * self.memory_max:
            found.append(
                f"is nearly full ({self.memory_used} of maxmemory {self.memory_max} bytes): what "
                "it refuses then makes gateways go on alone"
            )
        return tuple(found)


class Door:
    """Opens lines to one address."""

    def __init__(self, address: Address, *, name: str, slot_key: str) -> None:
        """`name` is shown in CLIENT LIST; `slot_key` is any key of ours, which all share a slot."""
        self._address = address
        self._name = name
        self._slot_key = slot_key
        self._tls = _tls(address)
        self.where = str(address)
        """As it may stand in a log."""

    @property
    def is_cluster(self) -> bool:
        """Whether Redis spreads its keys over several nodes."""
        return self._address.kind == "cluster"

    async def open(self, heard: Heard, ended: Callable[[str], None]) -> tuple[Line, Facts]:
        """A line to the master. Raises NoRedisError; then `ended` may have heard why, too."""
        address = self._address
        if address.kind == "sentinel":
            return await self._opened(await self._master(), heard, ended)
        if address.kind == "cluster":
            return await self._opened(await self._node(), heard, ended)
        return await self._opened(address.spots[0], heard, ended)

    async def _opened(
        self, spot: Spot, heard: Heard, ended: Callable[[str], None]
    ) -> tuple[Line, Facts]:
        line = None
        try:
            async with asyncio.timeout(OPEN_S):
                line = await self._dialled(spot, heard, ended)
                await self._greet(line)
                if self._address.database:
                    await line.ask("SELECT", self._address.database)
                facts = facts_of(cast("bytes", await line.ask("INFO")))
                if not facts.is_master:
                    raise NoRedisError(f"{_shown(spot)} is a replica, and not the master")
                if facts.version < VERSION_MIN:
                    shown = ".".join(map(str, facts.version))
                    raise UnfitError(f"Redis {shown} is too old: 6.2 is needed")
            return line, facts
        except BaseException as error:
            if line is not None:
                line.end("it was not used")
            raise _told(error, spot, OPEN_S) from None

    async def _dialled(self, spot: Spot, heard: Heard, ended: Callable[[str], None]) -> Line:
        loop = asyncio.get_running_loop()
        line = Line(loop, heard, ended)

        def made() -> asyncio.Protocol:
            return cast(asyncio.Protocol, line)

        host, port = spot
        if self._address.is_socket:
            await loop.create_unix_connection(made, host)
        else:
            await loop.create_connection(made, host, port, ssl=self._tls)
        return line

    async def _greet(self, line: Line) -> None:
        address = self._address
        user, password = address.user or "default", address.password
        login = ("AUTH", user, password) if address.user or password else ()
        try:
            await line.ask("HELLO", 3, *login, "SETNAME", self._name)
        except RedisSaidError as error:
            if str(error).startswith(("ERR unknown", "NOPROTO")):
                raise UnfitError("Redis is too old: 6.2 is needed") from None
            raise

    async def _master(self) -> Spot:
        """Where sentinels say that the master is: the first one that answers is believed."""
        address = self._address
        reasons = []
        for spot in address.spots:
            try:
                found = await self._asked(
                    spot, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.master)
                )
            except NoRedisError as error:
                reasons.append(str(error))
                continue
            if isinstance(found, list) and len(found) == 2:
                return found[0].decode(), int(found[1])
            reasons.append(f"the sentinel {_shown(spot)} knows no master {address.master!r}")
        raise NoRedisError("; ".join(reasons))

    async def _node(self) -> Spot:
        """The node of a cluster that has our slot: each other one tells where that is."""
        reasons = []
        for first in self._address.spots:
            spot = first
            for _ in range(HOPS_MAX):
                try:
                    await self._asked(spot, ("EXISTS", self._slot_key))
                except NoRedisError as error:
                    moved = MOVED.fullmatch(str(error))
                    if moved is None:
                        reasons.append(str(error))
                        break
                    # A node that does not know its own name means the host that was asked.
                    spot = moved[1] or spot[0], int(moved[2])
                else:
                    return spot
        raise NoRedisError("; ".join(reasons) or "the cluster sends us in circles")

    async def _asked(self, spot: Spot, words: tuple[str, ...]) -> object:
        """One question over a line of its own. Raises NoRedisError, with MOVED as it came."""
        address = self._address
        is_sentinel = address.kind == "sentinel"
        user = address.sentinel_user if is_sentinel else address.user
        password = address.sentinel_password if is_sentinel else address.password
        line = None
        try:
            async with asyncio.timeout(ASK_S):
                line = await self._dialled(spot, _nobody, _nobody)
                if user or password:
                    await line.ask("AUTH", user or "default", password)
                return await line.ask(*words)
        except RedisSaidError as error:
            raise NoRedisError(str(error)) from None
        except BaseException as error:
            raise _told(error, spot, ASK_S) from None
        finally:
            if line is not None:
                line.end("it has answered")


def facts_of(info: bytes) -> Facts:
    """What INFO says."""
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    told = {name: value for name, _, value in lines}
    return Facts(
        version=tuple(int(part) for part in told.get("redis_version", "0").split(".")[:2]),
        eviction=told.get("maxmemory_policy", SAFE_EVICTION),
        memory_max=int(told.get("maxmemory", 0)),
        memory_used=int(told.get("used_memory", 0)),
        is_master=told.get("role", "master") == "master",
        run_id=told.get("run_id", ""),
    )


def _tls(address: Address) -> ssl.SSLContext | None:
    """Raises OSError where the file with certificates cannot be read."""
    return ssl.create_default_context(cafile=address.ca_file) if address.is_tls else None


def _told(error: BaseException, spot: Spot, limit_s: float) -> BaseException:
    """What the world did becomes a NoRedisError; a cancellation stays one."""
    match error:
        case NoRedisError():
            return error
        case TimeoutError():
            return NoRedisError(f"{_shown(spot)} did not answer within {limit_s:g} s")
        case OSError() | LineLostError() | RedisSaidError():
            return NoRedisError(f"{_shown(spot)}: {error}")
        case ValueError() | LookupError() | TypeError():
            return NoRedisError(f"{_shown(spot)} answers as no Redis does: {error!r}")
    return error


def _shown(spot: Spot) -> str:
    host, port = spot
    return f"{host}:{port}" if port else host


def _nobody(_: object) -> None:
    """Nobody listens."""
