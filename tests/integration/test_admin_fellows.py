"""What operators are told by any of several gateways, and what of one that is silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.fellows import KEY, PART, SILENT, Address
from gateway.cluster.member import Member
from gateway.cluster.seat import Seat
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.redis_server import running_redis

REQUESTS, QUEUES, SCALE = "/admin/v1/requests", "/admin/v1/queues", "/admin/v1/scale"
LOWEST = {"x-fairgate-tier": "background"}
GATEWAYS = 3


@dataclass(slots=True)
class House:
    """Three gateways that are one, before an engine that runs one request at a time."""

    engine: HeldEngine
    gateways: list[Running]
    https: list[httpx.AsyncClient]
    asked: "list[asyncio.Task[httpx.Response]]"

    @property
    def leader(self) -> int:
        """Which of them leads."""
        return next(at for at, member in enumerate(self.members) if member.led)

    @property
    def members(self) -> list[Member]:
        """Of each gateway."""
        return [seat.member for seat in self.seats]

    @property
    def seats(self) -> list[Seat]:
        """Of each gateway."""
        return [each.gateway.seat for each in self.gateways if each.gateway.seat is not None]

    @property
    def followers(self) -> list[int]:
        """Those that do not."""
        return [at for at in range(GATEWAYS) if at != self.leader]

    def ask(self, at: int, user: str) -> None:
        """A request of the lowest tier at one of them, which waits outside of the engine."""
        body = {"model": "raw", "messages": [{"role": "user", "content": "hi"}]}
        headers = {**LOWEST, "x-fairgate-user": user}
        call = self.https[at].post("/v1/chat/completions", json=body, headers=headers)
        self.asked.append(asyncio.get_running_loop().create_task(call))

    async def told(self, at: int, path: str, **asked: str | int) -> httpx.Response:
        """What one of them answers."""
        answer = await self.https[at].get(path, params=asked)
        assert answer.status_code == 200, answer.text
        assert SILENT not in answer.headers
        return answer

    async def data(self, at: int, path: str, **asked: str | int) -> list[dict[str, Any]]:
        """The items of a list."""
        return list((await self.told(at, path, **asked)).json()["data"])

    def are_one(self) -> bool:
        """Whether one leads, the others follow, and each knows where the others are."""
        phases = sorted(f.phase.value for each in self.members for f in each.followers.values())
        knows = all(sum(map(bool, each.gateways.values())) == GATEWAYS for each in self.members)
        return knows and phases == ["following", "following", "leading"]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """One slot; the first user's request runs, through the leader."""
    with running_redis(tmp_path, ("--save", "")) as redis:
        async with running_held_engine(1) as engine, AsyncExitStack() as stack:
            found = House(engine, [], [], [])
            one = {"url": engine.url, "max_num_seqs": 1}
            for number in range(GATEWAYS):
                running = await stack.enter_async_context(
                    running_gateway(one, redis__url=redis.url, redis__name=f"g{number}")
                )
                running.gateway.furnish()  # as at each start: it would hold up all three here
                found.gateways.append(running)
                found.https.append(await stack.enter_async_context(client(running)))
            await eventually(found.are_one)
            found.ask(found.leader, "alice")
            await eventually(lambda: engine.here)
            yield found
            for call in found.asked:
                call.cancel()
            await asyncio.gather(*found.asked, return_exceptions=True)


async def waiting(house: House) -> None:
    """Two of bob's at one follower, one of carol's at the other: none of them runs."""
    first, second = house.followers
    for at, user in ((first, "bob"), (first, "bob"), (second, "carol")):
        house.ask(at, user)
    leader = house.gateways[house.leader].gateway.scheduler
    await eventually(lambda: len(leader.waiting) == 3)


async def test_whichever_is_asked_the_queues_are_those_of_all(house: House) -> None:
    """A load balancer sends an operator anywhere."""
    await waiting(house)
    for at in range(GATEWAYS):
        bob, carol = await house.data(at, QUEUES)
        assert (bob["user"], bob["waiting"], carol["user"], carol["waiting"]) == (
            "bob", 2, "carol", 1
        )  # fmt: skip
        (only,) = await house.data(at, QUEUES, user="carol")
        assert only["user"] == "carol"


async def test_the_requests_of_all_are_one_list_in_pages(house: House) -> None:
    """Each gateway knows its own; a page must neither leave one out nor tell it twice."""
    await waiting(house)
    for at in range(GATEWAYS):
        users: list[str] = []
        after: str | None = None
        for _ in range(4):
            place = {"after": after} if after else {}
            page = (await house.told(at, REQUESTS, limit=1, **place)).json()
            users += [each["user"] for each in page["data"]]
            after = page["next"]
        assert (sorted(users), after) == (["alice", "bob", "bob", "carol"], None)
        listed = await house.data(at, REQUESTS, state="waiting")
        assert sorted(each["user"] for each in listed) == ["bob", "bob", "carol"]


