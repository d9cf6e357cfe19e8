"""The paper's engines and routers, by hand: whom they run, what they forget, what they move."""

import pytest

from gateway.sim.paper.engine import Engine, Size, headroom_blocks
from gateway.sim.paper.infaas import Health, Infaas, State, tier_scale
from gateway.sim.paper.llumlet import Llumlet
from gateway.sim.paper.llumnix import Llumnix
from gateway.sim.paper.paged import Paged
from gateway.sim.paper.request import Request
from gateway.sim.paper.steps import StepTime


def ask(number: int, tier: int = 0, *, prompt: int = 32, output: int = 100) -> Request:
    """A request for two blocks and a long answer."""
    return Request(number, number / 1000, tier, prompt_tokens=prompt, output_tokens=output)


def step(engine: Engine) -> list[int]:
    """One whole step; the numbers of those that were in it."""
    engine.batch = batch = engine.next_batch()
    for request in batch:
        if request.advance(0.0):
            engine.finish(request)
        else:
            engine.keep(request)
    engine.batch = []
    return [request.number for request in batch]


def paged(*, ranks_tiers: bool = False, **limits: int) -> Paged:
    """The baseline's engine, with other limits than the paper's."""
    return Paged(0, 3, Size(**limits), ranks_tiers=ranks_tiers)


def llumlets(count: int = 2, tiers: int = 3) -> list[Llumlet]:
    """So many idle replicas of K-tier Llumnix."""
    return [Llumlet(index, tiers, Size()) for index in range(count)]


# The llumlet and its errors


def test_a_llumlet_decodes_more_than_it_has_room_for() -> None:
    """This error is most of the paper's speed-up; parity without it would be parity by chance."""
    (engine,) = llumlets(1)
    for number in range(400):
        engine.add(ask(number))
    sizes = [len(step(engine)) for _ in range(8)]
    # 64 prefills of two blocks fill the 128; from then on the decodes come for nothing beside them.
    assert sizes[:6] == [64] * 6
    assert sizes[-1] == 400
    assert engine.blocks_used == 0


def test_a_llumlet_serves_tiers_in_order_and_each_in_turn() -> None:
    """Without the order of tiers nothing of the paper's isolation would be seen."""
    (engine,) = llumlets(1)
    for number, tier in enumerate((2, 1, 0, 1)):
        engine.add(ask(number, tier))
    assert step(engine) == [2, 1, 3, 0]
    engine.add(ask(4, tier=1))
    # Those that decode have queued again before it came.
    assert step(engine) == [2, 1, 3, 4, 0]


def test_the_first_prefill_that_does_not_fit_stops_those_behind_it() -> None:
    """Decodes of a lower tier stand behind prompts of a higher one: the price of its latency."""
    (engine,) = llumlets(1)
    engine.add(ask(0, tier=2))
    assert step(engine) == [0]
    for number in range(1, 66):
        engine.add(ask(number, tier=1))
    assert step(engine) == list(range(1, 65))


def test_freeness_counts_blocks_the_head_and_headroom_and_divides_by_the_batch() -> None:
    """A signal computed otherwise places otherwise, and the tables would not come out."""
    (engine,) = llumlets(1)
    assert engine.freeness() == 128
    assert headroom_blocks(128, 3) == [25, 7, 2]
    engine.add(ask(0, tier=1))
    assert engine.freeness() == 128 - 2 - 7
    engine.batch = engine.next_batch()
    engine.add(ask(1, tier=2, prompt=160))
    assert engine.freeness() == 128 - 2 - 10 - 7 - 2
    engine.batch += engine.next_batch()
    assert engine.freeness() == (128 - 12 - 7 - 2) / 2


def test_one_tier_keeps_no_headroom() -> None:
    """Eight is the least that K = 1 would lose of 128 blocks for nobody."""
    assert headroom_blocks(128, 1) == [0]


# vLLM as in Vidur


