"""The driver of the core's measurement: what it tells a scheduler, and that it can do so again."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import pytest

from gateway.bench.core import bytes_per_waiting, costs_by_kind, measure, tell
from gateway.bench.core import run_core as measure_load
from gateway.bench.core_fleet import KV_CAPACITY_TOKENS, SLOTS, TPOT_S, Engine, Served
from gateway.bench.core_load import (
    PROGRESS_EVERY_S,
    ROUND_TRIP_S,
    SHARED_BLOCKS,
    CoreDriver,
    Trace,
    bench_policy,
    record,
)
from gateway.bench.core_spec import LOADS, CoreLoad, CoreResult, KindCost
from gateway.core.messages import (
    Arrived,
    Decision,
    Event,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Progressed,
    Reason,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    ReplicaReported,
    WakeWanted,
    Woke,
)
from gateway.core.policy import DEFAULT_TIERS

BUSY = CoreLoad(name="busy", waiting=60, users=12, tenants=3, replicas=2)
BACKLOG = CoreLoad(
    name="backlog", waiting=60, users=12, tenants=3, replicas=2, waits_in_all_tiers=True
)
QUIET = CoreLoad(name="quiet", waiting=0, users=12, tenants=3, replicas=2, running_per_replica=16)
EVENTS = 1_000
E = TypeVar("E", bound=Event)


@cache
def trace_of(load: CoreLoad) -> Trace:
    """A recording long enough for every kind of event."""
    return record(load, warm_events=EVENTS // 2, events=EVENTS)


def of_kind(trace: Trace, kind: type[E]) -> list[tuple[E, float]]:
    """The steady state's events of one kind."""
    return [(event, now) for event, now in trace.steady if isinstance(event, kind)]


class Deaf:
    """A scheduler that hears everything and decides nothing."""

    def __init__(self) -> None:
        self.waiting: dict[str, object] = {}
        self.heard: list[Event] = []

    def handle(self, event: Event, now: float) -> Sequence[Decision]:
        """Note the event and, where it is an arrival, decide."""
        self.heard.append(event)
        return self.decide(event.request.id) if isinstance(event, Arrived) else ()

    def decide(self, request_id: str) -> Sequence[Decision]:
        """What an arrival leads to."""
        return ()


class Recalling(Deaf):
    """Grants everything, and recalls the first and the newest once the replica is over-full."""

    def __init__(self) -> None:
        super().__init__()
        self.granted: list[str] = []

    def decide(self, request_id: str) -> Sequence[Decision]:
        self.granted.append(request_id)
        granted = Granted(request_id, "replica-0", 0.0)
        if len(self.granted) != SLOTS + 1:
            return [granted]
        recalled = [Recalled(each, "replica-0") for each in (self.granted[0], request_id)]
        return [granted, *recalled]


class Refusing(Deaf):
    def decide(self, request_id: str) -> Sequence[Decision]:
        return [Refused(request_id, Reason.QUEUE_FULL, 1.0)]


class Sleepy(Deaf):
    """Wants to be woken at 20 s by its first arrival, and then rather at 19 s."""

    def decide(self, request_id: str) -> Sequence[Decision]:
        return [WakeWanted(max(19.0, 21.0 - sum(isinstance(e, Arrived) for e in self.heard)))]


def test_as_many_wait_at_every_step_as_the_load_says() -> None:
    """The cost of an event at 1,000 waiting says nothing if they drain meanwhile."""
    trace = trace_of(BUSY)
    assert trace.waiting_min == trace.waiting_max == len(trace.waiting) == BUSY.waiting
    assert len(trace.steady) >= EVENTS


