"""The engine model: what every run of it keeps, and the behaviour seen in a real engine."""

from collections import Counter
from typing import TypedDict, Unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sim.engine_config import EngineConfig, SchedulingPolicy
from gateway.sim.profiles import DEMO, INSTANT, PROFILES, profile_named
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence


class Limits(TypedDict, total=False):
    """Those of an engine that tests set."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int
    block_tokens: int
    watermark_blocks: int


def engine_of(*, policy: SchedulingPolicy = "fcfs", **limits: Unpack[Limits]) -> Engine:
    """An engine whose steps take no time."""
    return Engine(INSTANT, EngineConfig(policy=policy, **limits))


def small_engine(policy: SchedulingPolicy = "fcfs") -> Engine:
    """Four slots, and KV for little more than one long sequence."""
    return engine_of(
        policy=policy, max_num_seqs=4, max_num_batched_tokens=16, kv_blocks=12, block_tokens=4
    )


def sequence(id: str, *, prompt: int = 1, output: int = 1, priority: int = 0) -> Sequence:
    """Short for a `Sequence`."""
    return Sequence(id=id, prompt_tokens=prompt, output_tokens=output, priority=priority)


def run_step(engine: Engine) -> list[str]:
    """One whole step; the ids that got a token, finished ones with a full stop."""
    if engine.next_step() is None:
        return []
    return [out.sequence_id + "." * out.finished for out in engine.complete_step()]


def run_dry(engine: Engine) -> Counter[str]:
    """Steps until nothing is left; tokens by sequence."""
    tokens: Counter[str] = Counter()
    while engine.next_step() is not None:
        engine.check_invariants()
        for out in engine.complete_step():
            tokens[out.sequence_id] += out.n_tokens
        engine.check_invariants()
    return tokens


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 24), st.integers(0, 20), st.integers(-2, 2)),
        st.tuples(st.just("abort"), st.integers(0, 40), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(operations=operations, policy=st.sampled_from(["fcfs", "priority"]))
@settings(max_examples=100)
def test_no_order_of_events_breaks_the_engine(
    operations: list[tuple[str, int, int, int]], policy: SchedulingPolicy
) -> None:
    """Every simulation and every emulated test would be built on sand."""
    engine = small_engine(policy)
    wanted: dict[str, int] = {}
    tokens: Counter[str] = Counter()
    aborted: set[str] = set()
    for kind, a, b, priority in operations:
        if kind == "add":
            id = str(len(wanted))
            wanted[id] = b
            engine.add(sequence(id, prompt=a, output=b, priority=priority))
        elif kind == "abort" and engine.abort(str(a)):
            aborted.add(str(a))
        elif kind == "step":
            for _ in range(a):
                tokens.update(_stepped(engine))
        engine.check_invariants()
    tokens.update(run_dry(engine))
    for id, output in wanted.items():
        assert tokens[id] <= output if id in aborted else tokens[id] == output
    counters = engine.counters
    assert counters.generation_tokens == sum(tokens.values())
    assert counters.finished + counters.aborted == len(wanted)
    assert counters.resumptions <= counters.preemptions
    assert engine.kv_use == 0


def _stepped(engine: Engine) -> Counter[str]:
    if engine.next_step() is None:
        return Counter()
    return Counter({out.sequence_id: out.n_tokens for out in engine.complete_step()})


@given(
    lengths=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 20)), min_size=1, max_size=12),
    abort_at=st.integers(0, 30),
)
def test_an_abort_between_the_ends_of_a_step_leaves_nothing_behind(
    lengths: list[tuple[int, int]], abort_at: int
) -> None:
    """A client that leaves during a step would hold KV blocks until the server is restarted."""
    engine = small_engine()
    for index, (prompt, output) in enumerate(lengths):
        engine.add(sequence(str(index), prompt=prompt, output=output))
    steps = 0
    while engine.next_step() is not None:
        if steps == abort_at:
            for index in range(len(lengths)):
                engine.abort(str(index))
            assert engine.complete_step() == []
        else:
            engine.complete_step()
        steps += 1
        engine.check_invariants()
    assert (engine.running, engine.waiting, engine.kv_use) == (0, 0, 0)


@given(priorities=st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_the_priority_policy_starts_the_lowest_value_first_and_ties_by_arrival(
    priorities: list[int],
) -> None:
    """A gateway that passes the tier to the engine would see it served in another order."""
    engine = engine_of(policy="priority", max_num_seqs=1)
    for index, priority in enumerate(priorities):
        engine.add(sequence(str(index), priority=priority))
    started: list[str] = []
    while (plan := engine.next_step()) is not None:
        started += plan.admitted
        engine.complete_step()
    expected = sorted(range(len(priorities)), key=lambda index: (priorities[index], index))
    assert started == [str(index) for index in expected]


def test_fcfs_accepts_a_priority_and_ignores_it() -> None:
    """The contrast between the two policies would be lost in tests."""
    engine = engine_of(max_num_seqs=1)
    engine.add(sequence("first", priority=9))
    engine.add(sequence("second", priority=-9))
    assert run_step(engine) == ["first."]


def test_an_urgent_arrival_never_stops_a_running_sequence() -> None:
    """Tiers would look better in simulation than a real engine makes them."""
    engine = engine_of(policy="priority", max_num_seqs=1)
    engine.add(sequence("slow", output=3, priority=10))
    assert run_step(engine) == ["slow"]
    engine.add(sequence("urgent", priority=-10))
    assert [run_step(engine), run_step(engine)] == [["slow"], ["slow."]]
    assert run_step(engine) == ["urgent."]


def test_under_kv_pressure_the_largest_priority_is_preempted_and_loses_no_token() -> None:
    """Recorded with 13 blocks of 128, priorities 0 to 3: 3, then 2 paused, 0 and 1 did not."""
    engine = engine_of(policy="priority", max_num_seqs=4, kv_blocks=13, block_tokens=128)
    tokens: Counter[str] = Counter()
    for priority in (2, 3, 0, 1):
        engine.add(sequence(str(priority), prompt=250, output=500, priority=priority))
        tokens.update(run_step(engine))
    paused: list[str] = []
    engine.next_step()
    while engine.is_stepping:
        got = {out.sequence_id for out in engine.complete_step()}
        tokens.update(got)
        left = {id for id in "0123" if 0 < tokens[id] < 500}
        paused += [id for id in sorted(left - got) if id not in paused]
        engine.next_step()
    assert paused == ["3", "2"]
    assert set(tokens.values()) == {500}
    assert engine.counters.preemptions == engine.counters.resumptions >= 2


def test_under_fcfs_the_last_admitted_is_preempted() -> None:
    """The oldest request would be thrown back, and nothing would ever finish."""
    engine = engine_of(max_num_seqs=2, kv_blocks=4, block_tokens=2)
    engine.add(sequence("old", prompt=3, output=4))
    engine.add(sequence("new", prompt=3, output=4))
    tokens = [run_step(engine) for _ in range(4)]
    assert tokens[:3] == [["old", "new"], ["old", "new"], ["old"]]
    assert engine.counters.preemptions == 1


def test_a_step_that_preempts_admits_nobody() -> None:
    """Admitting at once would take the very blocks that were freed, and preempt again."""
    engine = engine_of(policy="priority", max_num_seqs=3, kv_blocks=4, block_tokens=2)
    engine.add(sequence("old", prompt=3, output=4))
    engine.add(sequence("new", prompt=3, output=4))
    run_step(engine)
    run_step(engine)
    engine.add(sequence("tiny", priority=-1))
    plan = engine.next_step()
    assert plan is not None
    assert engine.counters.preemptions == 1
    assert plan.admitted == ()
    engine.complete_step()
    assert run_step(engine) == ["old.", "tiny."]


def test_long_prompts_are_computed_in_chunks_beside_the_decodes() -> None:
    """Prefill would stall all streams, which chunking is there to prevent."""
    engine = engine_of(max_num_batched_tokens=10, kv_blocks=100)
    engine.add(sequence("chat", prompt=2, output=9))
    run_step(engine)
    engine.add(sequence("long", prompt=25, output=1))
    plans = []
    while (plan := engine.next_step()) is not None and "long" in engine_ids(engine):
        plans.append((plan.prefill_tokens, plan.decodes))
        engine.complete_step()
    assert plans[:3] == [(9, 1), (9, 1), (7, 1)]


def engine_ids(engine: Engine) -> set[str]:
    """The sequences in the engine."""
    return set(engine._runs)


def test_a_waiting_sequence_is_admitted_only_when_all_its_tokens_fit() -> None:
    """A large prompt would start, run out of blocks and preempt those before it."""
    engine = engine_of(max_num_batched_tokens=4, kv_blocks=4, block_tokens=4)
    engine.add(sequence("half", prompt=8, output=2))
    run_step(engine)
    engine.add(sequence("large", prompt=12, output=1))
    for _ in range(2):
        run_step(engine)
        assert engine.waiting == 1
    assert run_dry(engine)["large"] == 1


def test_the_watermark_keeps_blocks_free_while_others_run() -> None:
    """Experiments that need vLLM's older admission rule could not be repeated."""
    engine = engine_of(kv_blocks=10, block_tokens=1, watermark_blocks=4)
    engine.add(sequence("a", prompt=5, output=2))
    engine.add(sequence("b", prompt=2, output=1))
    plan = engine.next_step()
    assert plan is not None
    assert plan.admitted == ("a",)