def test_prefills_go_first_and_alone() -> None:
    """The baseline's long steps are what its users wait for."""
    engine = paged()
    engine.add(ask(0))
    assert step(engine) == [0]
    engine.add(ask(1))
    assert step(engine) == [1]
    assert step(engine) == [0, 1]


def test_a_prefill_batch_is_padded_to_its_longest_prompt() -> None:
    """One long prompt keeps many short ones out of its step."""
    engine = paged(blocks=10_000, batch_tokens_max=2048)
    engine.add(ask(0, prompt=400))
    for number in range(1, 9):
        engine.add(ask(number, prompt=16))
    assert step(engine) == [0, 1, 2, 3, 4]


def test_blocks_are_held_and_grow_and_the_last_in_rank_loses_them() -> None:
    """Preemption by recompute is what the llumlet never pays."""
    engine = paged(blocks=6, watermark_blocks=1)
    first, second = ask(0, prompt=32), ask(1, prompt=32)
    engine.add(first)
    engine.add(second)
    assert step(engine) == [0, 1]
    assert engine.blocks_used == 4
    assert step(engine) == [0, 1]
    assert engine.blocks_used == 6
    # All blocks are taken now: to decode at all the second one has to go.
    assert step(engine) == [0]
    assert second.restarts == 1
    assert second.prefill_tokens == 34
    assert engine.blocks_used == 3
    assert step(engine) == [0]


def test_a_full_engine_takes_nobody_until_one_ends() -> None:
    """The cap is the other limit that the llumlet ignores."""
    engine = paged(sequences_max=2)
    for number in range(3):
        engine.add(ask(number, output=2))
    assert step(engine) == [0, 1]
    assert step(engine) == [0, 1]
    assert step(engine) == [2]


def test_with_its_kv_accounted_the_llumlet_takes_tiers_in_order_too() -> None:
    """The ablation must change the accounting and nothing of the isolation."""
    engine = paged(ranks_tiers=True, sequences_max=2)
    for number, tier in enumerate((2, 1, 0)):
        engine.add(ask(number, tier))
    assert step(engine) == [2, 1]


def test_every_block_comes_back() -> None:
    """A leak of one block a request would be a capacity that shrinks as the run goes on."""
    engine = paged(blocks=24, ranks_tiers=True)
    requests = [ask(number, number % 3, prompt=40, output=30) for number in range(12)]
    for request in requests:
        engine.add(request)
    for _ in range(2_000):
        if not step(engine):
            break
    assert all(request.ended_at is not None for request in requests)
    assert any(request.restarts for request in requests)
    assert engine.blocks_used == 0
    assert engine.outstanding == 0


# INFaaS


def after_tick(health: Health, *, outstanding: int) -> State:
    """The state that the next arrival finds."""
    health.tick(outstanding)
    return health.state


def test_a_slow_replica_with_a_queue_is_overloaded_until_it_may_recover() -> None:
    """The baseline would be unfairly bad if it never forgave a replica."""
    health = Health()
    health.ended(1_400.0, outstanding=3)
    assert health.state is State.OVERLOADED
    assert after_tick(health, outstanding=0) is State.OVERLOADED
    assert after_tick(health, outstanding=0) is State.OVERLOADED
    assert after_tick(health, outstanding=3) is State.OVERLOADED
    assert after_tick(health, outstanding=2) is State.ACTIVE


def test_a_slow_replica_without_a_queue_is_interfered_with() -> None:
    """Two ticks, and a lower limit: another state, another penalty."""
    health = Health()
    health.ended(1_200.0, outstanding=1)
    assert health.state is State.INTERFERED
    assert after_tick(health, outstanding=1) is State.INTERFERED
    assert after_tick(health, outstanding=2) is State.INTERFERED
    assert after_tick(health, outstanding=1) is State.ACTIVE


def test_latency_is_a_moving_average_and_a_fast_one_heals() -> None:
    """One slow request must not decide for long."""
    health = Health()
    health.ended(2_000.0, outstanding=9)
    health.ended(100.0, outstanding=9)
    assert health.latency_ms == pytest.approx(0.6 * 100 + 0.4 * 2_000)
    assert health.state is State.ACTIVE


