"""More load never looks freer, and no tier is let in where an upper one is not."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.fairqueue import Waiting, class_of
from gateway.core.freeness import freeness
from gateway.core.gate import View, closed_by, open_tiers, unfit_by
from gateway.core.ledger import Grant
from gateway.core.messages import ReplicaReport, Request
from gateway.core.replica import Replica
from tests.support.script import four_tiers

POLICY = four_tiers()
HEADROOM = [POLICY.headroom_fraction(tier) for tier in range(4)]
RESERVED = [sum(HEADROOM[:tier]) for tier in range(4)]


@dataclass(frozen=True)
class Piece:
    """One request that is on the replica, or might be put there."""

    tier: int
    prompt_tokens: int
    output_tokens: int
    sequences: int
    is_started: bool

    def waiting(self, id: str) -> Waiting:
        """As it waits."""
        request = Request(
            id=id,
            model="m",
            tier=self.tier,
            tenant="t",
            user="u",
            arrived_at=0.0,
            sequences=self.sequences,
        )
        return Waiting(
            request,
            kind=class_of(request, 1),
            order=(0.0, 0),
            cost=1.0,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            deadline=1.0,
        )


pieces = st.builds(
    Piece,
    tier=st.integers(0, 3),
    prompt_tokens=st.integers(0, 9_000),
    output_tokens=st.integers(0, 500),
    sequences=st.sampled_from([1, 1, 1, 2, 5]),
    is_started=st.booleans(),
)


@st.composite
def replicas(draw: st.DrawFn) -> Replica:
    """A replica under any load, known well or badly."""
    replica = Replica("r", tiers=4)
    replica.models = frozenset("m")
    replica.configured_slots = draw(st.one_of(st.none(), st.integers(1, 12)))
    replica.weight = draw(st.sampled_from([0.5, 1.0, 3.0]))
    for number, piece in enumerate(draw(st.lists(pieces, max_size=14))):
        put(replica, piece, f"q{number}")
    if draw(st.booleans()):
        report = ReplicaReport(
            running=draw(st.integers(0, 20)),
            waiting=draw(st.integers(0, 9)),
            kv_use=draw(st.one_of(st.none(), st.floats(0.0, 1.0))),
            kv_capacity_tokens=draw(st.one_of(st.none(), st.integers(1_000, 60_000))),
        )
        replica.take_report(report, sent_at=2.0, now=2.0, round_trip_s=0.2)
    for _ in range(draw(st.integers(0, 300))):
        replica.release_rate.add(2.0)
    replica.take_tpot(draw(st.sampled_from([0.01, 0.08, 0.16, 0.9])), 2.0)
    return replica


def put(replica: Replica, piece: Piece, id: str) -> None:
    """Let the replica work on it."""
    slots = replica.slots or piece.sequences
    grant = Grant(piece.waiting(id), sequences=min(slots, piece.sequences), granted_at=1.0)
    replica.ledger.enter(grant, 1.0)
    if piece.is_started:
        replica.ledger.start(id)


def assert_no_freer(replica: Replica, load: Callable[[Replica], object]) -> None:
    """After `load` the replica must not look freer to any tier."""
    before = [freeness(replica, HEADROOM, tier) for tier in range(4)]
    load(replica)
    after = [freeness(replica, HEADROOM, tier) for tier in range(4)]
    assert all(late <= early + 1e-9 for late, early in zip(after, before, strict=True))


def assert_ceilings_fall(replica: Replica) -> None:
    """Where a tier is let in, all tiers above it must be."""
    view = View(replica, 2.5)
    opened = [
        closed_by(view, POLICY, tier, reserved) is None
        for tier, reserved in zip(POLICY.tiers, RESERVED, strict=True)
    ]
    assert opened == sorted(opened, reverse=True)
    assert open_tiers(replica, POLICY, RESERVED, 2.5) == sum(opened)


@given(replica=replicas(), more=pieces)
def test_more_load_never_raises_freeness(replica: Replica, more: Piece) -> None:
    """A replica that gets fuller must not attract more."""
    assert_no_freer(replica, lambda each: put(each, more, "more"))


@given(replica=replicas(), foreign=st.integers(1, 5))
def test_more_foreign_load_never_raises_freeness(replica: Replica, foreign: int) -> None:
    """Others who use the engine directly are load as well."""
    assert_no_freer(replica, lambda each: setattr(each, "foreign", each.foreign + foreign))


@given(replica=replicas())
def test_a_gate_open_to_a_tier_is_open_to_all_tiers_above(replica: Replica) -> None:
    """Critical must never stand outside a replica on which background is let in."""
    assert_ceilings_fall(replica)


@given(replica=replicas(), piece=pieces)
def test_what_fits_for_a_tier_fits_for_all_tiers_above(replica: Replica, piece: Piece) -> None:
    """The same request, asked for by somebody more important, must not be too large."""
    waiting = piece.waiting("new")
    fits = [
        unfit_by(waiting, replica, tier, reserved=reserved) is None
        for tier, reserved in zip(POLICY.tiers, RESERVED, strict=True)
    ]
    assert fits == sorted(fits, reverse=True)
