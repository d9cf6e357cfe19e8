"""The engine that counts what decodes does the same as one that visits its batch in every step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.sim.engine_config import EngineConfig, SchedulingPolicy
from gateway.sim.profiles import A100_LLAMA2_7B
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence
from tests.support.plain_engine import PlainEngine, PlainStep

BLOCK_TOKENS = 4
PREFIX_TOKENS = 8
KV_BLOCKS = 14
"""Little more than one long sequence: something is preempted in most runs."""

Operation = tuple[str, int, int, int, tuple[int, ...]]

styles = st.sampled_from(
    [
        {"mixed": True, "chunked": True},
        {"mixed": True, "chunked": False},
        {"mixed": False, "chunked": False, "prefill_first": True},
        {"mixed": False, "chunked": True, "prefill_first": True},
        {"mixed": False, "chunked": True},
        {"mixed": False, "chunked": False},
    ]
)

operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(1, 28), st.integers(0, 24), st.integers(-1, 1),
            st.sampled_from([(), (1,), (1, 2), (1, 2, 3), (4, 5), (4, 6, 7)]),
        ),
        st.tuples(
            st.just("adopt"), st.integers(1, 20), st.integers(2, 20), st.integers(1, 18),
            st.just(()),
        ),
        st.tuples(
            st.just("abort"), st.integers(0, 30), st.integers(0, 1), st.just(0), st.just(()),
        ),
        st.tuples(st.just("step"), st.integers(1, 8), st.just(0), st.just(0), st.just(())),
    ),
    max_size=50,
)  # fmt: skip


@given(
    style=styles,
    operations=operations,
    policy=st.sampled_from(["fcfs", "priority"]),
    cache=st.booleans(),
    reserved=st.sampled_from([0, 0, 20]),
    watermark=st.sampled_from([0, 2]),
    quiet=st.booleans(),
)
@settings(max_examples=300)
def test_counting_gives_what_visiting_gives(
    style: dict[str, bool],
    operations: list[Operation],
    policy: SchedulingPolicy,
    cache: bool,
    reserved: int,
    watermark: int,
    quiet: bool,
) -> None:
    """Every simulated second would be a little wrong, and nobody could tell."""
    config = EngineConfig(
        max_num_seqs=5,
        max_num_batched_tokens=12,
        kv_blocks=KV_BLOCKS,
        block_tokens=BLOCK_TOKENS,
        watermark_blocks=watermark,
        policy=policy,
        reserved_tokens=reserved,
        prefix_block_tokens=PREFIX_TOKENS if cache else 0,
        mixed=style["mixed"],
        chunked=style["chunked"],
        prefill_first=style.get("prefill_first", False),
    )
    twins = Twins(config, is_quiet=quiet)
    for kind, a, b, c, prefix in operations:
        if kind == "add":
            twins.add(a, b, c, prefix)
        elif kind == "adopt":
            twins.adopt(a, b, min(c, b - 1))
        elif kind == "abort" and b:
            twins.step(abort=str(a))
        elif kind == "abort":
            twins.abort(str(a))
        else:
            for _ in range(a):
                twins.step()
    while twins.step():
        pass
    assert twins.engine.kv_use == 0


class Twins:
    """Both engines, told the same."""

    def __init__(self, config: EngineConfig, *, is_quiet: bool) -> None:
        self.engine = Engine(A100_LLAMA2_7B, config)
        self.plain = PlainEngine(A100_LLAMA2_7B, config)
        self._is_quiet = is_quiet
        self._added = 0
        self._begun: set[str] = set()

    def add(self, prompt: int, output: int, priority: int, prefix: tuple[int, ...]) -> None:
        """A sequence, if it fits at all."""
        if self.engine.fits(prompt, output):
            sequence = self._sequence(prompt, output, priority, prefix)
            self.engine.add(sequence)
            self.plain.add(sequence)

    def adopt(self, prompt: int, output: int, produced: int) -> None:
        """One that comes with its KV."""
        if self.engine.fits(prompt, output):
            sequence = self._sequence(prompt, output, 0, ())
            took = self.engine.adopt(sequence, produced)
            assert took == self.plain.adopt(sequence, produced)
            self._begun.add(sequence.id)
            self.compare()

    def abort(self, id: str) -> None:
        """One of them leaves, if it is here."""
        assert self.engine.abort(id) == self.plain.abort(id)
        self.compare()

    def step(self, abort: str | None = None) -> bool:
        """One whole step, within which one of them may leave; False: there was nothing to do."""
        plan, plain = self.engine.next_step(), self.plain.next_step()
        if plan is None:
            assert plain is None
            return False
        assert plain == PlainStep(
            plan.duration_s, plan.prefill_tokens, plan.decodes, plan.kv_tokens, plan.admitted
        )
        self.compare()
        if abort is not None:
            self.abort(abort)
        out = self.plain.complete_step()
        if self._is_quiet:
            changed = self.engine.complete_quietly()
            names = [each.sequence_id for each in out]
            assert changed.begun == [id for id in names if id not in self._begun]
            assert changed.finished == [each.sequence_id for each in out if each.finished]
        else:
            assert self.engine.complete_step() == out
        self._begun.update(each.sequence_id for each in out)
        self.compare()
        return True

    def compare(self) -> None:
        """What can be seen from outside, and the books of the one that counts."""
        engine, plain = self.engine, self.plain
        engine.check_invariants()
        assert engine.running == len(plain.running)
        assert engine.waiting == len(plain.waiting)
        assert engine.blocks_free == plain.free
        assert engine.counters.preemptions == plain.preempted
        assert engine.counters.generation_tokens == plain.generated
        assert engine.counters.cached_tokens == plain.cached
        for run in (*plain.running, *plain.waiting):
            assert engine.produced(run.sequence.id) == run.produced

    def _sequence(
        self, prompt: int, output: int, priority: int, prefix: tuple[int, ...]
    ) -> Sequence:
        id = str(self._added)
        self._added += 1
        return Sequence(
            id=id, prompt_tokens=prompt, output_tokens=output, priority=priority, prefix=prefix
        )