async def test_why_a_request_waits_is_told_by_who_decides_it(house: House) -> None:
    """Its own gateway has no queue to look into."""
    await waiting(house)
    (carol,) = await house.data(0, REQUESTS, user="carol")
    for at in range(GATEWAYS):
        told = (await house.told(at, f"{REQUESTS}/{carol['id']}/explain")).json()
        assert (told["request_id"], told["state"]) == (carol["id"], "waiting")
        assert told["user"] == "carol"
        assert told["flows_ahead"] + told["position"] >= 1
        (verdict,) = told["replicas"]
        assert (verdict["closed_by"], verdict["occupied"]) == ("queue", 1)


async def test_a_request_is_ended_through_any_gateway(house: House) -> None:
    """And one that nobody has is nowhere, whoever is asked."""
    await waiting(house)
    (carol,) = await house.data(0, REQUESTS, user="carol")
    for at in range(GATEWAYS):
        assert (await house.told(at, f"{REQUESTS}/{carol['id']}")).json()["user"] == "carol"
        assert (await house.https[at].get(f"{REQUESTS}/none")).status_code == 404
    at = next(at for at in range(GATEWAYS) if at != house.followers[1])
    assert (await house.https[at].post(f"{REQUESTS}/{carol['id']}/cancel")).status_code == 200
    answer = await asyncio.wait_for(house.asked[-1], 5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cancelled_by_operator")


async def test_advice_is_told_once_and_by_who_leads(house: House) -> None:
    """The others see their own requests only, and would advise fewer replicas."""
    await waiting(house)
    for at in range(GATEWAYS):
        (advice,) = await house.data(at, SCALE)
        assert (advice["models"], advice["waiting"]) == (["raw"], 3)
        target = (await house.told(at, f"{SCALE}/target", model="raw")).json()
        (later,) = await house.data(at, SCALE)
        assert target["advised"] in (advice["advised"], later["advised"])
        assert (type(target["target"]), target["usable"]) == (int, 1)


async def test_metrics_of_queues_are_told_by_who_leads(house: House) -> None:
    """Prometheus adds up what all gateways tell."""
    await waiting(house)
    line = 'fairgate_flow_control_queue_size{model="raw",tier="background"} 3.0'
    told = [(await house.told(at, "/metrics")).text for at in range(GATEWAYS)]
    assert [line in text for text in told].count(True) == 1
    assert line in told[house.leader]
    assert ["fairgate_replica_slots{" in text for text in told].count(True) == 1


async def test_who_does_not_answer_is_named(house: House) -> None:
    """Half a picture must not look like a whole one."""
    await waiting(house)
    first, second = house.followers
    asking, silent, leader = (house.seats[at] for at in (first, second, house.leader))
    silent.member.about = Address(url=house.gateways[second].url, machine="another").written()
    leader.member.about = "what is this?"
    await eventually(
        lambda: (
            [asking.member.gateways.get(each.member.name) for each in (silent, leader)]
            == [silent.member.about, leader.member.about]
        )
    )
    answer = await house.https[first].get(REQUESTS)
    assert set(answer.headers[SILENT].split(",")) == {silent.member.name, leader.member.name}
    assert [each["user"] for each in answer.json()["data"]] == ["bob", "bob"]


async def test_a_part_is_told_without_asking_anybody(house: House) -> None:
    """Otherwise every question would go round for ever."""
    await waiting(house)
    part = await house.https[house.followers[0]].get(REQUESTS, headers={PART: "own"})
    assert [each["user"] for each in part.json()["data"]] == ["bob", "bob"]
    assert (await house.https[house.followers[0]].get(QUEUES, headers={PART: "own"})).json()[
        "data"
    ] == []
    wrong = {PART: "picture", KEY: "g9/none"}
    answer = await house.https[house.leader].get(f"{REQUESTS}/none/explain", headers=wrong)
    assert answer.status_code == 404


def test_an_address_that_cannot_be_read_is_none() -> None:
    """It comes from Redis, and perhaps from another version."""
    for text in ("", "[]", "{}", "null", "7", '{"url": 1, "socket": []}'):
        found = Address.read(text)
        assert found is None or isinstance(found, Address)
    whole = Address(url="http://h:1", socket="/run/x", machine="m")
    assert Address.read(whole.written()) == whole
    assert Address.read('{"url": "http://h:1"}') == Address(url="http://h:1")
