"""What every store of batches promises, asked of each: in a file, and in Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest

from gateway.batch.record import (
    Batch,
    Counts,
    Owner,
    StoredFile,
    Tokens,
    cancelled,
    ended,
    expired,
    validated,
)
from gateway.batch.redis import RedisBatches
from gateway.batch.sqlite import SqliteBatches
from gateway.batch.store import (
    CHECK,
    FINISH,
    BatchStore,
    Gains,
    InUseError,
    Kept,
    Lease,
    Piece,
    QuotaError,
    StaleError,
)
from gateway.tenancy.store.port import StoreError
from tests.support.batches import ALICE, CHAT, QUOTA, bench, lines
from tests.support.gateway import eventually
from tests.support.redis_server import RedisServer, running_redis

NOW = 1_000.0
COUNTS = Counts(completed=2, failed=1, tokens=Tokens(input=30, cached=10, output=20))


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests here; each has a prefix of its own."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BatchStore]:
    """An empty one."""
    found: BatchStore
    if request.param == "sqlite":
        found = SqliteBatches(tmp_path / "batches.db")
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        found = RedisBatches(server.url, prefix=token_hex(4))
    await found.open()
    yield found
    await found.close()


def file(name: str, owner: Owner = ALICE, **more: object) -> StoredFile:
    """A file that is not there."""
    fields = {
        "id": name, "owner": owner, "name": f"{name}.jsonl", "purpose": "batch", "size": 10,
        "created_at": NOW, "expires_at": NOW + 100.0, "object": f"o-{name}", **more,
    }  # fmt: skip
    return StoredFile(**fields)  # type: ignore[arg-type] # fields by name


def batch(name: str, owner: Owner = ALICE) -> Batch:
    """A batch that was just made."""
    return Batch(
        id=name, owner=owner, key_id="k", tier="background", endpoint=CHAT,
        input_file_id="f", completion_window="24h", created_at=NOW, expires_at=NOW + 50.0,
        metadata={"a": "b"},
    )  # fmt: skip


async def claim(store: BatchStore, name: str, *, lines: bool, now: float = NOW) -> Lease | None:
    """A part, for ten seconds."""
    return await store.claim(name, holder="h", until=now + 10.0, now=now, runs_lines=lines)


async def kept(store: BatchStore, name: str) -> Kept:
    """The batch, which must be there."""
    found = await store.batch(name)
    assert found is not None
    return found


async def running(store: BatchStore, name: str = "b", parts: int = 2) -> list[Lease]:
    """A batch of parts of three lines, all of them claimed."""
    await store.add_batch(batch(name), QUOTA)
    lease = await claim(store, name, lines=False)
    assert lease is not None
    found = await kept(store, name)
    checked = validated(found.batch, NOW + 1, total=3 * parts, model="m")
    starts = [(3 * n, 100 * n) for n in range(parts)]
    await store.checked(lease, replace(found, batch=checked), starts)
    leases = [await claim(store, name, lines=True) for _ in range(parts)]
    assert await claim(store, name, lines=True) is None
    return [each for each in leases if each is not None]


def gains(lease: Lease, done: bytes = b"\1\1\1", size: int = 7) -> Gains:
    """What a part has come to."""
    piece = Piece(object=f"p{lease.part}.{lease.epoch}", size=size, is_errors=False)
    return Gains(lease=lease, done=done, counts=COUNTS, pieces=(piece,))


async def test_a_batch_goes_through_its_parts(store: BatchStore) -> None:
    """Check, lines, end: each claimed by one, and nothing left behind."""
    assert await store.workable(NOW) == []
    first, second = await running(store)
    assert (first.part, first.start, second.part, second.start) == (0, 0, 3, 100)
    assert await store.workable(NOW) == []
    assert await store.commit([gains(first)], NOW + 2) == []
    assert (await kept(store, "b")).batch.counts == COUNTS
    assert await claim(store, "b", lines=False) is None, "lines are left"
    assert await store.commit([gains(second)], NOW + 3) == []
    found = await kept(store, "b")
    assert (found.batch.status, found.batch.finalizing_at) == ("finalizing", NOW + 3)
    assert found.batch.counts == COUNTS.plus(COUNTS)
    assert await store.workable(NOW) == ["b"]
    last = await claim(store, "b", lines=False)
    assert last is not None
    assert last.part == FINISH
    assert [piece.object for piece in await store.pieces("b")] == ["p0.1", "p3.1"]
    assert await store.objects() == {"p0.1", "p3.1"}
    output = file("out", purpose="batch_output")
    done = ended(found.batch, NOW + 4, output_file_id="out")
    await store.finish(last, replace(found, batch=done), [output])
    found = await kept(store, "b")
    assert (found.batch.status, found.batch.counts) == ("completed", COUNTS.plus(COUNTS))
    assert await store.file("out") == output
    assert await store.objects() == {"o-out"}
    assert await store.workable(NOW) == []


async def test_to_tell_gains_twice_is_to_tell_them_once(store: BatchStore) -> None:
    """Who does not know whether a commit was made makes it again."""
    first, _ = await running(store)
    half = gains(first, done=b"\1\0\1", size=5)
    for _ in range(2):
        assert await store.commit([half], NOW) == []
    assert (await kept(store, "b")).batch.counts == COUNTS
    assert await store.pieces("b") == list(half.pieces)
    longer = gains(first, done=b"\1\0\1", size=9)
    await store.commit([longer], NOW)
    assert await store.pieces("b") == list(longer.pieces)


async def test_a_lease_that_ended_is_taken_over_where_it_stood(store: BatchStore) -> None:
    """And its first holder, back from the dead, keeps nothing any more."""
    first, second = await running(store)
    await store.commit([gains(first, done=b"\0\1\0")], NOW)
    assert await claim(store, "b", lines=True, now=NOW + 9) is None
    heir = await claim(store, "b", lines=True, now=NOW + 11)
    assert heir is not None
    assert (heir.part, heir.epoch, heir.done, heir.counts) == (0, 2, b"\0\1\0", COUNTS)
    assert await store.commit([gains(first)], NOW + 12) == [first]
    assert await store.renew([first, second, heir], NOW + 30) == [second, heir]
    assert [piece.object for piece in await store.pieces("b")] == ["p0.1"]
    assert await store.commit([gains(heir)], NOW + 13) == []
    assert await store.commit([gains(heir)], NOW + 13) == [heir], "it is done"


async def test_a_part_that_is_given_back_is_free_at_once(store: BatchStore) -> None:
    """A gateway that ends in order costs nobody a wait."""
    first, _ = await running(store)
    await store.release([first])
    heir = await claim(store, "b", lines=True)
    assert heir is not None
    assert (heir.part, heir.epoch) == (0, 2)
    await store.release([first])
    assert await store.renew([heir], NOW + 20) == [heir], "one that is old gives nothing back"


async def test_nothing_is_kept_of_lines_once_a_batch_is_cancelled(store: BatchStore) -> None:
    """The outputs are being put together from what there was."""
    first, second = await running(store)
    await store.commit([gains(first)], NOW)
    found = await kept(store, "b")
    await store.put(replace(found, batch=cancelled(found.batch, NOW + 5)))
    assert await store.commit([gains(second)], NOW + 6) == [second]
    assert await store.renew([second], NOW + 20) == []
    rests = await store.rests("b")
    assert [(rest.first, rest.start, rest.done) for rest in rests] == [(3, 100, b"\0\0\0")]
    last = await claim(store, "b", lines=False)
    assert last is not None
    assert last.part == FINISH


async def test_a_cancelled_batch_is_checked_before_it_ends(store: BatchStore) -> None:
    """Its lines are to be told that they did not run."""
    await store.add_batch(batch("b"), QUOTA)
    found = await kept(store, "b")
    await store.put(replace(found, batch=cancelled(found.batch, NOW)))
    lease = await claim(store, "b", lines=False)
    assert lease is not None
    assert lease.part == CHECK
    assert await claim(store, "b", lines=False) is None


async def test_who_was_overtaken_is_told(store: BatchStore) -> None:
    """Of two changes of one state, one must be thought of anew."""
    await store.add_batch(batch("b"), QUOTA)
    found = await kept(store, "b")
    lease = await claim(store, "b", lines=False)
    assert lease is not None
    stopping = replace(found, batch=cancelled(found.batch, NOW))
    await store.put(stopping)
    with pytest.raises(StaleError):
        await store.put(stopping)
    good = validated(found.batch, NOW, total=3, model=None)
    with pytest.raises(StaleError):
        await store.checked(lease, replace(found, batch=good), [(0, 0)])
    assert (await kept(store, "b")).batch.status == "cancelling"


async def test_what_has_expired_is_due(store: BatchStore) -> None:
    """Batches that are late, and files whose time has come, but no open batch's input."""
    await store.add_file(file("f", expires_at=NOW + 1), QUOTA)
    await store.add_file(file("g", expires_at=NOW + 1), QUOTA)
    await store.add_file(file("h", expires_at=None), QUOTA)
    await running(store)
    late, old = await store.due(NOW)
    assert (late, old) == ([], [])
    late, old = await store.due(NOW + 50)
    assert [each.batch.id for each in late] == ["b"]
    assert [each.id for each in old] == ["g"]
    await store.put(replace(late[0], batch=expired(late[0].batch, NOW + 50)))
    assert (await store.due(NOW + 50))[0] == [], "it is on its way to its end"


