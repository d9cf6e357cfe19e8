"""The share of the lower tiers that no upper tier can take away."""

from dataclasses import replace

import pytest

from gateway.core.floors import Floors
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from tests.support.script import Script, four_tiers


def floors() -> Floors:
    """The floors of the default tiers."""
    return Floors(four_tiers(cost="requests"))


def waits(*counts: int) -> list[int]:
    """So many requests wait in tier 0, 1, 2 and 3."""
    return list(counts)


def saturated(script: Script, turns: int) -> Script:
    """The oldest request ends each second, while tier 0 never runs out of requests."""
    for number in range(turns):
        script.arrive(f"top{len(script.log)}-{number}", tier=0, user="top").serve(1)
    return script


def test_tier_zero_goes_first_whatever_waits_below() -> None:
    """Critical work behind a long line of background work."""
    script = Script(four_tiers()).replica("r", slots=1).arrive_many("low", 9, tier=3)
    script.arrive_many("mid", 9, tier=2).arrive("top", tier=0)
    waiting = {id for id in script.waiting if not id.startswith("top")}
    script.serve(3)
    assert script.order.index("top") < min(
        (script.order.index(id) for id in waiting if id in script.order), default=99
    )


def test_the_last_tier_gets_its_share_under_a_saturating_first_one() -> None:
    """Background work would never run: headroom keeps its own gate shut all the time."""
    script = Script(four_tiers(cost="requests")).replica("r", slots=4)
    script.arrive_many("top", 20, tier=0, user="top").arrive_many("low", 30, tier=3, user="low")
    saturated(script, 500)
    assert script.count_of("low") == pytest.approx(0.02 * 500, abs=2)


@pytest.mark.parametrize("tier", [1, 2, 3])
def test_every_lower_tier_has_its_own_floor(tier: int) -> None:
    """No tier is served from another one's share."""
    tiers = tuple(replace(tier, patience_s=1e6) for tier in DEFAULT_TIERS)
    script = Script(four_tiers(tiers=tiers, cost="requests")).replica("r", slots=4)
    script.arrive_many("top", 20, tier=0, user="top")
    for rank in (1, 2, 3):
        script.arrive_many(f"low{rank}-", 20, tier=rank, user="low")
    saturated(script, 300)
    assert script.count_of(f"low{tier}-") == pytest.approx(0.02 * 300, abs=2)


def test_waiting_under_saturation_is_bounded_by_the_floor() -> None:
    """The stated bound: head cost over (share x rate), and one service time."""
    script = Script(four_tiers(cost="requests")).replica("r", slots=4)
    script.arrive_many("top", 20, tier=0, user="top").arrive("low", tier=3)
    saturated(script, 52 + 4)
    assert "low" in script.order


def test_a_tier_without_a_share_waits_for_ever() -> None:
    """The operator's choice: 0 switches the floor off."""
    tiers = tuple(replace(tier, min_share=0.0) for tier in DEFAULT_TIERS)
    script = Script(four_tiers(tiers=tiers, cost="requests")).replica("r", slots=4)
    script.arrive_many("top", 20, tier=0, user="top").arrive("low", tier=3)
    saturated(script, 100)
    script.expect_waiting("low")


def test_a_cheap_head_that_fits_nowhere_does_not_let_a_dear_request_go() -> None:
    """Tier 0 would pay a hundred times the floor for one request that nobody owed."""
    tiers = (Tier(name="top", queue_limit=0), Tier(name="low", queue_limit=0, min_share=0.02))
    script = Script(four_tiers(tiers=tiers)).replica("r", slots=1)
    script.replica("s", slots=1).arrive("held", excluded=frozenset({"r"}))
    script.arrive_many("top", 5, tier=0, prompt_tokens=80, output_tokens_max=10)
    low = {"tier": 1, "output_tokens_max": 10}
    script.arrive("cheap", prompt_tokens=10, excluded=frozenset({"r"}), **low)
    script.arrive("dear", prompt_tokens=20_000, **low)
    for number in range(60):
        script.arrive(f"more{number}", tier=0, prompt_tokens=80, output_tokens_max=10)
        script.advance(1.0).finish(script.on("r")[0])
    script.expect_waiting("cheap", "dear")


def test_a_tier_that_could_not_be_served_saves_up_no_burst() -> None:
    """Its replica is back after an hour: tier 0 must not pay for the hour at once."""
    policy = four_tiers(cost="requests")
    script = Script(policy).replica("r", slots=2, models=("m", "x"))
    script.replica("s", slots=2, models=("x",))
    script.arrive_many("held", 2, tier=0, model="x", excluded=frozenset({"r"}))
    script.arrive_many("top", 10, tier=0)
    script.arrive_many("low", 10, tier=3, excluded=frozenset({"r"}), model="x")
    for number in range(300):
        script.arrive(f"more{number}", tier=0).advance(1.0).finish(script.on("r")[0])
    assert script.count_of("low") <= 1
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    assert pool.floors.deficits[3] <= 1.02


