"""Whatever fails, leaves, lies or is moved: every request of a simulated run ends exactly once."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import invariants
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.baselines.fifo import Fifo
from gateway.sim.baselines.simple import LeastOutstanding, RoundRobin
from gateway.sim.engine_config import EngineConfig
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions, Dispatch, Move, TakeBack
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.outcome import Status
from gateway.sim.world.plan import Drain, Engines, Failure, Lie, Misfortune, Plan, Reports
from gateway.sim.world.play import World
from gateway.sim.world.several import Several
from tests.support.worlds import STEADY, Jobs, job

REPLICAS = 3
POLICY = Policy(
    tiers=tuple(
        replace(tier, continuation=rank < 2, patience_s=20.0)
        for rank, tier in enumerate(DEFAULT_TIERS)
    ),
    migrate_running="balance",
    continuation_wait_s=3.0,
)


class Restless(LeastOutstanding):
    """Moves and takes back at random, for no reason."""

    def __init__(self) -> None:
        super().__init__()
        self._dice = Random(5)

    def first_token(self, number: int, now: float) -> Decisions:
        """Something happens to it, as often as not."""
        target = self._dice.randrange(REPLICAS)
        kind = self._dice.randrange(4)
        if kind == 0:
            return (TakeBack(number, even_begun=True),)
        return (Move(number, target),) if kind == 1 else ()

    def arrived(self, job: Job, now: float) -> Decisions:
        """Another one is moved as this one comes."""
        out = list(super().arrived(job, now))
        others = [number for number in self._at if number != job.number]
        if others and self._dice.random() < 0.3:
            other = self._dice.choice(others)
            out.append(
                TakeBack(other) if self._dice.random() < 0.5 else Move(other, len(others) % 3)
            )
        return out

    def moved(self, number: int, now: float, *, replica: int, is_done: bool) -> Decisions:
        """It is another replica's now."""
        if is_done:
            self.outstanding[self._at[number]] -= 1
            self.outstanding[replica] += 1
            self._at[number] = replica
        return ()

    def taken_back(self, number: int, now: float, *, output_tokens: int) -> Decisions:
        """It is sent again."""
        self._gone(number)
        return self._send(number)


makers: st.SearchStrategy[Callable[[], Dispatch]] = st.sampled_from(
    [
        lambda: Fairgate(POLICY),
        lambda: Several([Fairgate(POLICY), Fairgate(POLICY)], loss=0.2),
        RoundRobin,
        LeastOutstanding,
        Fifo,
        Restless,
    ]
)

jobs = st.lists(
    st.tuples(
        st.floats(0, 5), st.integers(1, 60), st.integers(1, 80), st.integers(0, 3),
        st.one_of(st.none(), st.floats(0, 6)),
    ),
    min_size=1,
    max_size=40,
)  # fmt: skip

spans = st.tuples(st.integers(0, REPLICAS - 1), st.floats(0, 5), st.floats(0.01, 5))
events = st.lists(
    st.builds(
        lambda kind, span: kind(replica=span[0], at=span[1], until=span[1] + span[2]),
        st.sampled_from([Failure, Drain, Lie]),
        spans,
    ),
    max_size=4,
)


@given(
    make=makers,
    drawn=jobs,
    drawn_events=events,
    slots=st.integers(1, 4),
    is_continued=st.booleans(),
    loss=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_exactly_once(
    make: Callable[[], Dispatch],
    drawn: list[tuple[float, int, int, int, float | None]],
    drawn_events: list[Misfortune],
    slots: int,
    is_continued: bool,
    loss: float,
) -> None:
    """Percentiles of a run would leave out those that it lost, which are the worst."""
    source = Jobs(
        [
            job(
                number,
                at=at,
                prompt=prompt,
                output=output,
                tier=tier,
                leaves_at=None if patience is None else at + patience,
            )
            for number, (at, prompt, output, tier, patience) in enumerate(
                sorted(drawn, key=lambda each: each[0])
            )
        ]
    )
    config = EngineConfig(max_num_seqs=slots, kv_blocks=20, policy="priority")
    plan = Plan(
        engines=(Engines(n=REPLICAS, profile=STEADY, config=config),),
        reports=Reports(interval_s=0.3, loss=loss),
        progress_interval_s=0.3,
        events=_apart(drawn_events),
        is_continued=is_continued,
        until_s=200.0,
    )
    dispatch = make()
    world = World(plan, source, dispatch)
    outcome = world.run()
    assert not world.open
    assert len(source.ended_at) == outcome.n == len(drawn)
    assert Status.OPEN not in outcome.status
    for station in world.stations:
        station.engine.check_invariants()
        assert station.engine.running + station.engine.waiting == len(station.stays)
    for row in range(outcome.n):
        if outcome.status[row] == Status.DONE:
            assert outcome.output[row] == drawn_length(source, outcome.number[row])
            assert outcome.arrived[row] <= outcome.first[row] <= outcome.ended[row]
    for gateway in dispatch.gateways if isinstance(dispatch, Several) else (dispatch,):
        if isinstance(gateway, Fairgate):
            invariants.check(gateway.scheduler)
            assert not gateway.scheduler.granted
            assert not gateway.scheduler.waiting


def drawn_length(source: Jobs, number: int) -> int:
    """What the whole answer has."""
    return source.list[number].output_tokens


def _apart(drawn: list[Misfortune]) -> tuple[Misfortune, ...]:
    """No replica dies while it is dead, and it is drained once."""
    kept: list[Misfortune] = []
    for event in sorted(drawn, key=lambda each: each.at):
        overlaps = any(
            type(each) is type(event) and each.replica == event.replica and each.until >= event.at
            for each in kept
        )
        if not overlaps:
            kept.append(event)
    return tuple(kept)
