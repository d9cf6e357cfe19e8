"""Limits through a real gateway: what the real SDKs make of them, races, restarts, reloads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from gateway.api.cors import EXPOSED_HEADERS
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.settings import Settings, load_settings
from gateway.tenancy.keys import key_hash
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import running_held_engine
from tests.support.house import AheadClock
from tests.support.sums import FakeSums

FAST = EmulatorOptions(profile="instant", max_num_seqs=64, models=("m",))
SLOW = EmulatorOptions(profile="demo", max_num_seqs=64, models=("m",))
CHAT = "/v1/chat/completions"
TURNS: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi."}]
ASK: dict[str, Any] = {"model": "m", "messages": TURNS, "max_tokens": 4}
KEY = {"tenant": "acme", "user": "alice", "key_sha256": key_hash(b"fg-alice")}


def limited(where: str, **limits: Any) -> dict[str, Any]:
    """Settings in which the tenant, its user or its key has these limits."""
    tenant: dict[str, Any] = {"name": "acme", "users": {"alice": {}}}
    key: dict[str, Any] = dict(KEY)
    {"tenant": tenant, "user": tenant["users"]["alice"], "key": key}[where]["limits"] = limits
    return {"tenants": [tenant], "keys": [key]}


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """One quick engine."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@asynccontextmanager
async def site(engine: Emulator, **settings: Any) -> AsyncIterator[tuple[Running, AheadClock]]:
    """A gateway before it, whose clock a test may set forward."""
    clock = AheadClock()
    async with running_gateway(engine.url, clock=clock, **settings) as running:
        yield running, clock


def http(running: Running) -> httpx.AsyncClient:
    """Alice's client."""
    return client(running, authorization="Bearer fg-alice")


