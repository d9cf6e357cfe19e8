"""Batches from their file to their outputs, with a relay that does as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.batch.check import PART_LINES
from gateway.batch.missing import Missing
from gateway.batch.record import Batch
from gateway.batch.store import QuotaError
from gateway.errors import (
    BadRequestError,
    BatchNotFoundError,
    BatchQuotaError,
    BatchStateConflictError,
    BodyTooLargeError,
    FileIdNotFoundError,
)
from tests.support.batches import (
    ALICE,
    CALLER,
    CHAT,
    LIMITS,
    QUOTA,
    Bench,
    bench,
    line,
    lines,
    uploaded,
)
from tests.support.gateway import eventually

COUNT = PART_LINES + 53
"""Of lines: two parts, the last of them short."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Bench]:
    """Batches at work."""
    async with bench(tmp_path) as found:
        yield found


async def everything(place: Bench, batch: Batch) -> list[dict[str, Any]]:
    """All lines that were put out."""
    return await place.text(batch.output_file_id) + await place.text(batch.error_file_id)


def assert_each_once(found: list[dict[str, Any]], count: int) -> None:
    """Each line of the input is in the outputs, once."""
    assert sorted(each["custom_id"] for each in found) == sorted(f"c{n}" for n in range(count))
    assert len({each["id"] for each in found}) == count


async def test_each_line_is_answered_once(place: Bench) -> None:
    """That is what a batch is for."""
    batch = await place.submitted(lines(COUNT))
    done = await place.until(batch.id, "completed")
    found = await place.text(done.output_file_id)
    assert_each_once(found, COUNT)
    for each in found:
        number = each["custom_id"].removeprefix("c")
        assert each["response"]["body"] == {"said": f"line {number}"}
        assert each["id"].endswith(f"_{number}")
    assert (done.total, done.counts.completed, done.counts.failed) == (COUNT, COUNT, 0)
    tokens = done.counts.tokens
    assert (tokens.input, tokens.cached, tokens.output) == (3 * COUNT, COUNT, 2 * COUNT)
    assert done.error_file_id is None
    assert len(place.relay.seen) == COUNT
    assert place.relay.most <= LIMITS.in_flight
    assert (b"x-fairgate-tier", b"background") in place.relay.headers
    assert done.model == "m"


async def test_what_parts_left_behind_is_removed(place: Bench, tmp_path: Path) -> None:
    """A disk must not fill with what nobody needs."""
    batch = await place.submitted(lines(20))
    done = await place.until(batch.id, "completed")
    await eventually(lambda: len(list((tmp_path / "files").iterdir())) <= 2)
    kept = {each.name for each in (tmp_path / "files").iterdir()}
    assert kept == {batch.input_file_id, done.output_file_id}