async def test_an_input_stays_as_long_as_its_batch(store: BatchStore) -> None:
    """Whoever deletes it would delete the lines."""
    await store.add_file(file("f"), QUOTA)
    await store.add_batch(batch("b"), QUOTA)
    with pytest.raises(InUseError):
        await store.drop_file("f")
    found = await kept(store, "b")
    await store.put(replace(found, batch=expired(found.batch, NOW)))
    await store.drop_file("f")
    assert await store.file("f") is None
    await store.drop_file("f")


async def test_quotas_count_what_there_is(store: BatchStore) -> None:
    """Of one tenant, all users together; what goes makes room."""
    quota = replace(QUOTA, files=2, bytes=25, open_batches=1)
    bob, other = replace(ALICE, user="bob"), Owner(tenant="other", user="alice")
    await store.add_file(file("a"), quota)
    await store.add_file(file("b", bob), quota)
    with pytest.raises(QuotaError):
        await store.add_file(file("c"), quota)
    await store.add_file(file("c", other), quota)
    await store.drop_file("a")
    with pytest.raises(QuotaError):
        await store.add_file(file("d", size=16), quota)
    await store.add_file(file("d", size=15), quota)
    await store.add_batch(batch("x"), quota)
    with pytest.raises(QuotaError):
        await store.add_batch(batch("y", bob), quota)
    await store.add_batch(batch("z", other), quota)
    found = await kept(store, "x")
    await store.put(replace(found, batch=expired(found.batch, NOW)))
    await store.add_batch(batch("y", bob), quota)


