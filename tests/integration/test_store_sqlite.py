"""The default store's file: where it lies, who may read it, and what it survives."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gateway.tenancy.store.port import Contents, Kept, StoreError
from gateway.tenancy.store.sqlite import CALLS_MAX, SqliteStore
from gateway.tenancy.store.sqlite_file import MIGRATIONS, connected
from tests.support.small_disk import small_disk
from tests.support.stores import DEED, all_entries, bodies, drop, put, put_each

DISK_BYTES = 512 << 10


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the file will lie."""
    return tmp_path / "fairgate.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """An open one with a record."""
    found = SqliteStore(file)
    await found.open()
    await found.commit([put("a", {"n": 1})], DEED)
    yield found
    await found.close()


@contextmanager
def raw(file: Path) -> Iterator[sqlite3.Connection]:
    """The file in other hands."""
    with closing(sqlite3.connect(file, isolation_level=None)) as found:
        yield found


def content_of(file: Path) -> bytes:
    """All of it."""
    return file.read_bytes()


def write(file: Path, content: bytes) -> None:
    """Put this there."""
    file.write_bytes(content)


def size_of(file: Path) -> int:
    """Bytes."""
    return file.stat().st_size


def damaged(content: bytes, damage: str) -> bytes:
    """What a bad disk, or a wrong copy, made of it."""
    match damage:
        case "pages":
            return content[: 4096 * 3] + os.urandom(4096 * 3) + content[4096 * 6 :]
        case "header":
            return b"x" * 100 + content[100:]
        case "cut":
            return content[: len(content) // 2]
    return b"keys:\n  - tenant: acme\n" * 100


def move_away(file: Path, *, leaves_copy: bool) -> None:
    """What somebody does who thinks that the gateway will notice."""
    file.rename(f"{file}.old")
    if leaves_copy:
        file.write_bytes(Path(f"{file}.old").read_bytes())


def tear(folder: Path, whole: bytes, log: bytes) -> Path:
    """A copy of the database whose log is not longer than `log`."""
    torn = folder / f"torn-{len(log)}.db"
    torn.write_bytes(whole)
    Path(f"{torn}-wal").write_bytes(log)
    return torn


async def opened(file: Path) -> SqliteStore:
    """An open store there."""
    found = SqliteStore(file)
    await found.open()
    return found


async def test_who_only_looks_leaves_nothing_behind(file: Path) -> None:
    """A demo in somebody's home folder."""
    store = await opened(file)
    assert await store.read() == Contents(revision=0)
    assert await store.audit() == ()
    assert await store.spent(["2026-11"]) == {}
    await store.spend({})
    await store.close()
    assert list(file.parent.iterdir()) == []


async def test_a_file_that_another_gateway_made_meanwhile_is_found(file: Path) -> None:
    """The first key made at one gateway must be known to the others, which had no file yet."""
    one, other = await opened(file), await opened(file)
    assert await other.revision() == 0
    await one.commit([put("a", {})], DEED)
    assert await other.revision() == 1
    await one.close()
    await other.close()


async def test_only_its_owner_may_read_it(file: Path) -> None:
    """Other users of the machine: hashes of keys and names of tenants lie there."""
    mask = os.umask(0)
    try:
        store = await opened(file)
        await store.commit([put("a", {})], DEED)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in file.parent.iterdir()}
        await store.close()
    finally:
        os.umask(mask)
    assert len(modes) == 3
    assert set(modes.values()) == {0o600}