def test_only_active_replicas_are_chosen_from_if_there_are_any() -> None:
    """An overloaded replica with the shortest queue must not win for it."""
    engines = [Paged(index, 3, Size(), ranks_tiers=False) for index in range(3)]
    router = Infaas(engines, 3, StepTime())
    engines[1].add(ask(0))
    engines[2].add(ask(1))
    router.health[0].state = State.OVERLOADED
    router.health[0].ticks_left = 9
    router.health[0].latency_ms = 5_000.0
    assert router.route(ask(2)) is engines[1]
    for health in router.health[1:]:
        health.state, health.ticks_left, health.latency_ms = State.INTERFERED, 9, 5_000.0
    # Now nobody is active: length 0 and penalty 1 against length 1 and penalty 0.5.
    assert router.route(ask(3)) is engines[0]


def test_ties_go_to_the_first_replica() -> None:
    """Else two runs of a seed could differ."""
    engines = [Paged(index, 3, Size(), ranks_tiers=False) for index in range(3)]
    assert Infaas(engines, 3, StepTime()).route(ask(0)) is engines[0]


def test_a_high_tier_weighs_what_stands_before_it_less() -> None:
    """The only use that the baseline makes of tiers, and it changes nothing between equals."""
    assert [tier_scale(tier, 3) for tier in range(3)] == pytest.approx([0.8, 0.9, 1.0])
    assert tier_scale(0, 10) == 0.5
    assert tier_scale(0, 1) == 1.0


# Llumnix


def test_a_request_goes_to_the_freest() -> None:
    """Placement by freeness is the paper's; the ablation goes round instead."""
    engines = llumlets(3)
    engines[0].add(ask(0))
    engines[1].add(ask(1, prompt=16))
    engines[2].add(ask(2, tier=2))
    assert Llumnix(engines).route(ask(3)) is engines[2]
    assert Llumnix(engines, "turn").route(ask(3)) is engines[0]
    engines[2].add(ask(4, tier=2))
    assert Llumnix(engines, "outstanding").route(ask(5)) is engines[0]


def test_a_queued_request_of_the_lowest_tier_moves_at_once() -> None:
    """Migration of what has not begun costs nothing."""
    busy, idle = llumlets()
    for number, tier in enumerate((0, 2, 1)):
        busy.add(ask(number, tier))
    router = Llumnix([busy, idle])
    assert router.rebalance() == [idle]
    assert step(idle) == [1]
    assert step(busy) == [0, 2]


def test_a_decode_moves_with_the_end_of_its_step_and_takes_nothing_along() -> None:
    """It holds no block, by the llumlet's accounting; a real one would have to copy its KV."""
    busy, idle = llumlets()
    busy.add(ask(0))
    step(busy)
    busy.batch = busy.next_batch()
    router = Llumnix([busy, idle])
    assert router.rebalance() == []
    assert router.moved == 1
    (moved,) = busy.batch
    moved.advance(0.0)
    busy.keep(moved)
    assert busy.outstanding == 0
    assert step(idle) == [0]
    assert not busy.leaving
    assert not idle.promised


def test_nothing_moves_between_replicas_that_are_about_equally_free() -> None:
    """Below the gap requests would only go to and fro."""
    engines = llumlets()
    for engine in engines:
        engine.add(ask(engine.index))
    router = Llumnix(engines)
    assert router.rebalance() == []
    assert router.moved == 0


def test_a_running_request_moves_with_its_blocks_where_these_are_accounted() -> None:
    """Blocks that appeared or vanished on the way would undo the correction."""
    engines = [Paged(index, 3, Size(), ranks_tiers=True) for index in range(2)]
    request = ask(0, prompt=16, output=10)
    engines[0].add(request)
    step(engines[0])
    assert Llumnix(engines).rebalance() == []
    assert engines[1].promised == {0: 1}
    step(engines[0])
    assert [engine.blocks_used for engine in engines] == [0, 2]
    assert step(engines[1]) == [0]
    assert not engines[1].promised
