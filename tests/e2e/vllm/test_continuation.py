"""Streams of real engines that die: what is read of them is what an unbroken run would have said.

The models are random and byte-level, the worst case for a text that is joined: half of the
breaks lie within a character. FAIRGATE_TRIALS says how often each engine dies.
"""

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.e2e.vllm.conftest import Say
from tests.e2e.vllm.engines import MODEL, READY_S_MAX, Replica, running_replicas
from tests.support.breaking import CHAT, COMPLETIONS, ON, Heard
from tests.support.cutting import cutting
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.ports import free_port

TRIALS = int(os.environ.get("FAIRGATE_TRIALS", "1"))
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800 + TRIALS * READY_S_MAX)]

STREAMS = 16
SLOTS = 16
TOKENS = 160
TOKENS_BEFORE = 30
"""Of each stream, before an engine dies."""
FLAGS = (
    "--max-model-len", "4096", "--kv-cache-memory-bytes", "256M", "--scheduling-policy", "fcfs",
    "--max-num-seqs", str(SLOTS),
)  # fmt: skip
CUTS = 40 * TRIALS
WORDS = ("date", "parse", "\u5317\u4eac", "def", "main", "\u00e9", "\U0001f642")
PATIENT: dict[str, Any] = {
    # A processor that others use too is many times slower than its usual self for seconds.
    "tiers": [{**ON[0], "tpot_limit_ms": 60_000}],
    "scheduling__limiter": "static",
    "retries__continuation_wait_s": 300,
}
Kill = Callable[[Replica], None]


@dataclass
class Reading:
    """One stream as it comes in."""

    path: str
    asked: dict[str, Any]
    got: bytes = b""
    replica: str = ""
    events: int = 0
    longest_gap_s: float = 0.0
    """Between two pieces with a data event in them."""

    async def read(self, http: httpx.AsyncClient) -> Heard:
        """All of it."""
        async with http.stream("POST", self.path, json=self.asked) as reply:
            assert reply.status_code == 200
            self.replica = reply.headers.get("x-fairgate-replica", "")
            heard_at = monotonic()
            async for data in reply.aiter_bytes():
                self.got += data
                self.events += data.count(b"\n\n")
                if b"data: " in data:
                    self.longest_gap_s = max(self.longest_gap_s, monotonic() - heard_at)
                    heard_at = monotonic()
        return Heard(self.got.decode())


def asked(number: int) -> Reading:
    """One of sixteen different streams; every other one asks for token ids itself."""
    body = {
        "model": MODEL, "max_tokens": TOKENS, "temperature": 0, "stream": True,
        "return_token_ids": number % 2 == 0, "stream_options": {"include_usage": True},
    }  # fmt: skip
    if not body["return_token_ids"]:
        del body["return_token_ids"]
    if number % 4 == 3:
        return Reading(COMPLETIONS, {**body, "prompt": f"def number_{number}("})
    turns = [{"role": "user", "content": f"Write function number {number}."}]
    return Reading(CHAT, {**body, "messages": turns})


async def all_of(http: httpx.AsyncClient, readings: list[Reading]) -> list[Heard]:
    """Sixteen streams at once."""
    return list(await asyncio.gather(*(each.read(http) for each in readings)))


@pytest.mark.parametrize("kill", [Replica.kill, Replica.kill_core], ids=["replica", "core"])
async def test_an_engine_that_is_killed_takes_no_stream_with_it(kill: Kill, say: Say) -> None:
    """Sixteen people read; one machine of two dies; nobody notices."""
    same = moved = 0
    with running_replicas(free_port(), flags=FLAGS) as (stays,):
        async with httpx.AsyncClient(base_url=stays.url, timeout=300) as direct:
            whole = await all_of(direct, [asked(number) for number in range(STREAMS)])
        for _ in range(TRIALS):
            with running_replicas(free_port(), flags=FLAGS) as (dies,):
                found = [{"url": each.url, "max_num_seqs": SLOTS} for each in (stays, dies)]
                async with running_gateway(*found, wait_ready=False, **PATIENT) as running:
                    await ready(running)
                    heard, gone = await killed(running, dies, kill)
            moved += gone
            for one, other in zip(heard, whole, strict=True):
                one.check_is(other)
                same += 1
    say(f"{same} of {TRIALS * STREAMS} streams the same to the token, {moved} of them continued")
    assert moved >= TRIALS * STREAMS // 4


async def ready(running: Running) -> None:
    """Both replicas are known."""
    usable = running.gateway.scheduler.replicas
    await eventually(lambda: sum(each.is_usable for each in usable.values()) == 2, 60)


async def killed(running: Running, dies: Replica, kill: Kill) -> tuple[list[Heard], int]:
    """(what was read, how many streams were continued) where `dies` is killed in mid-stream."""
    readings = [asked(number) for number in range(STREAMS)]
    async with client(running) as http:
        http.timeout = httpx.Timeout(300)
        reading = asyncio.create_task(all_of(http, readings))
        await eventually(lambda: all(each.events > TOKENS_BEFORE for each in readings), 120)
        assert all(each.events < TOKENS for each in readings), "too late to break any"
        kill(dies)
        heard = await reading
    await eventually(lambda: running.in_flight == 0)
    return heard, sum(bool(each.comments) for each in heard)


async def test_a_connection_cut_at_any_byte_doubles_and_loses_no_character(say: Say) -> None:
    """Half of the breaks lie within a character; a reader would see rubbish in every other one."""
    chance = random.Random(1)
    continued = 0
    flags = ("--max-num-seqs", str(SLOTS))
    with running_replicas(free_port(), free_port(), flags=flags, model="tiny") as replicas:
        async with (
            cutting(replicas[0].url) as one,
            cutting(replicas[1].url) as other,
            running_gateway(one.url, other.url, wait_ready=False, **PATIENT) as running,
            httpx.AsyncClient(base_url=replicas[0].url, timeout=60) as direct,
            httpx.AsyncClient(base_url=running.url, timeout=60) as through,
        ):
            await ready(running)
            one.cuts = other.cuts = []
            for _ in range(CUTS):
                asks = any_request(chance)
                whole = await Reading(*asks).read(direct)
                one.cuts.append(chance.randint(500, max(501, len(whole.stream.encode()))))
                heard = await Reading(*asks).read(through)
                heard.check_is(whole)
                continued += bool(heard.comments)
                one.cuts.clear()
    say(f"{CUTS} of {CUTS} streams the same to the character, {continued} of them continued")
    assert continued > CUTS // 2


def any_request(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """(path, body) of some stream without chance."""
    words = " ".join(chance.choices(WORDS, k=chance.randint(1, 20)))
    body: dict[str, Any] = {
        "model": MODEL, "stream": True, "temperature": 0, "max_tokens": chance.randint(5, 150),
    }  # fmt: skip
    if chance.random() < 0.4:
        body["stream_options"] = {"include_usage": True}
    if chance.random() < 0.3:
        body["return_token_ids"] = True
    if chance.random() < 0.3:
        body["stream_interval"] = chance.randint(2, 6)
    if chance.random() < 0.5:
        return COMPLETIONS, {**body, "prompt": words}
    return CHAT, {**body, "messages": [{"role": "user", "content": words}]}