async def test_lists_are_by_age_and_of_one_owner(store: BatchStore) -> None:
    """As clients page through them."""
    for name in ("1", "2", "3"):
        await store.add_file(file(name), QUOTA)
        await store.add_batch(batch(name), QUOTA)
    await store.add_file(file("4", purpose="batch_output"), QUOTA)
    await store.add_file(file("5", replace(ALICE, user="bob")), QUOTA)

    async def listed(after: str | None, *, limit: int = 9, is_newest: bool = True) -> list[str]:
        found = await store.files(
            ALICE, after=after, limit=limit, purpose="batch", is_newest=is_newest
        )
        return [each.id for each in found]

    assert await listed(None) == ["3", "2", "1"]
    assert await listed("3", limit=1) == ["2"]
    assert await listed("1", is_newest=False) == ["2", "3"]
    assert await listed("none") == []
    assert [each.id for each in await store.batches(ALICE, after="3", limit=1)] == ["2"]
    assert await store.batches(replace(ALICE, user="bob"), after=None, limit=9) == []


async def test_the_newest_of_everybody_are_told_open_ones_first(store: BatchStore) -> None:
    """An operator looks for what runs, whosever it is, and however much ended since."""
    bob = Owner(tenant="other", user="bob")
    for name, owner in (("1", ALICE), ("2", bob), ("3", ALICE), ("4", bob)):
        await store.add_batch(batch(name, owner), QUOTA)
    for name in ("2", "4"):
        found = await kept(store, name)
        await store.put(replace(found, batch=expired(found.batch, NOW)))
    assert [each.id for each in await store.newest(9)] == ["3", "1", "4", "2"]
    assert [each.id for each in await store.newest(3)] == ["3", "1", "4"]


async def test_old_batches_are_forgotten_and_open_ones_are_not(store: BatchStore) -> None:
    """A store does not grow for ever."""
    for name in ("old", "open"):
        await store.add_batch(batch(name), QUOTA)
    found = await kept(store, "old")
    await store.put(replace(found, batch=expired(found.batch, NOW)))
    await store.forget_batches(NOW)
    assert await store.batch("old") is not None, "not yet"
    await store.forget_batches(NOW + 1)
    assert await store.batch("old") is None
    assert [each.id for each in await store.batches(ALICE, after=None, limit=9)] == ["open"]


async def test_many_at_once_claim_each_part_once(store: BatchStore) -> None:
    """Twenty workers, seven parts."""
    leases = await running(store, parts=7)
    await store.release(leases)
    found = await asyncio.gather(*(claim(store, "b", lines=True) for _ in range(20)))
    assert sorted(each.part for each in found if each is not None) == [3 * n for n in range(7)]


async def test_the_last_parts_at_once_end_the_batch(store: BatchStore) -> None:
    """Whoever is last closes it, whichever that is."""
    leases = await running(store, parts=7)
    await asyncio.gather(*(store.commit([gains(lease)], NOW) for lease in leases))
    assert (await kept(store, "b")).batch.status == "finalizing"


async def test_two_gateways_share_a_batch_over_redis(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Several machines, one store, one bucket."""
    stores = [RedisBatches(redis_server.url, prefix="shared") for _ in range(2)]
    async with (
        bench(tmp_path, holder="a", store=stores[0]) as one,
        bench(tmp_path, holder="b", store=stores[1]) as other,
    ):
        one.relay.held.clear()
        other.relay.held.clear()
        submitted = await one.submitted(lines(1_203))
        await eventually(lambda: one.relay.seen and other.relay.seen)
        one.relay.held.set()
        other.relay.held.set()
        done = await one.until(submitted.id, "completed")
        found = await one.text(done.output_file_id)
        assert len({each["custom_id"] for each in found}) == len(found) == 1_203
        assert len(one.relay.seen) + len(other.relay.seen) == 1_203


async def test_a_redis_that_is_gone_is_told_of(redis_server: RedisServer) -> None:
    """Whoever waits for it must not wait for ever."""
    store = RedisBatches("redis://127.0.0.1:9/0")
    with pytest.raises(StoreError):
        await store.open()
    await store.close()
