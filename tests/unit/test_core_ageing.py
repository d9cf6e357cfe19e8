"""Promotion of single requests that waited long, at a bounded rate."""

import pytest

from gateway.core.ageing import Elders
from gateway.core.flows import Waiting
from gateway.core.kinds import Kind
from gateway.core.policy import Ageing, Tier
from tests.support.script import Script, one_tier
from tests.unit.test_core_flows import waiting

OTHER = Kind(frozenset({"r"}), size=7, sequences=1, decodes=True)
TWO = (
    Tier(name="top", queue_limit=1, patience_s=1e6),
    Tier(name="low", queue_limit=0, patience_s=1e6),
)


def elders(*arrived_at: float, after_s: float = 10.0, per_s: float = 1.0) -> Elders:
    """Requests that came at these instants, `e0`, `e1` ..."""
    found = Elders(Ageing(after_s=after_s, per_s=per_s))
    for number, instant in enumerate(arrived_at):
        found.push(waiting(f"e{number}", sequence=number, arrived_at=instant))
    return found


def ids(found: list[Waiting]) -> list[str]:
    """Their ids, in order."""
    return [each.request.id for each in found]


def ageing_script(**ageing: float) -> Script:
    """Two tiers without floors, one slot, and a tier 0 that never runs dry."""
    script = Script(one_tier(tiers=TWO, ageing=Ageing(**ageing))).replica("r", slots=1)
    return script.arrive_many("top", 3, tier=0, user="top")


def saturated(script: Script, turns: int) -> Script:
    """The oldest request ends each second and another one of tier 0 comes."""
    for _ in range(turns):
        script.arrive(f"top-{len(script.log)}", tier=0, user="top").serve(1)
    return script


def test_a_request_is_aged_from_the_instant_on_that_the_operator_named() -> None:
    """Not a moment sooner: promotion costs tier 0."""
    known = elders(5.0)
    assert known.aged(14.999) == []
    assert ids(known.aged(15.0)) == ["e0"]
    each = waiting("x", arrived_at=5.0)
    assert not known.is_aged(each, 14.999)
    assert known.is_aged(each, 15.0)


def test_nobody_is_aged_where_nobody_waits() -> None:
    """Most events find nothing old."""
    assert elders().aged(100.0) == []


def test_the_oldest_of_each_class_comes_first_whatever_its_class() -> None:
    """A large old request must not hide the next one, which would fit."""
    known = Elders(Ageing(after_s=10.0))
    known.push(waiting("young", sequence=0, arrived_at=3.0))
    known.push(waiting("old", sequence=1, arrived_at=1.0))
    known.push(waiting("large", sequence=2, arrived_at=2.0, kind=OTHER))
    assert ids(known.aged(50.0)) == ["old", "large"]
    known.push(waiting("twin", sequence=3, arrived_at=1.0, kind=OTHER))
    assert ids(known.aged(50.0)) == ["old", "twin"]
    assert ids(known.aged(11.5)) == ["old", "twin"]


def test_who_left_is_promoted_no_more() -> None:
    """A cancelled request must not use up the promotion of one who waits."""
    known = Elders(Ageing(after_s=10.0))
    first, second = waiting("a", sequence=0), waiting("b", sequence=1, kind=OTHER)
    known.push(first)
    known.push(second)
    first.ticket = 0
    known.left(first)
    assert ids(known.aged(50.0)) == ["b"]
    second.ticket = 0
    known.left(second)
    assert known.aged(50.0) == []
    assert known._by_kind == {}


def test_only_so_many_are_promoted_a_second_and_none_are_saved_up() -> None:
    """A flood of old work must not become a new tier 0."""
    known = elders(*range(9), per_s=0.5)
    assert known.aged(1_000.0)
    known.promoted(1_000.0)
    assert known.aged(1_000.0) == []
    assert known.aged(1_001.5) == []
    assert known.aged(1_002.0)
    known.promoted(1_002.0)
    assert known.aged(1_003.0) == []
    # An hour of rest is worth one promotion.
    assert known.aged(4_600.0)
    known.promoted(4_600.0)
    assert known.aged(4_600.0) == []


