"""What operators see of requests, why one waits, and how they end one: on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.core import invariants
from gateway.errors import CancelledByOperatorError
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine

REQUESTS = "/admin/v1/requests"
CHAT = {"model": "raw", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
LOWEST = {"x-fairgate-tier": "background"}


@dataclass(slots=True)
class Place:
    """A gateway before an engine that runs one request at a time, and answers when it is told."""

    engine: HeldEngine
    running: Running
    http: httpx.AsyncClient

    def ask(self, user: str = "alice", *, streams: bool = False) -> "asyncio.Task[httpx.Response]":
        """A request of the lowest tier, which waits outside of the engine."""
        body = {**CHAT, "stream": streams}
        headers = {**LOWEST, "x-fairgate-user": user}
        return asyncio.get_running_loop().create_task(
            self.http.post("/v1/chat/completions", json=body, headers=headers)
        )

    async def listed(self, **asked: str | int) -> list[dict[str, Any]]:
        """The requests that operators see."""
        answer = await self.http.get(REQUESTS, params=asked)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"])

    async def two(self, *, streams: bool = False) -> "list[asyncio.Task[httpx.Response]]":
        """One request that runs, and one that waits behind it."""
        first = self.ask("alice", streams=streams)
        await eventually(lambda: self.engine.here)
        second = self.ask("bob", streams=streams)
        await eventually(lambda: self.running.gateway.scheduler.waiting)
        return [first, second]

    async def end(self, *asked: "asyncio.Task[httpx.Response]") -> None:
        """Answer everything that is left; nothing may be left in the books."""
        while not all(each.done() for each in asked):
            for held in self.engine.here:
                held.answer(b"{}")
            await asyncio.sleep(0.005)
        await eventually(lambda: not self.running.in_flight)
        invariants.check(self.running.gateway.scheduler)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """One slot, and operators on this machine."""
    async with (
        running_held_engine(1) as engine,
        running_gateway({"url": engine.url, "max_num_seqs": 1}, keepalive_after_s=0.05) as running,
        client(running) as http,
    ):
        yield Place(engine, running, http)


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


async def test_what_waits_and_what_runs_is_listed_in_the_order_of_arrival(place: Place) -> None:
    """An operator who is called at night begins here."""
    asked = await place.two()
    running, waiting = await place.listed()
    assert (running["state"], running["user"], running["position"]) == ("running", "alice", None)
    assert running["replica"] == f"127.0.0.1-{place.engine.port}"
    assert (waiting["state"], waiting["user"], waiting["position"]) == ("waiting", "bob", 1)
    assert (waiting["replica"], waiting["tier"], waiting["route"]) == (None, "background", "chat")
    assert (waiting["output_tokens_max"], waiting["streams"]) == (9, False)
    assert (await place.http.get(f"{REQUESTS}/{waiting['id']}")).json()["id"] == waiting["id"]
    await place.end(*asked)
    assert await place.listed() == []
    assert asked[1].result().headers["x-request-id"] == waiting["id"], "the id that clients know"


async def test_the_list_is_filtered_and_paged(place: Place) -> None:
    """Ten thousand wait, and one tenant asks what became of its own."""
    asked = [*await place.two(), place.ask("carol")]
    await eventually(lambda: len(place.running.gateway.scheduler.waiting) == 2)
    for filters, users in (
        ({"state": "waiting"}, ["bob", "carol"]),
        ({"state": "running"}, ["alice"]),
        ({"state": "ending"}, []),
        ({"user": "bob"}, ["bob"]),
        ({"tenant": "nobody"}, []),
        ({"tier": "background", "model": "raw", "tenant": "default"}, ["alice", "bob", "carol"]),
        ({"tier": "standard"}, []),
    ):
        assert [each["user"] for each in await place.listed(**filters)] == users, filters
    (bob,) = await place.listed(user="bob")
    assert [each["user"] for each in await place.listed(id=bob["id"], state="waiting")] == ["bob"]
    assert await place.listed(id="nope") == [], "one that has ended is no error here"
    seen, after = [], None
    for _ in range(3):
        page = (await place.http.get(REQUESTS, params={"limit": 1, "after": after or ""} if after
                                     else {"limit": 1})).json()  # fmt: skip
        seen += [each["user"] for each in page["data"]]
        after = page["next"]
        assert page["has_more"] is (after is not None)
    assert (seen, after) == (["alice", "bob", "carol"], None)
    await place.end(*asked)


async def test_a_request_that_waits_is_explained(place: Place) -> None:
    """`Why is it not running?` is the question; the answer names the gate and the figures."""
    asked = await place.two()
    (waiting,) = await place.listed(state="waiting")
    told = (await place.http.get(f"{REQUESTS}/{waiting['id']}/explain")).json()
    assert (told["state"], told["position"], told["flows_ahead"]) == ("waiting", 1, 0)
    assert told["flow"]["user"] == "bob"
    assert 3500 < told["patience_left_s"] <= 3600, "the lowest tier is patient for an hour"
    (verdict,) = told["replicas"]
    assert (verdict["closed_by"], verdict["occupied"], verdict["slots"]) == ("queue", 1, 1)
    assert verdict["allowance"] == 0
    name = f"127.0.0.1-{place.engine.port}"
    assert told["summary"].startswith("Position 1 in `background`.")
    assert f"{name} {verdict['reason']}." in told["summary"]
    (running,) = await place.listed(state="running")
    told = (await place.http.get(f"{REQUESTS}/{running['id']}/explain")).json()
    assert (told["state"], told["granted_on"], told["replicas"]) == ("running", name, [])
    assert told["summary"] == f"It runs on {name}."
    await place.end(*asked)


async def test_queues_are_told_by_model_tier_tenant_and_user(place: Place) -> None:
    """Who is served next, and who has waited longest."""
    asked = [*await place.two(), place.ask("bob"), place.ask("carol")]
    await eventually(lambda: len(place.running.gateway.scheduler.waiting) == 3)
    answer = (await place.http.get("/admin/v1/queues")).json()
    bob, carol = answer["data"]
    assert (bob["user"], bob["waiting"], carol["user"], carol["waiting"]) == ("bob", 2, "carol", 1)
    assert (bob["model"], bob["tier"], bob["tenant"]) == ("raw", "background", "default")
    assert bob["oldest_wait_s"] >= carol["oldest_wait_s"] >= 0
    assert bob["waiting_cost"] == pytest.approx(2 * carol["waiting_cost"])
    assert (bob["tenant_weight"], bob["user_weight"]) == (1.0, 1.0)
    assert bob["user_virtual_start"] >= 0 <= bob["virtual_time"]
    only = (await place.http.get("/admin/v1/queues", params={"user": "carol"})).json()["data"]
    assert [each["user"] for each in only] == ["carol"]
    first = (await place.http.get("/admin/v1/queues", params={"limit": 1})).json()
    rest = await place.http.get("/admin/v1/queues", params={"after": first["next"]})
    assert [each["user"] for each in rest.json()["data"]] == ["carol"]
    await place.end(*asked)


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_a_waiting_request_is_ended_and_its_client_is_told(place: Place, how: str) -> None:
    """A batch that was started by mistake must not have to be waited for."""
    first, second = await place.two()
    (waiting,) = await place.listed(state="waiting")
    if how == "cancel":
        answer = await place.http.post(f"{REQUESTS}/{waiting['id']}/cancel")
        assert answer.json() == {"object": "request", "id": waiting["id"], "state": "cancelled"}
    else:
        answer = await place.http.delete(f"{REQUESTS}/{waiting['id']}")
        assert (answer.status_code, answer.content) == (204, b"")
    told = await second
    assert code(told) == (503, "cancelled_by_operator")
    assert told.headers["x-should-retry"] == "false"
    assert not place.running.gateway.scheduler.waiting
    assert len(place.engine.here) == 1, "what runs is nobody else's business"
    again = await place.http.post(f"{REQUESTS}/{waiting['id']}/cancel")
    assert code(again) == (404, "request_not_found")
    await place.end(first)
    assert first.result().status_code == 200


async def test_a_running_request_is_ended_and_its_slot_comes_back(place: Place) -> None:
    """The engine must stop, or the slot would be free only on paper."""
    first, second = await place.two()
    (running,) = await place.listed(state="running")
    held = place.engine.here[0]
    assert (await place.http.post(f"{REQUESTS}/{running['id']}/cancel")).status_code == 200
    assert code(await first) == (503, "cancelled_by_operator")
    await asyncio.wait_for(held.is_left.wait(), 5)
    await eventually(lambda: len(place.engine.asked) == 2, 5)
    await place.end(second)
    assert second.result().status_code == 200


async def test_a_stream_that_runs_ends_with_one_error_event(place: Place) -> None:
    """After headers are out a status can no longer be told."""
    first, second = await place.two(streams=True)
    held = place.engine.here[0]
    held.begin()
    held.event()
    await eventually(lambda: any(each.has_begun for each in place.running.gateway.relay.open))
    (running,) = await place.listed(state="running")
    await place.http.delete(f"{REQUESTS}/{running['id']}")
    text = (await first).text
    assert text.count('"code":"cancelled_by_operator"') == 1
    assert text.endswith("data: [DONE]\n\n")
    await asyncio.wait_for(held.is_left.wait(), 5)
    (waiting,) = await place.listed(user="bob")
    await place.http.delete(f"{REQUESTS}/{waiting['id']}")
    text = (await second).text
    assert text.count("cancelled_by_operator") == 1, "it had heard comments while it waited"
    await place.end()


@pytest.mark.parametrize("steps", range(12))
async def test_ended_at_any_moment_nothing_is_left(place: Place, steps: int) -> None:
    """A slot that leaks is the commonest fault of gateways, and this is one more way to leak it."""
    first, second = await place.two()
    lives = {life.asked.user: life for life in place.running.gateway.relay.lives if life.asked}
    place.engine.here[0].answer(b"{}")
    for _ in range(steps):
        await asyncio.sleep(0)
    for life in lives.values():
        life.end(CancelledByOperatorError())
        life.end(CancelledByOperatorError())
    await place.end(first, second)
    answers = {each.result().status_code for each in (first, second)}
    assert answers <= {200, 503}


async def test_a_client_that_leaves_as_it_is_ended_leaves_nothing(place: Place) -> None:
    """Both cancel the same task, and each must take back only its own."""
    first, second = await place.two()
    (waiting,) = await place.listed(state="waiting")
    second.cancel()
    await place.http.delete(f"{REQUESTS}/{waiting['id']}")
    await asyncio.wait([second])
    await eventually(lambda: not place.running.gateway.scheduler.waiting)
    await place.end(first)


@pytest.mark.parametrize("path", ["", "/explain", "/cancel"])
async def test_a_request_that_is_not_here_is_404(place: Place, path: str) -> None:
    """It ended a moment ago, or never was."""
    method = "POST" if path == "/cancel" else "GET"
    answer = await place.http.request(method, f"{REQUESTS}/nope{path}")
    assert code(answer) == (404, "request_not_found")


async def test_scale_tells_the_advice_and_by_what_it_is_judged(place: Place) -> None:
    """Who wonders why no machine comes must see the signal and its thresholds."""
    asked = [*await place.two(), *(place.ask(f"u{n}") for n in range(4))]
    await eventually(lambda: len(place.running.gateway.scheduler.waiting) == 5)
    (advice,) = (await place.http.get("/admin/v1/scale")).json()["data"]
    assert (advice["models"], advice["replicas"], advice["usable"]) == (["raw"], 1, 1)
    assert advice["signal"] < advice["below"] < advice["above"]
    assert (advice["waiting"], advice["min"], advice["max"]) == (5, 0, 8)
    await place.end(*asked)