def test_what_can_never_fit_is_refused_at_once() -> None:
    """The head of the queue would block everybody for ever."""
    engine = engine_of(kv_blocks=2, block_tokens=4)
    engine.add(sequence("exact", prompt=4, output=5))
    with pytest.raises(ValueError, match="more KV"):
        engine.add(sequence("over", prompt=4, output=6))
    assert run_dry(engine)["exact"] == 5


def test_work_that_only_reads_needs_room_for_all_that_it_reads() -> None:
    """A prompt one token too long would wait for ever at the head of the queue."""
    engine = engine_of(kv_blocks=2, block_tokens=4)
    with pytest.raises(ValueError, match="more KV"):
        engine.add(sequence("over", prompt=9, output=0))
    engine.add(sequence("exact", prompt=8, output=0))
    assert run_step(engine) == ["exact."]


def test_embeddings_are_computed_and_produce_nothing() -> None:
    """Requests without output would never end."""
    engine = engine_of(max_num_batched_tokens=8)
    engine.add(sequence("vector", prompt=20, output=0))
    assert [run_step(engine) for _ in range(3)] == [[], [], ["vector."]]
    assert engine.counters.prompt_tokens == 20
    assert engine.counters.generation_tokens == 0


def test_aborting_twice_and_the_unknown_is_no_error() -> None:
    """Client gone and stream finished may come in either order."""
    engine = engine_of()
    engine.add(sequence("a"))
    assert [engine.abort("a"), engine.abort("a"), engine.abort("b")] == [True, False, False]
    assert engine.next_step() is None


