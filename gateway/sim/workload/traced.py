"""A recorded trace as a workload: faster or slower, again and again, each request given its owner.

Decides whose each request is, by the rule that the trace states, and of which tier; refuses what
no engine could ever complete, and counts it. Knows nothing of how anything is served.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal

from gateway.sim.workload.job import Job
from gateway.sim.workload.mixes import ONE_TIER, Crowd, Member, Tiers, crowd
from gateway.sim.workload.traces import Row, Trace, power_of, rows, user_of

USERS, TENANTS, SKEW = 50, 5, 1.0
"""Who shares a trace without clients: the heaviest user sends 22 % of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """How a trace is played."""

    load: float = 1.0
    """Time runs so many times faster: arrivals are divided by it."""
    laps: int = 1
    """How often the whole trace comes; later laps have sessions and prefix blocks of their own."""
    limit: int | None = None
    """No more requests than that, refused ones not counted."""
    until_s: float = inf
    """Nothing comes at or after that instant, in played time."""
    tokens_max: int | None = None
    """Requests whose prompt and answer together are longer are refused: the KV of one engine."""
    tiers: Tiers = ONE_TIER
    tier_by: Literal["request", "user"] = "request"
    """Each request draws its tier, or each user once for all its requests."""
    crowd: Crowd | None = None
    """Who shares a trace without clients; None: `USERS` users of `TENANTS` tenants."""
    seed: int = 0
    without_power: bool = False
    """Leave out the client that sends most; all others come as and when they did with it."""

    def __post_init__(self) -> None:
        if not 0 < self.load < inf:
            raise ValueError(f"load must be positive, got {self.load}")
        if self.laps < 1:
            raise ValueError(f"laps must be at least 1, got {self.laps}")
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit must be 0 or more, got {self.limit}")


class Traced:
    """One trace, open. Which request is whose depends on trace and seed alone.

    Draws are made for each row, whether it is played or not: what is left out moves nothing else.
    """

    def __init__(self, trace: Trace, playing: Playing | None = None) -> None:
        """Raises ValueError for a trace without instants, or without the clients that are meant."""
        if not trace.span_s:
            raise ValueError(f"{trace.name} holds lengths only, no arrivals")
        self.trace = trace
        self.playing = playing = playing or Playing()
        self.refused = 0
        """Requests refused since `jobs()` was last begun: beyond `tokens_max`."""
        self.refused_tokens = 0
        """Their prompts and answers."""
        self._left_out = power_of(trace).client if playing.without_power else None
        self._crowd = playing.crowd or crowd(users=USERS, tenants=TENANTS, skew=SKEW)

    def jobs(self) -> Iterator[Job]:
        """In order of arrival, read from the package as they are asked for."""
        self.refused = self.refused_tokens = 0
        playing, number = self.playing, 0
        for lap, row, owner, tier in self._owned():
            at = (lap * self.trace.lap_s + row.arrived_at) / playing.load
            if at >= playing.until_s or number == playing.limit:
                return
            if self._left_out is not None and row.client == self._left_out:
                continue
            tokens = row.prompt_tokens + row.output_tokens
            if playing.tokens_max is not None and tokens > playing.tokens_max:
                self.refused += 1
                self.refused_tokens += tokens
                continue
            yield Job(
                number=number,
                arrived_at=at,
                prompt_tokens=row.prompt_tokens,
                output_tokens=row.output_tokens,
                tier=tier,
                tenant=owner.tenant,
                user=owner.user,
                prefix=tuple([lap * self.trace.blocks + block for block in row.prefix]),
                session=self._session(lap, row),
            )
            number += 1

    def ended(self, job: Job, at: float) -> Job | None:
        """None: what was recorded does not depend on what is played."""
        return None

    def _owned(self) -> Iterator[tuple[int, Row, Member, int]]:
        """Each lap's rows, with their owners and tiers."""
        playing = self.playing
        who, which = Random(f"{playing.seed} users"), Random(f"{playing.seed} tiers")
        tier_of: dict[tuple[str, str], int] = {}
        for lap in range(playing.laps):
            for row in rows(self.trace):
                owner = self._owner(lap, row, who)
                if playing.tier_by == "request":
                    tier = playing.tiers.draw(which)
                else:
                    name = (owner.tenant, owner.user)
                    tier = tier_of.get(name, -1)
                    if tier < 0:
                        tier = tier_of[name] = playing.tiers.draw(self._dice("tier", *name))
                yield lap, row, owner, tier if owner.tier is None else owner.tier

    def _owner(self, lap: int, row: Row, who: Random) -> Member:
        if row.client is not None:
            user = user_of(row.client)
            return Member(user=user, tenant=self.trace.tenant or user)
        session = self._session(lap, row)
        return self._crowd.draw(who if session is None else self._dice("user", session))

    def _session(self, lap: int, row: Row) -> str | None:
        place = self.trace.session_block
        return f"{lap}-{row.prefix[place]}" if len(row.prefix) > place else None

    def _dice(self, *what: str) -> Random:
        return Random(" ".join((str(self.playing.seed), *what)))
