"""The flags of the engine model: whose batches it forms, and what its prefix cache spares."""

import pytest

from gateway.sim.engine_config import SARATHI_BUDGET_TOKENS, EngineConfig, Style
from gateway.sim.profiles import INSTANT
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence
from gateway.sim.step import StepPlan


def engine_of(style: Style, config: EngineConfig | None = None) -> Engine:
    """An engine with the batches of that style, whose steps take no time."""
    return Engine(INSTANT, (config or EngineConfig()).styled(style, longest_tokens=1_000))


def add(engine: Engine, id: str, prompt: int, output: int, *prefix: int) -> None:
    """Short for adding a sequence."""
    engine.add(Sequence(id=id, prompt_tokens=prompt, output_tokens=output, prefix=prefix))


def steps(engine: Engine, count: int = 10_000) -> list[tuple[int, int]]:
    """(prefill tokens, decodes) of so many steps, or of all that there are."""
    plans: list[StepPlan] = []
    while len(plans) < count and (plan := engine.next_step()) is not None:
        plans.append(plan)
        engine.complete_quietly()
        engine.check_invariants()
    return [(plan.prefill_tokens, plan.decodes) for plan in plans]


def test_vllm_computes_prompts_in_chunks_beside_what_decodes() -> None:
    """Today's engine would be that of 2023."""
    engine = engine_of("vllm")
    add(engine, "chat", 10, 5)
    steps(engine, 1)
    add(engine, "long", 3_000, 2)
    assert steps(engine) == [(2_047, 1), (953, 1), (0, 2), (0, 1)]


def test_vllm_in_vidur_stops_all_that_decode_for_whole_prompts() -> None:
    """Its long prefills would not show in anybody's answers."""
    engine = engine_of("vllm-vidur")
    add(engine, "chat", 10, 5)
    steps(engine, 1)
    add(engine, "long", 3_000, 2)
    add(engine, "next", 500, 1)
    assert steps(engine) == [(3_000, 0), (500, 0), (0, 2), (0, 1), (0, 1), (0, 1)]


def test_orca_puts_whole_prompts_beside_decodes_and_never_preempts() -> None:
    """What it wastes by setting KV aside would be missing from the comparison."""
    engine = engine_of("orca", EngineConfig(kv_blocks=130))
    for id in "abc":
        add(engine, id, 100, 400)
    assert steps(engine, 2) == [(200, 0), (0, 2)]
    assert (engine.running, engine.waiting) == (2, 1)
    assert engine.kv_use == pytest.approx(126 / 130)
    steps(engine)
    assert engine.counters.preemptions == 0
    assert engine.counters.finished == 3


def test_sarathi_keeps_its_steps_short() -> None:
    """A long prompt would stall the others as it does elsewhere."""
    engine = engine_of("sarathi")
    add(engine, "chat", 10, 9)
    steps(engine, 1)
    add(engine, "long", 1_200, 1)
    first = SARATHI_BUDGET_TOKENS - 1
    assert steps(engine, 3) == [(first, 1), (first, 1), (1_200 - 2 * first, 1)]


def test_static_batching_admits_nobody_until_all_are_through() -> None:
    """The flags would have a combination that does something unheard of."""
    engine = Engine(INSTANT, EngineConfig(mixed=False, chunked=False))
    add(engine, "a", 10, 3)
    steps(engine, 1)
    add(engine, "b", 20, 1)
    assert steps(engine) == [(0, 1), (0, 1), (20, 0)]


def test_a_mixed_step_cannot_put_prompts_first() -> None:
    """Flags that contradict each other would silently mean one of them."""
    with pytest.raises(AssertionError):
        EngineConfig(prefill_first=True)


CACHING = EngineConfig(prefix_block_tokens=512, kv_blocks=200)


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    """Prefix affinity would gain nothing in simulation."""
    engine = Engine(INSTANT, CACHING)
    add(engine, "one", 1_100, 1, 7, 8, 9)
    assert steps(engine) == [(1_100, 0)]
    add(engine, "two", 1_300, 1, 7, 8, 5)
    add(engine, "other", 1_300, 1, 3, 8, 5)
    assert steps(engine, 1) == [(1_300 - 1_024 + 1_300, 0)]
    assert engine.counters.cached_tokens == 1_024


def test_of_a_prompt_that_is_wholly_cached_one_token_is_computed() -> None:
    """A first token would come from nothing."""
    engine = Engine(INSTANT, CACHING)
    for id in "ab":
        add(engine, id, 1_024, 1, 1, 2)
        last = steps(engine)
    assert last == [(1, 0)]


def test_sharers_of_a_prefix_hold_its_blocks_once() -> None:
    """A hundred streams of one system prompt would fill the KV many times over."""
    engine = Engine(INSTANT, CACHING)
    add(engine, "one", 1_030, 50, 1, 2)
    steps(engine, 1)
    alone = engine.blocks_free
    add(engine, "two", 1_030, 50, 1, 2)
    steps(engine, 1)
    assert alone - engine.blocks_free <= 2


def test_what_nobody_uses_makes_room_and_the_oldest_goes_first() -> None:
    """The cache would keep new requests out, or forget what was used a moment ago."""
    engine = Engine(INSTANT, CACHING)
    for block in range(6):
        add(engine, str(block), 600, 1, block)
        steps(engine)
    assert engine.kv_use == 0
    add(engine, "again", 600, 1, 0)
    assert steps(engine) == [(88, 0)]
    add(engine, "large", 1_600, 1)
    assert steps(engine) == [(1_600, 0)]
    cached = engine.counters.cached_tokens
    add(engine, "first", 600, 1, 0)
    add(engine, "second", 600, 1, 1)
    steps(engine)
    assert engine.counters.cached_tokens == cached + 512


def test_a_preempted_sequence_finds_its_own_prefix_again() -> None:
    """Preemption would cost more than it does."""
    config = EngineConfig(prefix_block_tokens=512, kv_blocks=72, max_num_seqs=2)
    engine = Engine(INSTANT, config)
    add(engine, "old", 520, 80, 1)
    add(engine, "new", 520, 80, 2)
    steps(engine)
    assert engine.counters.preemptions >= 1
    assert engine.counters.cached_tokens >= 512
    assert engine.counters.finished == 2
