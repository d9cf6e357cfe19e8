"""What an operator is told of one request is what the scheduler then really does."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.breaker import BACKOFF_S
from gateway.core.explain import Explanation, closed_by, explain
from gateway.core.gate import Closed
from gateway.core.messages import (
    Arrived,
    Bounced,
    DrainAsked,
    Event,
    Fault,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    ReplicaFound,
    ReplicaReported,
    Request,
    Usage,
    Woke,
)
from gateway.core.policy import Ageing, Policy, Tier
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler
from gateway.core.snapshot import snapshot

Story = list[tuple[float, Event]]

HIGH, LOW = Tier(name="high", queue_limit=0), Tier(name="low", queue_limit=0)
POLICY = Policy(tiers=(HIGH, LOW), headroom_max=0.0, warm_up_s=0.0, recall=False, hold_s=3_600.0)
ONE = replace(POLICY, tiers=(LOW,))


def asked(name: str, at: float, **more: Any) -> Arrived:
    """A streaming request of tenant `t` and user `u` for 100 + 50 tokens of model `m`."""
    usual: dict[str, Any] = {
        "model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": at,
        "prompt_tokens": 100, "output_tokens_max": 50, "streams": True,
    }  # fmt: skip
    return Arrived(Request(id=name, **(usual | more)))


def found(name: str = "r", *, slots: int = 2) -> ReplicaFound:
    """A replica of model `m`."""
    return ReplicaFound(replica=name, models=frozenset({"m"}), slots=slots)


def after(policy: Policy, *story: tuple[float, Event]) -> Scheduler:
    """A scheduler to which all this has happened."""
    scheduler = Scheduler(policy)
    for now, event in story:
        scheduler.handle(event, now)
    return scheduler


def told(scheduler: Scheduler, name: str, now: float) -> Explanation:
    """The explanation, which has changed nothing."""
    before = json.dumps(snapshot(scheduler, now))
    explanation = explain(scheduler, name, now)
    assert json.dumps(snapshot(scheduler, now)) == before, "explaining changed something"
    assert explanation is not None
    return explanation


def full(*names: str) -> list[tuple[float, Event]]:
    """One replica, its two slots taken, and these waiting."""
    running = [(0.0, asked(each, 0.0, user="first")) for each in ("run1", "run2")]
    return [(0.0, found()), *running, *((1.0, asked(each, 1.0)) for each in names)]


# --- who and where -------------------------------------------------------------------------------


def test_a_request_that_is_not_here_has_no_explanation() -> None:
    """An operator who mistypes an id would be told of somebody else's request."""
    assert explain(after(ONE, *full("w")), "nobody", 2.0) is None


def test_of_a_granted_request_the_replica_and_its_wait_are_told() -> None:
    """Who asks why it hangs must hear that it does not wait here at all."""
    scheduler = after(ONE, *full("w"), (4.0, Finished("run1", Outcome.DONE)))
    explanation = told(scheduler, "w", 9.0)
    assert (explanation.state, explanation.granted_on) == ("granted", "r")
    assert explanation.waited_s == 3.0
    assert explanation.replicas == ()
    assert explanation.position is None


def test_a_waiting_request_is_told_with_its_tier_wait_and_patience() -> None:
    """The first thing a user asks is how long still."""
    explanation = told(after(ONE, *full("w")), "w", 11.0)
    assert (explanation.state, explanation.model, explanation.tier) == ("waiting", "m", "low")
    assert (explanation.tenant, explanation.user) == ("t", "u")
    assert explanation.waited_s == 10.0
    assert explanation.patience_left_s == LOW.patience_s - 10.0
    assert explanation.cost == 100.0 + 2.0 * 50.0
    assert explanation.granted_on is None


