"""Workloads that are made up: an open one from laws, a closed one of users who wait and think.

Nothing of how a request is served is known here but, in a closed loop, the instant it ended. Each
law has dice of its own, so that changing one leaves the draws of the others as they were.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random

from gateway.sim.workload.arrivals import Arrivals
from gateway.sim.workload.job import Job
from gateway.sim.workload.lengths import Lengths
from gateway.sim.workload.mixes import ANYBODY, ONE_TIER, Crowd, Tiers

USERS_MAX = 100_000
"""Of a closed loop: each has a request in flight or is thinking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Requests that come whatever happened to the earlier ones. Frozen: `jobs()` repeats itself."""

    arrivals: Arrivals
    lengths: Lengths
    tiers: Tiers = ONE_TIER
    crowd: Crowd = ANYBODY
    seed: int | str = 0
    """Workloads that are played together need different ones."""
    limit: int | None = None
    """So many requests; None: until `until_s`."""
    until_s: float = inf
    """Nothing comes at or after that instant."""
    output_tokens_max: int | None = None
    """What clients say; it cuts longer answers, as an engine would."""
    patience_s: float = inf
    """Clients give up so long after they asked."""

    def __post_init__(self) -> None:
        if self.limit is None and self.until_s == inf:
            raise ValueError("a workload needs an end: limit or until_s")

    def jobs(self) -> Iterator[Job]:
        """All of them, in order of arrival, each made when it is asked for."""
        dice = [Random(f"{self.seed} {law}") for law in ("arrivals", "lengths", "crowd", "tiers")]
        when, how_long, who, which = dice
        for number, at in enumerate(self.arrivals.instants(when)):
            if at >= self.until_s or (self.limit is not None and number >= self.limit):
                return
            prompt_tokens, output_tokens = self.lengths.draw(how_long)
            member = self.crowd.draw(who)
            tier = self.tiers.draw(which)
            yield Job(
                number=number,
                arrived_at=at,
                prompt_tokens=prompt_tokens,
                output_tokens=cut(output_tokens, self.output_tokens_max),
                tier=tier if member.tier is None else member.tier,
                tenant=member.tenant,
                user=member.user,
                output_tokens_max=self.output_tokens_max,
                leaves_at=None if self.patience_s == inf else at + self.patience_s,
            )

    def ended(self, job: Job, at: float) -> Job | None:
        """None: nobody waits for an answer before asking again."""
        return None


class ClosedLoop:
    """N users, each with one request at a time: it waits for the answer, thinks, and asks again.

    What a user asks and how long it thinks depends on its name and its turn alone, so that two
    schedulers are asked the same by each user, however differently they serve. Holds one small
    record for each user. Jobs of `ended` are numbered as they are made, not as they arrive.
    """

    def __init__(
        self,
        *,
        crowd: Crowd,
        lengths: Lengths,
        think_s: float,
        tiers: Tiers = ONE_TIER,
        seed: int = 0,
        limit: int | None = None,
        until_s: float = inf,
        output_tokens_max: int | None = None,
        patience_s: float = inf,
    ) -> None:
        """Every member of `crowd` is one user, whatever its weight.

        Args:
            crowd: the users, at most `USERS_MAX`.
            lengths: of what they ask.
            think_s: mean of the exponential pause before each request, the first one included;
                0: they all begin at once, and ask again at once.
            tiers: for those members that have no tier of their own; drawn for each request.
            seed: of all that is drawn.
            limit: no more requests than that in all.
            until_s: nobody asks at or after that instant.
            output_tokens_max: what clients say; it cuts longer answers.
            patience_s: clients give up so long after they asked.
        """
        if limit is None and until_s == inf:
            raise ValueError("a workload needs an end: limit or until_s")
        if len(crowd.members) > USERS_MAX:
            raise ValueError(f"a closed loop has at most {USERS_MAX} users")
        if not 0 <= think_s < inf:
            raise ValueError(f"think_s must be 0 or more, got {think_s}")
        self._members = {(each.tenant, each.user): each for each in crowd.members}
        if len(self._members) < len(crowd.members):
            raise ValueError("two users of one tenant have the same name")
        self._lengths = lengths
        self._think_s = think_s
        self._tiers = tiers
        self._seed = seed
        self._limit = inf if limit is None else limit
        self._until_s = until_s
        self._output_tokens_max = output_tokens_max
        self._patience_s = patience_s
        self._numbers = count()
        self._turns: dict[tuple[str, str], int] = {}

    def jobs(self) -> Iterator[Job]:
        """The first request of each user; the run begins anew."""
        self._turns = dict.fromkeys(self._members, 0)
        self._numbers = count()
        first = sorted((self._dice(who).expovariate(1), who) for who in self._members)
        for _, who in first:
            job = self._next(who, 0.0)
            if job is not None:
                yield job

    def ended(self, job: Job, at: float) -> Job | None:
        """What its user asks next; None when the run is over, or the job was none of ours."""
        who = (job.tenant, job.user)
        return self._next(who, at) if who in self._turns else None

    def _next(self, who: tuple[str, str], at: float) -> Job | None:
        dice = self._dice(who)
        at += dice.expovariate(1) * self._think_s
        number = next(self._numbers)
        if at >= self._until_s or number >= self._limit:
            return None
        self._turns[who] += 1
        member = self._members[who]
        prompt_tokens, output_tokens = self._lengths.draw(dice)
        tier = self._tiers.draw(dice) if member.tier is None else member.tier
        return Job(
            number=number,
            arrived_at=at,
            prompt_tokens=prompt_tokens,
            output_tokens=cut(output_tokens, self._output_tokens_max),
            tier=tier,
            tenant=member.tenant,
            user=member.user,
            output_tokens_max=self._output_tokens_max,
            leaves_at=None if self._patience_s == inf else at + self._patience_s,
        )

    def _dice(self, who: tuple[str, str]) -> Random:
        return Random(f"{self._seed} {self._turns[who]} {who[0]} {who[1]}")


def cut(output_tokens: int, output_tokens_max: int | None) -> int:
    """The length of an answer that its client has bounded."""
    return output_tokens if output_tokens_max is None else min(output_tokens, output_tokens_max)
