"""A million names that nobody knows: keys, models and users that clients made up."""

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256

import httpx
import pytest

from gateway.bench.replies import MODEL
from tests.e2e.soak.conftest import Say
from tests.e2e.soak.site import Watched, watched

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

CONNECTIONS = 16
WARM_SHARE = 0.2
"""Of all names: by then every table that has a bound is full."""
GROWTH_MB_MAX = 8.0
SERIES_MORE_MAX = 4
"""A reason that was first seen late."""
KEY = "speaks-for-its-users"
USERS_PER_TENANT = 1_000
Named = tuple[bytes, bytes, int]
"""Key, body, and the status that follows."""


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A gateway with one key, which may name the user that it speaks for."""
    key = {
        "tenant": "known",
        "user": "app",
        "tier": "standard",
        "speaks_for_users": True,
        "key_sha256": sha256(KEY.encode()).hexdigest(),
    }
    with watched(
        tmp_path_factory.mktemp("names"),
        ("-m", "gateway.bench.upstream"),
        tenants=[{"name": "known", "users": {"app": {"weight": 1}}}],
        keys=[key],
        bounds={"users_per_tenant": USERS_PER_TENANT},
    ) as running:
        yield running


def unknown_key(chance: random.Random) -> Named:
    """Somebody tries keys."""
    name = f"fg-{chance.randbytes(6).hex()}-{chance.randbytes(16).hex()}"
    return name.encode(), _body(MODEL, "app"), 401


def unknown_model(chance: random.Random) -> Named:
    """A client that takes each prompt for a model."""
    return KEY.encode(), _body(f"model-{chance.randbytes(8).hex()}", "app"), 404


def unknown_user(chance: random.Random) -> Named:
    """An application that makes up a user for each of its page views."""
    return KEY.encode(), _body(MODEL, f"user-{chance.randbytes(8).hex()}"), 200


async def test_names_that_clients_make_up_leave_nothing_behind(
    site: Watched, names: int, say: Say
) -> None:
    """Metrics with a label for each wrong key, and tables of users, have filled the memory."""
    seed, answers = secrets.randbits(32), Counter[int]()
    warm = round(names * WARM_SHARE)
    await ask_all(site.port, warm, seed, answers)
    rss_mb, series = site.rss_mb(), series_of(site)
    await ask_all(site.port, names - warm, seed + 1, answers)
    grown_mb = site.rss_mb() - rss_mb
    say(
        f"{names} names (seed {seed}), answers {dict(answers)}: gateway {rss_mb:.0f} MB after"
        f" {warm}, {grown_mb:+.1f} MB in the end; {series} series of metrics, then"
        f" {series_of(site)}"
    )
    assert grown_mb < GROWTH_MB_MAX
    assert series_of(site) <= series + SERIES_MORE_MAX
    ready = site.ready()
    assert (ready["granted"], ready["waiting"]) == (0, 0)


def series_of(site: Watched) -> int:
    """How many samples a scrape has."""
    text = httpx.get(f"{site.url}/metrics", timeout=10.0).text
    return sum(not line.startswith("#") for line in text.splitlines())


async def ask_all(port: int, count: int, seed: int, answers: Counter[int]) -> None:
    """So many requests over kept-alive connections, each with another name."""
    shares = (count // CONNECTIONS for _ in range(CONNECTIONS))
    async with asyncio.TaskGroup() as tasks:
        for number, share in enumerate(shares):
            tasks.create_task(ask_some(port, share, random.Random(seed + number), answers))


async def ask_some(port: int, count: int, chance: random.Random, answers: Counter[int]) -> None:
    """One connection's share. Raises AssertionError for an answer that does not follow."""
    kinds: tuple[Callable[[random.Random], Named], ...] = unknown_key, unknown_model, unknown_user
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(count):
        key, body, expected = kinds[number % len(kinds)](chance)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer %b\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (key, len(body), body)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        assert status == expected, head
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        answers[status] += 1
    writer.close()


def _body(model: str, user: str) -> bytes:
    messages = [{"role": "user", "content": "x"}]
    return json.dumps(
        {"model": model, "messages": messages, "max_tokens": 1, "user": user}
    ).encode()