def test_the_flow_is_told_with_its_tag_and_whose_is_smaller() -> None:
    """A user who was served a lot must be able to see that this is why others go before."""
    scheduler = after(
        ONE, (0.0, found(slots=1)), (0.0, asked("greedy", 0.0, user="greedy")),
        (0.0, asked("big", 0.0, user="greedy", output_tokens_max=4_000)),
        (0.0, asked("more", 0.0, user="greedy")), (0.0, asked("mine", 0.0, user="other")),
        (0.0, asked("again", 0.0, user="other")),
        (1.0, Finished("greedy", Outcome.DONE, Usage(prompt_tokens=100, output_tokens=3_000))),
    )  # fmt: skip
    waiting = [name for name in ("big", "more", "mine", "again") if name in scheduler.waiting]
    behind = told(scheduler, "more", 2.0)
    assert behind.flow is not None
    tags = {
        user.name: user.start
        for user in scheduler.pools[0].queues[0].tenants["t"].users.values()
    }  # fmt: skip
    assert behind.flow.user_start == tags["greedy"] > tags["other"]
    assert [each.user for each in behind.ahead] == ["other"]
    assert behind.flows_ahead == 1
    assert behind.ahead[0].user_start == tags["other"]
    assert behind.ahead[0].waiting == sum(name in ("mine", "again") for name in waiting)
    first = told(scheduler, "again", 2.0)
    assert (first.flows_ahead, first.ahead) == (0, ())


def test_only_the_next_few_flows_ahead_are_named_and_all_are_counted() -> None:
    """A page of a thousand names tells nobody anything."""
    scheduler = after(ONE, *full())
    for number in range(9):
        scheduler.handle(asked(f"n{number}", 1.0, user=f"n{number}"), 1.0)
    scheduler.handle(asked("last", 1.0, user="first"), 1.0)
    explanation = told(scheduler, "last", 2.0)
    assert explanation.flows_ahead == 9
    assert len(explanation.ahead) == 5
    starts = [each.user_start for each in explanation.ahead]
    assert starts == sorted(starts)


def test_position_and_expected_wait_are_those_told_to_the_client() -> None:
    """Operator and client would be told different things of the same request."""
    scheduler = after(ONE, *full("w1", "w2", "w3"), (3.0, Finished("run1", Outcome.DONE)))
    for name in ("w2", "w3"):
        explanation = told(scheduler, name, 4.0)
        place = scheduler.place_of(name, 4.0)
        assert place == (explanation.position, explanation.expected_wait_s)
    assert told(scheduler, "w2", 4.0).position == 1
    assert told(scheduler, "w3", 4.0).position == 2


def test_before_anything_was_released_no_wait_is_expected() -> None:
    """A guess would be taken for a promise."""
    gone = (0.0, DrainAsked("r"))
    story: Story = [(0.0, found()), (0.0, asked("w", 0.0)), (0.0, Bounced("w")), gone]
    scheduler = after(ONE, *story)
    assert "w" in scheduler.waiting
    explanation = told(scheduler, "w", 0.0)
    assert (explanation.position, explanation.expected_wait_s) == (1, None)
    scheduler.pools[0].drain_rate.add(0.0)
    assert told(scheduler, "w", 0.0).expected_wait_s == 1.0


def test_what_waits_in_the_tiers_above_is_counted() -> None:
    """A low request behind a hundred high ones looks first in its own line."""
    story = [*full("w"), (1.0, asked("low", 1.0, tier=1)), (1.0, asked("w2", 1.0, user="v"))]
    explanation = told(after(POLICY, *story), "low", 2.0)
    assert (explanation.tiers_ahead, explanation.position) == (2, 3)


def test_a_request_that_may_go_for_its_age_is_judged_as_tier_0() -> None:
    """The gate of its own tier would be shown, which no longer counts."""
    policy = replace(POLICY, ageing=Ageing(after_s=5.0), headroom_max=0.5, lend=False)
    story: Story = [(0.0, found()), (0.0, asked("run", 0.0)), (0.0, asked("low", 0.0, tier=1))]
    young = told(after(policy, *story), "low", 1.0)
    assert (young.is_aged, young.replicas[0].closed_by) == (False, Closed.HEADROOM)
    old = told(after(policy, *story), "low", 6.0)
    assert (old.is_aged, old.replicas[0].closed_by) == (True, None)
    decisions = after(policy, *story).handle(Woke(), 6.0)
    assert Granted("low", "r", waited_s=6.0) in decisions


