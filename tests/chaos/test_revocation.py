"""A key is revoked while all who have it keep asking, at every gateway."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.chaos.site import Site, site
from tests.support.redis_server import running_redis

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

GATEWAYS = 3
CLIENTS = 16
"""That ask each gateway all the time; more than its engine has slots."""
SLOTS = 12
LATE_S_MAX = 1.0
SETTLE_S = 3.0
PATH = "/v1/chat/completions"
BODY = {"model": "emulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where all gateways keep their keys."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'shared.db'}"
        return
    with running_redis(tmp_path) as server:
        yield server.url


async def test_a_revoked_key_is_refused_everywhere_within_a_second(
    store: str, tmp_path: Path, say: Say
) -> None:
    """A key leaked, and whoever has it uses it as hard as he can."""
    engine = EmulatorOptions(profile="demo", speed=10.0, max_num_seqs=SLOTS)
    async with AsyncExitStack() as stack:
        gateways = []
        for _ in range(GATEWAYS):
            emulator = await stack.enter_async_context(running_emulator(engine))
            running = site(tmp_path, [emulator.url], store={"url": store})
            gateways.append(await stack.enter_async_context(running))
        leaked, kept = await made_key(gateways[0], "leaked"), await made_key(gateways[0], "kept")
        until = asyncio.Event()
        served: list[list[float]] = [[] for _ in gateways]
        """Of each gateway, when requests with the leaked key began that were let in."""
        others: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            for gateway, instants in zip(gateways, served, strict=True):
                for _ in range(CLIENTS):
                    tasks.create_task(keep_asking(gateway, leaked["key"], instants, until))
                tasks.create_task(keep_using(gateway, kept["key"], others, until))
            await asyncio.sleep(SETTLE_S)
            deleted = await gateways[0].http.delete(f"/admin/v1/keys/{leaked['id']}")
            revoked_at = monotonic()
            assert deleted.status_code == 204, deleted.text
            await asyncio.sleep(SETTLE_S)
            until.set()
        late_s = [max(instants) - revoked_at for instants in served]
        lets_in = sum(map(len, served))
        say(
            f"{store.partition(':')[0]}: {lets_in} let in before; the last one of each gateway"
            f" {', '.join(f'{each:+.3f}' for each in late_s)} s after the revocation was"
            f" acknowledged; {len(others)} with another key, all served"
        )
    assert max(late_s) < LATE_S_MAX
    assert set(others) == {200}


async def made_key(gateway: Site, label: str) -> Any:
    """A fresh key, known to all gateways."""
    await gateway.http.post("/admin/v1/tenants", json={"name": label})
    made = await gateway.http.post("/admin/v1/keys", json={"tenant": label, "label": label})
    assert made.status_code == 201, made.text
    await asyncio.sleep(LATE_S_MAX)
    return made.json()


async def ask(gateway: Site, key: str) -> int:
    """The status of one request."""
    headers = {"authorization": f"Bearer {key}"}
    return (await gateway.http.post(PATH, json=BODY, headers=headers)).status_code


async def keep_asking(gateway: Site, key: str, instants: list[float], until: asyncio.Event) -> None:
    """One of those who have the key; when it was let in the last times."""
    while not until.is_set():
        began_at = monotonic()
        if await ask(gateway, key) != 401:
            instants.append(began_at)


async def keep_using(gateway: Site, key: str, statuses: list[int], until: asyncio.Event) -> None:
    """Somebody with a good key beside them."""
    while not until.is_set():
        statuses.append(await ask(gateway, key))
