"""The operator's figures."""

import pytest

from gateway.core.policy import DEFAULT_TIERS, Policy, Tenant, Tier
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


def test_a_single_tier_reserves_nothing() -> None:
    """There is nobody to reserve it from."""
    assert Policy(tiers=tiers(1)).headroom_fraction(0) == 0.0


def test_a_decay_that_was_configured_is_used() -> None:
    """0 reserves the same for all tiers."""
    policy = Policy(tiers=tiers(4), headroom_max=0.1, headroom_decay=0.0)
    assert [policy.headroom_fraction(rank) for rank in range(4)] == [0.1] * 4


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
    assert limits == sorted(set(limits), reverse=True)
    assert speeds == sorted(speeds, reverse=True)
    assert [tier.min_share for tier in DEFAULT_TIERS] == [0.0, 0.02, 0.02, 0.02]
