"""Several gateways before the same engines, over a network that fails, and the judge of them.

`python -m tests.simulation.cluster 0 1000` plays a thousand seeds.
"""

import pytest

from tests.simulation.cluster.planted import PLANTED, Plant
from tests.simulation.cluster.trial import KINDS, played

SEEDS = 30
SEEDS_TO_NOTICE = 50


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_request_ends_once_and_no_engine_is_overfilled(seed: int) -> None:
    """Requests hang or engines queue whenever a message, a gateway or Redis is lost."""
    assert not played(seed).faults


@pytest.mark.parametrize(("plant", "kind"), PLANTED)
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
