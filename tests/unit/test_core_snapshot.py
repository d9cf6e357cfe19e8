"""What a snapshot holds and refuses, and what another policy makes of it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.invariants import check
from gateway.core.messages import (
    Arrived,
    Decision,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Reason,
    Refused,
    ReplicaFound,
    ReplicaReported,
    Request,
    Usage,
    WakeWanted,
    Woke,
)
from gateway.core.policy import Policy, Tier
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler
from gateway.core.snapshot import VERSION, restore, snapshot

GOLD, SILVER = Tier(name="gold", queue_limit=0), Tier(name="silver", queue_limit=0)
POLICY = Policy(tiers=(GOLD, SILVER), headroom_max=0.0)
NOW = 100.0
ELSEWHERE = 5_000_000.0
"""What the clock of the next process reads."""


def asked(name: str, *, tier: int = 0, user: str = "u", arrived_at: float = NOW) -> Arrived:
    """A request of tenant `t` for 100 + 50 tokens."""
    return Arrived(
        Request(
            id=name, model="m", tier=tier, tenant="t", user=user, arrived_at=arrived_at,
            prompt_tokens=100, output_tokens_max=50, streams=True,
        )
    )  # fmt: skip


def busy(policy: Policy = POLICY) -> Scheduler:
    """One replica with one slot: `run` is on it, `a` (gold), `b` and `c` (silver) wait."""
    scheduler = Scheduler(policy)
    scheduler.handle(ReplicaFound(replica="r", models=frozenset({"m"}), slots=1), NOW - 10.0)
    scheduler.handle(asked("run", arrived_at=NOW - 5.0), NOW - 5.0)
    scheduler.handle(FirstToken("run"), NOW - 4.0)
    for name, tier, user in (("c", 1, "x"), ("b", 1, "y"), ("a", 0, "z")):
        scheduler.handle(asked(name, tier=tier, user=user, arrived_at=NOW - 3.0), NOW - 3.0)
    return scheduler


def taken(scheduler: Scheduler, now: float = NOW) -> dict[str, Any]:
    """A snapshot as another process reads it."""
    read: dict[str, Any] = json.loads(json.dumps(snapshot(scheduler, now), allow_nan=False))
    return read


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """The same with a checksum that fits, as of a writer who errs."""
    from gateway.core.snapshot import _checksum

    return {**data, "checksum": _checksum(data)}


def granted(decisions: list[Decision]) -> list[str]:
    """Who got a slot, in order."""
    return [each.request_id for each in decisions if isinstance(each, Granted)]


def served(scheduler: Scheduler, now: float) -> list[str]:
    """Who gets the one slot, one after another, from the end of what runs now."""
    order: list[str] = []
    while scheduler.granted:
        running = next(iter(scheduler.granted))
        order += granted(scheduler.handle(Finished(running, Outcome.DONE), now))
    return order


# --- going on ------------------------------------------------------------------------------------


def test_what_waits_keeps_its_turn_and_what_runs_its_slot() -> None:
    """Everybody in the queue would begin anew after a restart."""
    restored = restore(POLICY, taken(busy()), ELSEWHERE)
    check(restored)
    assert list(restored.waiting) == ["c", "b", "a"]
    assert restored.replicas["r"].ledger.sequences == 1
    assert served(restored, ELSEWHERE) == ["a", "c", "b"]


def test_waits_are_counted_from_the_arrival_whatever_the_new_clock_reads() -> None:
    """A monotone clock starts anew with the machine: waits of weeks, or below zero, would show."""
    restored = restore(POLICY, taken(busy()), ELSEWHERE)
    decisions = restored.handle(Finished("run", Outcome.DONE), ELSEWHERE + 1.0)
    assert decisions[0] == Granted("a", "r", waited_s=4.0)


def test_patience_goes_on_running_and_ends_when_it_would_have() -> None:
    """A client who gave one minute would wait another one after each change of the leader."""
    patient = replace(POLICY, tiers=(replace(GOLD, patience_s=60.0), SILVER))
    restored = restore(patient, taken(busy(patient)), ELSEWHERE)
    assert not restored.handle(Woke(), ELSEWHERE + 56.5)[:-1]
    refused = restored.handle(Woke(), ELSEWHERE + 57.5)[0]
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.reason) == ("a", Reason.PATIENCE_SPENT)


def test_a_restored_scheduler_asks_to_be_woken_again() -> None:
    """Whoever restores it has set no timer, so nobody's patience would ever end."""
    restored = restore(POLICY, taken(busy()), ELSEWHERE)
    decisions = restored.handle(Woke(), ELSEWHERE)
    assert any(isinstance(each, WakeWanted) and each.at > ELSEWHERE for each in decisions)