def test_a_promotion_at_an_instant_that_was_not_looked_at_counts_too() -> None:
    """The rate is of promotions, not of looks."""
    known = elders(0.0, per_s=0.25)
    known.promoted(20.0)
    assert known.aged(20.0) == []
    assert known.aged(23.9) == []
    assert known.aged(24.0)


def test_time_that_runs_backwards_promotes_nobody() -> None:
    """A clock of the simulator that is set back must not pay anybody."""
    known = elders(0.0)
    known.promoted(20.0)
    assert known.aged(19.0) == []
    assert known.aged(19.5) == []


def test_a_regrouping_of_pools_promotes_nobody_sooner() -> None:
    """A replica that comes and goes would otherwise hand out a promotion each time."""
    spent, fresh = elders(0.0), elders(0.0)
    spent.promoted(20.0)
    fresh.adopt(spent)
    assert fresh.aged(20.0) == []
    assert fresh.aged(21.0)
    fresh.promoted(21.0)
    fresh.adopt(elders())
    assert fresh.aged(21.5) == []


def test_an_aged_request_goes_before_tier_zero_and_through_its_gates() -> None:
    """A tier without a floor under a saturating tier 0: its own gate is shut all the time."""
    script = ageing_script(after_s=30.0).arrive("low", tier=1, user="low")
    saturated(script, 29).expect_waiting("low")
    saturated(script, 3)
    assert "low" in script.order


def test_promotions_keep_their_rate_beside_a_saturating_tier_zero() -> None:
    """Tier 0 pays one request in ten seconds, not its whole fleet."""
    script = ageing_script(after_s=20.0, per_s=0.1).arrive_many("low", 50, tier=1, user="low")
    saturated(script, 120)
    assert script.count_of("low") == pytest.approx((120 - 20) * 0.1 + 1, abs=1)


def test_the_oldest_is_promoted_whatever_its_flow_has_cost() -> None:
    """Ageing guards the one request that its own tier's order keeps behind."""
    script = ageing_script(after_s=20.0, per_s=0.2).arrive_many("old", 2, tier=1, user="a")
    script.advance(1.0).arrive_many("other", 9, tier=1, user="b")
    saturated(script, 30)
    low = [id for id in script.order if not id.startswith("top")]
    assert low[:2] == ["old0", "old1"]


def test_a_newcomer_is_not_set_back_by_the_promotion_of_a_heavy_tenant() -> None:
    """The light tenant that comes a moment after a power user's old request was let go."""
    policy = one_tier(tiers=TWO, cost="tokens", ageing=Ageing(after_s=20.0, per_s=0.1))
    script = Script(policy).replica("r", slots=1).arrive("first", tier=1, tenant="z")
    script.arrive("huge", tier=1, tenant="heavy", prompt_tokens=100_000).finish("first")
    script.arrive("heavy", tier=1, tenant="heavy", output_tokens_max=10).advance(15.0)
    script.arrive_many("light", 60, tier=1, tenant="light", output_tokens_max=10)
    script.serve(4).advance(4.0).serve(3)
    assert "heavy" in script.order
    script.arrive_many("new", 20, tier=1, tenant="new", output_tokens_max=10).serve(20)
    assert script.count_of("new") == pytest.approx(10, abs=2)


def test_without_an_age_nobody_is_promoted() -> None:
    """The default: the operator who did not ask for it does not pay for it."""
    script = Script(one_tier(tiers=TWO)).replica("r", slots=1)
    script.arrive_many("top", 3, tier=0, user="top").arrive("low", tier=1)
    saturated(script, 100).expect_waiting("low")
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    assert pool.elders is None


def test_requests_of_tier_zero_are_not_promoted() -> None:
    """They are first anyway, and would use up what the others are promised."""
    script = ageing_script(after_s=1.0).advance(5.0)
    pool = script.scheduler.pool_of("m")
    assert pool is not None
    assert pool.elders is not None
    assert pool.elders.aged(script.now) == []