def test_a_request_that_its_floor_covers_is_said_to_be_owed() -> None:
    """Nobody would see why a background request went before an urgent one."""
    policy = replace(POLICY, tiers=(HIGH, replace(LOW, min_share=0.5)))
    scheduler = after(policy, *full("w1", "w2"), (1.0, asked("low", 1.0, tier=1)))
    assert not told(scheduler, "low", 2.0).is_floor_owed
    scheduler.handle(Finished("run1", Outcome.DONE), 2.0)
    scheduler.handle(Finished("run2", Outcome.DONE), 2.0)
    assert told(scheduler, "low", 2.0).is_floor_owed
    scheduler.handle(asked("w3", 3.0), 3.0)
    decisions = scheduler.handle(Finished("w1", Outcome.DONE), 3.0)
    assert Granted("low", "r", waited_s=2.0) in decisions


# --- which gate is shut --------------------------------------------------------------------------

Case = tuple[Policy, Story, float, tuple[float, Event] | None]
"""The policy; what happened; when it is asked; what opens the gate, None where time does."""


def reported(at: float, **figures: Any) -> tuple[float, Event]:
    """A scrape of `r`."""
    report = ReplicaReport(**figures)
    return at, ReplicaReported(replica="r", sent_at=at, report=report)


def unusable() -> Case:
    """It drains; the other replica is full."""
    story: Story = [(0.0, found()), (0.0, found("s", slots=1)), (0.0, DrainAsked("r"))]
    story += [(0.0, asked("run", 0.0)), (1.0, asked("w", 1.0))]
    return ONE, story, 2.0, (2.0, DrainAsked("r", draining=False))


def elsewhere() -> Case:
    """It failed on `r` before."""
    story: Story = [(0.0, found()), (0.0, found("s", slots=1))]
    story += [(0.0, asked("run", 0.0, excluded=frozenset({"r"})))]
    story += [(1.0, asked("w", 1.0, excluded=frozenset({"r"})))]
    return ONE, story, 2.0, None


def rests() -> Case:
    """The engine said that it is busy."""
    story: Story = [(0.0, found()), (0.0, asked("w", 0.0)), (1.0, Bounced("w"))]
    return ONE, story, 1.125, (1.5, Woke())


def tripped() -> Case:
    """Nobody listens there; after a rest one request may try."""
    refused = Finished("run", Outcome.FAILED, fault=Fault.REFUSED)
    story: Story = [
        (0.0, found()),
        (0.0, asked("run", 0.0)),
        (1.0, refused),
        (1.0, asked("w", 1.0)),
    ]
    return ONE, story, 1.5, (1.0 + BACKOFF_S, Woke())


def queues() -> Case:
    """All slots are taken."""
    return ONE, full("w"), 2.0, (2.0, Finished("run1", Outcome.DONE))


def slow() -> Case:
    """The engine is slower than the tier bears."""
    counted = [reported(at, running=1, waiting=0, itl_sum_s=at * 30.0, itl_count=at * 100.0,
                        slots=9) for at in (1.0, 2.0)]  # fmt: skip
    story: Story = [(0.0, found(slots=9)), (0.0, asked("run", 0.0)), *counted]
    # 300 ms a token; the limit of the low tier is 150 ms, that of the limiter far above.
    policy = replace(ONE, tiers=(replace(LOW, tpot_limit_ms=150.0),), limiter="static")
    return policy, [*story, (2.5, asked("w", 2.5))], 2.6, (60.0, Woke())


def kept_free() -> Case:
    """The free slot is for the tier above."""
    policy = replace(POLICY, headroom_max=0.5, lend=False)
    story: Story = [(0.0, found()), (0.0, asked("run", 0.0)), (1.0, asked("w", 1.0, tier=1))]
    return policy, story, 2.0, (2.0, Finished("run", Outcome.DONE))


def limited() -> Case:
    """No more may run there at once."""
    policy = replace(ONE, inflight_limit=1)
    story: Story = [(0.0, found()), (0.0, asked("run", 0.0)), (1.0, asked("w", 1.0))]
    return policy, story, 2.0, (2.0, Finished("run", Outcome.DONE))


def shared() -> Case:
    """Half of it is for a gateway that is not heard of."""
    policy = replace(ONE, sharers=2)
    story: Story = [(0.0, found(slots=2)), (0.0, asked("run", 0.0)), (1.0, asked("w", 1.0))]
    return policy, story, 2.0, (2.0, Finished("run", Outcome.DONE))