def test_what_was_served_before_counts_afterwards() -> None:
    """A user who took everything before the restart would get an equal share right after it."""
    scheduler = busy()
    ended = Finished("run", Outcome.DONE, Usage(prompt_tokens=100, output_tokens=9_000))
    scheduler.handle(ended, NOW)  # "u" has had much; "a" runs
    restored = restore(POLICY, taken(scheduler), ELSEWHERE)
    for name, user in (("m1", "v"), ("m2", "v"), ("m3", "v"), ("greedy", "u")):
        restored.handle(asked(name, user=user, arrived_at=ELSEWHERE), ELSEWHERE)
    assert served(restored, ELSEWHERE)[:4] == ["m1", "m2", "m3", "greedy"]


def test_a_scrape_in_flight_is_compared_with_the_book_of_when_it_was_sent() -> None:
    """Own requests that ended meanwhile would be taken for somebody else's load."""
    scheduler = busy()
    scheduler.handle(Finished("run", Outcome.DONE), NOW - 0.2)
    restored = restore(POLICY, taken(scheduler), ELSEWHERE)
    report = ReplicaReport(running=1, waiting=0)
    late = ReplicaReported(replica="r", sent_at=ELSEWHERE - 1.0, report=report)
    restored.handle(late, ELSEWHERE + 0.1)
    assert restored.replicas["r"].foreign == 0


def test_of_an_old_ledger_only_what_a_scrape_may_ask_for_travels() -> None:
    """Thousands of changes for each replica would travel with each snapshot, for nothing."""
    scheduler = busy()
    later = NOW + 1_000.0
    scheduler.handle(Finished("run", Outcome.DONE), later - 2.0)
    history = taken(scheduler, later)["replicas"][0]["ledger_history"]
    assert [age for age, _, _ in history] == [None, 2.0, 2.0]
    restored = restore(POLICY, taken(scheduler, later), ELSEWHERE)
    assert restored.replicas["r"].ledger.at(ELSEWHERE - 500.0) == (1, 150)


def test_a_closed_scheduler_stays_closed() -> None:
    """A gateway that shuts down would take requests again that nobody will answer."""
    scheduler = busy()
    scheduler.is_closed = True
    restored = restore(POLICY, taken(scheduler), ELSEWHERE)
    refused = restored.handle(asked("late", arrived_at=ELSEWHERE), ELSEWHERE)[0]
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.SHUTTING_DOWN


def test_an_empty_scheduler_has_a_snapshot_too() -> None:
    """A gateway restarted before its first request would not start."""
    restored = restore(POLICY, taken(Scheduler(POLICY)), ELSEWHERE)
    check(restored)
    assert not restored.pools


def test_a_snapshot_shares_nothing_with_the_scheduler() -> None:
    """A standby in the same process would see half of the next event."""
    scheduler = busy()
    data = snapshot(scheduler, NOW)
    before = json.dumps(data)
    scheduler.handle(Finished("run", Outcome.DONE), NOW)
    assert json.dumps(data) == before


def test_figures_that_json_does_not_know_are_left_out() -> None:
    """One engine that reports NaN would make every snapshot unreadable."""
    scheduler = busy()
    report = ReplicaReport(
        running=1, waiting=0, kv_use=float("nan"), kv_capacity_tokens=9, itl_count=float("inf")
    )
    scheduler.handle(ReplicaReported(replica="r", sent_at=NOW, report=report), NOW)
    restored = restore(POLICY, taken(scheduler), ELSEWHERE)
    assert restored.replicas["r"].report == replace(report, kv_use=None, itl_count=None)


# --- another policy ------------------------------------------------------------------------------


def test_tiers_are_matched_by_their_names() -> None:
    """Who was gold would be served as silver after a restart that put a tier before it."""
    policy = replace(POLICY, tiers=(Tier(name="platinum"), SILVER, GOLD))
    restored = restore(policy, taken(busy()), ELSEWHERE)
    check(restored)
    assert {name: each.request.tier for name, each in restored.waiting.items()} == {
        "a": 2, "b": 1, "c": 1
    }  # fmt: skip
    assert restored.replicas["r"].ledger.by_tier == [0, 0, 1]
    assert served(restored, ELSEWHERE) == ["c", "b", "a"]


def test_requests_of_a_tier_that_is_gone_go_to_the_last_one() -> None:
    """They would be lost, or served before all others."""
    policy = replace(POLICY, tiers=(SILVER, Tier(name="bronze", queue_limit=0)))
    restored = restore(policy, taken(busy()), ELSEWHERE)
    check(restored)
    assert restored.waiting["a"].request.tier == 1
    assert served(restored, ELSEWHERE) == ["c", "b", "a"]


