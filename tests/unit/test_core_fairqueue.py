"""Who is next inside one tier."""

import pytest

from gateway.core.fairqueue import SWEEP_SLACK
from gateway.core.messages import Outcome
from gateway.core.policy import Policy, Tenant, Tier
from tests.support.script import Script, one_tier

TOKENS = one_tier(cost="tokens")


def served_tokens(script: Script, prefix: str) -> int:
    """Cost of all requests of that prefix that were let go, by what they really used."""
    ended = [id for id in script.order if id.startswith(prefix)]
    usages = [script._truth[id] for id in ended]
    return sum(usage.prompt_tokens + 2 * usage.output_tokens for usage in usages)


def test_users_take_turns_however_many_requests_one_of_them_sent() -> None:
    """The light user behind the one who sent everything."""
    script = Script().replica("r", slots=1).arrive("first", user="heavy")
    script.arrive_many("h", 20, user="heavy").arrive_many("x", 2, user="x")
    script.arrive_many("y", 2, user="y").serve(7)
    script.expect_order("first", "x0", "y0", "h0", "x1", "y1", "h1", "h2")


def test_a_request_of_many_sequences_pays_for_all_of_them() -> None:
    """Asking for n = 4 would otherwise be a fourfold share."""
    tier = Tier(name="only", queue_limit=4, patience_s=1e6)
    # What is overtaken for its size gets a replica at once, not after a while.
    policy = one_tier(tiers=(tier,), reserve_after_s=0.0)
    script = Script(policy).replica("r", slots=4).arrive_many("first", 4, user="z")
    script.arrive_many("n", 30, user="n", sequences=4).arrive_many("s", 90, user="s")
    script.serve(80)
    assert 4 * script.count_of("n") == pytest.approx(script.count_of("s"), abs=4)


def test_tokens_are_shared_equally_by_users_of_unequal_sizes() -> None:
    """The user of short requests next to one whose requests are ten times as long."""
    script = Script(TOKENS).replica("r", slots=2)
    script.arrive_many("big", 70, user="big", prompt_tokens=1_000, output_tokens=500)
    script.arrive_many("small", 700, user="small", prompt_tokens=100, output_tokens=50)
    script.serve(600)
    assert {id.rstrip("0123456789") for id in script.waiting} == {"big", "small"}
    big, small = served_tokens(script, "big"), served_tokens(script, "small")
    assert small == pytest.approx(big, rel=0.05)


def test_a_wrong_estimate_is_corrected_when_the_request_ends() -> None:
    """The user whose answers are short, predicted to be as long as a stranger's."""
    script = Script(TOKENS).replica("r", slots=1)
    for number in range(400):
        # A new route each time, so that nothing is ever learnt: all are predicted alike.
        script.arrive(f"short{number}", user="s", route=f"s{number}", output_tokens=26)
        script.arrive(f"long{number}", user="l", route=f"l{number}", output_tokens=256)
    script.serve(300)
    short, long = served_tokens(script, "short"), served_tokens(script, "long")
    assert short == pytest.approx(long, rel=0.05)


def test_a_user_whose_queue_runs_empty_between_requests_gets_its_refunds_too() -> None:
    """The overestimated user with little in flight, against one with a full queue."""
    script = Script(TOKENS).replica("r", slots=2)
    script.arrive_many("full", 400, user="f", output_tokens=26, output_tokens_max=26)
    script.arrive("thin0", user="thin", route="r0", output_tokens=26)
    script.arrive("thin1", user="thin", route="r1", output_tokens=26)
    sent = 2
    for _ in range(300):
        script.serve(1)
        while sum(id.startswith("thin") for id in (*script.waiting, *script.running)) < 2:
            script.arrive(f"thin{sent}", user="thin", route=f"r{sent}", output_tokens=26)
            sent += 1
    assert script.count_of("thin") == pytest.approx(script.count_of("full"), rel=0.05)


def test_a_request_that_outgrows_its_estimate_is_charged_while_it_runs() -> None:
    """Everybody next to a user whose first answer never ends."""
    script = Script(TOKENS).replica("r", slots=2).arrive("w", user="w")
    script.arrive("endless", user="e", output_tokens_max=None).arrive_many("e", 9, user="e")
    script.arrive_many("o", 9, user="o", output_tokens=256)
    script.first_token("endless").progress("r", endless=10_000)
    script.finish("w").serve(0)
    for _ in range(4):
        latest = script.order[-1]
        script.finish(latest)
    assert script.order[2:] == ["o0", "o1", "o2", "o3", "o4"]


def test_weights_hold_among_tenants_and_among_users() -> None:
    """Who pays for three shares gets three, as a tenant and inside one."""
    tenants = {"big": Tenant(weight=3.0), "one": Tenant(users={"vip": 4.0})}
    script = Script(one_tier(tenants=tenants)).replica("r", slots=1)
    script.arrive_many("big", 100, tenant="big")
    script.arrive_many("vip", 50, tenant="one", user="vip")
    script.arrive_many("std", 50, tenant="one", user="std").serve(99)
    assert script.count_of("big") == pytest.approx(75, abs=2)
    assert script.count_of("vip") == pytest.approx(20, abs=2)
    assert script.count_of("std") == pytest.approx(5, abs=1)


