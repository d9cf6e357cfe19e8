"""A fleet that follows the scheduler's advice: replicas that come late, and go when they are empty.

The advice is fairgate's own; what is decided here is only how an operator's autoscaler obeys it.
"""

from collections.abc import Mapping, Sequence
from math import inf

from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decision, Decisions, Machine, Report, Sent, Truth, Wake
from gateway.sim.world.fairgate import Fairgate


class Elastic:
    """See `Dispatch`. The plan has as many machines as may ever run; most are not there yet."""

    hears_progress = True

    def __init__(self, gateway: Fairgate, *, begin_with: int, start_s: float) -> None:
        """`begin_with` replicas run at first; a further one serves `start_s` after the advice."""
        self.gateway = gateway
        self.replica_s = 0.0
        """Seconds for which a replica was paid for, starting and draining included."""
        self.most = begin_with
        self._begin_with = begin_with
        self._start_s = start_s
        self._paid: list[bool] = []
        self._is_up: list[bool] = []
        self._is_draining: list[bool] = []
        self._up_at: dict[int, float] = {}
        """When those that are starting will be usable."""
        self._inside: list[set[int]] = []
        self._at: dict[int, int] = {}
        self._heard = 0
        """Pieces of advice that were obeyed."""
        self._wake_at = inf
        self._since = 0.0

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        count = len(machines)
        self._is_up = [index < self._begin_with for index in range(count)]
        self._paid = list(self._is_up)
        self._is_draining = [False] * count
        self._inside = [set() for _ in machines]
        out = list(self.gateway.begin(machines, truth, now))
        for index in range(self._begin_with, count):
            out += self.gateway.lost(index, now)
        return self._follow(out, now)

    def arrived(self, job: Job, now: float) -> Decisions:
        """See `Dispatch.arrived`."""
        return self._follow(self.gateway.arrived(job, now), now)

    def first_token(self, number: int, now: float) -> Decisions:
        """See `Dispatch.first_token`."""
        return self._follow(self.gateway.first_token(number, now), now)

    def progressed(self, replica: int, tokens: Mapping[int, int], now: float) -> Decisions:
        """See `Dispatch.progressed`."""
        return self._follow(self.gateway.progressed(replica, tokens, now), now)

    def ended(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.ended`."""
        self._gone(number)
        return self._follow(self.gateway.ended(number, now, output_tokens=output_tokens), now)

    def left(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.left`."""
        self._gone(number)
        return self._follow(self.gateway.left(number, now, output_tokens=output_tokens), now)

    def broke(
        self,
        number: int,
        now: float,
        *,
        replica: int,
        output_tokens: int,
        was_sent: bool,
        goes_on: bool,
    ) -> Decisions:
        """See `Dispatch.broke`."""
        self._gone(number)
        told = self.gateway.broke(
            number,
            now,
            replica=replica,
            output_tokens=output_tokens,
            was_sent=was_sent,
            goes_on=goes_on,
        )
        return self._follow(told, now)

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """See `Dispatch.taken_back`."""
        self._gone(number)
        return self._follow(self.gateway.taken_back(number, now, output_tokens=output_tokens), now)

    def too_late(self, number: int, now: float) -> Decisions:
        """See `Dispatch.too_late`."""
        return self._follow(self.gateway.too_late(number, now), now)

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """See `Dispatch.moved`."""
        return self.gateway.moved(number, now, replica=replica, is_done=is_done)

    def reported(self, replica: int, report: Report, now: float) -> Decisions:
        """See `Dispatch.reported`; what does not run tells nothing."""
        if not self._is_up[replica]:
            return ()
        return self._follow(self.gateway.reported(replica, report, now), now)

    def lost(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.lost`."""
        return self._follow(self.gateway.lost(replica, now), now)

    def back(self, replica: int, now: float) -> Decisions:
        """See `Dispatch.back`."""
        return self._follow(self.gateway.back(replica, now), now)

    def drained(self, replica: int, now: float, *, is_draining: bool) -> Decisions:
        """See `Dispatch.drained`."""
        told = self.gateway.drained(replica, now, is_draining=is_draining)
        return self._follow(told, now)

    def tick(self, now: float) -> Decisions:
        """See `Dispatch.tick`."""
        out: list[Decision] = []
        for replica in [each for each, at in self._up_at.items() if at <= now]:
            del self._up_at[replica]
            self._is_up[replica] = True
            out += self.gateway.back(replica, now)
        if self._wake_at <= now:
            self._wake_at = inf
            out += self.gateway.tick(now)
        return self._follow(out, now, is_asked=True)

    def close(self, now: float) -> None:
        """The run is over: what is paid for is counted up to now."""
        self.replica_s += sum(self._paid) * (now - self._since)
        self._since = now

    # --- obeying --------------------------------------------------------------------------------

    def _follow(self, told: Decisions, now: float, *, is_asked: bool = False) -> list[Decision]:
        """Note what goes where, obey new advice, and merge the wishes to be woken."""
        out: list[Decision] = []
        before = dict(self._up_at)
        asked = self._take(told, out) or is_asked
        advice = self.gateway.advice
        while self._heard < len(advice):
            _, wanted = advice[self._heard]
            self._heard += 1
            asked |= self._take(self._scale(wanted, now), out)
        for replica in range(len(self._paid)):
            if self._is_draining[replica] and not self._inside[replica]:
                asked |= self._take(self._stop(replica, now), out)
        if asked or before != self._up_at:
            at = min(self._wake_at, *self._up_at.values(), inf)
            if at < inf:
                out.append(Wake(at))
        return out

    def _take(self, told: Decisions, out: list[Decision]) -> bool:
        """Put all but wishes into `out`; whether there were wishes."""
        asked = False
        for decision in told:
            match decision:
                case Wake(at):
                    asked = True
                    self._wake_at = at
                case Sent(number, replica):
                    self._at[number] = replica
                    self._inside[replica].add(number)
                    out.append(decision)
                case _:
                    out.append(decision)
        return asked

    def _scale(self, wanted: int, now: float) -> list[Decision]:
        paid = [replica for replica, is_paid in enumerate(self._paid) if is_paid]
        kept = [replica for replica in paid if not self._is_draining[replica]]
        if wanted > len(kept):
            return self._add(wanted - len(kept), now)
        idle_first = sorted(kept, key=lambda replica: len(self._inside[replica]))
        return self._remove(idle_first[: len(kept) - wanted], now)

    def _add(self, count: int, now: float) -> list[Decision]:
        """Those that drain are used again first; the others have to start."""
        out: list[Decision] = []
        self.close(now)
        for replica in range(len(self._paid)):
            if not count:
                break
            if self._is_draining[replica]:
                self._is_draining[replica] = False
                out += self.gateway.drained(replica, now, is_draining=False)
                count -= 1
        for replica in range(len(self._paid)):
            if count and not self._paid[replica]:
                self._paid[replica] = True
                self._up_at[replica] = now + self._start_s
                count -= 1
        self.most = max(self.most, sum(self._paid))
        return out

    def _remove(self, replicas: Sequence[int], now: float) -> list[Decision]:
        """What is still starting is not started; the others drain."""
        out: list[Decision] = []
        self.close(now)
        for replica in replicas:
            if self._up_at.pop(replica, None) is not None:
                self._paid[replica] = False
                continue
            self._is_draining[replica] = True
            out += self.gateway.drained(replica, now, is_draining=True)
        return out

    def _stop(self, replica: int, now: float) -> Decisions:
        self.close(now)
        self._is_draining[replica] = self._is_up[replica] = self._paid[replica] = False
        out = list(self.gateway.drained(replica, now, is_draining=False))
        return [*out, *self.gateway.lost(replica, now)]

    def _gone(self, number: int) -> None:
        replica = self._at.pop(number, None)
        if replica is not None:
            self._inside[replica].discard(number)