async def test_a_path_is_that_of_the_start(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that changes its folder later, as daemons do."""
    monkeypatch.chdir(tmp_path)
    store = await opened(Path(file.name))
    monkeypatch.chdir("/")
    await store.commit([put("a", {})], DEED)
    await store.close()
    assert size_of(file)


async def test_closing_leaves_one_file(store: SqliteStore, file: Path) -> None:
    """Who copies the file of a stopped gateway has all of it."""
    await store.close()
    await store.close()
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    with pytest.raises(StoreError, match="closed"):
        await store.read()


async def test_what_was_dropped_frees_the_disk(file: Path) -> None:
    """A file that only grows fills the disk of the gateway in the end."""
    store = SqliteStore(file, Kept(audit=2))
    await store.open()
    for n in range(30):
        await store.commit([put("a", {"x": str(n) * 50_000})], DEED)
    await put_each(store, ["a"] * 3, {})
    assert size_of(file) < 2_000_000
    await store.close()
    assert size_of(file) < 100_000


async def test_commits_wait_for_the_disk_and_sums_do_not(file: Path) -> None:
    """A revoked key must not be valid again after a power cut; a few tokens may be lost."""
    store = await opened(file)
    await store.commit([put("a", {})], DEED)

    def level() -> int:
        assert store._connection is not None
        return int(store._connection.execute("PRAGMA synchronous").fetchone()[0])

    assert await store._call(level) == 2, "FULL"
    await store.spend({("t", "2026-11"): 1})
    assert await store._call(level) == 1, "NORMAL"
    await store.commit([put("b", {})], DEED)
    assert await store._call(level) == 2
    await store.close()


async def test_a_log_torn_by_a_power_cut_holds_whole_commits(file: Path, tmp_path: Path) -> None:
    """Half a change, found at the start after the lights went out."""
    store = await opened(file)
    for n in range(12):
        await store.commit([put("x", {"n": n}), put("y", {"n": n}), drop(f"z{n}")], DEED)
    whole, log = content_of(file), content_of(Path(f"{file}-wal"))
    await store.close()
    seen = set()
    for length in range(0, len(log) + 1, 3011):
        store = await opened(tear(tmp_path, whole, log[:length]))
        found = await bodies(store)
        assert found.get("x") == found.get("y")
        assert len(await all_entries(store)) == 2 * await store.revision()
        seen.add(await store.revision())
        await store.close()
    assert len(seen) > 6, "it was torn in many places"


@pytest.mark.parametrize("damage", ["pages", "header", "cut", "text"])
async def test_a_damaged_file_is_refused_with_what_to_do(
    store: SqliteStore, file: Path, damage: str
) -> None:
    """An operator at night: the gateway must not run on half of its keys, and say what helps."""
    await put_each(store, [f"k{n}" for n in range(20)], {"x": "y" * 3000})
    await store.close()
    content = damaged(content_of(file), damage)
    write(file, content)
    store = SqliteStore(file)
    with pytest.raises(StoreError, match=r"is damaged .*put a backup there") as refusal:
        await store.open()
    assert str(file) in str(refusal.value)
    with pytest.raises(StoreError, match="is damaged"):
        await store.commit([put("b", {})], DEED)
    await store.close()
    assert content_of(file) == content, "what may still be rescued is left as it is"


async def test_a_document_whose_text_is_damaged_is_told(store: SqliteStore, file: Path) -> None:
    """A page that was written as zeros passes for a valid one."""
    with raw(file) as hands:
        hands.execute("""UPDATE records SET body = '{"n": '""")
    with pytest.raises(StoreError, match="damaged"):
        await store.read()


async def test_an_empty_file_is_a_new_store(file: Path) -> None:
    """What a crash between making the file and writing it leaves behind."""
    write(file, b"")
    store = await opened(file)
    assert await store.revision() == 0
    await store.commit([put("a", {})], DEED)
    await store.close()


async def test_the_database_of_another_program_is_left_alone(file: Path) -> None:
    """A path mistyped by one letter."""
    with raw(file) as hands:
        hands.execute("CREATE TABLE theirs (x)")
    before = content_of(file)
    store = SqliteStore(file)
    with pytest.raises(StoreError, match="another program"):
        await store.open()
    with pytest.raises(StoreError, match="another program"):
        await store.commit([put("a", {})], DEED)
    await store.close()
    assert content_of(file) == before


async def test_a_newer_schema_is_refused_at_the_start_and_at_each_commit(
    store: SqliteStore, file: Path
) -> None:
    """An old gateway that goes on writing while a new one was started on its file."""
    with raw(file) as hands:
        hands.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"schema 99.*use the newer fairgate"):
        await store.commit([put("a", {"n": 2})], DEED)
    other = SqliteStore(file)
    with pytest.raises(StoreError, match="schema 99"):
        await other.open()
    await other.close()


def test_an_older_schema_is_brought_up_and_a_failure_leaves_it_as_it_was(file: Path) -> None:
    """An upgrade that breaks half-way must leave the way back open."""
    first = connected(file, creates=True)
    assert first is not None
    first.execute("INSERT INTO records VALUES ('key', 'a', 1, '{}')")
    first.close()
    add = "ALTER TABLE records ADD COLUMN note TEXT"
    with pytest.raises(sqlite3.Error, match="no such table"):
        connected(file, creates=False, migrations=(*MIGRATIONS, (add, "DROP TABLE missing")))
    again = connected(file, creates=False)
    assert again is not None
    assert len(again.execute("SELECT * FROM records").fetchone()) == 4
    again.close()
    newest = connected(file, creates=False, migrations=(*MIGRATIONS, (add,)))
    assert newest is not None
    assert newest.execute("SELECT * FROM records").fetchall() == [("key", "a", 1, "{}", None)]
    newest.close()
    with pytest.raises(StoreError, match="schema 2"):
        connected(file, creates=False)


async def test_many_may_make_the_file_at_once(file: Path) -> None:
    """All workers of a gateway start in the same moment."""
    stores = [SqliteStore(file) for _ in range(8)]
    await asyncio.gather(*(each.commit([put(str(n), {})], DEED) for n, each in enumerate(stores)))
    assert len(await bodies(stores[0])) == 8
    await asyncio.gather(*(each.close() for each in stores))


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_was_moved_away_takes_no_more_writes(
    store: SqliteStore, file: Path, is_replaced: bool
) -> None:
    """Whatever is acknowledged into a file without a name is lost at the next start."""
    move_away(file, leaves_copy=is_replaced)
    for call in (
        store.commit([put("b", {})], DEED),
        store.revision(),
        store.spend({("t", "p"): 1}),
    ):
        with pytest.raises(StoreError, match="moved, removed or replaced"):
            await call


async def test_a_folder_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    """The commonest mistake of a configuration; found at start, not at the first change."""
    store = SqliteStore(tmp_path / "none" / "fairgate.db")
    with pytest.raises(StoreError, match=r"no folder .*none; store\.url"):
        await store.open()
    await store.close()


async def test_a_folder_that_cannot_be_written_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A container with a file system to read only: it serves, and nothing is kept."""
    with small_disk(tmp_path, DISK_BYTES, "ro") as folder:
        store = await opened(folder / "fairgate.db")
        assert "cannot be written" in caplog.text
        assert await store.revision() == 0
        with pytest.raises(StoreError, match="cannot be written"):
            await store.commit([put("a", {})], DEED)
        await store.close()


async def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    """Docker makes a folder where a file to mount is missing."""
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreError, match=str(tmp_path)):
        await store.open()
    await store.close()


