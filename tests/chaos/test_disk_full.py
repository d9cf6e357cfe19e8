"""A disk without room, for whatever the gateway writes: uploads are told so, the rest goes on."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.chaos.conftest import Say
from tests.chaos.site import Site, site
from tests.support.sending import FORM_TYPE, form, part
from tests.support.small_disk import small_disk

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

DISK_BYTES = 512 << 10
LARGE = b"x" * (3 << 20)
"""More than is kept in memory, and more than the disk holds."""
UPLOADS = 8
CHAT = {"model": "emulated", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with next to no room."""
    with small_disk(tmp_path, DISK_BYTES) as folder:
        yield folder


@pytest.fixture
async def running(tmp_path: Path, disk: Path) -> AsyncIterator[Site]:
    """A gateway whose temporary files lie there."""
    async with (
        running_emulator(EmulatorOptions(profile="instant")) as engine,
        site(tmp_path, [engine.url], {"TMPDIR": str(disk)}) as gateway,
    ):
        yield gateway


async def test_uploads_without_room_are_refused_and_others_served(
    running: Site, disk: Path, say: Say
) -> None:
    """One full disk would take the whole gateway with it, or swallow half an upload."""
    body = form(part("model", b"emulated"), part("file", LARGE, filename="a.wav"))
    small = form(part("model", b"emulated"), part("file", LARGE[:1000], filename="a.wav"))
    headers = {"content-type": FORM_TYPE.decode()}
    path = "/v1/audio/transcriptions"

    async def upload(content: bytes) -> int:
        answer = await running.http.post(path, content=content, headers=headers)
        assert "error" in answer.json() or answer.status_code == 200
        return answer.status_code

    statuses = await asyncio.gather(*(upload(body) for _ in range(UPLOADS)))
    say(f"{UPLOADS} uploads on a full disk: {sorted(statuses)}")
    assert set(statuses) == {507}
    assert (await running.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert await upload(small) == 200
    await running.freed(5.0)
    assert running.is_alive
    room = os.statvfs(disk)
    assert room.f_bfree == room.f_blocks, "what was refused still lies there"
