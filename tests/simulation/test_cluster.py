"""Several gateways before the same engines, over a network that fails, and the judge of them.

`python -m tests.simulation.cluster 0 1000` plays a thousand seeds.
"""

import pytest

from tests.simulation.cluster.planted import PLANTED, Plant
from tests.simulation.cluster.shares import WAITING, shared_out
from tests.simulation.cluster.trial import KINDS, played

SEEDS = 30
SHOWED_FAULTS = (476, 790)
SEEDS_TO_NOTICE = 50
SHARE_MARGIN = 4
"""Requests: those that run when the count begins and ends, and what a checkpoint may lack."""


@pytest.mark.parametrize("seed", [*range(SEEDS), *SHOWED_FAULTS])
def test_every_request_ends_once_and_no_engine_is_overfilled(seed: int) -> None:
    """Requests hang or engines queue whenever a message, a gateway or Redis is lost."""
    assert not played(seed).faults


@pytest.mark.parametrize(("plant", "kind"), PLANTED)
@pytest.mark.sources
def test_a_planted_fault_is_noticed(
    plant: Plant, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge that notices nothing would let everybody believe that the protocol holds."""
    plant(monkeypatch)
    assert kind in KINDS
    assert any(_is_noticed(seed, kind) for seed in range(SEEDS_TO_NOTICE))


def _is_noticed(seed: int, kind: str) -> bool:
    try:
        return bool(played(seed, kind).faults)
    except (AssertionError, LookupError):
        return True


def test_users_of_three_gateways_get_the_same_over_a_change_of_the_leader() -> None:
    """Whoever has a gateway of its own, or most requests, would be served before all others."""
    world, served = shared_out()
    assert world.faults == []
    for users in served:
        assert users.keys() == WAITING.keys()
        assert max(users.values()) - min(users.values()) <= SHARE_MARGIN, served
