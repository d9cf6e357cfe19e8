"""The real `openai` client with files and batches, before an emulated engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from gateway.batch.store import Kept
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.telemetry.record import SettledRequest
from gateway.tenancy.keys import key_hash
from tests.support.batches import line, reached
from tests.support.gateway import Running, eventually, running_gateway

FAST = EmulatorOptions(profile="instant", max_num_seqs=16, embeddings=True, models=("m",))
ALICE, BOB = "fg-alice", "fg-bob"
KEYS = [
    {"tenant": "acme", "user": "alice", "max_tier": "high", "key_sha256": key_hash(b"fg-alice")},
    {"tenant": "acme", "user": "bob", "key_sha256": key_hash(b"fg-bob")},
]
COUNT = 700


def asked(count: int = COUNT) -> bytes:
    """A file of short chats, the same whenever they are asked for."""
    return b"".join(line(n, max_tokens=4, temperature=0, seed=n) for n in range(count))


def sdk(running: Running, key: str = ALICE) -> AsyncOpenAI:
    """The client as a user sets it up."""
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """One quick engine."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator, tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway with keys and batches before it."""
    async with running_gateway(engine.url, keys=KEYS, **kept_in(tmp_path)) as gateway:
        yield gateway


def kept_in(folder: Path) -> dict[str, Any]:
    """Settings."""
    return {
        "batches__files": str(folder / "files"),
        "batches__store": f"sqlite:///{folder}/batches.db",
    }


async def ended(client: AsyncOpenAI, batch: Batch) -> Batch:
    """The batch, once nothing more becomes of it."""
    async with asyncio.timeout(50):
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def submitted(client: AsyncOpenAI, data: bytes, **more: Any) -> Batch:
    """A batch of these lines."""
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """What stands in a file of outputs, by custom id."""
    assert file_id is not None
    text = (await client.files.content(file_id)).text
    found = [json.loads(each) for each in text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


async def kept_inside(running: Running, batch_id: str) -> Kept:
    """The batch as the gateway keeps it."""
    assert running.gateway._batching is not None
    kept = await running.gateway._batching.tools.store.batch(batch_id)
    assert kept is not None
    return kept


async def ended_inside(running: Running, batch_id: str) -> Kept:
    """The same, once it has ended, for whom its user may not ask any more."""

    async def is_over() -> bool:
        return not (await kept_inside(running, batch_id)).batch.is_open

    await reached(is_over)
    return await kept_inside(running, batch_id)


async def begun_inside(running: Running, batch_id: str) -> None:
    """Wait until something of it is done."""

    async def has_begun() -> bool:
        return (await kept_inside(running, batch_id)).batch.counts.completed > 0

    await reached(has_begun)


async def test_a_batch_answers_as_direct_requests_do(running: Running) -> None:
    """The whole way, as a program that was written for OpenAI goes it."""
    async with sdk(running) as client:
        batch = await submitted(client, asked(), metadata={"run": "7"})
        assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"run": "7"})
        done = await ended(client, batch)
        assert done.status == "completed"
        assert done.request_counts is not None
        counts = done.request_counts
        assert (counts.total, counts.completed, counts.failed) == (COUNT, COUNT, 0)
        assert done.usage is not None
        assert done.usage.output_tokens == 4 * COUNT
        assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
        assert done.error_file_id is None
        answers = await lines_of(client, done.output_file_id)
        assert len(answers) == COUNT
        for number in range(0, COUNT, 50):
            body = json.loads(line(number, max_tokens=4, temperature=0, seed=number))["body"]
            direct = await client.chat.completions.create(**body)
            answer = answers[f"c{number}"]["response"]
            assert answer["status_code"] == 200
            assert answer["request_id"]
            said = openai.types.chat.ChatCompletion.model_validate(answer["body"])
            assert said.choices == direct.choices
            assert said.usage == direct.usage


async def test_lines_run_as_the_keys_user_in_the_last_tier(running: Running) -> None:
    """They are the user's own, and give way to everybody."""
    seen = []
    settled = running.gateway.relay._settled

    def watched(record: SettledRequest) -> None:
        seen.append(record)
        settled(record)

    running.gateway.relay._settled = watched
    async with sdk(running) as client:
        await ended(client, await submitted(client, asked(5)))
        high = {"x-fairgate-tier": "high"}
        await ended(client, await submitted(client, asked(5), extra_headers=high))
    assert [(each.tenant, each.user, each.tier) for each in seen] == [
        *[("acme", "alice", "background")] * 5, *[("acme", "alice", "high")] * 5,
    ]  # fmt: skip