def test_every_tier_keeps_its_queue_where_the_load_says_so() -> None:
    """With the highest tier drained it would be the other load under another name."""
    trace = trace_of(BACKLOG)
    tier = {event.request.id: event.request.tier for event, _ in trace.fill + trace.steady
            if isinstance(event, Arrived)}  # fmt: skip
    waiting = Counter(tier[request_id] for request_id in trace.waiting)
    assert min(waiting[each] for each in range(len(DEFAULT_TIERS))) > BACKLOG.waiting / 8
    assert trace.waiting_min == trace.waiting_max == BACKLOG.waiting
    lowest = len(DEFAULT_TIERS) - 1
    tier = {event.request.id: event.request.tier for event, _ in
            trace_of(BUSY).fill + trace_of(BUSY).steady if isinstance(event, Arrived)}  # fmt: skip
    assert sum(tier[each] == lowest for each in trace_of(BUSY).waiting) > 0.9 * BUSY.waiting


def test_nothing_is_refused() -> None:
    """A refusal is cheap: with some of them the figure would be better than the truth."""
    assert trace_of(BUSY).refused == 0
    assert trace_of(BACKLOG).refused == 0
    assert trace_of(QUIET).refused == 0


def test_nothing_waits_where_nothing_is_to_wait() -> None:
    """The figure without contention is the price of an idle fleet, not of a short queue."""
    trace = trace_of(QUIET)
    assert trace.waiting_max == 0
    arrived = {event.request.id for event, _ in of_kind(trace, Arrived)}
    started = {event.request_id for event, _ in of_kind(trace, FirstToken)}
    assert len(arrived - started) < QUIET.replicas * SLOTS / 4, "granted at once"


def test_arrivals_and_ends_are_in_balance() -> None:
    """In a gateway every request that came also ends."""
    for load in (BUSY, QUIET):
        kinds = Counter(type(event) for event, _ in trace_of(load).steady)
        assert kinds[Arrived] == pytest.approx(kinds[Finished], rel=0.1)
        assert kinds[FirstToken] == pytest.approx(kinds[Finished], rel=0.1)


def test_a_request_arrives_then_starts_then_ends_once() -> None:
    """Events in another order are none that a scheduler has to be quick at."""
    trace = trace_of(BUSY)
    story: dict[str, list[type[Event]]] = {}
    for event, _ in trace.fill + trace.steady:
        if isinstance(event, Arrived):
            story.setdefault(event.request.id, []).append(Arrived)
        elif isinstance(event, FirstToken | Finished):
            story.setdefault(event.request_id, []).append(type(event))
    whole = [Arrived, FirstToken, Finished]
    assert all(steps == whole[: len(steps)] for steps in story.values())
    assert sum(steps == whole for steps in story.values()) > BUSY.waiting


def test_instants_never_go_back() -> None:
    """The scheduler's contract with its clock."""
    trace = trace_of(BUSY)
    instants = [now for _, now in trace.fill + trace.steady]
    assert instants == sorted(instants)


def test_progress_is_told_four_times_a_second_and_a_scrape_once() -> None:
    """Oftener than a gateway does, the cheap kinds would hide the dear ones."""
    trace = trace_of(BUSY)
    lasted_s = trace.steady[-1][1] - trace.steady[0][1]
    progressed = len(of_kind(trace, Progressed)) / BUSY.replicas / lasted_s
    assert progressed == pytest.approx(1 / PROGRESS_EVERY_S, rel=0.1)
    reported = len(of_kind(trace, ReplicaReported)) / BUSY.replicas / lasted_s
    assert reported == pytest.approx(1, rel=0.1)
    assert all(now - event.sent_at == pytest.approx(ROUND_TRIP_S) for event, now
               in of_kind(trace, ReplicaReported))  # fmt: skip


def test_all_tiers_sizes_and_users_take_part() -> None:
    """One size of one tier would meet one branch of the scheduler."""
    requests = [event.request for event, _ in of_kind(trace_of(BUSY), Arrived)]
    assert {request.tier for request in requests} == set(range(len(DEFAULT_TIERS)))
    assert {request.output_tokens_max for request in requests} == {64, 256, None}
    assert {request.tenant for request in requests} == {"tenant-0", "tenant-1", "tenant-2"}
    assert len({request.user for request in requests}) == BUSY.users
    assert all(100 <= request.body_bytes <= 4_000 for request in requests)
    assert all(request.streams for request in requests)


