"""What happens is told to many, and waits for none of them."""

import asyncio
import json

import pytest

from gateway.admin import events
from gateway.admin.events import BUFFER, LAGGED, LISTENERS_MAX, RING, Happenings
from gateway.admin.replica_watch import ReplicaWatch
from gateway.core.messages import Fault
from gateway.core.replica import Replica
from gateway.errors import OverloadedError
from gateway.upstream.replicas import ReplicaStatus


@pytest.fixture
def happenings() -> Happenings:
    """Of a process that has just begun."""
    return Happenings("e1", lambda: 12.5)


async def heard(happenings: Happenings, last_id: str | None, count: int) -> list[str]:
    """What a listener is told."""
    listener = happenings.listen(last_id)
    found = [await listener.next() for _ in range(count)]
    happenings.leave(listener)
    return [f"{each.kind} {happenings.id_of(each)}" for each in found if each is not None]


async def test_a_listener_hears_what_happens_from_then_on(happenings: Happenings) -> None:
    """In order, each with an id and what there is to say."""
    happenings.publish("before", {})
    listener = happenings.listen(None)
    happenings.publish("policy.changed", {"revision": 7})
    happening = await listener.next()
    assert happening is not None
    assert (happening.kind, json.loads(happening.body)) == (
        "policy.changed", {"at": 12.5, "revision": 7},
    )  # fmt: skip


async def test_who_comes_again_hears_what_came_meanwhile(happenings: Happenings) -> None:
    """A connection that broke must cost nothing."""
    for kind in ("a", "b", "c"):
        happenings.publish(kind, {})
    assert await heard(happenings, "e1-1", 2) == ["b e1-2", "c e1-3"]
    happenings.publish("d", {})
    assert await heard(happenings, "e1-3", 1) == ["d e1-4"]


@pytest.mark.parametrize("last_id", ["e0-1", "e1-9999", "e1-x", "", "-", "e1-1", "e1-\u00b2"])
async def test_who_comes_too_late_is_told_so(happenings: Happenings, last_id: str) -> None:
    """It would take what it knows for what is so; from then on it hears everything."""
    for _ in range(RING + 5):
        happenings.publish("x", {})
    listener = happenings.listen(last_id)
    happenings.publish("next", {})
    first, second = await listener.next(), await listener.next()
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == (LAGGED, "next")
    assert happenings.id_of(first) == f"e1-{RING + 5}", "it need not come again for those before"


async def test_who_does_not_keep_up_is_dropped(happenings: Happenings) -> None:
    """One operator's frozen terminal must not hold the gateway's memory."""
    slow, quick = happenings.listen(None), happenings.listen(None)
    for _ in range(BUFFER):
        happenings.publish("x", {})
        assert await quick.next() is not None
    assert not slow.has_lagged
    happenings.publish("x", {})
    assert slow.has_lagged
    assert await slow.next() is None
    assert not slow._waiting
    assert not quick.has_lagged


async def test_listeners_are_bounded(happenings: Happenings) -> None:
    """Each costs something for each event."""
    listeners = [happenings.listen(None) for _ in range(LISTENERS_MAX)]
    with pytest.raises(OverloadedError):
        happenings.listen(None)
    happenings.leave(listeners[0])
    happenings.leave(listeners[0])
    happenings.listen(None)


async def test_silence_is_broken_now_and_then(
    happenings: Happenings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies close what says nothing."""
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.01)
    listener = happenings.listen(None)
    assert await listener.next() is None
    assert not listener.has_lagged
    assert not listener.is_over


async def test_the_end_wakes_who_listens(happenings: Happenings) -> None:
    """A gateway that ends must not wait for a heartbeat."""
    listener = happenings.listen(None)
    waiting = asyncio.get_running_loop().create_task(listener.next())
    await asyncio.sleep(0)
    happenings.close()
    assert await waiting is None
    assert listener.is_over
    with pytest.raises(OverloadedError):
        happenings.listen(None)


def seen(happenings: Happenings) -> list[str]:
    """All that was told so far, forgotten then."""
    told = [f"{each.kind} {json.loads(each.body).get('state', '')}".strip()
            for each in happenings._ring]  # fmt: skip
    happenings._ring.clear()
    return told


def test_what_becomes_of_a_replica_is_told_once(happenings: Happenings) -> None:
    """Up, down, drained, tripped, gone: each as an event, and nothing while nothing changes."""
    watch, replica = ReplicaWatch(happenings), Replica("r", tiers=4, blocks=10)
    up, down = ReplicaStatus(up=True), ReplicaStatus(up=False)
    for status, change, told in (
        (down, lambda: None, ["replica.added"]),
        (up, lambda: None, ["replica.up"]),
        (up, lambda: None, []),
        (up, lambda: replica.mark(draining=True), ["replica.draining"]),
        (up, lambda: replica.mark(draining=False), ["replica.undrained"]),
        (up, lambda: replica.circuit.failed("q", Fault.REFUSED, 5.0), ["replica.breaker open"]),
        (down, lambda: None, ["replica.down"]),
    ):
        change()
        watch.look({"r": status}, {"r": replica}, 5.0)
        assert seen(happenings) == told
    watch.look({}, {}, 5.0)
    assert seen(happenings) == ["replica.removed"]
    watch.look({"r": up}, {}, 5.0)
    assert seen(happenings) == ["replica.added", "replica.up"], "the scheduler has not met it yet"
