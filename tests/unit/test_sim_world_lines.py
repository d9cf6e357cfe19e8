"""A batch in a simulated world: as many lines under way as the gateway's window says, each once."""

from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.core.window import WAITING_MIN
from gateway.sim.workload.lengths import Fixed
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.lines import FIRST_NUMBER, LOOK_S, Batch
from gateway.sim.world.play import World
from tests.support.worlds import Jobs, job, plan_of


def test_a_batch_keeps_some_lines_waiting_and_runs_each_once() -> None:
    """What the experiment tells of a batch would not be what a gateway does."""
    people = Jobs([job(0, at=0.1)])
    batch = Batch(people, lines=60, lengths=Fixed(10, 20), tier=3, in_flight=64, seed=0)
    world = World(plan_of(slots=4), batch, Fairgate(Policy(tiers=DEFAULT_TIERS)))
    batch.join(world)
    seen: list[int] = []

    def look() -> None:
        lines = [live for number, live in world.open.items() if number >= FIRST_NUMBER]
        seen.append(sum(live.stay is None for live in lines))
        world.clock.after(LOOK_S, look)

    world.clock.after(0.0, look)
    outcome = world.run()
    assert outcome.counted()["done"] == 61
    assert sorted(outcome.number) == [0, *range(FIRST_NUMBER, FIRST_NUMBER + 60)]
    assert 0 < max(seen) <= WAITING_MIN + 1
