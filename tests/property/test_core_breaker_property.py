"""The circuit under any order of events: it never blocks for ever, and lets one try at a time."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.breaker import STALL_BACKOFF_MAX_S, Breaker, Circuit
from gateway.core.messages import Fault, Outcome
from tests.support.script import Script, one_tier

EVENTS = ("send", "begin", "succeed", "fail", "leave", "silent", "speak", "answer", "lose", "find")
STEP = st.tuples(
    st.sampled_from(EVENTS),
    st.integers(0, 5),
    st.sampled_from(list(Fault)),
    st.sampled_from((0.0, 0.1, 1.0, 5.0, 40.0)),
)


@given(steps=st.lists(STEP, max_size=80))
def test_it_lets_one_try_after_a_bounded_rest_and_never_two(
    steps: list[tuple[str, int, Fault, float]],
) -> None:
    """A replica kept out for ever is lost capacity; a crowd let in is a crowd that fails."""
    circuit, now, running = Circuit(), 0.0, set[str]()
    for number, (what, which, fault, pause_s) in enumerate(steps):
        now += pause_s
        id = sorted(running)[which % len(running)] if running else ""
        if what == "send" and circuit.lets(now):
            was_half_open = circuit.state(now) is Breaker.HALF_OPEN
            running.add(f"q{number}")
            circuit.sent(f"q{number}", now)
            assert (circuit.trial == f"q{number}") is was_half_open
        elif what == "begin":
            circuit.began(id, now)
        elif what in ("succeed", "fail", "leave"):
            running.discard(id)
            if what == "succeed":
                circuit.succeeded(id, now)
            elif what == "fail":
                circuit.failed(id, fault, now)
            else:
                circuit.left(id)
        elif what == "silent":
            circuit.fell_silent(now)
        elif what == "speak":
            circuit.spoke(now)
        elif what == "answer":
            circuit.answered(now, is_new=which == 0)
        elif what == "lose":
            circuit.lost(now)
        elif what == "find":
            circuit.found(now)
        assert circuit.trial is None or circuit.trial in running | {""}
        assert circuit.until <= now + STALL_BACKOFF_MAX_S
        if circuit.state(now) is Breaker.HALF_OPEN:
            assert circuit.lets(now) is (circuit.trial is None)
        assert (circuit.reason is None) is (circuit.state(now) is Breaker.CLOSED)
    for id in running:
        circuit.left(id)
    assert circuit.lets(now + STALL_BACKOFF_MAX_S)


@given(ends=st.lists(st.sampled_from(("reject", "cancel", "bounce", "own fault")), max_size=60))
def test_nothing_that_is_not_the_engines_fault_opens_it(ends: list[str]) -> None:
    """400s, clients that leave and "busy" must not take a replica from everybody."""
    script = Script(one_tier(limiter="static", recall=False)).replica("r", slots=4)
    for number, end in enumerate(ends):
        id = f"q{number}"
        script.arrive(id).expect_granted(id)
        if end == "bounce":
            script.bounce(id).advance(1.0).expect_granted(id).finish(id)
        elif end == "cancel":
            script.finish(id, outcome=Outcome.CANCELLED)
        elif end == "reject":
            script.finish(id, outcome=Outcome.REJECTED)
        else:
            script.finish(id, outcome=Outcome.FAILED)
        assert script.scheduler.replicas["r"].circuit.state(script.now) is Breaker.CLOSED
