"""Writers to a store that are killed, and what must then be found in the file."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.tenancy.store.port import Store
from gateway.tenancy.store.sqlite import SqliteStore
from tests.support.stores import all_entries, bodies


@contextmanager
def writer(file: Path, name: str, first: int, last: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that commits these numbers; killed when the block ends."""
    words = [f"sqlite:///{file}", name, str(first), str(last)]
    command = [sys.executable, "-m", "tests.support.store_writer", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def acknowledged(process: subprocess.Popen[bytes], count: int | None = None) -> list[int]:
    """The next numbers that it says; all that are left without `count`."""
    assert process.stdout is not None
    lines = process.stdout if count is None else (process.stdout.readline() for _ in range(count))
    return [int(line) for line in lines if line.endswith(b"\n")]


def replayed(entries: list[tuple[str, Any, Any]]) -> dict[str, Any]:
    """What the audit says that there is; each entry must follow on the one before it."""
    found: dict[str, Any] = {}
    for id, before, after in entries:
        assert found.pop(id, None) == before
        if after is not None:
            found[id] = after
    return found


async def last_of(store: Store, name: str, count: int) -> int:
    """The number of the last commit of `name`, which must be whole; `count` are in the audit."""
    records = {id: body["n"] for id, body in (await bodies(store)).items() if id.startswith(name)}
    last = records[f"{name}-x"]
    assert records == {f"{name}-x": last, f"{name}-y": last, f"{name}-{last}": last}
    assert count == 3 * (last + 1) + last
    return int(last)


async def judged(file: Path, *names: str) -> list[int]:
    """The last number of each; records and audit tell the same."""
    store = SqliteStore(file)
    await store.open()
    entries = await all_entries(store, page=1000)
    assert replayed(entries) == await bodies(store)
    lasts = [
        await last_of(store, name, sum(id.startswith(name) for id, _, _ in entries))
        for name in names
    ]
    assert await store.revision() == sum(lasts) + len(lasts)
    await store.close()
    return lasts


async def killed_at_any_moment(file: Path, *, seed: int, writes: int, kills: int) -> int:
    """Make so many commits in processes that are killed on the way; how many were killed."""
    chance = random.Random(seed)
    first = killed = 0
    while first < writes:
        with writer(file, "w", first, writes) as process:
            known = acknowledged(process, chance.randint(1, 2 * writes // kills))
            time.sleep(chance.random() * 0.01)  # noqa: ASYNC251 - into the middle of a commit
            process.kill()
            known += acknowledged(process)
        killed += 1
        [last] = await judged(file, "w")
        # One more may have been made and not be told any more.
        assert last - known[-1] in (0, 1)
        first = last + 1
    return killed


async def one_of_two_killed(file: Path, *, seed: int, writes: int) -> None:
    """Two processes write to one file; one is killed, and the other has to go on."""
    chance = random.Random(seed)
    with writer(file, "a", 0, 10 * writes) as victim, writer(file, "b", 0, writes) as other:
        known = acknowledged(victim, chance.randint(1, writes // 2))
        time.sleep(chance.random() * 0.01)  # noqa: ASYNC251 - into the middle of a commit
        victim.kill()
        known += acknowledged(victim)
        assert acknowledged(other) == list(range(writes))
        assert other.wait() == 0
    last, of_other = await judged(file, "a", "b")
    assert last - known[-1] in (0, 1)
    assert of_other == writes - 1
