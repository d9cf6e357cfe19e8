"""The request log: one line a request, off the loop, and no request is ever lost for it."""

import asyncio
import errno
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.api.prefix import PREFIX_BLOCKS_MAX
from gateway.telemetry.log import RequestLog
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.writers import Writers
from tests.support.gateway import eventually
from tests.unit.test_metrics import record


@contextmanager
def log(path: Path, **options: object) -> Iterator[RequestLog]:
    """A log that is closed at the end."""
    found = RequestLog(str(path), lambda: 100.0, **options)  # type: ignore[arg-type]  # free keywords
    try:
        yield found
    finally:
        found.close()


def lines(path: Path) -> list[dict[str, object]]:
    """What stands in the file; each line must be JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def until_idle(found: RequestLog) -> None:
    """Nothing waits to be written."""
    await eventually(found._queue.empty)
    await asyncio.sleep(0.02)


def test_a_line_is_the_record_with_the_time_of_day(tmp_path: Path) -> None:
    """Somebody else's tools read it, and a replay; no prompt, no output, no key is in it."""
    settled = record(usage=None, user='a"\n', arrived_at=90.0)
    with log(tmp_path / "r.log") as found:
        found.add(settled)
    (line,) = lines(tmp_path / "r.log")
    assert line.keys() == set(SettledRequest.__struct_fields__)
    assert line["arrived_at"] == pytest.approx(time.time() - 10.0, abs=5.0)
    changed = ("arrived_at", "prefix")
    kept = {name: getattr(settled, name) for name in line if name not in changed}
    assert {name: line[name] for name in kept} == kept
    assert line["prefix"] == []
    assert (tmp_path / "r.log").stat().st_mode & 0o007 == 0


def test_sessions_and_beginnings_of_prompts_are_told_apart_and_not_told(tmp_path: Path) -> None:
    """A replay needs to know which are the same; whoever reads the log need not know more."""
    blocks = tuple((7 << 32) + number for number in range(PREFIX_BLOCKS_MAX))
    names = ("4,5 acme alice patient-17", "4,5 acme alice patient-17", "4,3 acme bob patient-17")
    with log(tmp_path / "r.log") as found:
        for name in names:
            found.add(record(session=name, prefix=blocks))
    first, again, other = lines(tmp_path / "r.log")
    assert first["session"] == again["session"] != other["session"]
    assert re.fullmatch("[0-9a-f]{16}", str(first["session"]))
    assert first["prefix"] == list(range(PREFIX_BLOCKS_MAX))
    assert "patient" not in (tmp_path / "r.log").read_text()


def test_a_line_of_the_longest_prompt_is_short(tmp_path: Path) -> None:
    """Ten thousand lines may wait, and a day's disk is paid for."""
    blocks = tuple((1 << 64) - 1 - number for number in range(PREFIX_BLOCKS_MAX))
    with log(tmp_path / "r.log") as found:
        found.add(record(session="x" * 1_000, prefix=blocks))
    assert (tmp_path / "r.log").stat().st_size < 1_200


def test_what_is_there_stays(tmp_path: Path) -> None:
    """A restart must not cost yesterday's lines."""
    for _ in range(2):
        with log(tmp_path / "r.log") as found:
            for _ in range(600):
                found.add(record())
    assert len(lines(tmp_path / "r.log")) == 1_200


async def test_a_moved_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    """As logrotate does it: the old file must not grow on under its new name."""
    path, old = tmp_path / "r.log", tmp_path / "r.log.1"
    with log(path) as found:
        found.add(record(request_id="before"))
        await until_idle(found)
        path.rename(old)
        found.reopen()
        found.add(record(request_id="after"))
    assert [line["request_id"] for line in lines(old)] == ["before"]
    assert [line["request_id"] for line in lines(path)] == ["after"]


async def test_where_it_cannot_be_opened_anew_the_old_file_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong owner of the folder is told, and costs no line."""
    folder = tmp_path / "logs"
    folder.mkdir()
    with log(folder / "r.log") as found:
        folder.rename(tmp_path / "moved")
        found.reopen()
        found.add(record())
    assert len(lines(tmp_path / "moved" / "r.log")) == 1
    assert "cannot be opened anew" in caplog.text


async def test_a_slow_disk_costs_lines_and_no_time(tmp_path: Path) -> None:
    """The bound is on the lines that wait: memory stays flat, and the loss is counted."""
    gate = threading.Event()

    def slow(fd: int, data: bytes) -> int:
        gate.wait(10)
        return os.write(fd, data)

    with log(tmp_path / "r.log", lines_max=50, write=slow) as found:
        found.add(record())
        await eventually(found._queue.empty)
        began_at = time.perf_counter()
        for _ in range(200):
            found.add(record())
        assert time.perf_counter() - began_at < 0.5
        assert found.dropped == {"queue": 150, "disk": 0}
        gate.set()
    assert len(lines(tmp_path / "r.log")) == 51
    writers = Writers(lambda: 0.0, "1.2.3")
    writers.log = found
    families = list(writers.families())
    told = {sample.labels["reason"]: sample.value for sample in families[0].samples}
    assert told == {"queue": 150.0, "disk": 0.0}


async def test_a_full_disk_is_told_once_and_survived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Torn lines are ended, so that what is written later can be read."""
    room = [30]

    def full(fd: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sent = os.write(fd, data[: room[0]])
        room[0] -= sent
        return sent

    path = tmp_path / "r.log"
    with log(path, write=full) as found, caplog.at_level(logging.ERROR):
        for number in range(3):
            found.add(record(request_id=f"lost{number}"))
            await until_idle(found)
        assert found.dropped["disk"] == 3
        room[0] = 1 << 20
        found.add(record(request_id="kept"))
        await until_idle(found)
        room[0] = 0
        found.add(record(request_id="lost again"))
        await until_idle(found)
    torn, *whole = path.read_text().splitlines()
    assert len(torn) == 30
    assert [json.loads(line)["request_id"] for line in whole] == ["kept"]
    assert len([text for text in caplog.messages if "cannot be written" in text]) == 2
    assert "No space left" in caplog.messages[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_device_that_is_full_is_survived() -> None:
    """The real error, from the real kernel."""
    with log(Path("/dev/full")) as found:
        found.add(record())
    assert found.dropped["disk"] == 1