async def test_errors_go_to_a_file_of_their_own(place: Bench) -> None:
    """OpenAI's clients look there for what failed."""
    place.relay.statuses["line 3"] = [(400, b'{"error":{"message":"no","code":"x"}}', [])]
    batch = await place.submitted(lines(10))
    done = await place.until(batch.id, "completed")
    [error] = await place.text(done.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("c3", 400)
    assert (done.counts.completed, done.counts.failed) == (9, 1)
    assert_each_once(await everything(place, done), 10)


async def test_a_refused_line_runs_later(place: Bench) -> None:
    """A queue that is full for a moment is no answer."""
    busy = (429, b'{"error":{"code":"over_capacity"}}', [(b"retry-after-ms", b"1")])
    place.relay.statuses["line 1"] = [busy, busy, busy]
    batch = await place.submitted(lines(5))
    done = await place.until(batch.id, "completed")
    assert place.relay.seen.count("line 1") == 4
    assert_each_once(await place.text(done.output_file_id), 5)


async def test_a_model_that_is_away_for_a_moment_fails_nothing(place: Bench) -> None:
    """A gateway that just started, or an engine that does, lists no models yet."""
    for number in range(30):
        away = (404, b'{"error":{"code":"model_not_found"}}', list[tuple[bytes, bytes]]())
        place.relay.statuses[f"line {number}"] = [away]
    batch = await place.submitted(lines(40))
    done = await place.until(batch.id, "completed")
    assert (done.counts.completed, done.counts.failed) == (40, 0)
    assert_each_once(await place.text(done.output_file_id), 40)


def test_a_model_that_stays_away_is_given_up_for_all() -> None:
    """A name with a slip of the pen must not take a day to be told of."""
    missing = Missing(patience_s=10.0)
    body, other = b'{"model":"a"}', b'{"model":"b"}'
    assert missing.waits(body, 0.0)
    assert missing.waits(body, 9.0)
    assert not missing.waits(body, 10.0)
    assert missing.waits(other, 10.0)
    missing.served(body)
    assert missing.waits(body, 11.0)
    assert not missing.waits(b"{}", 0.0)


async def test_a_line_that_breaks_engines_is_given_up(place: Bench) -> None:
    """It must not hold the others for ever."""
    place.relay.statuses["line 2"] = [(502, b'{"error":{"code":"upstream_failed"}}', [])] * 9
    batch = await place.submitted(lines(4))
    done = await place.until(batch.id, "completed")
    [error] = await place.text(done.error_file_id)
    assert error["response"]["status_code"] == 502
    assert place.relay.seen.count("line 2") == LIMITS.attempts


async def test_a_wrong_file_fails_with_its_lines(place: Bench) -> None:
    """The user mends the file, and needs to know where."""
    batch = await place.submitted(line(0) + b"{nonsense\n" + line(0))
    failed = await place.until(batch.id, "failed")
    assert [(fault.code, fault.line) for fault in failed.errors] == [
        ("invalid_json_line", 2), ("duplicate_custom_id", 3),
    ]  # fmt: skip
    assert place.relay.seen == []
    assert (failed.output_file_id, failed.error_file_id) == (None, None)


async def test_a_line_that_is_too_long_is_named(tmp_path: Path) -> None:
    """It can never run, and its reader would hold all of it."""
    limits = replace(LIMITS, line_bytes=400_000)
    async with bench(tmp_path, limits=limits) as place:
        batch = await place.submitted(line(0) + line(1, x="y" * 900_000))
        failed = await place.until(batch.id, "failed")
    assert [(fault.code, fault.line) for fault in failed.errors] == [("line_too_long", 2)]


async def test_a_batch_is_cancelled_while_its_file_is_checked(place: Bench) -> None:
    """None of it runs, and each line is told so."""
    file = await uploaded(place.desk, lines(30))
    batch = await place.desk.create(
        CALLER, {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    )
    await place.desk.cancel(CALLER, batch.id)
    done = await place.until(batch.id, "cancelled")
    found = await everything(place, done)
    if place.relay.seen == []:
        assert {each["error"]["code"] for each in found} == {"batch_cancelled"}
    assert_each_once(found, 30)


async def test_a_batch_is_cancelled_while_it_runs(place: Bench) -> None:
    """What is done is kept, what runs is stopped, and what did not run is told so."""
    place.relay.answers_max = 40
    batch = await place.submitted(lines(COUNT))
    await place.answered(batch.id, 20)
    answer = await place.desk.cancel(CALLER, batch.id)
    assert answer.status == "cancelling"
    done = await place.until(batch.id, "cancelled")
    assert place.relay.under_way == 0
    assert 20 <= done.counts.completed < COUNT
    output = await place.text(done.output_file_id)
    assert len(output) == done.counts.completed
    assert_each_once(await everything(place, done), COUNT)


async def test_a_batch_is_cancelled_while_its_outputs_are_put_together(tmp_path: Path) -> None:
    """It ends as its user was told."""
    async with bench(tmp_path) as place:
        finish, began = place.tools.store.pieces, asyncio.Event()
        goes_on = asyncio.Event()

        async def pieces(batch_id: str) -> Any:
            began.set()
            await goes_on.wait()
            return await finish(batch_id)

        place.tools.store.pieces = pieces  # type: ignore[method-assign] # holds one step
        batch = await place.submitted(lines(5))
        await asyncio.wait_for(began.wait(), 10)
        assert (await place.batch(batch.id)).status == "finalizing"
        await place.desk.cancel(CALLER, batch.id)
        goes_on.set()
        done = await place.until(batch.id, "cancelled")
        assert_each_once(await place.text(done.output_file_id), 5)
        with pytest.raises(BatchStateConflictError):
            await place.desk.cancel(CALLER, batch.id)


async def test_a_batch_expires_while_it_runs(place: Bench) -> None:
    """Its window is a promise in both directions."""
    place.relay.answers_max = 40
    batch = await place.submitted(lines(COUNT), completion_window="10m")
    await place.answered(batch.id, 20)
    place.wall.now += 600.0
    done = await place.until(batch.id, "expired")
    assert place.relay.under_way == 0
    assert done.expired_at is not None
    errors = await place.text(done.error_file_id)
    assert {each["error"]["code"] for each in errors} == {"batch_expired"}
    assert_each_once(await everything(place, done), COUNT)


async def test_a_batch_expires_before_it_runs(tmp_path: Path) -> None:
    """A gateway that was off for a day starts no old batch."""
    async with bench(tmp_path) as place:
        place.is_leaving.append(True)
        batch = await place.submitted(lines(5), completion_window="10m")
        place.wall.now += 600.0
        done = await place.until(batch.id, "expired")
        assert (done.output_file_id, place.relay.seen) == (None, [])


async def test_a_batch_whose_key_is_gone_ends(place: Bench) -> None:
    """Who revokes a key expects that nothing runs in its name."""
    place.relay.statuses["line 510"] = [(401, b'{"error":{"code":"invalid_api_key"}}', [])]
    batch = await place.submitted(lines(COUNT))
    done = await place.until(batch.id, "failed")
    assert [fault.code for fault in done.errors] == ["invalid_api_key"]
    assert_each_once(await everything(place, done), COUNT)


async def test_a_gateway_that_ends_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    """A deployment in the middle of a batch costs the lines in flight, and nothing else."""
    async with bench(tmp_path, holder="first") as place:
        place.relay.answers_max = 140
        batch = await place.submitted(lines(COUNT))
        await place.answered(batch.id, 100)
        first = place.relay
    async with bench(tmp_path, holder="second") as place:
        done = await place.until(batch.id, "completed")
        assert_each_once(await everything(place, done), COUNT)
        again = len(first.seen) + len(place.relay.seen) - COUNT
        assert again <= LIMITS.in_flight


async def test_two_gateways_share_a_batch(tmp_path: Path) -> None:
    """A large batch uses the whole fleet."""
    async with bench(tmp_path, holder="a") as one, bench(tmp_path, holder="b") as other:
        one.relay.held.clear()
        other.relay.held.clear()
        batch = await one.submitted(lines(COUNT))
        await eventually(lambda: one.relay.seen and other.relay.seen)
        one.relay.held.set()
        other.relay.held.set()
        done = await one.until(batch.id, "completed")
        assert len(one.relay.seen) + len(other.relay.seen) == COUNT
        assert_each_once(await everything(one, done), COUNT)


async def test_a_gateway_back_from_the_dead_adds_nothing(tmp_path: Path) -> None:
    """A machine that stood still for a minute must not double what another one did meanwhile."""
    async with bench(tmp_path, holder="a") as one:
        one.relay.held.clear()
        batch = await one.submitted(lines(20))
        await eventually(lambda: one.relay.seen)
        # Its leases end, although it lives; the other one takes over.
        one.is_leaving.append(True)
        async with bench(tmp_path, holder="b") as other:
            other.wall.now = one.wall.now + LIMITS.lease_s + 1
            done = await other.until(batch.id, "completed")
            one.relay.held.set()
            await asyncio.sleep(0.2)
            assert_each_once(await everything(other, done), 20)


async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """It is said why nothing goes on, and with room again all is there once."""
    async with bench(tmp_path) as place:
        system: Any = place.tools.files._system
        real = system.open
        room = [3_000]

        class Small:
            """A file on a disk of which little is left."""

            def __init__(self, file: Any) -> None:
                self._file = file

            def write(self, data: bytes) -> int:
                if room[0] < len(data):
                    self._file.write(data[: room[0]])  # as a disk does: some of it is there
                    raise OSError(28, "No space left on device")
                room[0] -= len(data)
                return int(self._file.write(data))

            def __getattr__(self, name: str) -> Any:
                return getattr(self._file, name)

        batch = await place.submitted(lines(200))

        def opened(path: str, mode: str, block_size: int | None = None) -> Any:
            file = real(path, mode, block_size=block_size)
            return Small(file) if mode == "wb" else file

        system.open = opened
        try:
            await eventually(lambda: place.runner.faults or place.runner._not_before)
            assert (await place.batch(batch.id)).status == "in_progress"
            room[0] = 1 << 30
            place.runner._not_before.clear()
            for job in place.runner._jobs.values():
                job._keep_from = job._rest_until = 0.0
                job.look()
            done = await place.until(batch.id, "completed")
        finally:
            system.open = real
        assert_each_once(await everything(place, done), 200)


async def test_a_bucket_takes_each_group_as_an_object(tmp_path: Path) -> None:
    """Objects of S3 do not grow."""
    from gateway.batch.files import files_at

    files = files_at(f"memory://{tmp_path.name}")
    assert not files.grows
    async with bench(tmp_path, files=files) as place:
        place.relay.statuses["line 3"] = [(400, b"{}", [])]
        batch = await place.submitted(lines(COUNT))
        done = await place.until(batch.id, "completed")
        assert_each_once(await everything(place, done), COUNT)


class NoAnswerError(Exception):
    """As botocore's."""


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (PermissionError("AccessDenied when calling PutObject"), "the storage refuses"),
        (FileNotFoundError("The specified bucket does not exist"), "the storage is not there"),
        (NoAnswerError("Could not connect to the endpoint"), "the storage cannot be used"),
    ],
)
async def test_a_bucket_that_refuses_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Exception, told: str
) -> None:
    """An operator whose credentials ended must read that in the log, and loses nothing."""
    from gateway.batch.files import FilesError, files_at
    from gateway.errors import StorageFullError

    async with bench(tmp_path) as place:
        system: Any = place.tools.files._system
        real = system.open

        def refuse(*_: object, **__: object) -> Any:
            raise fault

        system.open = refuse
        try:
            with pytest.raises(StorageFullError, match=told) as refused:
                await uploaded(place.desk, lines(2))
            assert str(fault) not in refused.value.message
            assert str(fault) in caplog.text
        finally:
            system.open = real
        assert await place.desk.files(CALLER, after=None, limit=9, purpose=None, order="desc") == []
        with pytest.raises(FilesError, match="missing"):
            await place.tools.files.slice("nothing", 0, 9)
    assert not files_at("memory://x").grows


