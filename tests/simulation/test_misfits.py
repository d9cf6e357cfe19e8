"""Heads that fit nowhere at the moment: they block nobody, and their turn comes."""

from functools import cache

import pytest

from tests.simulation import policies
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job, Size
from tests.simulation.fleet.replica import ReplicaSpec
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, chat, keep_asking

SENT_S, UNTIL_S = 20.0, 80.0
MISFITS = {
    "adapter": ("m:lora", Size(100, 50)),
    "size": ("m", Size(70_000, 200)),
    "sequences": ("m", Size(100, 50, sequences=12)),
    "half the slots": ("m", Size(100, 50, sequences=5)),
}
SPECS = (
    ReplicaSpec(name="a", slots=8),
    ReplicaSpec(name="b", slots=8, models=frozenset({"m", "m:lora"})),
)


@cache
def beside(kind: str | None) -> tuple[float, Job | None]:
    """Work that a busy fleet did beside one misfit, in GPU seconds, and the misfit."""
    policy = policies.gated(tiers=policies.one_tier())
    fleet = Fleet(policy, SPECS, Wires(late_s=1.0))
    for number in range(4):
        keep_asking(fleet, Asking(user=f"u{number}"), chat, depth=12, seed=number)
    fleet.run(SENT_S)
    before_s = figures.gpu_s(fleet)
    job = None
    if kind is not None:
        model, size = MISFITS[kind]
        job = fleet.send("misfit", size, model=model, says_max=True)
    fleet.run(UNTIL_S)
    return figures.gpu_s(fleet) - before_s, job


@pytest.mark.parametrize("kind", MISFITS)
def test_a_head_that_fits_nowhere_is_served_all_the_same(kind: str) -> None:
    """Small requests of others must not pass it by for ever."""
    _, job = beside(kind)
    assert job is not None
    assert job.granted_at is not None
    assert job.granted_at - SENT_S <= 30.0
    assert job.first_token_at is not None


@pytest.mark.parametrize("kind", MISFITS)
def test_a_head_that_fits_nowhere_blocks_nobody(kind: str) -> None:
    """One odd request must not stop a fleet; draining a replica for it has a price."""
    done_s, _ = beside(kind)
    usual_s, _ = beside(None)
    assert done_s >= 0.93 * usual_s