def test_a_tenant_of_twenty_users_gets_what_a_tenant_of_one_gets() -> None:
    """The small team: a crowd of names must not be a crowd of shares."""
    script = Script(TOKENS).replica("r", slots=4)
    script.arrive_many("lone", 150, tenant="lone", output_tokens=100)
    for number in range(20):
        script.arrive_many(
            f"crowd{number}-", 10, tenant="crowd", user=f"u{number}", output_tokens=100
        )
    script.serve(240)
    assert script.count_of("lone") == pytest.approx(script.count_of("crowd"), abs=8)


def test_idle_time_earns_no_credit() -> None:
    """The regular user must not be locked out by one who was away for long."""
    script = Script().replica("r", slots=1).arrive_many("a", 300, user="a")
    script.arrive("b", user="b").serve(100)
    script.arrive_many("late", 100, user="b").serve(40)
    assert script.count_of("late") == pytest.approx(20, abs=1)


def test_a_newcomer_starts_beside_the_others_not_behind_their_past() -> None:
    """The first request of the day against users who have been served all night."""
    script = Script().replica("r", slots=1).arrive_many("a", 300, user="a").serve(200)
    script.arrive("new", user="new").serve(1).expect_granted("new")


def test_a_refund_takes_nobody_below_its_start() -> None:
    """An old request that fails at last must not buy its user a row of turns."""
    known = {"prompt_tokens": 1_000, "output_tokens_max": 10}
    script = Script(TOKENS).replica("r", slots=2).arrive("old", user="f", prompt_tokens=20_000)
    script.first_token("old").arrive_many("a", 60, user="a", **known)
    for _ in range(25):
        script.finish(next(id for id in script.running if id != "old"))
    script.arrive_many("x", 30, user="f", **known)
    script.finish("old", outcome=Outcome.FAILED).serve(20)
    assert script.count_of("x") == pytest.approx(10, abs=2)


def test_our_own_failures_cost_the_user_nothing() -> None:
    """The user whose replica broke must not also lose the turn."""
    script = Script(TOKENS).replica("r", slots=1).arrive("w", user="w")
    script.arrive_many("a", 4, user="a", prompt_tokens=1_000).arrive_many("b", 4, user="b")
    script.finish("w").expect_granted("a0").finish("a0", outcome=Outcome.FAILED)
    script.serve(1)
    assert set(script.order[2:]) == {"a1", "b0"}


def test_a_users_own_requests_keep_the_order_of_their_arrival() -> None:
    """Who asked first and then asked again gets the first answer first."""
    script = Script().replica("r", slots=1).arrive_many("a", 5).serve(4)
    script.expect_order("a0", "a1", "a2", "a3", "a4")


def test_a_retry_keeps_the_place_of_its_first_arrival() -> None:
    """A request that failed on one replica must not start again at the end of the line."""
    script = Script().replica("r", slots=1).arrive("a").advance(1.0).arrive_many("b", 3)
    script.finish("a", outcome=Outcome.FAILED).expect_granted("b0")
    script.arrive("a", arrived_at=0.0).serve(2)
    script.expect_order("a", "b0", "a", "b1")


def test_a_bounced_request_goes_back_to_its_place() -> None:
    """The engine's refusal is not the client's fault."""
    script = Script().replica("r", slots=1).arrive("a").advance(1.0).arrive_many("b", 3)
    script.bounce("a").expect_waiting("a", "b0").advance(1.0).expect_granted("a")


def test_flows_that_owe_nothing_are_forgotten() -> None:
    """A gateway that saw a million users must not remember them all."""
    script = Script(TOKENS).replica("r", slots=1).arrive_many("a", 60, user="a")
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    for number in range(10 * SWEEP_SLACK):
        script.arrive(f"x{number}", tenant=f"t{number}").cancel(f"x{number}")
        assert len(pool.queues[0].tenants) <= 2 * SWEEP_SLACK
    assert pool.queues[0].tenants["t"].users["a"].count == 59


@pytest.mark.parametrize("cost", ["requests", "tokens"])
def test_two_backlogged_flows_never_drift_further_apart_than_the_bound(cost: str) -> None:
    """Fairness is a bound on the difference at any time, not an average at the end."""
    policy: Policy = one_tier(cost=cost)
    script = Script(policy).replica("r", slots=3)
    script.arrive_many("a", 400, user="a", output_tokens=200, output_tokens_max=200)
    script.arrive_many("b", 400, user="b", output_tokens=20, output_tokens_max=20)
    largest = 3 if cost == "requests" else 410
    for _ in range(300):
        script.serve(1)
        weigh = script.count_of if cost == "requests" else lambda p: served_tokens(script, p)
        assert abs(weigh("a") - weigh("b")) <= 3 * 2 * largest
        assert any(id.startswith("a") for id in script.waiting)