def test_usage_agrees_with_what_was_asked() -> None:
    """A prediction that learns nonsense has another cost than one that is right."""
    trace = trace_of(BUSY)
    asked = {event.request.id: event.request for event, _ in trace.fill + trace.steady
             if isinstance(event, Arrived)}  # fmt: skip
    for event, _ in of_kind(trace, Finished):
        request, usage = asked[event.request_id], event.usage
        assert event.outcome is Outcome.DONE
        assert usage is not None
        assert usage.prompt_tokens == request.body_bytes // 4
        assert 1 <= usage.output_tokens <= (request.output_tokens_max or 2_000)


def test_prompts_of_a_tenant_begin_alike() -> None:
    """System prompts are what prefix caches live on."""
    requests = [event.request for event, _ in of_kind(trace_of(BUSY), Arrived)]
    long_ones = [each for each in requests if len(each.prefix) > SHARED_BLOCKS]
    starts = {(each.tenant, each.prefix[:SHARED_BLOCKS]) for each in long_ones}
    assert len(starts) == BUSY.tenants
    assert len({each.prefix for each in long_ones}) == len(long_ones)
    plain = CoreLoad(name="plain", waiting=2, users=1, tenants=1, replicas=1, has_prefixes=False)
    assert CoreDriver(plain, Deaf()).request(0).prefix == ()