def test_a_long_queue_that_leaves_is_forgotten() -> None:
    """Memory would grow with every client that gave up while waiting."""
    engine = engine_of(max_num_seqs=1)
    for index in range(2000):
        engine.add(sequence(str(index), output=5))
        if index:
            engine.abort(str(index))
    assert len(engine._waiting) < 200


def test_step_times_are_those_of_the_published_fits() -> None:
    """Simulated latencies would be of no machine."""
    step_ms = {
        profile.name: [
            round(profile.step_s(n, decodes=n, kv_tokens=0, attended=0) * 1000, 1) for n in (1, 64)
        ]
        for profile in PROFILES
    }
    assert step_ms["a100-llama2-7b"] == [9.4, 10.9]
    assert step_ms["h100-llama2-7b"] == [5.8, 6.7]
    assert step_ms["a100-llama3-8b"] == [10.1, 12.2]
    assert step_ms["instant"] == [0.0, 0.0]


def test_the_fits_follow_the_measured_operators() -> None:
    """The curve would have drifted from what it was fitted to (sums of per-operator medians)."""
    measured_ms = {
        "a100-llama2-7b": {1: 9.28, 256: 18.24, 2048: 133.46},
        "h100-llama2-7b": {1: 5.6, 256: 9.15, 2048: 40.42},
        "a100-llama3-8b": {1: 9.70, 256: 19.49, 2048: 143.68},
    }
    for name, points in measured_ms.items():
        profile = profile_named(name)
        for tokens, expected_ms in points.items():
            step_s = profile.step_s(tokens, decodes=0, kv_tokens=0, attended=0)
            linear_ms = step_s * 1000 - profile.layers * profile.layer_us / 1000
            assert linear_ms == pytest.approx(expected_ms, rel=0.25), (name, tokens)


def test_speed_divides_all_times() -> None:
    """A demo on fast-forward would change its proportions."""
    normal = DEMO.step_s(100, decodes=3, kv_tokens=10, attended=10)
    assert DEMO.faster(10).step_s(100, decodes=3, kv_tokens=10, attended=10) == pytest.approx(
        normal / 10
    )
    with pytest.raises(ValueError, match="positive"):
        DEMO.faster(0)


def test_an_unknown_profile_lists_the_known_ones() -> None:
    """A typing error on the command line would leave the user guessing."""
    with pytest.raises(ValueError, match="demo, even, instant, a100"):
        profile_named("b300")