async def test_files_are_listed_fetched_and_deleted(place: Bench) -> None:
    """By their owner, page by page."""
    ids = [await uploaded(place.desk, line(n), f"{n}.jsonl") for n in range(3)]
    asked: dict[str, Any] = {"limit": 2, "purpose": None}
    newest = await place.desk.files(CALLER, after=None, order="desc", **asked)
    assert [file.id for file in newest] == ids[::-1]
    rest = await place.desk.files(CALLER, after=ids[1], order="desc", **asked)
    assert [file.id for file in rest] == [ids[0]]
    assert await place.text(ids[1]) == [json.loads(line(1))]
    await place.desk.drop(CALLER, ids[1])
    with pytest.raises(FileIdNotFoundError):
        await place.desk.file(CALLER, ids[1])


async def test_nobody_sees_what_is_another_users(place: Bench) -> None:
    """Inputs hold prompts."""
    file = await uploaded(place.desk, lines(1))
    batch = await place.submitted(lines(1))
    other = replace(CALLER, owner=replace(ALICE, user="bob"))
    with pytest.raises(FileIdNotFoundError):
        await place.desk.file(other, file)
    with pytest.raises(BatchNotFoundError):
        await place.desk.batch(other, batch.id)
    with pytest.raises(BatchNotFoundError):
        await place.desk.cancel(other, batch.id)
    wish = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(FileIdNotFoundError):
        await place.desk.create(other, wish)
    assert await place.desk.batches(other, after=None, limit=9) == []