def test_claims_are_kept_in_tiers_that_stay_and_dropped_with_those_that_go() -> None:
    """What a user had as gold says nothing of its share of silver."""
    scheduler = busy()
    ended = Finished("run", Outcome.DONE, Usage(prompt_tokens=100, output_tokens=9_000))
    scheduler.handle(ended, NOW)
    data = taken(scheduler)
    stays = restore(replace(POLICY, tiers=(Tier(name="new"), GOLD)), data, ELSEWHERE)
    assert stays.pools[0].queues[1].tenants["t"].users["u"].start > 9_000.0
    goes = restore(replace(POLICY, tiers=(SILVER,)), data, ELSEWHERE)
    assert "u" not in goes.pools[0].queues[0].tenants["t"].users
    for each in (stays, goes):
        check(each)


def test_what_a_tier_has_had_of_its_share_is_kept_by_its_name() -> None:
    """A tier that took everything before the restart would get its full share right after it."""
    weighted = replace(POLICY, order="weighted")
    data = taken(busy(weighted))
    restored = restore(replace(weighted, tiers=(Tier(name="new"), GOLD, SILVER)), data, ELSEWHERE)
    shares = restored.pools[0].shares
    assert shares is not None
    assert shares.starts[1] == data["pools"][0]["shares"]["starts"][0] > shares.starts[2]


def test_another_unit_of_cost_drops_the_claims_and_prices_anew() -> None:
    """Tokens would be taken for euros, and shut a user out for ever."""
    scheduler = busy()
    ended = Finished("run", Outcome.DONE, Usage(prompt_tokens=100, output_tokens=9_000))
    scheduler.handle(ended, NOW)
    restored = restore(replace(POLICY, cost="requests"), taken(scheduler), ELSEWHERE)
    check(restored)
    assert restored.waiting["b"].cost == 1.0
    assert restored.granted["a"][0].charged == 1.0
    assert not restored.pools[0].queues[0].tenants


def test_other_weights_hold_at_once() -> None:
    """A weight raised with the restart would not count before the user's flow is made anew."""
    from gateway.core.policy import Tenant

    policy = replace(POLICY, tenants={"t": Tenant(weight=3.0, users={"x": 5.0})})
    restored = restore(policy, taken(busy()), ELSEWHERE)
    tenant = restored.pools[0].queues[1].tenants["t"]
    assert (tenant.weight, tenant.users["x"].weight) == (3.0, 5.0)
    check(restored)


# --- refused -------------------------------------------------------------------------------------


def test_another_version_is_refused_and_named() -> None:
    """After an upgrade fields would be read that mean something else."""
    data = taken(busy()) | {"version": VERSION + 1}
    with pytest.raises(ValueError, match=f"version {VERSION + 1}, but only version {VERSION}"):
        restore(POLICY, data, ELSEWHERE)


@pytest.mark.parametrize("nothing", [{}, [], "x", None, {"version": "1"}])
def test_what_is_no_snapshot_is_refused(nothing: Any) -> None:
    """A wrong file would be taken for an empty gateway, or end in a traceback."""
    with pytest.raises(ValueError, match="snapshot"):
        restore(POLICY, nothing, ELSEWHERE)


def test_a_clock_that_tells_no_time_is_refused() -> None:
    """Every age would become an instant that never comes."""
    with pytest.raises(ValueError, match="clock"):
        restore(POLICY, taken(busy()), float("nan"))


def test_any_change_of_any_value_is_noticed() -> None:
    """A bit that fell over on a disk would let somebody wait for ever."""
    data = taken(busy())
    for key in data.keys() - {"version"}:
        for damaged in (
            {**data, key: "damaged"},
            {each: data[each] for each in data if each != key},
        ):
            with pytest.raises(ValueError, match="damaged snapshot"):
                restore(POLICY, damaged, ELSEWHERE)
    data["waiting"][0]["cost"] += 1.0
    with pytest.raises(ValueError, match="its checksum does not fit"):
        restore(POLICY, data, ELSEWHERE)


@pytest.mark.parametrize("part", ["kinds", "tiers", "replicas", "granted", "waiting", "pools"])
def test_a_snapshot_that_contradicts_itself_is_refused(part: str) -> None:
    """A writer who errs would end the reader with a traceback instead of a message."""
    wrongs: list[Any] = [[], [{}], [[]], None, 7]
    for wrong in wrongs:
        damaged = sealed({**taken(busy()), part: wrong})
        if wrong == [] and part in {"granted", "waiting", "tiers"}:
            continue  # whole in itself, or read as tiers that are all gone
        with pytest.raises(ValueError, match="snapshot"):
            restore(POLICY, damaged, ELSEWHERE)
