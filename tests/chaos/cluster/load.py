"""Clients that keep asking all gateways, and what became of each request."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic

from tests.chaos.clients import Seen, ask
from tests.chaos.cluster.house import House, Member
from tests.chaos.judge import told_by
from tests.chaos.schedule import Client

USERS = ("power", "light", "other")
PER_MEMBER = 6
TOKENS = 24
END_S_MAX = 60.0


@dataclass(slots=True)
class Request:
    """One, and when it was there."""

    member: Member
    began_at: float
    seen: Seen
    ended_at: float = 0.0

    @property
    def is_served(self) -> bool:
        """Whether its client has all of a right answer."""
        if self.seen.end != "whole" or self.seen.status != 200:
            return False
        told = told_by(self.seen.body)
        return (told.errors, told.dones, told.halves) == (0, 1, 0)

    @property
    def fate(self) -> str:
        """In a few words."""
        if self.is_served:
            return "served"
        return f"{self.seen.end} {self.seen.status} {self.seen.body[-160:]!r}"


@dataclass(slots=True)
class Load:
    """All requests so far."""

    requests: list[Request] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def of(self, members: Iterable[Member]) -> list[Request]:
        """Those that these gateways were asked."""
        names = {member.name for member in members}
        return [each for each in self.requests if each.member.name in names]

    def lost(self, members: Iterable[Member]) -> list[str]:
        """What became of those of their requests that were not served."""
        return [each.fate for each in self.of(members) if not each.is_served]

    def gap_s(self, members: Iterable[Member], since: float, until: float) -> float:
        """The longest time between two that ended served, from `since` to `until`."""
        ends = sorted(
            each.ended_at
            for each in self.of(members)
            if each.is_served and since <= each.ended_at <= until
        )
        edges = [since, *ends, until]
        return max(later - sooner for sooner, later in pairwise(edges))


@asynccontextmanager
async def load(
    house: House, *, per_member: int = PER_MEMBER, tokens: int = TOKENS
) -> AsyncIterator[Load]:
    """So many clients at each gateway ask all the time; at the end of the block all have ended."""
    found = Load()
    async with asyncio.TaskGroup() as tasks:
        for member in list(house.members):
            for number in range(per_member):
                tasks.create_task(_keep_asking(found, member, number, tokens))
        try:
            yield found
        finally:
            found.over.set()


async def _keep_asking(found: Load, member: Member, number: int, tokens: int) -> None:
    user = USERS[number % len(USERS)]
    client = Client(
        at_s=0.0,
        words=f"{member.name} {number}",
        user=user,
        tier="standard",
        is_chat=True,
        streams=True,
        tells_usage=False,
        leaves_after_s=0.0,
        max_tokens=tokens,
        manner="reads",
    )
    never = asyncio.Event()
    while not found.over.is_set() and member.is_there:
        request = Request(member, monotonic(), Seen(client))
        try:
            async with asyncio.timeout(END_S_MAX):
                await ask(member.port, client, never, request.seen)
        except OSError:
            await asyncio.sleep(0.05)  # it is gone: nobody was there to ask
            continue
        request.ended_at = monotonic()
        found.requests.append(request)


def fates(requests: Sequence[Request]) -> dict[str, int]:
    """How many had which."""
    counts: dict[str, int] = {}
    for each in requests:
        counts[each.fate] = counts.get(each.fate, 0) + 1
    return counts
