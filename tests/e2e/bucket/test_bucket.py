"""Files of batches in a bucket of a real S3 server, which refuses, is missing, or goes away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.e2e.bucket.conftest import NAME, Store
from tests.integration.test_batches import (
    COUNT,
    KEYS,
    asked,
    begun_inside,
    ended,
    kept_inside,
    lines_of,
    sdk,
    submitted,
)
from tests.support.batches import reached
from tests.support.gateway import Running, eventually, running_gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SLOW = EmulatorOptions(profile="instant", max_num_seqs=2, models=("m",))
NOTICED_S_MAX = 90.0
"""For a storage that is away to be given up by its client, which tries again and again."""
FOLDER = "fairgate/files"


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Running]:
    """A gateway whose files are in the bucket."""
    async with (
        running_emulator(SLOW) as engine,
        running_gateway(
            engine.url,
            keys=KEYS,
            batches__files=f"s3://{NAME}/{FOLDER}",
            batches__store=f"sqlite:///{folder}/batches.db",
        ) as running,
    ):
        yield running  # fmt: skip


async def assert_whole(client: openai.AsyncOpenAI, batch: Batch, count: int) -> None:
    """It completes, with each line once."""
    done = await ended(client, await client.batches.retrieve(batch.id))
    assert (done.status, done.error_file_id) == ("completed", None)
    answers = await lines_of(client, done.output_file_id)
    assert set(answers) == {f"c{number}" for number in range(count)}
    assert {each["response"]["status_code"] for each in answers.values()} == {200}


async def stuck(running: Running, batch_id: str) -> str:
    """Why it does not go on, once it does not."""
    assert running.gateway._batching is not None
    runner = running.gateway._batching.runner
    await eventually(lambda: batch_id in runner.faults, NOTICED_S_MAX)
    return runner.faults[batch_id]


async def done_inside(running: Running, batch_id: str) -> int:
    """Lines that are kept."""
    return (await kept_inside(running, batch_id)).batch.counts.completed


async def test_a_batch_runs_from_a_bucket_into_a_bucket(store: Store, tmp_path: Path) -> None:
    """Gateways on several machines have no folder in common; what is done with is removed."""
    await store.make_bucket()
    async with served(tmp_path) as running, sdk(running) as client:
        data = asked()
        batch = await submitted(client, data)
        await assert_whole(client, batch, COUNT)
        assert (await client.files.content(batch.input_file_id)).text.encode() == data

        async def is_tidy() -> bool:
            return await store.objects() == 2

        await reached(is_tidy)
        for file in [each async for each in await client.files.list()]:
            await client.files.delete(file.id)
        assert await store.objects() == 0


async def test_a_large_file_goes_up_in_parts(store: Store, tmp_path: Path) -> None:
    """S3 takes what is longer than a block as an upload of several parts."""
    await store.make_bucket()
    async with served(tmp_path) as running, sdk(running) as client:
        data = b"".join(line + b" " * 400_000 + b"\n" for line in asked(60).splitlines())
        assert len(data) > 2 * (8 << 20)
        batch = await submitted(client, data)
        await assert_whole(client, batch, 60)
        assert (await client.files.content(batch.input_file_id)).content == data


async def test_a_bucket_that_refuses_in_the_middle_loses_nothing(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials end while a batch runs: it waits for new ones, and the log says for what."""
    await store.make_bucket()
    async with served(tmp_path) as running, sdk(running) as client:
        batch = await submitted(client, asked())
        await begun_inside(running, batch.id)
        await store.refuse()
        assert "Access" in await stuck(running, batch.id)
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("in.jsonl", asked(2)), purpose="batch")
        assert refused.value.status_code == 507
        assert "the storage refuses" in refused.value.message
        assert NAME not in refused.value.message
        with pytest.raises(openai.InternalServerError) as unread:
            await client.files.content(batch.input_file_id)
        assert unread.value.status_code == 507
        held = await done_inside(running, batch.id)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await store.permit()
        await assert_whole(client, batch, COUNT)
        assert held < COUNT
    told = [each for each in caplog.messages if each.startswith(f"{batch.id} waits: ")]
    assert len(told) == 1, "once, however long it lasts"
    assert "the storage refuses" in told[0]


async def test_a_bucket_that_is_not_there_is_named_to_the_operator(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A slip of the pen in the address: chats go on, and the log says what is missing."""
    async with served(tmp_path) as running, sdk(running) as client:
        assert await client.models.list()
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("in.jsonl", asked(2)), purpose="batch")
        assert refused.value.status_code == 507
        assert "the storage is not there" in refused.value.message
        assert NAME not in refused.value.message
        assert "bucket does not exist" in caplog.text
        await store.make_bucket()
        await assert_whole(client, await submitted(client, asked(3)), 3)


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "silent"])
async def test_a_server_that_goes_away_in_the_middle_loses_nothing(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    """It is restarted, or the network is: batches go on when it is back."""
    await store.make_bucket()
    async with served(tmp_path) as running, sdk(running) as client:
        batch = await submitted(client, asked())
        await begun_inside(running, batch.id)
        await (store.fall_silent() if hangs else store.go_down())
        await stuck(running, batch.id)
        chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        async with asyncio.timeout(2):
            assert (await client.chat.completions.create(**chat, max_tokens=2)).choices
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        await store.come_back()
        await assert_whole(client, batch, COUNT)
    told = [each for each in caplog.messages if each.startswith(f"{batch.id} waits: ")]
    assert told
    assert "Traceback" not in caplog.text


async def test_another_gateway_goes_on_from_the_bucket(store: Store, tmp_path: Path) -> None:
    """Whoever is restarted in the middle finds in the bucket what counts."""
    await store.make_bucket()
    async with served(tmp_path) as running:
        async with sdk(running) as client:
            batch = await submitted(client, asked())
        await begun_inside(running, batch.id)
    async with served(tmp_path) as running, sdk(running) as client:
        await assert_whole(client, batch, COUNT)
