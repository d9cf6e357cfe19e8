"""More load never looks freer, and no tier is let in where an upper one is not."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.flows import Waiting
from gateway.core.freeness import freeness
from gateway.core.gate import Gates, reserved_shares
from gateway.core.policy import DEFAULT_TIERS, Policy, Tier
from gateway.core.replica import Replica
from tests.support.parts import a_replica, a_waiting, put, report
from tests.support.script import four_tiers

NOW = 2.5
HEADROOM = tuple(four_tiers().headroom_fraction(tier) for tier in range(4))

pieces = st.fixed_dictionaries(
    {
        "tier": st.integers(0, 3),
        "prompt_tokens": st.integers(0, 9_000),
        "output_tokens": st.integers(0, 500),
        "output_tokens_max": st.sampled_from([None, None, None, 0]),
        "sequences": st.sampled_from([1, 1, 1, 2, 5]),
    }
)
tiers = st.builds(
    Tier,
    name=st.just("any"),
    queue_limit=st.integers(0, 5),
    tpot_limit_ms=st.sampled_from([50.0, 75.0, 150.0]),
    prefill_limit_s=st.sampled_from([0.1, 1.0, 3.0]),
)
policies = st.one_of(
    st.just(DEFAULT_TIERS), st.lists(tiers, min_size=4, max_size=4).map(tuple)
).flatmap(
    lambda drawn: st.builds(
        four_tiers,
        tiers=st.just(drawn),
        inflight_limit=st.sampled_from([None, 1, 4]),
        allowance=st.sampled_from(["bridge", "constant"]),
        min_inflight=st.integers(0, 2),
        headroom_max=st.sampled_from([0.0, 0.2, 0.6]),
    )
)


@st.composite
def replicas(draw: st.DrawFn) -> Replica:
    """A replica under any load, known well or badly."""
    replica = a_replica(slots=draw(st.one_of(st.none(), st.integers(1, 12))), tiers=4)
    replica.weight = draw(st.sampled_from([0.5, 1.0, 3.0]))
    for number, piece in enumerate(draw(st.lists(pieces, max_size=14))):
        put(replica, f"q{number}", starts=draw(st.booleans()), at=1.0, **fitted(replica, piece))
    if draw(st.booleans()):
        report(
            replica,
            now=2.0,
            round_trip_s=0.2,
            running=draw(st.integers(0, 20)),
            waiting=draw(st.integers(0, 9)),
            kv_use=draw(st.one_of(st.none(), st.floats(0.0, 1.0))),
            kv_capacity_tokens=draw(st.one_of(st.none(), st.integers(1_000, 60_000))),
        )
    for _ in range(draw(st.integers(0, 300))):
        replica.release_rate.add(2.0)
    tpot_s = draw(st.sampled_from([0.01, 0.08, 0.16, 0.9]))
    replica.take_tpot(tpot_s, 60, in_use=4, now=2.0, target_s=0.15)
    if draw(st.booleans()):
        replica.warm_from, replica.warm_until = 2.0, 4.0
    return replica


def fitted(replica: Replica, piece: dict[str, Any]) -> dict[str, Any]:
    """As it would be charged: never more sequences than slots."""
    return {**piece, "sequences": min(piece["sequences"], replica.slots or 5)}


def gates_of(policy: Policy, *, is_active: list[bool]) -> Gates:
    """Gates with the headroom of these tiers kept."""
    gates = Gates(policy)
    headroom = [policy.headroom_fraction(tier) for tier in range(4)]
    gates.reserved = reserved_shares(headroom, is_active)
    return gates


def scores(replica: Replica) -> list[float]:
    """Freeness for each tier, nothing remembered."""
    replica.touch()
    return [freeness(replica, HEADROOM, tier) for tier in range(4)]


def assert_no_freer(replica: Replica, load: Callable[[Replica], object]) -> None:
    """After `load` the replica must not look freer to any tier."""
    before = scores(replica)
    load(replica)
    after = scores(replica)
    assert all(late <= early + 1e-9 for late, early in zip(after, before, strict=True))


def assert_ceilings_fall(gates: Gates, replica: Replica) -> None:
    """Where a tier is let in, all tiers above it must be."""
    replica.away = None
    waiting = replica.waiting
    opened = [gates.closed_by(replica, tier, waiting, NOW) is None for tier in range(4)]
    assert opened == sorted(opened, reverse=True)
    assert gates.open_tiers(replica, NOW) == sum(opened)


def assert_sizes_fall(gates: Gates, replica: Replica, waiting: Waiting) -> None:
    """What is not too large for a tier is not too large for the tiers above it."""
    replica.away = None
    fits = [gates.unfit_by(waiting, replica, tier, NOW) is None for tier in range(4)]
    assert fits == sorted(fits, reverse=True)


active = st.lists(st.booleans(), min_size=4, max_size=4)


@given(replica=replicas(), more=pieces, starts=st.booleans())
def test_more_load_never_raises_freeness(
    *, replica: Replica, more: dict[str, Any], starts: bool
) -> None:
    """A replica that gets fuller must not attract more."""
    piece = fitted(replica, more)
    assert_no_freer(replica, lambda each: put(each, "more", starts=starts, at=2.2, **piece))


@given(replica=replicas(), foreign=st.integers(1, 5))
def test_more_foreign_load_never_raises_freeness(replica: Replica, foreign: int) -> None:
    """Others who use the engine directly are load as well."""
    assert_no_freer(replica, lambda each: setattr(each, "foreign", each.foreign + foreign))


@given(replica=replicas(), policy=policies, is_active=active)
def test_a_gate_open_to_a_tier_is_open_to_all_tiers_above(
    replica: Replica, policy: Policy, is_active: list[bool]
) -> None:
    """Critical must never stand outside a replica on which background is let in."""
    assert_ceilings_fall(gates_of(policy, is_active=is_active), replica)


@given(replica=replicas(), policy=policies, is_active=active, piece=pieces)
def test_what_fits_for_a_tier_fits_for_all_tiers_above(
    replica: Replica, policy: Policy, is_active: list[bool], piece: dict[str, Any]
) -> None:
    """The same request, asked for by somebody more important, must not be too large."""
    waiting = a_waiting("new", **fitted(replica, piece))
    assert_sizes_fall(gates_of(policy, is_active=is_active), replica, waiting)