def test_the_deficit_grows_by_the_share_of_what_others_release() -> None:
    """The definition of the floor."""
    known = floors()
    known.released(0, 10.0, waits(5, 1, 0, 1))
    assert known.deficits == pytest.approx([0.0, 0.2, 0.0, 0.2])
    known.released(3, 0.2, waits(5, 1, 0, 1))
    assert known.deficits == pytest.approx([0.0, 0.204, 0.0, 0.0])


def test_what_a_tier_released_in_its_own_right_leaves_no_debt() -> None:
    """Idle capacity that background work used must not be held against it later."""
    known = floors()
    known.released(3, 500.0, waits(0, 0, 0, 4))
    assert known.deficits[3] == 0.0


def test_what_a_tier_released_in_its_own_right_forgives_no_debt_either() -> None:
    """Tier 0: a tier that took too much by its floor must not be quit of it by one more release."""
    known = floors()
    known.deficits[3] = -5.0
    known.released(3, 2.0, waits(0, 0, 0, 4))
    assert known.deficits[3] == -5.0


def test_the_floor_is_spent_by_the_true_cost() -> None:
    """A tier of underestimated requests would take a multiple of its share."""
    known, queues = floors(), waits(5, 0, 0, 5)
    known.released(0, 100.0, queues)
    known.released(3, 2.0, queues)
    known.settled(3, 8.0, queues, was_owed=True)
    assert known.deficits[3] == pytest.approx(-8.0)
    assert not known.is_owed(3, 0.0)
    known.released(0, 400.0, queues)
    assert known.deficits[3] == pytest.approx(0.0, abs=1e-9)
    known.settled(0, -100.0, queues, was_owed=False)
    assert known.deficits[3] == pytest.approx(-2.0)


def test_what_a_tier_ran_in_its_own_right_is_not_settled_against_its_floor() -> None:
    """Background work that grew longer than thought, on a fleet that nobody else wanted."""
    known, queues = floors(), waits(0, 0, 1, 5)
    known.deficits[3] = 1.0
    known.settled(3, 100.0, queues, was_owed=False)
    assert known.deficits == pytest.approx([0.0, 0.0, 2.0, 1.0])


def test_only_what_waits_gains_by_the_cost_of_others() -> None:
    """A tier that is away must not come back with a claim."""
    known = floors()
    known.settled(0, 100.0, waits(5, 0, 3, 0), was_owed=False)
    assert known.deficits == pytest.approx([0.0, 0.0, 2.0, 0.0])


def test_an_emptied_tier_loses_its_claim_but_not_its_debt() -> None:
    """Coming and going must be no way to be served before tier 0."""
    known = floors()
    known.deficits[2], known.deficits[3] = 5.0, -5.0
    known.released(0, 1.0, waits(3, 0, 0, 0))
    assert known.deficits[2:] == [0.0, -5.0]
    known.deficits[2] = 0.5  # costs may be GPU seconds
    known.released(0, 1.0, waits(3, 0, 0, 0))
    assert known.deficits[2] == 0.0
    known.deficits[2] = 5.0
    known.released(2, 1.0, waits(3, 0, 0, 0))
    assert known.deficits[2] == 0.0


@pytest.mark.parametrize(
    ("deficit", "cost", "is_owed"),
    [(2.0, 2.0, True), (2.0, 1.0, True), (2.0, 2.1, False), (0.0, 0.0, False), (-1.0, -2.0, False)],
)
def test_a_tier_is_owed_what_its_deficit_covers(
    deficit: float, cost: float, *, is_owed: bool
) -> None:
    """Tier 0 pays the floor and no more; a request that costs nothing is owed nothing."""
    known = floors()
    known.deficits[3] = deficit
    assert known.is_owed(3, cost) is is_owed


def test_a_claim_is_capped_at_one_request_and_a_debt_is_not() -> None:
    """An hour in which a tier could not be served must not become an hour of its service."""
    known = floors()
    known.deficits[2:] = [50.0, -50.0]
    known.cap(2, 3.0)
    known.cap(3, 3.0)
    assert known.deficits[2:] == [3.0, -50.0]
    known.cap(2, 9.0)
    assert known.deficits[2] == 3.0


def test_where_no_tier_has_a_floor_nothing_is_counted() -> None:
    """A service without floors must not pay for them at each event."""
    known = Floors(Policy(tiers=(Tier(name="a"), Tier(name="b"))))
    assert known.may_owe is False
    assert floors().may_owe is True
    known.released(0, 10.0, waits(1, 1))
    known.settled(1, 10.0, waits(1, 1), was_owed=True)
    assert known.deficits == [0.0, 0.0]


@pytest.mark.parametrize("share", [0.1, 0.25])
def test_the_floor_gives_the_share_that_was_configured(share: float) -> None:
    """An operator who promised a tenth must be able to keep it."""
    tiers = (
        Tier(name="top", queue_limit=0, patience_s=1e6),
        Tier(name="low", queue_limit=0, patience_s=1e6, min_share=share),
    )
    script = Script(four_tiers(tiers=tiers, cost="requests")).replica("r", slots=4)
    script.arrive_many("top", 20, tier=0, user="top").arrive_many("low", 99, tier=1, user="low")
    saturated(script, 300)
    # The share is of what the others release.
    assert script.count_of("low") == pytest.approx(300 * share / (1 + share), abs=3)
