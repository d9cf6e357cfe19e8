"""One run from its seed to its verdict, and the smallest run that still fails."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gateway.core.breaker import BACKOFF_MAX_S
from gateway.core.scheduler import Scheduler
from gateway.sim.asks import Ask, End
from gateway.sim.draw import schedule_of
from gateway.sim.faults import FaultKind
from gateway.sim.judge import Judge
from gateway.sim.life import Life
from gateway.sim.site import Schedule, Site

SETTLE_S = 8.0
"""What is still under way when the last client got its end is over by then."""
RECOVERED_S = BACKOFF_MAX_S + 10.0
"""Within so much longer somebody who comes then is served: the only replica may have to rest."""
VISIT_EVERY_S = 2.0
CALM_S = 300.0
"""After the last fault everything ends within this time, whatever its patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to. Two runs of one seed are equal."""

    seed: int | None = None
    failure: str = ""
    """Empty: all that must hold held."""
    requests: int = 0
    ends: Counter[End] = field(default_factory=Counter)
    faults: Counter[FaultKind] = field(default_factory=Counter)
    retries: int = 0
    bounces: int = 0
    recalls: int = 0
    """Taken back in time."""
    continuations: int = 0
    moves: int = 0
    stalls: int = 0
    tokens: int = 0
    """That reached clients."""
    events: int = 0
    """That the scheduler heard."""
    virtual_s: float = 0.0
    trace: str = ""
    """A digest of every event, decision and end, with their instants."""


def run(
    seed: int, *, life_type: type[Life] = Life, scheduler_type: type[Scheduler] = Scheduler
) -> Outcome:
    """Draw a schedule from `seed`, play it, judge it."""
    outcome = play(schedule_of(seed), life_type=life_type, scheduler_type=scheduler_type)
    return replace(outcome, seed=seed)


def play(
    schedule: Schedule,
    *,
    life_type: type[Life] = Life,
    scheduler_type: type[Scheduler] = Scheduler,
) -> Outcome:
    """Play a schedule to its end, or to the first thing that must not be."""
    judge, failure = Judge(), ""
    site = Site(
        schedule,
        witness=judge,
        heard=judge.heard,
        life_type=life_type,
        scheduler_type=scheduler_type,
    )
    judge.watch(site)
    calm_from_s = schedule.calm_from_s
    try:
        site.clock.run_while(lambda: not site.is_over, calm_from_s + CALM_S)
        # Also what the last one left behind, and the replicas that are away until later.
        site.clock.run(max(site.clock.now, calm_from_s) + SETTLE_S)
        if not site.is_closed:
            _visit(site)
        judge.conclude()
    except Exception as error:  # whatever it is, it is the finding
        failure = f"{site.clock.now:.4f} s: {type(error).__name__}: {error}"
    return _outcome(site, judge, failure)


def _visit(site: Site) -> None:
    """Whatever has happened, a client that comes afterwards, again and again, is served."""
    until, number = site.clock.now + RECOVERED_S, 0
    while True:
        ask = Ask(id=f"afterwards{number}", at=site.clock.now, output_tokens=5)
        site.arrive(ask)
        site.clock.run_while(lambda: not site.is_over, until)
        client = site.lives[ask.id].client
        if client.end is End.DONE:
            return
        is_early = client.end is not None and site.clock.now < until
        assert is_early, f"nobody is served afterwards: {client.end} {client.why}"
        site.clock.run(min(until, site.clock.now + VISIT_EVERY_S))
        number += 1


def shrunk(
    schedule: Schedule, *, fails: Callable[[Schedule], bool], attempts_max: int = 2_000
) -> Schedule:
    """The schedule without any ask and any fault that it can do without and still fail."""
    left, has_changed = attempts_max, True
    while has_changed and left > 0:
        has_changed = False
        for name in ("asks", "faults"):
            index = 0
            while index < len(getattr(schedule, name)) and left > 0:
                kept = getattr(schedule, name)
                fewer = replace(schedule, **{name: kept[:index] + kept[index + 1 :]})
                left -= 1
                if fails(fewer):
                    schedule, has_changed = fewer, True
                else:
                    index += 1
    return schedule


def _outcome(site: Site, judge: Judge, failure: str) -> Outcome:
    lives = [site.lives[ask.id] for ask in site.schedule.asks if ask.id in site.lives]
    counts = [life.counts for life in lives]
    return Outcome(
        failure=failure,
        requests=len(lives),
        ends=Counter(life.client.end for life in lives if life.client.end is not None),
        faults=Counter(fault.kind for fault in site.schedule.faults),
        retries=sum(each.retries for each in counts),
        bounces=sum(each.bounces for each in counts),
        recalls=sum(each.recalls for each in counts),
        continuations=sum(each.continuations for each in counts),
        moves=sum(each.moves for each in counts),
        stalls=sum(each.stalls for each in counts),
        tokens=sum(life.client.tokens for life in lives),
        events=site.desk.events,
        virtual_s=site.clock.now,
        trace=judge.trace.hexdigest(),
    )
