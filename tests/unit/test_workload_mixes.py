"""Who sends: shares of tiers as stated, users by their weights."""

from collections import Counter
from random import Random

import pytest

from gateway.sim.workload.mixes import (
    ANYBODY,
    Crowd,
    Member,
    Tiers,
    crowd,
    enterprise,
    gaussian,
    tier_shares,
    uniform,
)

DRAWS = 20_000


@pytest.mark.parametrize("tiers", [1, 2, 3, 4, 5, 10])
@pytest.mark.parametrize("shape", [uniform, gaussian, enterprise])
def test_every_mix_adds_up_for_any_number_of_tiers(shape: object, tiers: int) -> None:
    """A sweep over K compares mixes: requests must not get lost or doubled in one of them."""
    assert callable(shape)
    shares = shape(tiers)
    assert len(shares) == tiers
    assert sum(shares) == pytest.approx(1.0)
    assert min(shares) > 0


def test_the_enterprise_mix_is_the_published_one() -> None:
    """Who compares with the paper's tables needs its mix, the one of two tiers included."""
    assert enterprise(2) == (0.25, 0.75)
    assert enterprise(3) == pytest.approx((0.10, 0.70, 0.20))
    assert enterprise(4) == pytest.approx((0.10, 0.35, 0.35, 0.20))
    assert enterprise(5) == pytest.approx((0.10, 0.7 / 3, 0.7 / 3, 0.7 / 3, 0.20))


def test_the_gaussian_mix_is_a_bell_around_the_middle() -> None:
    """The same: centre (K-1)/2, sigma K/4."""
    shares = gaussian(5)
    assert shares == pytest.approx(shares[::-1])
    assert shares[2] / shares[1] == pytest.approx(2.718281828 ** ((1 / 1.25) ** 2 / 2))
    assert gaussian(2) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("1", (1.0,)),
        ("1,3", (0.25, 0.75)),
        ("enterprise-4", enterprise(4)),
        ("uniform-2", (0.5, 0.5)),
        ("gaussian-3", gaussian(3)),
        ("0,1", (0.0, 1.0)),
    ],
)
def test_mixes_are_read_as_written(text: str, shares: tuple[float, ...]) -> None:
    """Who types a mix on a command line gets that one."""
    assert tier_shares(text) == pytest.approx(shares)


@pytest.mark.parametrize(
    "text",
    ["", "enterprise", "enterprise-0", "pareto-3", "1,-1", "0,0", "nan", "1,inf", "1e308,1e308"],
)
def test_what_is_no_mix_is_refused_with_what_there_is(text: str) -> None:
    """A typing error must not become a run with other tiers than meant."""
    with pytest.raises(ValueError, match="known: uniform-K, gaussian-K, enterprise-K"):
        tier_shares(text)


@pytest.mark.parametrize("shape", [uniform, gaussian, enterprise])
def test_no_tiers_are_refused(shape: object) -> None:
    """A sweep that begins at zero should say so, not divide by it."""
    assert callable(shape)
    with pytest.raises(ValueError, match="at least one tier"):
        shape(0)


def test_tiers_come_as_often_as_their_shares_say() -> None:
    """All figures by tier rest on it."""
    dice, tiers = Random(7), Tiers(enterprise(4))
    seen = Counter(tiers.draw(dice) for _ in range(DRAWS))
    for tier, share in enumerate(enterprise(4)):
        assert seen[tier] / DRAWS == pytest.approx(share, abs=0.012)


def test_a_tier_without_a_share_never_comes() -> None:
    """An empty tier with one request in it would have a percentile of its own."""
    dice = Random(7)
    assert {Tiers((0.0, 1.0, 0.0)).draw(dice) for _ in range(1_000)} == {1}


def test_users_come_by_weight_and_are_dealt_to_tenants() -> None:
    """Fairness figures need to know who was heavy."""
    members = crowd(users=4, tenants=2, skew=1.0, prefix="x-")
    assert [(each.user, each.tenant) for each in members.members] == [
        ("x-user-0", "x-tenant-0"),
        ("x-user-1", "x-tenant-1"),
        ("x-user-2", "x-tenant-0"),
        ("x-user-3", "x-tenant-1"),
    ]
    dice = Random(7)
    seen = Counter(members.draw(dice).user for _ in range(DRAWS))
    whole = 1 + 1 / 2 + 1 / 3 + 1 / 4
    for rank in range(4):
        share = 1 / (rank + 1) / whole
        assert seen[f"x-user-{rank}"] / DRAWS == pytest.approx(share, abs=0.012)


def test_one_user_is_a_crowd() -> None:
    """The simplest workload needs nobody to be invented."""
    assert ANYBODY.draw(Random(1)) == Member(user="anonymous")


@pytest.mark.parametrize(("users", "tenants"), [(0, 1), (1, 2), (1, 0), (2_000_000, 1)])
def test_impossible_crowds_are_refused(users: int, tenants: int) -> None:
    """A tenant without users would be missing from every table, silently."""
    with pytest.raises(ValueError, match="a crowd needs"):
        crowd(users=users, tenants=tenants)


def test_weights_that_are_none_are_refused() -> None:
    """A negative weight would shift everybody's share."""
    with pytest.raises(ValueError, match="weights"):
        Crowd((Member(user="a", weight=-1.0), Member(user="b", weight=2.0)))
    with pytest.raises(ValueError, match="weights"):
        Crowd(())
    with pytest.raises(ValueError, match="weights"):
        Tiers((0.0,))