def test_two_recordings_are_the_same() -> None:
    """Two versions of the core can only be compared under the same load."""
    again = record(BUSY, warm_events=EVENTS // 2, events=EVENTS)
    assert again.steady == trace_of(BUSY).steady
    assert again.fill == trace_of(BUSY).fill


def test_a_fresh_scheduler_that_is_told_the_same_leaves_the_same() -> None:
    """Otherwise the timed repetitions would do other work than was recorded."""
    trace = trace_of(BUSY)
    told = tell(trace, trace.steady[:-100], trace.steady[-100:])
    assert told.waiting == trace.waiting
    assert len(told.apart_ns) == 100


def test_the_default_tiers_are_measured_and_no_bound_is_met() -> None:
    """The figure is that of the product as it is installed."""
    policy = bench_policy(BUSY)
    assert policy.tiers == DEFAULT_TIERS
    assert bench_policy(BACKLOG).tiers != DEFAULT_TIERS, "the lower ones wait for ever"
    most = max(load.waiting for load in LOADS)
    bounds = policy.bounds
    assert min(bounds.waiting, bounds.waiting_per_user) > most
    assert bounds.waiting_bytes > most * 4_000
    assert (bounds.waiting_tokens, bounds.waiting_tokens_per_user) == (None, None)


def test_what_has_no_slot_is_given_back_and_what_has_one_is_not() -> None:
    """A recall that is never answered leaves a hole in the books of a replica."""
    core = Recalling()
    CoreDriver(CoreLoad(name="x", waiting=10, users=1, tenants=1, replicas=1), core).fill_queue()
    assert len(core.granted) > SLOTS
    answers = [event for event in core.heard if isinstance(event, RecallDone | RecallTooLate)]
    assert answers == [RecallTooLate(core.granted[0]), RecallDone(core.granted[SLOTS])]


def test_only_the_latest_wish_to_be_woken_counts() -> None:
    """As the gateway has it: one timer, set anew."""
    core = Sleepy()
    driver = CoreDriver(CoreLoad(name="x", waiting=1, users=1, tenants=1, replicas=1), core)
    driver.fill_queue()
    while driver.now < 25.0:
        driver.step()
    assert [now for event, now in driver.told if isinstance(event, Woke)] == [19.0]


def test_filling_ends_even_if_all_is_refused() -> None:
    """A scheduler that is broken must end in a doubt, not in an endless loop."""
    driver = CoreDriver(BUSY, Refusing())
    driver.fill_queue()
    assert driver.refused >= BUSY.waiting
    assert set(driver.advance(1_000)) == {0}


def served(name: str, *, prompt_tokens: int = 100, output_tokens: int = 10) -> Served:
    """A request for an engine."""
    return Served(id=name, tier=0, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def test_an_engine_runs_what_has_slots_and_queues_the_rest() -> None:
    """Gauges that contradict the events would look like somebody else's load."""
    engine = Engine("one")
    joined = [engine.join(served(str(each))) for each in range(SLOTS + 2)]
    assert joined == [True] * SLOTS + [False] * 2
    report = engine.report(0.0)
    assert (report.running, report.waiting) == (SLOTS, 2)
    successor = engine.end("0")
    assert successor is not None
    assert successor.id == str(SLOTS)
    assert engine.take_back(str(SLOTS + 1))
    assert not engine.take_back("1"), "it has a slot"
    assert engine.end("1") is None
    report = engine.report(0.0)
    assert (report.running, report.waiting) == (SLOTS - 1, 0)


def test_an_engine_produces_at_its_pace_and_no_more_than_the_answer_has() -> None:
    """What progress says must be what the end will charge."""
    engine, one = Engine("one"), served("a", output_tokens=10)
    engine.join(one)
    assert engine.progress(1.0) == {}
    one.first_at = 1.0
    assert engine.progress(1.0) == {"a": 1}
    assert engine.progress(1.0 + 4.5 * TPOT_S) == {"a": 5}
    assert engine.progress(99.0) == {"a": one.usage.output_tokens} == {"a": 10}
    assert one.first_at + one.decode_s == pytest.approx(1.0 + 9 * TPOT_S)


def test_counters_of_an_engine_keep_what_has_ended() -> None:
    """A counter that went back would read as a restart."""
    engine, one, other = Engine("one"), served("a"), served("b")
    engine.join(one)
    engine.join(other)
    one.first_at = other.first_at = 0.0
    before = engine.report(5.0)
    engine.end("a")
    after = engine.report(5.0)
    assert (before.prompt_tokens, before.generation_tokens) == (200, 20)
    assert (after.prompt_tokens, after.generation_tokens) == (200, 20)
    assert after.itl_count == 18
    assert after.itl_sum_s == pytest.approx(18 * TPOT_S)
    assert before.kv_use == pytest.approx(220 / KV_CAPACITY_TOKENS)
    assert after.kv_use == pytest.approx(110 / KV_CAPACITY_TOKENS)


def test_a_measurement_counts_what_it_timed() -> None:
    """A rate is a count over a time: the count at least can be checked."""
    lines: list[str] = []
    result = measure([QUIET, BUSY], repetitions=2, events=400, say=lines.append)
    assert list(result.runs) == ["quiet", "busy"]
    assert result.waiting_bytes is not None
    for load in (QUIET, BUSY):
        run = result.runs[load.name]
        assert run.load == load
        assert len(run.event_us) == 2
        assert run.events >= 400
        assert 0 < run.requests < run.events
        assert sum(cost.count for cost in run.kinds.values()) == 2 * 200
        assert run.is_repeatable
    assert CoreResult.from_json(result.to_json()) == result
    assert len(lines) == 3


def test_memory_is_not_measured_where_nothing_waits() -> None:
    """Bytes per nothing are no figure."""
    result = measure([QUIET], repetitions=1, events=100, say=lambda line: None)
    assert result.waiting_bytes is None
    assert bytes_per_waiting(BUSY) >= 0


def test_after_the_deadline_a_load_is_measured_once() -> None:
    """On a slow machine the report comes in time, and says so."""
    run = measure_load(BUSY, repetitions=3, events=100, deadline_s=float("-inf"))
    assert len(run.event_us) == 1


def test_the_dearest_kind_comes_first() -> None:
    """Who makes the core quicker looks there."""
    apart: list[tuple[Event, float]] = [(FirstToken("a"), 0.0), (Woke(), 0.0), (FirstToken("b"), 0)]
    costs = costs_by_kind(apart, [[1_000, 7_000, 2_000], [3_000, 9_000, 2_000]])
    assert list(costs.items()) == [
        ("Woke", KindCost(count=2, mean_us=8.0)),
        ("FirstToken", KindCost(count=4, mean_us=2.0)),
    ]