async def test_files_and_batches_are_listed_and_deleted(running: Running) -> None:
    """As the client pages through them."""
    async with sdk(running) as client:
        batches = [await submitted(client, asked(2)) for _ in range(3)]
        for batch in batches:
            await ended(client, batch)
        listed = [each.id async for each in await client.batches.list(limit=2)]
        assert listed == [batch.id for batch in reversed(batches)]
        files = [each async for each in await client.files.list(purpose="batch")]
        assert [file.id for file in files] == [batch.input_file_id for batch in reversed(batches)]
        shown = await client.files.retrieve(files[0].id)
        assert (shown.filename, shown.bytes, shown.status) == (
            "in.jsonl",
            len(asked(2)),
            "processed",
        )
        gone = await client.files.delete(files[0].id)
        assert gone.deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(files[0].id)


async def test_errors_are_the_clients_own(running: Running) -> None:
    """A program catches them by class."""
    async with sdk(running) as client, sdk(running, BOB) as bob:
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await client.files.create(file=("x.jsonl", b"x"), purpose="fine-tune")
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve("batch_none")
        batch = await submitted(client, b"nonsense\n")
        failed = await ended(client, batch)
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert [(each.code, each.line) for each in failed.errors.data] == [("invalid_json_line", 1)]
        for ask in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await ask(batch.id)
        with pytest.raises(openai.NotFoundError):
            await bob.files.content(batch.input_file_id)
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)
    async with sdk(running, "fg-nobody") as nobody:
        with pytest.raises(openai.AuthenticationError):
            await nobody.files.list()


async def test_a_cancelled_batch_leaves_the_queue(engine: Emulator, tmp_path: Path) -> None:
    """Nothing of it waits or runs any more."""
    slow = EmulatorOptions(profile="demo", max_num_seqs=2, models=("m",))
    async with (
        running_emulator(slow) as emulator,
        running_gateway(emulator.url, keys=KEYS, **kept_in(tmp_path)) as running,
        sdk(running) as client,
    ):
        batch = await submitted(client, asked(100))
        await eventually(lambda: running.in_flight > 2)
        stopping = await client.batches.cancel(batch.id)
        assert stopping.status == "cancelling"
        done = await ended(client, stopping)
        assert done.status == "cancelled"
        assert running.in_flight == 0
        errors = await lines_of(client, done.error_file_id)
        assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}


async def test_a_key_that_is_dropped_ends_its_batch(engine: Emulator, tmp_path: Path) -> None:
    """Nothing runs in the name of a key that was revoked."""
    slow = EmulatorOptions(profile="demo", max_num_seqs=2, models=("m",))
    async with (
        running_emulator(slow) as emulator,
        running_gateway(emulator.url, keys=KEYS, **kept_in(tmp_path)) as running,
        sdk(running) as client,
        sdk(running, BOB) as bob,
    ):
        batch = await submitted(client, asked(100))
        await eventually(lambda: running.in_flight > 2)
        keyring = running.gateway.keyring
        del keyring._principals[key_hash(b"fg-alice")]
        keyring.generation += 1
        kept = await ended_inside(running, batch.id)
        assert kept.batch.status == "failed"
        assert [fault.code for fault in kept.batch.errors] == ["invalid_api_key"]
        assert [each async for each in await bob.batches.list()] == []


async def test_without_a_place_for_files_there_are_no_batches(engine: Emulator) -> None:
    """What is not configured does not exist, and costs nothing."""
    async with running_gateway(engine.url, keys=KEYS) as running, sdk(running) as client:
        with pytest.raises(openai.NotFoundError):
            await client.batches.list()