def warms_up() -> Case:
    """It has just joined another one."""
    policy = replace(ONE, warm_up_s=8.0)
    story: Story = [(0.0, found("s", slots=1)), (0.0, asked("run", 0.0)), (1.0, found(slots=4))]
    return (
        policy,
        [*story, *((1.0, asked(each, 1.0)) for each in ("run2", "w"))],
        2.0,
        (6.0, Woke()),
    )


def reserved() -> Case:
    """It is drained for a wide one."""
    story: Story = [(0.0, found(slots=4)), *((0.0, asked(f"run{i}", 0.0)) for i in range(4))]
    story += [(1.0, asked("wide", 1.0, sequences=4))]
    story += [(1.0, asked(f"small{i}", 1.0, user="v")) for i in range(3)]
    # Small ones go before it until it was passed over for five seconds.
    story += [(at, Finished(f"run{i}", Outcome.DONE)) for i, at in enumerate((2.0, 9.0, 15.0))]
    story += [(15.0, asked("w", 15.0, user="x")), (15.5, Finished("run3", Outcome.DONE))]
    return replace(ONE, reserve_after_s=5.0), story, 16.0, None


def prefills() -> Case:
    """A long prompt has not begun yet."""
    story: Story = [(0.0, found(slots=9)), (0.0, asked("run", 0.0, prompt_tokens=7_000))]
    return ONE, [*story, (0.5, asked("w", 0.5, prompt_tokens=3_000))], 0.6, (1.0, FirstToken("run"))


def memory() -> Case:
    """Its KV would not fit."""
    story: Story = [(0.0, found(slots=9))]
    story += [reported(0.0, running=0, waiting=0, kv_use=0.0, kv_capacity_tokens=10_000)]
    story += [(0.0, asked("run", 0.0, prompt_tokens=6_000)), (0.5, FirstToken("run"))]
    return ONE, [*story, (0.5, asked("w", 0.5, prompt_tokens=5_000))], 0.6, (
        1.0, Finished("run", Outcome.DONE)
    )  # fmt: skip


CASES: dict[Closed, Callable[[], Case]] = {
    Closed.UNUSABLE: unusable, Closed.ELSEWHERE: elsewhere, Closed.BUSY: rests,
    Closed.TRIPPED: tripped, Closed.QUEUE: queues, Closed.SPEED: slow, Closed.HEADROOM: kept_free,
    Closed.LIMIT: limited, Closed.SHARE: shared, Closed.WARM_UP: warms_up,
    Closed.RESERVED: reserved, Closed.PREFILL: prefills, Closed.KV: memory,
}  # fmt: skip


def test_each_gate_has_its_case() -> None:
    """A new gate would go unexplained."""
    assert set(CASES) == set(Closed)


@pytest.mark.parametrize("shut", list(Closed))
def test_the_gate_that_is_told_is_the_one_that_keeps_it_out(shut: Closed) -> None:
    """An operator would turn the wrong screw."""
    policy, story, now, opens = CASES[shut]()
    scheduler = after(policy, *story)
    verdict = {each.replica: each for each in told(scheduler, "w", now).replicas}["r"]
    assert verdict.closed_by == shut
    waiting = scheduler.waiting["w"]
    assert closed_by(scheduler.pools[0], waiting, scheduler.replicas["r"], now) is shut
    decisions = scheduler.handle(Woke(), now)
    assert not any(isinstance(each, Granted) and each.request_id == "w" for each in decisions)
    if opens is not None:
        scheduler = after(policy, *story, opens)
        assert scheduler.granted["w"][1].name == "r"


@pytest.mark.parametrize("shut", list(Closed))
def test_a_verdict_of_nothing_means_that_it_goes(shut: Closed) -> None:
    """That nothing keeps a request that stays would be the worst of all answers."""
    policy, story, now, _ = CASES[shut]()
    scheduler = after(policy, *story)
    for quarters in range(300):
        later = now + quarters / 4
        if "w" not in scheduler.waiting:
            return
        explanation = told(scheduler, "w", later)
        is_next = explanation.position == 1
        open_on = [each.replica for each in explanation.replicas if each.closed_by is None]
        decisions = scheduler.handle(Woke(), later)
        went = [each.replica for each in decisions
                if isinstance(each, Granted) and each.request_id == "w"]  # fmt: skip
        if is_next:
            assert bool(went) == bool(open_on), f"told open: {open_on}, went to {went}"
        assert set(went) <= set(open_on)


