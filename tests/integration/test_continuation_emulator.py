"""Emulated engines fail in mid-stream, in every way that real ones do; readers notice nothing."""

import asyncio
from typing import Any

import httpx
import pytest

from gateway.emulator.faults import parse_fault
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.support.breaking import CHAT, COMPLETIONS, ON, Heard
from tests.support.gateway import client, eventually, running_gateway

STREAMS = 16
TOKENS = 60


def options() -> EmulatorOptions:
    """Sixteen sequences, steps of a few milliseconds."""
    return EmulatorOptions(profile="demo", speed=8.0, max_num_seqs=STREAMS)


def asked(number: int) -> tuple[str, dict[str, Any]]:
    """(path, body) of one of sixteen different streams without chance."""
    body = {
        "model": "emulated", "max_tokens": TOKENS, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    if number % 2:
        return COMPLETIONS, {**body, "prompt": f"number {number}"}
    shows = {"return_token_ids": True} if number % 4 == 0 else {}
    turns = [{"role": "user", "content": f"number {number}"}]
    return CHAT, {**body, "messages": turns, **shows}


async def heard_by_all(url: str) -> list[Heard]:
    """What sixteen clients read at once."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        replies = await asyncio.gather(
            *(http.post(path, json=body) for path, body in map(asked, range(STREAMS)))
        )
    assert {reply.status_code for reply in replies} == {200}
    return [Heard(reply.text) for reply in replies]


async def whole() -> list[Heard]:
    """The same from an engine that lives."""
    async with running_emulator(options()) as engine:
        return await heard_by_all(engine.url)


@pytest.mark.parametrize(
    "fault",
    ["die-midstream:20", "close-midstream:9", "error-midstream:31", "half-chunk:14", "core-dead"],
)
async def test_all_streams_are_what_an_engine_that_lives_would_have_said(fault: str) -> None:
    """Sixteen people read; one engine of two fails; nobody notices."""
    expected = await whole()
    async with (
        running_emulator(options()) as one,
        running_emulator(options()) as other,
        running_gateway(
            *({"url": each.url, "max_num_seqs": STREAMS} for each in (one, other)),
            tiers=ON,
        ) as running,
    ):
        reading = asyncio.create_task(heard_by_all(running.url))
        if fault == "core-dead":
            under_way = running.gateway.relay.open
            await eventually(
                lambda: (
                    len(under_way) == STREAMS and all(each.output_tokens > 5 for each in under_way)
                )
            )
        inject(one, fault)
        heard = await reading
        await eventually(lambda: running.in_flight == 0)
        async with client(running) as http:
            metrics = (await http.get("/metrics")).text
    for mine, its in zip(heard, expected, strict=True):
        mine.check_is(its)
    continued = sum(bool(each.comments) for each in heard)
    assert continued >= STREAMS // 4
    assert f'fairgate_migrations_total{{kind="continued"}} {continued}.0' in metrics


def inject(engine: Emulator, fault: str) -> None:
    """From now on `engine` fails so."""
    engine.faults.inject(parse_fault(fault))
