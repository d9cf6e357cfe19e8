"""Eligibility classes: who fits the same replicas, and who must not wait behind a stranger."""

import pytest

from gateway.core.kinds import Kind, size_of
from gateway.core.messages import Request
from gateway.core.policy import Policy, Tier
from gateway.core.pool import KINDS_MAX, Pool
from gateway.core.replica import Replica
from tests.support.script import Script, one_tier


def pool() -> Pool:
    """Replicas r1 and r2 serve m, r2 serves x too."""
    found = []
    for name, models in (("r1", {"m"}), ("r2", {"m", "x"})):
        replica = Replica(name, tiers=1, blocks=8)
        replica.models = frozenset(models)
        found.append(replica)
    return Pool(Policy(tiers=(Tier(name="only"),)), ("m", "x"), found)


def kind(pool: Pool, *, kv_tokens: int = 100, **fields: object) -> Kind:
    """The class of such a request."""
    given = {"id": "a", "model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": 0.0}
    return pool.kind_of(Request(**{**given, **fields}), kv_tokens)  # type: ignore[arg-type]  # free keywords


@pytest.mark.parametrize(
    ("kv_tokens", "size"),
    [(0, 0), (1, 0), (4_095, 0), (4_096, 6), (16_383, 6), (16_384, 7), (65_536, 8), (1 << 20, 10)],
)
def test_sizes_are_powers_of_four_and_all_small_ones_are_one(kv_tokens: int, size: int) -> None:
    """Too many classes cost time at each release; too coarse ones hide what would fit."""
    assert size_of(kv_tokens) == size


def test_requests_that_fit_the_same_replicas_share_a_class_whoever_sent_them() -> None:
    """A class for each user would make each release a walk over all users."""
    known = pool()
    usual = kind(known)
    assert usual.replicas == {"r1", "r2"}
    assert (usual.size, usual.sequences, usual.decodes) == (0, 1, True)
    assert kind(known, kv_tokens=4_000, id="b", user="v", tenant="w", output_tokens_max=9) is usual
    failed = frozenset({"r1"})
    special = kind(known, sequences=2, excluded=failed)
    assert special is kind(known, id="b", sequences=2, excluded=failed)


@pytest.mark.parametrize(
    "change",
    [{"model": "x"}, {"sequences": 2}, {"excluded": frozenset({"r1"})}, {"output_tokens_max": 0}],
)
def test_whatever_restricts_the_replicas_makes_another_class(change: dict[str, object]) -> None:
    """A request that fits nowhere must not hold back one that would fit."""
    known = pool()
    other = kind(known, **change)  # type: ignore[arg-type]  # free keywords
    assert other is not kind(known)
    assert kind(known, kv_tokens=5_000) is not kind(known)
    assert (other.decodes, other.sequences) == (
        change.get("output_tokens_max") != 0,
        change.get("sequences", 1),
    )


def test_exclusions_that_leave_the_same_replicas_make_no_class_of_their_own() -> None:
    """Retries carry the names of replicas long gone."""
    known = pool()
    assert kind(known, model="x", excluded=frozenset({"r1", "gone"})).replicas == {"r2"}
    assert kind(known, excluded=frozenset({"gone"})).replicas == {"r1", "r2"}
    assert kind(known, excluded=frozenset({"r1", "r2"})).replicas == frozenset()


def test_only_so_many_classes_are_remembered() -> None:
    """A client that asks for another number of sequences each time must not fill the memory."""
    known = pool()
    for sequences in range(2, 2 * KINDS_MAX):
        assert kind(known, sequences=sequences).sequences == sequences
        assert len(known._kinds) <= KINDS_MAX


def test_a_request_that_fits_nowhere_blocks_only_its_own_class() -> None:
    """The small request behind one that is too large, or has failed everywhere but there."""
    script = Script(one_tier()).replica("r1", slots=1).replica("r2", slots=1)
    script.arrive("held", excluded=frozenset({"r2"})).arrive("other")
    script.arrive_many("stuck", 3, user="a", excluded=frozenset({"r2"}))
    script.arrive("free", user="a").finish("other").expect_granted("free", on="r2")
    script.expect_waiting("stuck0", "stuck1", "stuck2")
