"""How many replicas a pool should have, advised from one number: the free share of its capacity.

Decides when to say another number and which; refuses to know what a replica is, which one should
go, and whether anybody follows the advice.

**The signal** is `(capacity - used - waiting) / capacity`: 1 is an idle fleet, 0 one that is just
full, -0.5 a full one with half of its capacity waiting at the gateway. What waits must count: work
is bound to a replica only when that can start it, so the replicas alone would look full and content
while the line outside grows.

**The thresholds.** K-tier Llumnix (arXiv 2608.16336) advises on freeness, below -0.5 and above 1.5.
That is free memory over the running batch, `(M - V)/B`, normalised to slots `F = s * B_ref/B`; with
a batch that fills the slots as the work fills the memory, `B/B_ref = 1 - s`, so `F = s/(1 - s)`:
free over used. 1.5 times as much free as used is s = 0.6. On an overloaded replica freeness is
divided by the memory, not by the batch, and is this signal: -0.5 means s = -0.5. Thus its pair is
(-0.5, 0.6).

The upper one is kept. Removing one of two replicas at 0.6 leaves 0.2, so it is safe at any size,
and a fleet is 40 % used before it shrinks; 0.4 would save more on large fleets, and `SAFE` keeps
that from harming small ones. The lower default is -0.1, more eager: a full fleet turns its content
over once per service time, so a backlog of share x waits about x service times: half of one at
-0.5 before anything is even asked for, a tenth at -0.1, and the `hold_s` filters bursts already.
It must lie below 0, since a busy fleet without a line is what one pays for.
"""

import math
from collections.abc import Mapping

from gateway.core.policy import Scaling

SIGNAL_MAX = 2.0
"""Beyond two fleets' worth the figure says no more than "far"; the growth per advice is bounded."""
SAFE = 0.1
"""A smaller fleet must leave the signal this far above the lower threshold to be advised."""
GROWTH_MAX = 2
"""Most that one advice multiplies the replicas by: a backlog is often gone before they start."""
ROUNDING = 1e-9
"""A fleet that a load brings to the threshold exactly is too small, however the quotient rounds."""


def signal(*, capacity: float, used: float, waiting: float) -> float:
    """Free share of `capacity` after `used` and `waiting` (all in one unit, >= 0), in [-2, 2].

    `used` is what runs, room kept free for a tier left out; above 0 while anything runs at all.

    Without any capacity: -2 while something waits, else 0, which asks for nothing: an empty pool
    that nobody wants is neither too small nor too large.
    """
    if capacity <= 0.0:
        return -SIGNAL_MAX if waiting > 0.0 else 0.0
    free = (capacity - used - waiting) / capacity
    return max(-SIGNAL_MAX, min(SIGNAL_MAX, free))


class ScalingAdvisor:
    """Advice for one pool; `advised` is the last number said, None before the first.

    Upwards by as many as bring the signal back above `below` at the same load, at most
    `GROWTH_MAX` times what is there. Downwards one at a time, never while anything waits, only
    after the last removal was carried out, and only if the smaller fleet stays `SAFE`ly above
    `below`; so at a constant load no advice takes back the one before. Replicas count as equal.
    """

    __slots__ = ("_above_since", "_advised_at", "_below_since", "advised")

    def __init__(self) -> None:
        self.advised: int | None = None
        self._advised_at = -math.inf
        self._below_since: float | None = None
        self._above_since: float | None = None

    def advise(
        self, value: float, *, replicas: int, has_waiting: bool, now: float, scaling: Scaling
    ) -> int | None:
        """The number of replicas to have, when that differs from what was last said, else None.

        `value` is the `signal` of the `replicas` (>= 0) that serve now, draining ones left out of
        both. To be called at least once a second or so: it has no clock to notice that `hold_s`
        passed, and after the grants of that instant were made. The operator's `min` and `max` are
        followed at once, whatever the load; so is the first arrival at an empty pool, or at one
        whose last replica is about to go. 0 is advised only where `min` is 0 and nothing runs or
        waits.
        """
        assert scaling.below < min(1.0, scaling.above), "no load would satisfy these thresholds"
        target = replicas if self.advised is None else self.advised
        bounded = max(scaling.min, min(scaling.max, target))
        if target == 0 and (has_waiting or (replicas and value < 1.0)):
            bounded = max(bounded, min(1, scaling.max))
        if bounded != target:
            return self._say(bounded, now)
        if replicas == 0:
            self._below_since = self._above_since = None
            return None
        self._watch(value, now, scaling)
        if now - self._advised_at < scaling.cooldown_s:
            return None
        load = (1.0 - value) * replicas
        wanted = target
        if _held(self._below_since, now, scaling):
            wanted = max(target, _grown(load, replicas, scaling))
        elif _held(self._above_since, now, scaling) and not has_waiting and replicas <= target:
            wanted = _shrunk(load, target, scaling)
        return None if wanted == target else self._say(wanted, now)

    def snapshot(self, now: float) -> dict[str, float | None]:
        """The state as plain data for JSON; instants become durations up to `now`."""
        never = self._advised_at == -math.inf
        return {
            "advised": self.advised,
            "advised_for_s": None if never else now - self._advised_at,
            "below_for_s": None if self._below_since is None else now - self._below_since,
            "above_for_s": None if self._above_since is None else now - self._above_since,
        }

    def restore(self, data: Mapping[str, float | None], now: float) -> None:
        """Go on at `now` from what `snapshot` returned, perhaps under another clock."""
        advised = data.get("advised")
        self.advised = None if advised is None else int(advised)
        advised_at = _instant(data.get("advised_for_s"), now)
        self._advised_at = -math.inf if advised_at is None else advised_at
        self._below_since = _instant(data.get("below_for_s"), now)
        self._above_since = _instant(data.get("above_for_s"), now)

    def _watch(self, value: float, now: float, scaling: Scaling) -> None:
        """Note since when the signal has been beyond a threshold without a break."""
        if value >= scaling.below:
            self._below_since = None
        elif self._below_since is None:
            self._below_since = now
        if value <= scaling.above:
            self._above_since = None
        elif self._above_since is None:
            self._above_since = now

    def _say(self, replicas: int, now: float) -> int:
        self.advised = replicas
        self._advised_at = now
        self._below_since = self._above_since = None
        return replicas


def _held(since: float | None, now: float, scaling: Scaling) -> bool:
    return since is not None and now - since >= scaling.hold_s


def _grown(load: float, replicas: int, scaling: Scaling) -> int:
    """The fewest replicas that bring `load` (in replicas) above the lower threshold."""
    needed = math.floor(load / (1.0 - scaling.below) + ROUNDING) + 1
    return min(needed, GROWTH_MAX * replicas, scaling.max)


def _shrunk(load: float, target: int, scaling: Scaling) -> int:
    """One replica less where `load` (in replicas) still fits well, else `target`."""
    fewer = target - 1
    if fewer < scaling.min:
        return target
    if fewer == 0:
        return target if load > 0.0 else 0
    return fewer if 1.0 - load / fewer >= scaling.below + SAFE else target


def _instant(elapsed_s: float | None, now: float) -> float | None:
    return None if elapsed_s is None else now - elapsed_s
