"""The gateway is killed while operators change things: what they were told is there."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.tenancy.store.sqlite import SqliteStore
from tests.support.child import child
from tests.support.operating import V1

WRITES = 1_000
WRITERS = 4
LONG = (pytest.mark.soak, pytest.mark.timeout(300))
"""Each change is checked with all that there are: the five hundredth takes longer."""


async def write(http: httpx.AsyncClient, writer: int, told: dict[str, float]) -> None:
    """Make tenants, and change each once, until nobody answers."""
    for number in range(WRITES // WRITERS):
        name = f"w{writer}-{number}"
        try:
            made = await http.post(f"{V1}/tenants", json={"name": name, "weight": 1})
            if made.status_code == 201:
                told[name] = 1
            changed = await http.patch(f"{V1}/tenants/{name}", json={"weight": 2})
            if changed.status_code == 200:
                told[name] = 2
        except httpx.TransportError:
            return


@pytest.mark.parametrize(
    "after", [15, *(pytest.param(after, marks=LONG) for after in (50, 200, 500))]
)
async def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path, after: int) -> None:
    """The power fails at night; the operator relies on what the terminal said."""
    file = tmp_path / "kept.db"
    store: dict[str, Any] = {"url": f"sqlite:///{file}"}
    told: dict[str, float] = {}
    async with child(tmp_path, "http://127.0.0.1:9", ready=False, store=store) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=20.0) as http:
            writers = [asyncio.create_task(write(http, each, told)) for each in range(WRITERS)]
            while len(told) < after:  # noqa: ASYNC110 - clients tell by what they were told
                await asyncio.sleep(0.002)
            gateway.signal(signal.SIGKILL)
            await asyncio.gather(*writers)
        await gateway.status()
    reopened = SqliteStore(file)
    await reopened.open()
    kept = {record.id: record.body["weight"] for record in (await reopened.read()).records}
    entries = await reopened.audit(limit=1_000)
    await reopened.close()
    assert len(told) >= after
    lost = {name: weight for name, weight in told.items() if kept.get(name, 0) < weight}
    assert lost == {}
    assert {entry.revision for entry in entries} == set(range(1, len(entries) + 1))
    async with (
        child(tmp_path, "http://127.0.0.1:9", ready=False, store=store) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=20.0) as http,
    ):
        for name in list(told)[:3]:
            shown = (await http.get(f"{V1}/tenants/{name}")).json()
            assert (shown["name"], shown["weight"]) == (name, kept[name])