def test_the_figures_beside_the_verdict_are_those_it_was_judged_by() -> None:
    """A verdict without figures cannot be checked against what the engine says."""
    policy, story, now, _ = queues()
    full_one = told(after(policy, *story), "w", now).replicas[0]
    assert (full_one.occupied, full_one.slots, full_one.waiting, full_one.allowance) == (2, 2, 0, 0)
    policy, story, now, _ = slow()
    slow_one = told(after(policy, *story), "w", now).replicas[0]
    assert slow_one.tpot_ms == pytest.approx(300.0)
    assert slow_one.tpot_limit_ms == 150.0
    policy, story, now, _ = kept_free()
    assert told(after(policy, *story), "w", now).replicas[0].slots_away == 1
    policy, story, now, _ = limited()
    assert told(after(policy, *story), "w", now).replicas[0].inflight_limit == 1.0
    policy, story, now, _ = prefills()
    late_one = told(after(policy, *story), "w", now).replicas[0]
    assert (late_one.unstarted_prompt_tokens, late_one.prefill_limit_tokens) == (7_000, 8_000)
    policy, story, now, _ = memory()
    big_one = told(after(policy, *story), "w", now).replicas[0]
    assert (big_one.kv_tokens, big_one.kv_capacity_tokens) == (6_050, 10_000)


def test_a_report_that_is_too_old_is_said_to_be() -> None:
    """Figures of a minute ago would be taken for those of now."""
    policy, story, _, _ = memory()
    scheduler = after(policy, *story)
    assert not told(scheduler, "w", 0.6).replicas[0].is_report_stale
    assert told(scheduler, "w", 60.0).replicas[0].is_report_stale


def test_explaining_changes_nothing_even_when_the_hold_of_a_tier_has_run_out() -> None:
    """Looking at a request would let another one go first."""
    policy = replace(POLICY, headroom_max=0.5, hold_s=5.0)
    story: Story = [(0.0, found()), (0.0, asked("run", 0.0)), (1.0, asked("w", 1.0, tier=1))]
    explanation = told(after(policy, *story), "w", 20.0)
    assert explanation.replicas[0].closed_by is None


def test_a_stale_replica_is_judged_as_it_will_be() -> None:
    """The load of others seen last would be shown, though it is no longer believed."""
    story: Story = [(0.0, found()), *(reported(n / 64, running=0, waiting=0) for n in range(61))]
    story += [reported(1.0 + n / 4, running=2, waiting=0) for n in range(3)]
    scheduler = after(ONE, *story, (1.75, asked("w", 1.75)))
    assert told(scheduler, "w", 1.75).replicas[0].closed_by == Closed.QUEUE
    late = told(scheduler, "w", 60.0).replicas[0]
    went = any(isinstance(each, Granted) for each in scheduler.handle(Woke(), 60.0))
    assert (late.closed_by is None) == went
    assert late.foreign == scheduler.replicas["r"].foreign


def test_what_others_left_there_is_taken_off_no_part_of_ours() -> None:
    """An open replica would be shown that takes nothing while two gateways share it."""
    story: Story = [(0.0, found(slots=6))]
    story += [reported(n / 64, running=0, waiting=0) for n in range(61)]
    story += [(0.96, asked(f"run{n}", 0.96)) for n in range(3)]
    story += [reported(1.0 + n / 4, running=5, waiting=0) for n in range(3)]
    scheduler = after(replace(ONE, sharers=2), *story, (1.75, asked("w", 1.75)))
    late = told(scheduler, "w", 60.0).replicas[0]
    assert (late.foreign, late.occupied, late.closed_by) == (0, 3, Closed.SHARE)
    assert not any(isinstance(each, Granted) for each in scheduler.handle(Woke(), 60.0))
