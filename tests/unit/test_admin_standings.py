"""Who runs how much and what would be fair, counted for people who look: on real schedulers."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.history import (
    SAMPLES_MAX,
    STEP_S,
    TENANTS_KEPT,
    TENANTS_TOLD,
    History,
    point_of,
)
from gateway.admin.standings import Picture, Standing, fair_parts, picture_of
from gateway.core.policy import Order, Policy, Tenant, Tier
from gateway.core.snapshot import snapshot
from tests.support.script import Script

TIERS = (Tier(name="high", queue_limit=0), Tier(name="low", queue_limit=0))
POLICY = Policy(
    tiers=TIERS, cost="requests", headroom_max=0.0, warm_up_s=0.0,
    tenants={"heavy": Tenant(weight=2.0)},
)  # fmt: skip
NAMES = st.sampled_from("abcdef")


def crowded(slots: int = 6, policy: Policy = POLICY) -> Script:
    """Two tenants in the lower tier that want more than there is, and one request above them."""
    script = Script(policy).replica("r", slots=slots)
    script.arrive("top", tenant="top", tier=0)
    script.arrive_many("h", 10, tenant="heavy", tier=1)
    return script.arrive_many("l", 10, tenant="light", tier=1)


@given(
    amount=st.floats(0, 100),
    wanted=st.dictionaries(NAMES, st.integers(0, 40).map(float), min_size=1),
    weights=st.fixed_dictionaries(dict.fromkeys("abcdef", st.floats(0.1, 10))),
)
def test_parts_are_max_min_fair(
    amount: float, wanted: dict[str, float], weights: dict[str, float]
) -> None:
    """Who is shown as short of a share that nobody owes it complains for nothing."""
    parts = fair_parts(amount, wanted, weights)
    assert sum(parts.values()) == pytest.approx(min(amount, sum(wanted.values())), abs=1e-9)
    level = max((parts[name] / weights[name] for name in parts), default=0.0)
    for name, part in parts.items():
        assert 0 <= part <= wanted[name] + 1e-9
        if part < wanted[name] - 1e-6:
            assert part / weights[name] == pytest.approx(level, rel=1e-6), "it could have more"


def test_what_waits_and_runs_is_counted_by_tenant_and_tier() -> None:
    """The table must add up to what the scheduler holds."""
    script = crowded()
    picture = picture_of(script.scheduler)
    assert picture.running == len(script.scheduler.granted) == 6
    assert [each.waiting + each.running for each in picture.tiers] == [1, 20]
    assert {name: each.wanted for name, each in picture.tenants.items()} == {
        "top": 1, "heavy": 10, "light": 10,
    }  # fmt: skip
    assert picture.places["heavy", 1].waiting + picture.places["heavy", 1].running == 10
    assert ("heavy", 0) not in picture.places


def test_the_fair_part_is_by_weight_inside_the_tier() -> None:
    """A tenant of the lowest tier is not owed what the tiers above it use."""
    script = crowded(slots=7)
    picture = picture_of(script.scheduler)
    assert picture.tenants["top"].fair == 1.0
    assert picture.tenants["heavy"].fair == pytest.approx(4.0)
    assert picture.tenants["light"].fair == pytest.approx(2.0)


def test_once_all_have_been_served_everybody_has_its_fair_part() -> None:
    """The scheduler and the picture must mean the same by fair, or the chart accuses it falsely."""
    script = crowded(slots=6)
    script.arrive_many("hh", 60, tenant="heavy", tier=1)
    script.arrive_many("ll", 60, tenant="light", tier=1)
    script.serve(40)
    heavy, light = (picture_of(script.scheduler).tenants[name] for name in ("heavy", "light"))
    assert abs(heavy.running - heavy.fair) <= 1
    assert abs(light.running - light.fair) <= 1


def test_what_a_cap_holds_is_counted_apart_and_wanted_by_nobody() -> None:
    """A tenant at its own cap is not treated unfairly."""
    script = Script(POLICY).replica("r", slots=6)
    script.arrive_many("c", 5, tenant="heavy", tier=1, caps=(("tenant heavy", 2),))
    script.arrive_many("l", 3, tenant="light", tier=1)
    picture = picture_of(script.scheduler)
    heavy = picture.tenants["heavy"]
    assert (heavy.running, heavy.held, heavy.waiting, heavy.wanted) == (2, 3, 0, 2)
    assert (heavy.fair, picture.tenants["light"].fair) == (2.0, 3.0)
    assert picture.tiers[1].held == 3


@pytest.mark.parametrize("order", ["strict", "weighted"])
def test_tiers_have_a_fair_part_only_where_they_have_weights(order: Order) -> None:
    """By rank the first tier may have everything, and that is meant."""
    policy = replace(POLICY, order=order, tiers=(TIERS[0], replace(TIERS[1], weight=2.0)))
    script = Script(policy).replica("r", slots=6)
    script.arrive_many("a", 20, tier=0).arrive_many("b", 20, tier=1)
    history = History(script.scheduler)
    history.look(0.0, 0.0)
    shares = [each.fair_share[0] for each in history.tiers()]
    assert shares == ([None, None] if order == "strict" else [0.3333, 0.6667])


def test_a_look_changes_nothing() -> None:
    """An operator who watches must not make the gateway decide otherwise."""
    script = crowded()
    script.arrive_many("c", 5, tenant="capped", tier=1, caps=(("tenant capped", 1),))
    before = snapshot(script.scheduler, script.now)
    picture_of(script.scheduler)
    assert snapshot(script.scheduler, script.now) == before


def test_nothing_here_is_nothing_told() -> None:
    """The first look of the first day."""
    assert picture_of(Script(POLICY).scheduler).tenants == {}
    history = History(Script(POLICY).scheduler)
    assert (history.tenants(), [each.waiting for each in history.tiers()]) == ([], [[], []])


def test_samples_come_in_even_steps_and_the_oldest_go() -> None:
    """A chart with a crooked axis lies, and a ring without an end fills the memory."""
    script = crowded()
    history = History(script.scheduler)
    for tenth in range(int(STEP_S * 10) * (SAMPLES_MAX + 5)):
        history.look(tenth / 10, 1_000.0 + tenth / 10)
    instants = [each.at for each in history.samples]
    assert len(instants) == SAMPLES_MAX
    steps = {round(after - before, 1) for before, after in pairwise(instants)}
    assert steps == {STEP_S}


def test_after_a_pause_one_sample_is_taken_and_no_burst() -> None:
    """The loop stood still for a minute; what was then nobody knows."""
    history = History(crowded().scheduler)
    for now in (0.0, 60.0, 60.5, 61.0):
        history.look(now, now)
    assert [each.at for each in history.samples] == [0.0, 60.0]


def test_the_greatest_tenants_are_kept_and_told() -> None:
    """A thousand tenants must not make a thousand lines."""
    script = Script(POLICY).replica("r", slots=2)
    for number in range(TENANTS_KEPT + 5):
        script.arrive_many(f"n{number}-", 1 + (number == 3), tenant=f"t{number:02}", tier=1)
    history = History(script.scheduler)
    history.look(0.0, 0.0)
    script.advance(STEP_S)
    history.look(STEP_S, STEP_S)
    assert len(history.samples[0].tenants) == TENANTS_KEPT
    told = history.tenants()
    assert len(told) == TENANTS_TOLD
    assert "t03" in [each.name for each in told], "it wants most"
    assert all(len(each.running) == len(each.share) == 2 for each in told)


def test_shares_are_of_all_that_runs() -> None:
    """Half of what runs is half, whatever waits."""
    history = History(crowded(slots=6).scheduler)
    history.look(0.0, 0.0)
    told = {each.name: each for each in history.tenants()}
    assert sum(each.share[0] or 0 for each in told.values()) == pytest.approx(1.0, abs=1e-3)
    assert told["top"].fair_share == [0.1667]
    assert point_of(Standing(waiting=3), Picture([])).share is None, "nothing runs"
