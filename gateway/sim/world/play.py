"""A run: requests come, a dispatcher decides, engines work, and all that lies between them is late.

One virtual clock orders everything by (instant, number of the event), so that the same plan, source
and dispatcher give the same run to the last bit, in any process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from gateway.sim.clock import Clock
from gateway.sim.replica import Engine
from gateway.sim.workload.job import Job, Source
from gateway.sim.world.dispatch import (
    Decision,
    Decisions,
    Dispatch,
    Machine,
    Move,
    Refused,
    Report,
    Sent,
    TakeBack,
    Wake,
)
from gateway.sim.world.outcome import Outcome, Status
from gateway.sim.world.plan import Drain, Failure, Plan
from gateway.sim.world.scrape import Scraper
from gateway.sim.world.station import Station, Stay

REFUSED_PAUSE_S = 1.0
"""A client in a loop that is refused comes back after this, or later where it was told so."""


class Live:
    """A request that has not ended."""

    __slots__ = ("job", "moved_from", "row", "stay", "tokens")

    def __init__(self, job: Job, row: int) -> None:
        self.job = job
        self.row = row
        self.stay: Stay | None = None
        """Where it is: in an engine, or on the way to one."""
        self.moved_from: Stay | None = None
        """Where it was before its KV, or its place in a queue, went elsewhere."""
        self.tokens = 0
        """Of its answer, before its present stay."""

    @property
    def produced(self) -> int:
        """Tokens of its answer so far."""
        return self.tokens if self.stay is None else self.stay.produced


def play(plan: Plan, source: Source, dispatch: Dispatch) -> Outcome:
    """One run, from the first request until all have ended or the plan cuts it."""
    return World(plan, source, dispatch).run()


class World:
    """One run. Between two events nothing is on its way but what the clock has."""

    def __init__(self, plan: Plan, source: Source, dispatch: Dispatch) -> None:
        self.plan = plan
        self.clock = Clock()
        self.outcome = Outcome()
        self.open: dict[int, Live] = {}
        """By number."""
        self.stations = [
            Station(index, machine, self.clock, self._made)
            for index, machine in enumerate(_machines(plan))
        ]
        self._dispatch = dispatch
        self._source = source
        self._jobs: Iterator[Job] = iter(source.jobs())
        self._coming = 0
        """Requests that the clock has and nobody has heard of."""
        self._wakes = 0

    def run(self) -> Outcome:
        """See `play`; once only."""
        plan, clock, dispatch = self.plan, self.clock, self._dispatch
        machines = [station.machine for station in self.stations]
        self._obey(dispatch.begin(machines, self, clock.now))
        for station in self.stations:
            Scraper(station, plan, clock, self._reported)
        if dispatch.hears_progress:
            clock.after(plan.progress_interval_s, self._progress)
        self._plan_troubles()
        self._expect_next()
        clock.run_while(self._goes_on, plan.until_s)
        self._close()
        return self.outcome

    def ask(self, job: Job) -> None:
        """A request comes now, from outside of the source; not within a decision."""
        self._coming += 1
        self._arrive(job)

    # --- what a dispatcher may look at, see `dispatch.Truth` ------------------------------------

    def engine(self, replica: int) -> Engine:
        """See `Truth.engine`."""
        return self.stations[replica].engine

    def inside(self, replica: int) -> Sequence[int]:
        """See `Truth.inside`."""
        return [stay.job.number for stay in self.stations[replica].stays.values()]

    def produced(self, number: int) -> int:
        """See `Truth.produced`."""
        live = self.open.get(number)
        return 0 if live is None else live.produced

    # --- requests -------------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        return bool(self.open or self._coming)

    def _expect_next(self) -> None:
        job = next(self._jobs, None)
        if job is not None:
            self._coming += 1
            self.clock.at(job.arrived_at, partial(self._arrive_and_expect, job))

    def _arrive_and_expect(self, job: Job) -> None:
        self._expect_next()
        self._arrive(job)

    def _arrive(self, job: Job) -> None:
        self._coming -= 1
        assert job.number not in self.open, "numbers of requests are unique"
        row = self.outcome.begin(
            job.number,
            job.arrived_at,
            tier=job.tier,
            who=(job.tenant, job.user),
            prompt_tokens=job.prompt_tokens,
        )
        live = self.open[job.number] = Live(job, row)
        if not any(station.fits(job) for station in self.stations):
            self._end(live, Status.TOO_LONG, pause_s=REFUSED_PAUSE_S)
            return
        if job.leaves_at is not None:
            self.clock.at(max(self.clock.now, job.leaves_at), partial(self._leave, live))
        self._obey(self._dispatch.arrived(job, self.clock.now))

    def _leave(self, live: Live) -> None:
        number = live.job.number
        if self.open.get(number) is not live:
            return
        tokens = live.produced
        self._withdraw(live)
        self._end(live, Status.LEFT)
        self._obey(self._dispatch.left(number, self.clock.now, output_tokens=tokens))

    def _end(self, live: Live, status: Status, *, pause_s: float = 0.0) -> None:
        """The one place where a request ends; its client asks nothing new for `pause_s`."""
        outcome, row, now = self.outcome, live.row, self.clock.now
        del self.open[live.job.number]
        outcome.status[row] = status
        outcome.output[row] = live.produced
        outcome.ended[row] = now
        follower = self._source.ended(live.job, now)
        if follower is not None:
            if follower.arrived_at < now + pause_s:
                follower = replace(follower, arrived_at=now + pause_s)
            self._coming += 1
            self.clock.at(follower.arrived_at, partial(self._arrive, follower))

    # --- decisions ------------------------------------------------------------------------------

    def _obey(self, decisions: Decisions) -> None:
        """All of them are carried out before the dispatcher hears what comes of them."""
        answers: list[Callable[[], Decisions]] = []
        for decision in decisions:
            self._carry_out(decision, answers)
        for answer in answers:
            self._obey(answer())

    def _carry_out(self, decision: Decision, answers: list[Callable[[], Decisions]]) -> None:
        match decision:
            case Sent(number, replica, priority):
                self._send(self.open[number], self.stations[replica], priority)
            case Refused(number, retry_after_s):
                live = self.open[number]
                status = Status.FAILED if live.tokens else Status.REFUSED
                self._end(live, status, pause_s=max(REFUSED_PAUSE_S, retry_after_s or 0.0))
            case TakeBack(number, even_begun):
                answers.append(self._take_back(self.open[number], even_begun=even_begun))
            case Move(number, replica):
                self._move(self.open[number], self.stations[replica])
            case Wake(at):
                self._wakes += 1
                self.clock.at(max(self.clock.now, at), partial(self._tick, self._wakes))
            case _:
                assert_never(decision)

    def _send(self, live: Live, station: Station, priority: int) -> None:
        assert live.stay is None, "a request is at one replica at a time"
        outcome, row = self.outcome, live.row
        live.stay = stay = Stay(live.job, station, priority=priority, base=live.tokens)
        if not live.tokens:
            outcome.sent[row] = self.clock.now
        outcome.replica[row] = station.index
        outcome.attempts[row] += 1
        self.clock.after(self.plan.hop_s, partial(self._accept, stay))

    def _take_back(self, live: Live, *, even_begun: bool) -> Callable[[], Decisions]:
        number, now, stay = live.job.number, self.clock.now, live.stay
        if stay is None or (stay.has_begun and not even_begun):
            return partial(self._dispatch.too_late, number, now)
        if stay.has_begun:
            live.tokens = stay.produced
        self._withdraw(live)
        return partial(self._dispatch.taken_back, number, now, output_tokens=live.tokens)

    def _withdraw(self, live: Live) -> None:
        """Nothing of its present stay counts any more; the engine hears of it one hop later."""
        stay, live.stay = live.stay, None
        if stay is not None:
            live.tokens = max(live.tokens, stay.produced if stay.has_begun else 0)
            self.clock.after(self.plan.hop_s, partial(stay.station.release, stay))

    def _tick(self, number: int) -> None:
        if number == self._wakes:
            self._obey(self._dispatch.tick(self.clock.now))

    # --- what engines do ------------------------------------------------------------------------

    def _is_at(self, stay: Stay) -> Live | None:
        """The request of a stay that still counts."""
        live = self.open.get(stay.job.number)
        return live if live is not None and live.stay is stay else None

    def _accept(self, stay: Stay) -> None:
        live, station = self._is_at(stay), stay.station
        if live is None:
            return
        if station.is_down:
            self.clock.after(self.plan.hop_s, partial(self._broke, stay, was_sent=False))
        elif not station.fits(stay.job):
            self.clock.after(self.plan.hop_s, partial(self._rejected, stay))
        else:
            station.accept(stay)

    def _made(self, begun: list[Stay], finished: list[Stay]) -> None:
        self.clock.after(self.plan.hop_s, partial(self._heard, begun, finished))

    def _heard(self, begun: list[Stay], finished: list[Stay]) -> None:
        now, dispatch, firsts = self.clock.now, self._dispatch, self.outcome.first
        for stay in begun:
            if not stay.job.streams:
                continue
            # A move may have overtaken the news of a first token.
            live = self.open.get(stay.job.number)
            if live is None or live.stay is None or stay not in (live.stay, live.moved_from):
                continue
            live.stay.has_begun = True
            if not live.tokens:
                firsts[live.row] = now
            decisions = dispatch.first_token(stay.job.number, now)
            if decisions:
                self._obey(decisions)
        for stay in finished:
            live = self._is_at(stay)
            if live is None:
                continue
            self._end(live, Status.DONE)
            decisions = dispatch.ended(stay.job.number, now, output_tokens=stay.tokens)
            if decisions:
                self._obey(decisions)

    def _rejected(self, stay: Stay) -> None:
        live = self._is_at(stay)
        if live is not None:
            live.stay = None
            self._end(live, Status.TOO_LONG)
            self._fail(live, stay, was_sent=True, goes_on=False)

    def _broke(self, stay: Stay, *, was_sent: bool = True) -> None:
        """The gateway hears that the engine, or the way to it, failed."""
        live = self._is_at(stay)
        if live is None:
            return
        live.stay = None
        live.tokens = stay.tokens if stay.has_begun else stay.base
        goes_on = not live.tokens or self.plan.is_continued
        if not goes_on:
            self._end(live, Status.FAILED)
        self._fail(live, stay, was_sent=was_sent, goes_on=goes_on)

    def _fail(self, live: Live, stay: Stay, *, was_sent: bool, goes_on: bool) -> None:
        self._obey(
            self._dispatch.broke(
                live.job.number,
                self.clock.now,
                replica=stay.station.index,
                output_tokens=live.tokens,
                was_sent=was_sent,
                goes_on=goes_on,
            )
        )

    # --- moving KV ------------------------------------------------------------------------------

    def _move(self, live: Live, station: Station) -> None:
        stay, plan = live.stay, self.plan
        if stay is None:
            moved = partial(self._moved, live.job.number, station, is_done=False)
            self.clock.after(0.0, moved)
            return
        produced = stay.produced - stay.base
        if not produced:
            self.clock.after(plan.hop_s, partial(self._change_queue, stay, station))
            return
        tokens = live.job.prompt_tokens + stay.produced
        size = tokens * stay.station.machine.profile.kv_token_bytes
        self.clock.after(size / plan.migration_bytes_per_s, partial(self._copied, stay, station))

    def _change_queue(self, stay: Stay, station: Station) -> None:
        live = self._is_at(stay)
        can_go = live is not None and not stay.produced - stay.base and not station.is_down
        if live is None or not can_go or stay.station.release(stay) is None:
            self._moved(stay.job.number, station, is_done=False)
            return
        self._go_to(live, station, stay)
        self._moved(stay.job.number, station, is_done=True)
        self._send_on(live)

    def _copied(self, stay: Stay, station: Station) -> None:
        """Its KV is there but for the last of it; now it stands still."""
        live = self._is_at(stay)
        number = stay.job.number
        if live is None or not station.has_room_for(stay) or not station.fits(stay.job):
            self._moved(number, station, is_done=False)
            return
        produced = stay.station.release(stay)
        if produced is None:
            self._moved(number, station, is_done=False)
            return
        fresh = self._go_to(live, station, stay)
        fresh.base = fresh.tokens = produced
        self.clock.after(self.plan.migration_pause_s, partial(self._go_on_there, fresh))

    def _go_on_there(self, stay: Stay) -> None:
        live = self._is_at(stay)
        if live is None:
            self._moved(stay.job.number, stay.station, is_done=False)
        elif stay.station.is_down:
            self._broke(stay)
        else:
            stay.station.adopt(stay, stay.tokens)
            self._moved(stay.job.number, stay.station, is_done=True)

    def _go_to(self, live: Live, station: Station, old: Stay) -> Stay:
        live.moved_from = old
        live.stay = fresh = Stay(live.job, station, priority=old.priority, base=old.base)
        fresh.has_begun = old.has_begun
        self.outcome.replica[live.row] = station.index
        return fresh

    def _send_on(self, live: Live) -> None:
        assert live.stay is not None
        self.clock.after(self.plan.hop_s, partial(self._accept, live.stay))

    def _moved(self, number: int, station: Station, *, is_done: bool) -> None:
        decisions = self._dispatch.moved(
            number, self.clock.now, replica=station.index, is_done=is_done
        )
        self._obey(decisions)

    # --- reports and troubles -------------------------------------------------------------------

    def _reported(self, replica: int, report: Report) -> None:
        self._obey(self._dispatch.reported(replica, report, self.clock.now))

    def _progress(self) -> None:
        self.clock.after(self.plan.progress_interval_s, self._progress)
        for station in self.stations:
            produced = station.engine.produced
            tokens = {
                stay.job.number: stay.base + produced(id)
                for id, stay in station.stays.items()
                if stay.has_begun and self._is_at(stay)
            }
            if tokens:
                self._obey(self._dispatch.progressed(station.index, tokens, self.clock.now))

    def _plan_troubles(self) -> None:
        clock = self.clock
        for event in self.plan.events:
            if isinstance(event, Failure):
                clock.at(event.at, partial(self._die, event))
            elif isinstance(event, Drain):
                clock.at(event.at, partial(self._drain, event.replica, is_draining=True))
                clock.at(event.until, partial(self._drain, event.replica, is_draining=False))

    def _drain(self, replica: int, *, is_draining: bool) -> None:
        now = self.clock.now
        self._obey(self._dispatch.drained(replica, now, is_draining=is_draining))

    def _die(self, failure: Failure) -> None:
        station, clock, plan = self.stations[failure.replica], self.clock, self.plan
        for stay in station.die():
            clock.after(plan.hop_s, partial(self._broke, stay))
        clock.after(plan.notice_s, partial(self._lost, failure))
        clock.at(failure.until, partial(self._revive, failure.replica))

    def _lost(self, failure: Failure) -> None:
        if self.clock.now < failure.until:
            self._obey(self._dispatch.lost(failure.replica, self.clock.now))

    def _revive(self, replica: int) -> None:
        self.stations[replica].revive()
        self.clock.after(self.plan.hop_s, partial(self._back, replica))

    def _back(self, replica: int) -> None:
        self._obey(self._dispatch.back(replica, self.clock.now))

    def _close(self) -> None:
        """What is open stays so, with what it has."""
        outcome = self.outcome
        for live in self.open.values():
            outcome.output[live.row] = live.produced
        outcome.counters = [station.counters for station in self.stations]
        outcome.lasted_s = self.clock.now


def _machines(plan: Plan) -> Iterator[Machine]:
    number = 0
    for engines in plan.engines:
        for _ in range(engines.n):
            yield Machine(f"replica-{number:03}", engines.profile, engines.config)
            number += 1
