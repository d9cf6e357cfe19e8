"""The figures of the scheduler core, their targets, and how each follows from the repetitions."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from gateway.bench.core_spec import BACKLOG, IDLE, LARGE, MEDIUM, SMALL, CoreResult, CoreRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The best and the median repetition, in the figure's unit."""

    best: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFigure:
    """One line of the table."""

    key: str
    title: str
    unit: str
    of: Callable[[CoreResult], Spread | None]
    """None when the load was not run."""
    target: float | None = None
    stretch: float | None = None
    is_more_better: bool = False

    def verdict(self, value: float) -> str:
        """One of "stretch", "met" and "missed"; empty without a target."""
        if self.target is None:
            return ""
        if self.stretch is not None and self._keeps(value, self.stretch):
            return "stretch"
        return "met" if self._keeps(value, self.target) else "missed"

    def _keeps(self, value: float, limit: float) -> bool:
        return value >= limit if self.is_more_better else value <= limit


def event_us(load: str) -> Callable[[CoreResult], Spread | None]:
    """CPU time of one event."""
    return _of_run(load, lambda run: Spread(best=min(run.event_us), median=median(run.event_us)))


def events_per_s(load: str) -> Callable[[CoreResult], Spread | None]:
    """Events that one core could take in a second if it did nothing else."""

    def of(run: CoreRun) -> Spread:
        return Spread(best=1e6 / min(run.event_us), median=1e6 / median(run.event_us))

    return _of_run(load, of)


def request_us(load: str) -> Callable[[CoreResult], Spread | None]:
    """CPU time of all events for each request that ended, scrapes and progress included."""

    def of(run: CoreRun) -> Spread:
        share = run.events / run.requests if run.requests else math.nan
        return Spread(best=min(run.event_us) * share, median=median(run.event_us) * share)

    return _of_run(load, of)


def growth(load: str, than: str) -> Callable[[CoreResult], Spread | None]:
    """How many times the cost of an event of `than` one of `load` has."""

    def value(result: CoreResult) -> Spread | None:
        more, less = event_us(load)(result), event_us(than)(result)
        if more is None or less is None:
            return None
        return Spread(best=more.best / less.best, median=more.median / less.median)

    return value


def waiting_kb(result: CoreResult) -> Spread | None:
    """Memory of one more waiting request; measured once."""
    if result.waiting_bytes is None:
        return None
    return Spread(best=result.waiting_bytes / 1e3, median=result.waiting_bytes / 1e3)


def _of_run(load: str, of: Callable[[CoreRun], Spread]) -> Callable[[CoreResult], Spread | None]:
    def value(result: CoreResult) -> Spread | None:
        run = result.runs.get(load)
        return None if run is None else of(run)

    return value


CORE_FIGURES = (
    CoreFigure(
        key="event_us_1k",
        title="CPU per event, 1,000 waiting, 10 replicas",
        unit="us",
        of=event_us(SMALL),
        target=10,
    ),
    CoreFigure(
        key="event_us_1k_all_tiers",
        title="the same, waiting in all tiers alike",
        unit="us",
        of=event_us(BACKLOG),
        target=10,
    ),
    CoreFigure(
        key="event_us_idle",
        title="CPU per event, none waiting, 10 replicas",
        unit="us",
        of=event_us(IDLE),
    ),
    CoreFigure(
        key="request_us_idle",
        title="CPU per request, none waiting, 10 replicas",
        unit="us",
        of=request_us(IDLE),
    ),
    CoreFigure(
        key="events_per_s_1k",
        title="events, 1,000 waiting, 10 replicas",
        unit="/s",
        of=events_per_s(SMALL),
        is_more_better=True,
    ),
    CoreFigure(
        key="events_per_s_10k",
        title="events, 10,000 waiting, 30 replicas",
        unit="/s",
        of=events_per_s(MEDIUM),
        is_more_better=True,
    ),
    CoreFigure(
        key="events_per_s_100k",
        title="events, 100,000 waiting, 100 replicas",
        unit="/s",
        of=events_per_s(LARGE),
        target=20_000,
        stretch=50_000,
        is_more_better=True,
    ),
    CoreFigure(
        key="growth_10k",
        title="CPU per event, 10,000 over 1,000 waiting; log n",
        unit="x",
        of=growth(MEDIUM, SMALL),
        target=math.log(10_000) / math.log(1_000),
    ),
    CoreFigure(
        key="growth_100k",
        title="CPU per event, 100,000 over 1,000 waiting; log n",
        unit="x",
        of=growth(LARGE, SMALL),
        target=math.log(100_000) / math.log(1_000),
    ),
    CoreFigure(
        key="waiting_kb",
        title="memory per waiting request, 100,000 waiting",
        unit="kB",
        of=waiting_kb,
        target=2.0,
    ),
)
"""In the table's order."""