async def test_the_input_of_an_open_batch_cannot_be_deleted(place: Bench) -> None:
    """Its lines would be gone."""
    place.relay.held.clear()
    batch = await place.submitted(lines(3))
    with pytest.raises(BatchStateConflictError):
        await place.desk.drop(CALLER, batch.input_file_id)
    place.relay.held.set()
    await place.until(batch.id, "completed")
    await place.desk.drop(CALLER, batch.input_file_id)


async def test_files_are_forgotten_when_their_time_has_come(place: Bench) -> None:
    """A disk does not grow for ever; outputs go when their batch said."""
    expiry = {"anchor": "created_at", "seconds": 3_600}
    batch = await place.submitted(lines(2), output_expires_after=expiry)
    done = await place.until(batch.id, "completed")
    assert done.output_file_id is not None
    place.wall.now += 3_601.0
    await place.forgotten(done.output_file_id)
    assert await place.tools.store.file(batch.input_file_id) is not None
    place.wall.now += LIMITS.keep_s
    await place.forgotten(batch.input_file_id)


async def test_a_file_that_is_too_large_leaves_nothing(tmp_path: Path) -> None:
    """A terabyte that is uploaded must end at the bound, not at the end of the disk."""
    async with bench(tmp_path, limits=replace(LIMITS, file_bytes=2_000_000)) as place:
        with pytest.raises(BodyTooLargeError, match="2000000 bytes"):
            await uploaded(place.desk, b"x" * 3_000_000)
        assert list((tmp_path / "files").iterdir()) == []


