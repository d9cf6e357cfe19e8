"""Shares between tiers by weight, for `order: weighted`."""

from dataclasses import replace

import pytest

from gateway.core.messages import Outcome
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from gateway.core.shares import TierShares
from tests.support.script import Script, one_tier


def weighted(*weights: float, **changes: object) -> Policy:
    """Tiers of these weights that release into free slots only and keep no headroom."""
    tiers = tuple(
        Tier(name=f"t{rank}", queue_limit=0, patience_s=1e6, weight=weight)
        for rank, weight in enumerate(weights)
    )
    given = {"tiers": tiers, "order": "weighted", "headroom_max": 0.0, **changes}
    return one_tier(**given)


def shares(*weights: float) -> TierShares:
    """The tags of tiers of these weights."""
    return TierShares(weighted(*weights))


def test_the_smallest_tag_goes_first_and_equal_tags_by_rank() -> None:
    """Among equals the tier that was promised more is served first."""
    known = shares(1.0, 1.0, 1.0)
    assert known.in_order([2, 0, 1]) == [0, 1, 2]
    known.released(0, 5.0)
    known.released(1, 2.0)
    assert known.in_order([0, 1, 2]) == [2, 1, 0]
    assert known.in_order([1, 0]) == [1, 0]
    assert known.in_order([]) == []


def test_a_release_moves_the_tag_by_cost_over_weight() -> None:
    """Who pays for four shares is served four times as often."""
    known = shares(4.0, 1.0)
    known.released(0, 8.0)
    known.released(1, 8.0)
    assert known.starts == [2.0, 8.0]


def test_virtual_time_is_the_tag_of_the_last_release_and_never_goes_back() -> None:
    """It is where a tier that was away begins again."""
    known = shares(1.0, 1.0)
    known.released(0, 10.0)
    assert known.virtual == 0.0
    known.released(0, 10.0)
    assert known.virtual == 10.0
    known.released(1, 1.0)
    assert known.virtual == 10.0


def test_a_tier_that_was_away_has_saved_up_nothing() -> None:
    """The other tiers must not be locked out after a quiet night of one."""
    known = shares(1.0, 1.0)
    known.released(0, 10.0)
    known.released(0, 10.0)
    known.wake(1)
    assert known.starts == [20.0, 10.0]
    known.wake(0)
    assert known.starts[0] == 20.0


def test_a_refund_takes_a_tier_no_further_back_than_where_it_began_to_wait() -> None:
    """Old refunds must not buy a row of turns."""
    known = shares(1.0, 2.0)
    known.released(0, 10.0)
    known.released(0, 10.0)
    known.wake(1)
    known.charge(1, 8.0)
    assert known.starts[1] == 14.0
    known.charge(1, -2.0)
    assert known.starts[1] == 13.0
    known.charge(1, -100.0)
    assert known.starts[1] == 10.0


def test_the_leads_survive_a_regrouping_of_pools() -> None:
    """A replica that comes and goes must not wipe out what a tier has had."""
    old, new = shares(1.0, 1.0, 1.0), shares(1.0, 1.0, 1.0)
    old.released(0, 10.0)
    old.released(0, 10.0)
    old.released(1, 3.0)
    new.virtual = 100.0
    new.starts = [100.0, 105.0, 100.0]
    new.adopt(old)
    assert new.starts == [110.0, 105.0, 100.0]


def test_each_tier_that_waits_gets_its_weights_part() -> None:
    """The operator's contract: 4 to 2 to 1, whatever the rank."""
    script = Script(weighted(4.0, 2.0, 1.0)).replica("r", slots=1).arrive("held")
    for tier in range(3):
        script.arrive_many(f"t{tier}-", 80, tier=tier)
    script.serve(70)
    counts = [script.count_of(f"t{tier}-") for tier in range(3)]
    assert counts == pytest.approx([40, 20, 10], abs=1)


def test_shares_are_of_cost_not_of_requests() -> None:
    """A tier of long answers next to one of short ones."""
    script = Script(weighted(1.0, 1.0, cost="tokens")).replica("r", slots=1).arrive("held")
    long = {"prompt_tokens": 90, "output_tokens_max": 5, "output_tokens": 5}
    short = {"prompt_tokens": 10, "output_tokens_max": 5, "output_tokens": 5}
    script.arrive_many("long", 60, tier=0, **long).arrive_many("short", 150, tier=1, **short)
    script.serve(120)
    assert script.count_of("short") == pytest.approx(5 * script.count_of("long"), abs=6)


def test_estimates_are_settled_between_tiers_too() -> None:
    """The tier whose answers are shorter than predicted would lose half of its share."""
    script = Script(weighted(1.0, 1.0, cost="tokens")).replica("r", slots=1).arrive("held")
    for number in range(150):
        # A new route each time, so that nothing is ever learnt: all are predicted alike.
        script.arrive(f"short{number}", tier=1, route=f"s{number}", output_tokens=27)
        script.arrive(f"long{number}", tier=0, route=f"l{number}", output_tokens=251)
    script.serve(100)
    assert script.count_of("short") == pytest.approx(8 * script.count_of("long"), abs=9)


def test_a_failure_of_ours_costs_the_tier_nothing() -> None:
    """A tier whose replica broke must not also lose the turn."""
    script = Script(weighted(1.0, 1.0)).replica("r", slots=1).arrive("held", tier=0)
    script.arrive_many("a", 4, tier=0).arrive_many("b", 4, tier=1).finish("held")
    first = script.order[-1]
    script.finish(first, outcome=Outcome.FAILED).serve(1)
    assert {id[0] for id in script.order[-2:]} == {"a", "b"}


def test_a_tier_that_comes_back_starts_beside_the_others() -> None:
    """Neither before them for its idle time, nor behind what they had without it."""
    script = Script(weighted(1.0, 1.0)).replica("r", slots=1).arrive_many("a", 200, tier=0)
    script.arrive("b", tier=1).serve(100).arrive_many("late", 60, tier=1).serve(40)
    assert script.count_of("late") == pytest.approx(20, abs=1)


def test_work_that_never_waited_counts_as_well() -> None:
    """A tier that found free slots all night has had them."""
    script = Script(weighted(1.0, 1.0, cost="tokens")).replica("r", slots=1)
    script.arrive("big", tier=0, prompt_tokens=1_000, output_tokens_max=1)
    script.arrive_many("a", 9, tier=0, prompt_tokens=98, output_tokens_max=1)
    script.arrive_many("b", 9, tier=1, prompt_tokens=98, output_tokens_max=1).serve(9)
    assert script.count_of("a") == 0


def test_strict_order_keeps_no_shares() -> None:
    """Tier 0 first, whatever the weights say: they are unused there."""
    tiers = tuple(replace(tier, weight=9.0**tier.queue_limit) for tier in DEFAULT_TIERS)
    script = Script(one_tier(tiers=tiers)).replica("r", slots=1)
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    assert pool.shares is None


def test_rank_still_decides_between_gates_where_shares_decide_between_tiers() -> None:
    """Weights share out what is released; headroom is still kept for the tier above."""
    policy = replace(weighted(1.0, 9.0), headroom_max=0.25, lend=False)
    script = Script(policy).replica("r", slots=4).arrive_many("low", 9, tier=1)
    assert len(script.running) == 3
    script.arrive("top", tier=0).expect_granted("top")
