"""The operator's figures, and those that hold where the operator gave none."""

from dataclasses import FrozenInstanceError

import pytest

from gateway.core.policy import (
    DEFAULT_TIERS,
    Affinity,
    Ageing,
    Bounds,
    CostWeights,
    Policy,
    Room,
    Tenant,
    Tier,
)
from tests.support.script import four_tiers


def tiers(count: int) -> tuple[Tier, ...]:
    """So many tiers."""
    return tuple(Tier(name=str(rank)) for rank in range(count))


@pytest.mark.parametrize("count", range(2, 7))
def test_headroom_falls_from_tier_to_tier_to_the_same_fraction(count: int) -> None:
    """The last tier reserves e^-2.5 of what the first does, however many lie between."""
    policy = Policy(tiers=tiers(count))
    shares = [policy.headroom_fraction(rank) for rank in range(count)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 0.20
    assert shares[-1] == pytest.approx(0.20 * 0.0820849986)
    assert sum(shares) < 1.0


def test_four_tiers_reserve_what_the_documentation_says() -> None:
    """An operator who sized a fleet by the table must find the table kept."""
    shares = [100 * four_tiers().headroom_fraction(rank) for rank in range(4)]
    assert shares == pytest.approx([20.0, 8.69, 3.78, 1.64], abs=0.005)


def test_a_single_tier_reserves_nothing() -> None:
    """There is nobody to reserve it from."""
    assert Policy(tiers=tiers(1)).headroom_fraction(0) == 0.0
    assert Policy(tiers=tiers(1), headroom_decay=0.0).headroom_fraction(0) == 0.0


def test_a_decay_that_was_configured_is_used() -> None:
    """0 reserves the same for all tiers."""
    policy = Policy(tiers=tiers(4), headroom_max=0.1, headroom_decay=0.0)
    assert [policy.headroom_fraction(rank) for rank in range(4)] == [0.1] * 4
    steep = Policy(tiers=tiers(4), headroom_max=0.1, headroom_decay=1.0)
    assert steep.headroom_fraction(2) == pytest.approx(0.1 * 0.1353352832)


def test_weights_are_one_where_nothing_was_configured() -> None:
    """Nobody is left out because nobody thought of them."""
    policy = four_tiers(tenants={"acme": Tenant(weight=2.0, users={"alice": 3.0})})
    assert policy.tenant_weight("acme") == 2.0
    assert policy.tenant_weight("other") == 1.0
    assert policy.user_weight("acme", "alice") == 3.0
    assert policy.user_weight("acme", "bob") == policy.user_weight("other", "alice") == 1.0


def test_default_tiers_get_stricter_downwards() -> None:
    """A lower tier with looser gates would sit where an upper one is not let in."""
    limits = [tier.queue_limit for tier in DEFAULT_TIERS]
    speeds = [tier.tpot_limit_ms for tier in DEFAULT_TIERS]
    prefill = [tier.prefill_limit_s for tier in DEFAULT_TIERS]
    assert limits == sorted(set(limits), reverse=True)
    assert limits == [4, 3, 2, 0]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds == [150.0, 150.0, 150.0, 75.0]
    assert prefill == [1.0] * 4
    assert [tier.min_share for tier in DEFAULT_TIERS] == [0.0, 0.02, 0.02, 0.02]
    assert [tier.name for tier in DEFAULT_TIERS] == ["critical", "high", "standard", "background"]


def test_default_patience_and_targets_grow_downwards() -> None:
    """Background work refused sooner than interactive work would be of no use."""
    patience_s = [tier.patience_s for tier in DEFAULT_TIERS]
    targets_ms = [tier.ttft_target_ms for tier in DEFAULT_TIERS]
    assert patience_s == [30, 60, 300, 3600]
    assert targets_ms == [500, 1000, 5000, None]


def test_every_bound_has_the_value_that_is_documented() -> None:
    """An operator plans memory by them."""
    bounds = Bounds()
    assert (bounds.waiting_per_user, bounds.waiting, bounds.waiting_bytes) == (
        1_000,
        10_000,
        1 << 30,
    )
    assert bounds.waiting_tokens is None
    assert bounds.waiting_bytes_per_user is bounds.waiting_tokens_per_user is None
    assert (bounds.retry_after_s_max, bounds.client_stall_s) == (30.0, 60.0)
    assert (bounds.stream_buffer_bytes, bounds.body_bytes) == (1 << 20, 32 << 20)
    assert (Room().requests, Room().body_bytes, Room().tokens) == (None, None, None)
    assert Tenant().room == Tier(name="x").room == Room()


def test_what_was_not_asked_for_is_the_documented_default() -> None:
    """Fair by tokens, strict with floors, lending, no promotion: what the first page promises."""
    policy = four_tiers()
    assert (policy.order, policy.within_user, policy.cost) == ("strict", "fcfs", "tokens")
    assert policy.weights == CostWeights(prompt=1.0, output=2.0, cached=0.1)
    assert policy.ageing == Ageing(after_s=None)
    assert policy.affinity == Affinity(prefix=1.0, session=1.0, adapter=1.0)
    assert (policy.lend, policy.hold_s, policy.min_inflight) == (True, 60.0, 1)
    assert (policy.allowance, policy.limiter, policy.inflight_limit) == ("bridge", "adaptive", None)
    assert (policy.recall, policy.recall_gap) == (True, 0.3)
    assert (policy.reserve_after_s, policy.continuation_wait_s) == (5.0, 30.0)
    assert policy.release_at_once is False


def test_a_policy_cannot_be_changed_in_place() -> None:
    """Half of the scheduler would run by the old one: a change arrives as a new policy."""
    with pytest.raises(FrozenInstanceError):
        four_tiers().lend = False  # type: ignore[misc]  # that is the point