async def test_a_tenant_has_no_more_than_its_quota(tmp_path: Path) -> None:
    """One tenant must not take the disk of all."""
    quota = replace(QUOTA, files=2, bytes=10_000, open_batches=1)
    async with bench(tmp_path, limits=replace(LIMITS, quota=quota)) as place:
        with pytest.raises(BatchQuotaError, match="10000 bytes"):
            await uploaded(place.desk, b"x" * 20_000)
        place.relay.held.clear()
        await place.submitted(lines(2))
        with pytest.raises(BatchQuotaError, match="open batches"):
            await place.submitted(lines(2))
        with pytest.raises(BatchQuotaError, match="2 files"):
            await uploaded(place.desk, lines(2))
        assert len(list((tmp_path / "files").iterdir())) == 2
        place.relay.held.set()
    assert issubclass(QuotaError, Exception)


@pytest.mark.parametrize(
    "wish",
    [
        {"endpoint": "/v1/audio/transcriptions"},
        {"endpoint": "/sleep"},
        {"completion_window": "8d"},
        {"completion_window": 24},
        {"metadata": {"a": 1}},
        {"metadata": {str(n): "x" for n in range(17)}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
        {"output_expires_after": {"anchor": "now", "seconds": 7_200}},
        {"input_file_id": 7},
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused(place: Bench, wish: dict[str, Any]) -> None:
    """At once, not after a day."""
    with pytest.raises(BadRequestError) as refused:
        await place.submitted(lines(1), **wish)
    assert refused.value.param == next(iter(wish))


@pytest.mark.parametrize("fields", [{"purpose": "fine-tune"}, {"expires_after[seconds]": "7200"}])
async def test_a_form_that_makes_no_sense_is_refused(
    place: Bench, fields: dict[str, str], tmp_path: Path
) -> None:
    """With nothing left behind."""
    with pytest.raises(BadRequestError):
        await uploaded(place.desk, lines(1), **fields)
    assert list((tmp_path / "files").iterdir()) == []