class Naps:
    """What SDKs slept before they tried again: they do not sleep, a clock is set forward."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.clock: AheadClock | None = None

    async def sleep(self, seconds: float) -> None:
        """In place of the real one."""
        self.slept.append(seconds)
        if self.clock is not None:
            self.clock.lead_s += seconds


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> Naps:
    """Nobody waits for a minute."""
    made = Naps()
    monkeypatch.setattr("openai._base_client.anyio.sleep", made.sleep)
    return made


def sdk(running: Running, retries: int = 2) -> AsyncOpenAI:
    """The client as a user sets it up."""
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key="fg-alice", max_retries=retries)


@pytest.mark.parametrize("where", ["tenant", "user", "key"])
async def test_the_sdk_comes_back_when_it_was_told_and_is_served(
    engine: Emulator, naps: Naps, where: str
) -> None:
    """One refusal, one wait of exactly the right length, one answer."""
    async with site(engine, **limited(where, requests_per_minute=1)) as (running, clock):
        naps.clock = clock
        async with sdk(running) as client:
            for _ in range(2):
                answer = await client.chat.completions.create(**ASK)
                assert answer.choices[0].message.content
    (nap_s,) = naps.slept
    assert 55.0 < nap_s <= 61.0
    assert running.gateway.limits.refusals == {("requests", where): 1}


async def test_an_exhausted_budget_is_not_tried_again(engine: Emulator, naps: Naps) -> None:
    """Three tries for nothing, a second apart, from each of a thousand clients."""
    settings = limited("user", budget={"tokens": 60, "per": "day"})
    async with site(engine, **settings) as (running, _):
        async with sdk(running) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                while True:
                    await client.chat.completions.create(**ASK)
        error = caught.value
        assert error.code == error.type == "insufficient_quota"
        assert error.response.headers["x-should-retry"] == "false"
        assert 0 < int(error.response.headers["retry-after"]) <= 86_400
        assert naps.slept == []
        assert sum(running.gateway.limits.refusals.values()) == 1


async def test_the_headers_say_how_the_limits_stand_on_success_and_refusal(
    engine: Emulator,
) -> None:
    """And a web page may read them."""
    settings = limited("key", requests_per_minute=2, tokens_per_minute=10_000)
    async with site(engine, **settings) as (running, _), http(running) as http_client:
        first = await http_client.post(CHAT, json=ASK)
        stream = await http_client.post(CHAT, json={**ASK, "stream": True})
        refused = await http_client.post(CHAT, json=ASK)
        text = (await http_client.get("/metrics")).text
    assert [first.status_code, stream.status_code, refused.status_code] == [200, 200, 429]
    left = [each.headers["x-ratelimit-remaining-requests"] for each in (first, stream, refused)]
    assert left == ["1", "0", "0"]
    for answer in (first, stream, refused):
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
        assert answer.headers["x-ratelimit-reset-tokens"] in {"1m0s", "1m1s"}
        told = {name for name in answer.headers if "ratelimit" in name}
        assert len(told) == 6
        assert told <= set(EXPOSED_HEADERS)
    assert refused.json()["error"]["type"] == "requests"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["x-should-retry"] == "true"
    assert int(refused.headers["retry-after-ms"]) <= 61_000
    assert 'fairgate_limit_refusals_total{limit="requests",scope="key"} 1.0' in text


async def test_who_has_no_limits_is_told_none(engine: Emulator) -> None:
    """A header with a made-up figure would be paced by."""
    async with site(engine, keys=[KEY]) as (running, _), http(running) as http_client:
        answer = await http_client.post(CHAT, json=ASK)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if "ratelimit" in name]


async def test_anthropics_sdk_reads_the_refusal(engine: Emulator) -> None:
    """Its shapes, its headers, its error class."""
    settings = limited("tenant", requests_per_minute=1)
    async with (
        site(engine, **settings) as (running, _),
        AsyncAnthropic(base_url=running.url, api_key="fg-alice", max_retries=0) as client,
    ):
        message = await client.messages.with_raw_response.create(
            model="m", max_tokens=4, messages=[{"role": "user", "content": "Hi."}]
        )
        assert message.headers["anthropic-ratelimit-requests-remaining"] == "0"
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(
                model="m", max_tokens=4, messages=[{"role": "user", "content": "Hi."}]
            )
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    assert caught.value.response.headers["retry-after"]


@pytest.mark.parametrize("streams", [False, True])
async def test_of_fifty_first_requests_at_once_a_budget_of_one_lets_one_through(
    engine: Emulator, streams: bool
) -> None:
    """The race that every counter that is read first and written later loses."""
    async with site(engine, **limited("tenant", budget={"tokens": 1_000})) as (running, _):
        body = {**ASK, "max_tokens": 600, "stream": streams, "ignore_eos": True}
        async with http(running) as http_client:
            answers = await asyncio.gather(*(http_client.post(CHAT, json=body) for _ in range(50)))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200] + [429] * 49
        assert {answer.json()["error"]["code"] for answer in answers
                if answer.status_code == 429} == {"insufficient_quota"}  # fmt: skip
        await eventually(lambda: running.in_flight == 0)
        (holder,) = running.gateway.limits.holders_of("acme", "alice", "")
        assert holder.held == 0
        month = running.gateway.limits.books.periods.month
        assert 600 < running.gateway.limits.books.spent((holder.id, month)) < 700


async def test_a_request_beyond_the_whole_allowance_is_the_clients_mistake(
    engine: Emulator, naps: Naps
) -> None:
    """It would be refused for ever, and each time with a hint to come back."""
    async with (
        site(engine, **limited("key", tokens_per_minute=100)) as (running, _),
        sdk(running) as client,
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**{**ASK, "max_tokens": 101})
    assert caught.value.code == "request_exceeds_limit"
    assert naps.slept == []


async def test_a_client_that_leaves_pays_for_what_was_produced() -> None:
    """Streams could be had for nothing by hanging up before their end."""
    async with (
        running_emulator(SLOW) as engine,
        site(engine, **limited("user", budget={"tokens": 5_000})) as (running, _),
        http(running) as http_client,
    ):
        limits = running.gateway.limits
        (holder,) = limits.holders_of("acme", "alice", "")
        month = (holder.id, limits.books.periods.month)
        body = {**ASK, "max_tokens": 2_000, "stream": True, "ignore_eos": True}
        async with http_client.stream("POST", CHAT, json=body) as stream:
            count = 0
            async for line in stream.aiter_lines():
                count += line.startswith("data:")
                if count == 5:
                    break
            assert limits.books.spent(month) > 2_000
        await eventually(lambda: running.in_flight == 0 and holder.held == 0)
        assert 5 < limits.books.spent(month) < 500


async def test_what_the_scheduler_refuses_costs_nothing() -> None:
    """A full queue is not the user's fault."""
    async with (
        running_held_engine(1) as engine,
        running_gateway(
            {"url": engine.url, "max_num_seqs": 1},
            bounds__waiting_per_user=1,
            **limited("user", requests_per_minute=10, budget={"tokens": 5_000}),
        ) as running,
        http(running) as http_client,
    ):
        limits = running.gateway.limits
        (holder,) = limits.holders_of("acme", "alice", "")
        body = {**ASK, "model": "raw", "stream": True}
        tasks = [asyncio.create_task(http_client.post(CHAT, json=body)) for _ in range(6)]
        _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await eventually(lambda: holder.requests.used == len(tasks) - sum(t.done() for t in tasks))
        refused = [task.result() for task in tasks if task.done()]
        assert {answer.status_code for answer in refused} == {429}
        held = holder.held
        for task in waiting:
            task.cancel()
        await eventually(lambda: running.in_flight == 0 and holder.held == 0)
        assert limits.books.spent((holder.id, limits.books.periods.month)) < held


async def test_budgets_survive_a_restart_of_the_gateway(engine: Emulator) -> None:
    """Nobody gets a new month by a deployment."""
    sums = FakeSums()
    settings = limited("user", budget={"tokens": 60})
    spent = 0
    for statuses in ({200, 429}, {429}):
        async with (
            running_gateway(engine.url, sums=sums, **settings) as running,
            http(running) as http_client,
        ):
            seen: set[int] = set()
            while 429 not in seen:
                seen.add((await http_client.post(CHAT, json=ASK)).status_code)
            assert seen == statuses
        totals = {key[0]: total for key, total in sums.totals.items()}
        assert spent in {0, totals["user:acme/alice"]}
        spent = totals["user:acme/alice"]
        assert 0 < spent <= 60


async def test_a_reload_changes_limits_and_keeps_what_was_used(engine: Emulator) -> None:
    """Raising a limit helps at once; lowering one is not a fresh start."""

    def settings(**limits: Any) -> Settings:
        values = {"replicas": [engine.url], "bounds.loop_lag_s": 0, **limited("user", **limits)}
        return load_settings(config=None, environ={}, overrides=values)

    async with (
        site(engine, **limited("user", requests_per_minute=1)) as (running, _),
        http(running) as http_client,
    ):

        async def status() -> int:
            return (await http_client.post(CHAT, json=ASK)).status_code

        assert [await status(), await status()] == [200, 429]
        running.gateway.reload(settings(requests_per_minute=2))
        assert [await status(), await status()] == [200, 429]
        running.gateway.reload(settings(requests_per_minute=1))
        assert await status() == 429
        running.gateway.reload(settings())
        assert await status() == 200