async def test_a_full_disk_costs_the_commit_that_did_not_fit(tmp_path: Path) -> None:
    """All earlier changes are there, none is half there, and it goes on once there is room."""
    with small_disk(tmp_path, DISK_BYTES) as folder:
        store = await opened(folder / "fairgate.db")
        done: list[int] = []

        async def fill() -> None:
            for n in range(100):
                await store.commit([put(f"x{n}", {"x": "y" * 9000}), put(f"y{n}", {})], DEED)
                done.append(n)

        with pytest.raises(StoreError, match="disk is full"):
            await fill()
        assert done
        wanted = {f"{letter}{n}" for n in done for letter in "xy"}
        assert set(await bodies(store)) == wanted
        with pytest.raises(StoreError, match="disk is full"):
            await store.commit([put("z", {"x": "y" * 300_000})], DEED)
        await store.close()
        store = await opened(folder / "fairgate.db")
        assert set(await bodies(store)) == wanted
        assert len(await all_entries(store)) == len(wanted)
        # An operator makes room.
        command = ["mount", "-o", f"remount,size={DISK_BYTES * 8}", str(folder)]
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
        await store.commit([put("z", {"x": "y" * 300_000})], DEED)
        await store.close()


async def test_a_lock_that_another_holds_is_waited_for_and_then_told(
    store: SqliteStore, file: Path
) -> None:
    """A backup tool that holds the file: readers go on, a change is refused in bounded time."""
    other = await opened(file)
    with raw(file) as hands:
        hands.execute("BEGIN IMMEDIATE")
        commit = asyncio.ensure_future(store.commit([put("b", {})], DEED))
        assert await bodies(other) == {"a": {"n": 1}}
        with pytest.raises(StoreError, match="another process held its lock"):
            await commit
        commit = asyncio.ensure_future(store.commit([put("b", {})], DEED))
        await asyncio.sleep(0.05)
        hands.execute("ROLLBACK")
        assert await commit == 2
    await other.close()


async def test_calls_beyond_the_bound_are_refused(store: SqliteStore) -> None:
    """A disk that hangs must not gather callers without end."""
    calls = [asyncio.ensure_future(store.revision()) for _ in range(CALLS_MAX + 5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [each for each in results if isinstance(each, StoreError)]
    assert len(refused) == 5
    assert await store.revision() == 1


async def test_a_failed_disk_is_met_with_a_fresh_look(store: SqliteStore, file: Path) -> None:
    """After an error of the disk nothing that is still in memory may be trusted."""

    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreError, match="disk I/O error"):
        await store._call(fail)
    assert store._connection is None
    assert await bodies(store) == {"a": {"n": 1}}
