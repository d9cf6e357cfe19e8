"""An explanation as operators read it: what the scheduler says, in words."""

from gateway.admin.explanations import rendered, summary_of
from gateway.admin.queues import QueuesAsked, grouped
from gateway.core.explain import explain
from tests.support.script import Script


def test_who_is_held_back_is_told_by_whose_cap() -> None:
    """A tenant that asks why nothing runs has its own limit to look at."""
    script = Script()
    script.replica("r", slots=4)
    script.arrive("a", caps=(("user acme/alice", 1),))
    script.arrive("b", caps=(("user acme/alice", 1),))
    told = explain(script.scheduler, "b", script.now)
    assert told is not None
    view = rendered(told, "client-id")
    assert (view.state, view.request_id) == ("held", "client-id")
    assert (view.held_by, view.held_by_running, view.held_by_most) == ("user acme/alice", 1, 1)
    assert view.summary == "Held back: 1 of at most 1 requests of `user acme/alice` run."
    running = explain(script.scheduler, "a", script.now)
    assert running is not None
    assert (rendered(running, "a").state, summary_of(running)) == ("running", "It runs on r.")


async def test_what_is_held_is_counted_where_it_will_wait() -> None:
    """It has no place among the flows, but it is there and somebody waits for it."""
    script = Script()
    script.replica("r", slots=4)
    for name in ("a", "b", "c"):
        script.arrive(name, caps=(("user acme/alice", 1),))
    (group,) = await grouped(script.scheduler, QueuesAsked())
    assert (group.count, group.held) == (2, 2)