async def test_the_next_gateway_goes_on(engine: Emulator, tmp_path: Path) -> None:
    """A restart in the middle costs nothing but the lines in flight."""
    slow = EmulatorOptions(profile="instant", max_num_seqs=2, models=("m",))
    async with running_emulator(slow) as emulator:
        async with running_gateway(emulator.url, keys=KEYS, **kept_in(tmp_path)) as running:
            async with sdk(running) as client:
                batch = await submitted(client, asked())
            await begun_inside(running, batch.id)
        async with (
            running_gateway(emulator.url, keys=KEYS, **kept_in(tmp_path)) as running,
            sdk(running) as client,
        ):
            done = await ended(client, await client.batches.retrieve(batch.id))
            assert len(await lines_of(client, done.output_file_id)) == COUNT


async def test_a_place_that_cannot_be_used_yet_stops_nobody_else(
    engine: Emulator, tmp_path: Path
) -> None:
    """A bucket that is away must not keep chats away, and is used once it is there."""
    obstacle = tmp_path / "files"
    obstacle.write_text("in the way")
    async with (
        running_gateway(engine.url, keys=KEYS, **kept_in(tmp_path)) as running,
        sdk(running) as client,
    ):
        body = json.loads(line(0, max_tokens=2))["body"]
        assert (await client.chat.completions.create(**body)).choices
        with pytest.raises(
            openai.InternalServerError, match="the storage cannot be used"
        ) as refused:
            await client.files.create(file=("in.jsonl", asked(2)), purpose="batch")
        assert refused.value.status_code == 507
        assert str(tmp_path) not in refused.value.message
        obstacle.unlink()
        await eventually(obstacle.is_dir)
        done = await ended(client, await submitted(client, asked(2)))
        assert done.status == "completed"


async def test_operators_see_how_far_batches_have_come(tmp_path: Path) -> None:
    """Of all users, with the time left; and what keeps one from going on."""
    slow = EmulatorOptions(profile="demo", max_num_seqs=4, models=("m",))
    async with (
        running_emulator(slow) as emulator,
        running_gateway(emulator.url, keys=KEYS, **kept_in(tmp_path)) as running,
        sdk(running) as client,
        sdk(running, BOB) as bob,
        httpx.AsyncClient(base_url=f"{running.operators_url}/admin/v1") as http,
    ):
        batch, other = await submitted(client, asked(200)), await submitted(bob, b"nonsense")
        await ended(bob, other)
        await begun_inside(running, batch.id)
        await asyncio.sleep(1.1)  # all who look within a second see the same
        told = (await http.get("/batches")).raise_for_status().json()
        assert (told["is_configured"], told["has_more"]) == (True, False)
        assert [each["id"] for each in told["data"]] == [batch.id, other.id]
        runs, failed = told["data"]
        assert (runs["status"], runs["user"], runs["total"]) == ("in_progress", "alice", 200)
        assert 0 < runs["completed"] < 200
        assert runs["left_s"] > 0
        assert runs["waits_for"] is None
        assert (failed["status"], failed["user"], failed["left_s"]) == ("failed", "bob", None)
        assert (await http.get("/batches?limit=1")).json()["has_more"]
        assert (await http.get("/batches?limit=0")).status_code == 400
        await client.batches.cancel(batch.id)


async def test_operators_without_batches_are_told_so(engine: Emulator) -> None:
    """An empty list would say that nobody made one."""
    async with (
        running_gateway(engine.url, keys=KEYS) as running,
        httpx.AsyncClient(base_url=f"{running.operators_url}/admin/v1") as http,
    ):
        told = (await http.get("/batches")).raise_for_status().json()
    assert (told["data"], told["is_configured"]) == ([], False)


async def test_the_routes_are_described(running: Running) -> None:
    """Who makes a client from the document must find them, with their errors."""
    async with httpx.AsyncClient(base_url=running.url) as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
        wrong = await http.get("/v1/batches?limit=0", headers={"authorization": f"Bearer {ALICE}"})
        large = await http.post(
            "/v1/batches", content=b"x" * 70_000, headers={"authorization": f"Bearer {ALICE}"}
        )
    assert set(paths["/v1/files"]) == {"get", "post"}
    assert set(paths["/v1/files/{file_id}"]) == {"get", "delete"}
    assert set(paths["/v1/files/{file_id}/content"]) == {"get"}
    assert set(paths["/v1/batches"]) == {"get", "post"}
    assert set(paths["/v1/batches/{batch_id}/cancel"]) == {"post"}
    assert "413" in paths["/v1/files"]["post"]["responses"]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "limit")
    assert large.status_code == 413
