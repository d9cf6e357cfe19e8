"""What the scheduler core costs by itself: CPU time of an event, memory of a waiting request.

A process of its own measures, single-threaded and without sockets. Recorded events are told to a
fresh scheduler again, so that the time holds `handle()` and nothing of whoever drives it. The
garbage collector stays on, and looks as seldom as it does in the gateway.
"""

import argparse
import gc
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.bench.core_load import (
    LOWEST_TIER,
    CoreDriver,
    Timed,
    Trace,
    bench_policy,
    collector_off,
    record,
)
from gateway.bench.core_spec import LOADS, MORE_LOADS, CoreLoad, CoreResult, CoreRun, KindCost
from gateway.bench.process import sample_tree
from gateway.core.messages import Arrived, Finished
from gateway.core.scheduler import Scheduler
from gateway.runtime.collector import calm_collector

EVENTS = 20_000
"""Timed as a whole: a clock that is read at every event would be part of the figure. Before them
half as many are told in the steady state, for longer than a request runs; after them half as many
are timed one by one, for what each kind costs."""
REPETITIONS = 3
LIMIT_S = 45.0
"""From the start: a repetition that would end later is left out, but for the first of each load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One telling of a trace to a fresh scheduler."""

    cpu_s: float
    """Of the events that were timed as a whole."""
    apart_ns: list[int]
    """CPU time of each of the others."""
    waiting: frozenset[str]
    """The ids that waited at the end."""


def measure(
    loads: Sequence[CoreLoad], *, repetitions: int, events: int, say: Callable[[str], None]
) -> CoreResult:
    """Memory first, while the process is fresh; then every load in turn."""
    deadline_s = time.monotonic() + LIMIT_S
    largest = max(loads, key=lambda load: load.waiting)
    say(f"  memory of {largest.waiting:,} waiting requests")
    waiting_bytes = bytes_per_waiting(largest) if largest.waiting else None
    runs = {}
    for load in loads:
        say(f"  {load.name:<12} {load.waiting:,} waiting, {load.replicas} replicas")
        runs[load.name] = run_core(
            load, repetitions=repetitions, events=events, deadline_s=deadline_s
        )
    return CoreResult(runs=runs, waiting_bytes=waiting_bytes)


def bytes_per_waiting(load: CoreLoad) -> float:
    """Growth of the resident set for each request that a full fleet makes wait.

    Everything the scheduler holds for it is in it: the request, its strings, its places.
    """
    scheduler = Scheduler(bench_policy(load))
    driver = CoreDriver(load, scheduler)
    driver.fill_replicas()
    waiting_before = len(scheduler.waiting)
    gc.collect()
    before_bytes = sample_tree(os.getpid()).rss_bytes
    for _ in range(load.waiting):
        # Not by way of the driver, whose own notes would be counted.
        scheduler.handle(Arrived(driver.request(LOWEST_TIER)), driver.now)
    grown_bytes = sample_tree(os.getpid()).rss_bytes - before_bytes
    return grown_bytes / (len(scheduler.waiting) - waiting_before)


def run_core(load: CoreLoad, *, repetitions: int, events: int, deadline_s: float) -> CoreRun:
    """Record `load` once and tell it up to `repetitions` times, unless that took too long."""
    beside = events // 2
    trace = record(load, warm_events=beside, events=events + beside)
    whole, apart = trace.steady[:-beside], trace.steady[-beside:]
    told: list[Repetition] = []
    while len(told) < repetitions:
        began_s = time.monotonic()
        told.append(tell(trace, whole, apart))
        if 2 * time.monotonic() - began_s > deadline_s:
            break
    return CoreRun(
        load=load,
        events=len(whole),
        requests=sum(isinstance(event, Finished) for event, _ in whole),
        event_us=tuple(one.cpu_s / len(whole) * 1e6 for one in told),
        kinds=costs_by_kind(apart, [one.apart_ns for one in told]),
        waiting_min=trace.waiting_min,
        waiting_max=trace.waiting_max,
        refused=trace.refused,
        is_repeatable=all(one.waiting == trace.waiting for one in told),
    )


def tell(trace: Trace, whole: Sequence[Timed], apart: Sequence[Timed]) -> Repetition:
    """Tell a fresh scheduler how the trace begins, untimed, and then both parts of the rest."""
    scheduler = Scheduler(bench_policy(trace.load))
    handle = scheduler.handle
    with collector_off():
        for event, now in trace.fill:
            handle(event, now)
    # Every repetition begins with the collector in the same state, and on.
    gc.collect()
    began_s = time.process_time()
    for event, now in whole:
        handle(event, now)
    cpu_s = time.process_time() - began_s
    apart_ns = []
    for event, now in apart:
        began_ns = time.process_time_ns()
        handle(event, now)
        apart_ns.append(time.process_time_ns() - began_ns)
    return Repetition(cpu_s=cpu_s, apart_ns=apart_ns, waiting=frozenset(scheduler.waiting))


def costs_by_kind(apart: Sequence[Timed], taken_ns: Iterable[Sequence[int]]) -> dict[str, KindCost]:
    """The mean of each kind of event over all repetitions, the dearest in all first."""
    by_kind: dict[str, list[int]] = defaultdict(list)
    for of_repetition in taken_ns:
        for (event, _), event_ns in zip(apart, of_repetition, strict=True):
            by_kind[type(event).__name__].append(event_ns)
    return {
        kind: KindCost(count=len(each_ns), mean_us=sum(each_ns) / len(each_ns) / 1e3)
        for kind, each_ns in sorted(by_kind.items(), key=lambda item: -sum(item[1]))
    }


def main() -> None:
    """Measure what the command line names and print one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.bench.core", description="measure the scheduler core by itself"
    )
    known = {load.name: load for load in LOADS + MORE_LOADS}
    parser.add_argument("--load", action="append", choices=known, help="only this; repeatable")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"timed, at least [{EVENTS}]")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"[{REPETITIONS}]")
    chosen = parser.parse_args()
    calm_collector()
    result = measure(
        [known[name] for name in chosen.load] if chosen.load else LOADS,
        repetitions=chosen.repetitions,
        events=chosen.events,
        say=_say,
    )
    sys.stdout.write(result.to_json() + "\n")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
