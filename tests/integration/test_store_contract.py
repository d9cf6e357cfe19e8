"""What every store promises, asked of each: in memory, in a file, in Redis."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.tenancy.store.port import (
    BODY_BYTES_MAX,
    CHANGES_MAX,
    PERIODS_KEPT,
    Answer,
    AnsweredError,
    Changes,
    ConflictError,
    Contents,
    Kept,
    Record,
    Store,
    StoreError,
)
from tests.support.redis_server import RedisServer, running_redis
from tests.support.stores import DEED, Place, all_entries, bodies, drop, put, put_each

ANSWER = Answer(
    fingerprint="f", status=201, body=b'{"a":\n1}\x00\xff', headers={"etag": '"1"', "x": "y"}
)
STRANGE_IDS = ["a:b", "a/b%2F", "", " ", "ä\u2028🙂", "x\x00y", "key", "*"]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests here; each has a prefix of its own."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a store lies."""
    kind = str(request.param)
    url = request.getfixturevalue("redis_server").url if kind == "redis" else ""
    return Place(kind, folder=tmp_path, redis_url=url)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """An open and empty one."""
    found = place.store()
    await found.open()
    yield found
    await found.close()


async def test_an_empty_store_has_nothing(store: Store) -> None:
    """The first start, before anybody configured anything."""
    assert await store.read() == Contents(revision=0)
    assert await store.revision() == 0
    assert await store.changes(0) == Changes(revision=0)
    assert await store.changes(7) is None
    assert await store.audit() == ()
    assert await store.answered("none") is None
    assert await store.spent(["2026-11"]) == {}


async def test_a_record_has_the_revision_of_the_commit_that_wrote_it(store: Store) -> None:
    """Whoever edits by ETag: another version is another state."""
    assert await store.commit([put("a", {"n": 1}), put("b", {})], DEED) == 1
    assert await store.commit([put("a", {"n": 2}, kind="user")], DEED) == 2
    assert await store.commit([put("b", {"n": 3}), drop("a")], DEED) == 3
    assert await store.revision() == 3
    assert await store.read() == Contents(
        revision=3,
        records=(
            Record(kind="key", id="b", version=3, body={"n": 3}),
            Record(kind="user", id="a", version=2, body={"n": 2}),
        ),
    )


@pytest.mark.parametrize(
    ("expected", "found"), [({"a": 0}, 1), ({"a": 7}, 1), ({"b": 1}, 0), ({"b": 2}, 0)]
)
async def test_one_conflict_keeps_the_whole_commit_out(
    store: Store, expected: dict[str, int], found: int
) -> None:
    """Two operators at once: half of one change upon the other is nobody's configuration."""
    await store.commit([put("a", {"n": 1})], DEED)
    (id, version), *_ = expected.items()
    writes = [put("c", {}), put(id, {"n": 2}, expected=version), drop("a" if id == "b" else "z")]
    with pytest.raises(ConflictError) as refusal:
        await store.commit(writes, DEED, answer=("key", ANSWER))
    assert (refusal.value.kind, refusal.value.record_id) == ("key", id)
    assert refusal.value.found == found
    assert await bodies(store) == {"a": {"n": 1}}
    assert len(await store.audit()) == 1
    assert await store.answered("key") is None
    assert await store.revision() == 1


async def test_what_is_where_it_was_expected_is_written(store: Store) -> None:
    """Whoever was not in anybody's way."""
    first = await store.commit([put("a", {"n": 1}, expected=0)], DEED)
    second = await store.commit([put("a", {"n": 2}, expected=first), drop("b", expected=0)], DEED)
    await store.commit([drop("a", expected=second)], DEED)
    assert await bodies(store) == {}
    with pytest.raises(ConflictError):
        await store.commit([drop("a", expected=second)], DEED)


async def test_the_audit_tells_who_did_what_when_and_what_it_was_before(store: Store) -> None:
    """Whoever is asked afterwards who gave that key its limits."""
    await store.commit([put("a", {"n": 1}), put("t", {}, kind="tenant")], DEED)
    await store.commit([put("a", {"n": 2}), drop("t", kind="tenant"), drop("none")], DEED)
    entries = await store.audit()
    told = [(e.sequence, e.revision, e.kind, e.id, e.before, e.after) for e in entries]
    assert told == [
        (4, 2, "tenant", "t", {}, None),
        (3, 2, "key", "a", {"n": 1}, {"n": 2}),
        (2, 1, "tenant", "t", None, {}),
        (1, 1, "key", "a", None, {"n": 1}),
    ]
    assert {each.deed for each in entries} == {DEED}
    assert [each.sequence for each in await store.audit(before=4, limit=2)] == [3, 2]
    assert [each.sequence for each in await store.audit(kind="tenant")] == [4, 2]
    assert [each.sequence for each in await store.audit(record_id="a", limit=1)] == [3]
    assert await store.audit(kind="tenant", record_id="a") == ()
    assert await store.audit(before=1) == await store.audit(before=0) == ()


async def test_the_audit_is_searched_to_its_end(store: Store) -> None:
    """Whoever asks for one rare record among many others."""
    await store.commit([put("rare", {}, kind="policy")], DEED)
    for _ in range(2):
        await store.commit([put(f"k{n}", {"n": n}) for n in range(700)], DEED)
    assert [each.id for each in await store.audit(kind="policy", limit=5)] == ["rare"]
    assert len(await store.audit(kind="key", limit=1000)) == 1000
    assert len(await all_entries(store, page=100)) == 1401


async def test_an_answer_is_kept_with_its_commit_and_once(store: Store) -> None:
    """Whoever sends the same POST twice, since the first answer was lost: one key, not two."""
    await store.commit([put("a", {})], DEED, answer=("key", ANSWER))
    assert await store.answered("key") == ANSWER
    other = Answer(fingerprint="g", status=200, body=b"")
    with pytest.raises(AnsweredError):
        await store.commit([put("b", {})], DEED, answer=("key", other))
    assert await store.answered("key") == ANSWER
    assert await bodies(store) == {"a": {}}
    await store.commit([], DEED, answer=("empty", other))
    assert await store.answered("empty") == other


async def test_of_two_requests_with_one_idempotency_key_one_is_made(place: Place) -> None:
    """A client that retries before the first try is through, by way of another gateway."""
    stores = [place.store() for _ in range(2)]
    for each in stores:
        await each.open()
    results = await asyncio.gather(
        *(each.commit([put(f"k{n}", {})], DEED, answer=("key", ANSWER))
          for n, each in enumerate(stores)),
        return_exceptions=True,
    )  # fmt: skip
    assert sorted(type(each).__name__ for each in results) == ["AnsweredError", "int"]
    assert len(await bodies(stores[0])) == 1
    for each in stores:
        await each.close()


async def test_bodies_come_back_as_they_were(store: Store) -> None:
    """Whoever stores an empty list of models: it must not come back as a mapping, or as all."""
    body: dict[str, Any] = {
        "models": [], "limits": {}, "n": None, "on": True, "off": False, "i": 2**53 + 1, "f": 0.1,
        "text": "ä🙂\u2028\x00\"\\", "deep": [[{"a": [1, 2.5, "x"]}]], "": "",
    }  # fmt: skip
    await store.commit([put(id, body) for id in STRANGE_IDS], DEED)
    assert await bodies(store) == dict.fromkeys(STRANGE_IDS, body)
    read = await store.read()
    assert [each.id for each in read.records] == sorted(STRANGE_IDS)
    await store.commit([drop(id) for id in STRANGE_IDS], DEED)
    assert [each.before for each in await store.audit(limit=8)] == [body] * 8


async def test_nobody_changes_a_stored_body_from_afar(store: Store) -> None:
    """Whoever edits the object it just stored, or just read, must not edit the store."""
    body = {"models": ["a"]}
    await store.commit([put("a", body)], DEED)
    body["models"].append("b")
    (await bodies(store))["a"]["models"].append("c")
    assert await bodies(store) == {"a": {"models": ["a"]}}


@pytest.mark.parametrize(
    "writes",
    [
        [put("ok", {}), put("a", {"x": object()})],
        [put("ok", {}), put("a", {"x": "y" * BODY_BYTES_MAX})],
        [put("ok", {}), put("a", {}), drop("a")],
        [put("ok", {}), put("a", {"x": "\ud800"})],
        [put("ok", {}), put("\ud800", {})],
    ],
    ids=["no json", "too large", "twice", "no text", "no name"],
)
async def test_what_cannot_be_kept_is_refused_as_a_whole(store: Store, writes: Any) -> None:
    """A record that can be written but never be read would end every later start."""
    with pytest.raises(ValueError):  # noqa: PT011 - the text is for people
        await store.commit(writes, DEED)
    assert await store.read() == Contents(revision=0)


async def test_numbers_that_json_has_not_become_null_in_no_store(store: Store) -> None:
    """A limit of infinity that comes back as no limit, or as an error at the next start."""
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="no JSON"):
            await store.commit([put("a", {"x": [number]})], DEED)
    assert await store.revision() == 0


async def test_what_was_spent_adds_up(store: Store) -> None:
    """A tenant's budget: gateways add what they saw, and give back what was not used."""
    await store.spend({("acme", "2026-11"): 5, ("acme", "2026-11-30"): 5, ("b", "2026-11"): 1})
    await store.spend({("acme", "2026-11"): 10, ("b", "2026-11"): -3, ("c", "2026-11"): 0})
    await store.spend({})
    assert await store.spent(["2026-11"]) == {("acme", "2026-11"): 15, ("b", "2026-11"): -2}
    both = await store.spent(["2026-11", "2026-11-30", "2026-12"])
    assert both[("acme", "2026-11-30")] == 5
    assert len(both) == 3
    assert await store.spent([]) == {}
    assert await store.revision() == 0, "spending is no change of the configuration"


async def test_old_periods_are_forgotten_and_young_ones_not(store: Store) -> None:
    """A gateway that runs for years; days must not push months out."""
    days = [f"2026-11-{day:02}" for day in range(1, 20)]
    await store.spend({("a", "2026-10"): 7, ("a", "2026-11"): 1})
    for day in days:
        await store.spend({("a", day): 2})
    found = await store.spent(["2026-10", "2026-11", *days])
    assert found == {
        ("a", "2026-10"): 7,
        ("a", "2026-11"): 1,
        **{("a", day): 2 for day in days[-PERIODS_KEPT:]},
    }


async def test_changes_tell_what_became_of_records(store: Store) -> None:
    """A gateway with ten thousand keys must not read them all to learn of one."""
    await store.commit([put("a", {"n": 1}), put("b", {}), put("c", {})], DEED)
    await store.commit([put("a", {"n": 2})], DEED)
    await store.commit([put("a", {"n": 3}), drop("b"), put("d", {})], DEED)
    await store.commit([drop("d")], DEED)
    found = await store.changes(1)
    assert found is not None
    assert found.revision == 4
    assert found.records == (Record(kind="key", id="a", version=3, body={"n": 3}),)
    assert sorted(found.gone) == [("key", "b"), ("key", "d")]
    assert await store.changes(4) == Changes(revision=4)
    assert await store.changes(5) is None, "a store that went back is read anew"
    whole = await store.changes(0)
    assert whole is not None
    assert {each.id for each in whole.records} == {"a", "c"}


async def test_changes_that_are_too_many_are_not_told(store: Store) -> None:
    """Reading all is the cheaper way then, and the audit may not go back so far."""
    await store.commit([put("a", {})], DEED)
    await store.commit([put(f"k{n}", {}) for n in range(CHANGES_MAX)], DEED)
    found = await store.changes(1)
    assert found is not None
    assert len(found.records) == CHANGES_MAX
    assert await store.changes(0) is None


async def test_the_audit_is_bounded_by_entries(place: Place) -> None:
    """A disk, or Redis' memory, after years of changes."""
    store = place.store(Kept(audit=5))
    await store.open()
    await put_each(store, list("abc"), {})
    await store.commit([put("d", {}), put("e", {}), put("f", {})], DEED)
    assert [id for id, _, _ in await all_entries(store)] == list("bcdef")
    assert await store.changes(0) is None, "what it does not know any more it does not tell"
    assert await store.changes(1) is not None
    await store.commit([put(str(n), {}) for n in range(4)], DEED)
    assert await store.changes(3) is None, "a commit of which it knows a part only"
    assert len(await bodies(store)) == 10, "records stay"
    await store.close()


async def test_the_audit_is_bounded_by_bytes(place: Place) -> None:
    """The same where a few entries are large."""
    store = place.store(Kept(audit_bytes=10_000))
    await store.open()
    for n in range(10):
        await store.commit([put("a", {"x": "y" * 1000, "n": n})], DEED)
    entries = await all_entries(store)
    assert 3 <= len(entries) <= 5
    assert entries[-1][2]["n"] == 9
    await store.commit([put("huge", {"x": "y" * 20_000})], DEED)
    assert await store.audit() == ()
    await store.commit([put("small", {})], DEED)
    assert [each.sequence for each in await store.audit()] == [12]
    await store.close()


async def test_answers_are_bounded_by_number_and_bytes(place: Place) -> None:
    """A script that names a new idempotency key with each request, for ever."""
    store = place.store(Kept(answers=3, answers_bytes=5_000))
    await store.open()

    async def kept() -> list[int]:
        return [n for n in range(20) if await store.answered(f"k{n}")]

    def answer(size: int) -> Answer:
        return Answer(fingerprint="f", status=200, body=b"x" * size)

    for n in range(5):
        await store.commit([put("a", {})], DEED, answer=(f"k{n}", answer(10)))
    assert await kept() == [2, 3, 4]
    await store.commit([put("a", {})], DEED, answer=("k5", answer(4_300)))
    assert await kept() == [4, 5]
    await store.commit([put("a", {})], DEED, answer=("k6", answer(6_000)))
    assert await kept() == []
    await store.commit([put("a", {})], DEED, answer=("k7", answer(10)))
    assert await kept() == [7]
    await store.close()


async def test_records_beyond_the_bound_are_refused_and_others_changed(place: Place) -> None:
    """A runaway script that creates keys; the operator must still be able to delete them."""
    store = place.store(Kept(records=3))
    await store.open()
    await put_each(store, list("abc"), {})
    with pytest.raises(StoreError, match="holds 3 records"):
        await store.commit([put("a", {"n": 1}), put("d", {})], DEED)
    await store.commit([put("a", {"n": 2})], DEED)
    await store.commit([drop("b"), put("d", {})], DEED)
    assert await bodies(store) == {"a": {"n": 2}, "c": {}, "d": {}}
    await store.close()


async def test_several_gateways_see_one_store(place: Place) -> None:
    """A key revoked at one gateway is to be refused by all."""
    one, other = place.store(), place.store()
    await one.open()
    await other.open()
    await one.commit([put("a", {"n": 1})], DEED)
    assert await other.revision() == 1
    assert await bodies(other) == {"a": {"n": 1}}
    await other.commit([drop("a", expected=1)], DEED)
    with pytest.raises(ConflictError):
        await one.commit([put("a", {"n": 2}, expected=1)], DEED)
    await other.spend({("t", "2026-11"): 2})
    await one.spend({("t", "2026-11"): 3})
    assert await one.spent(["2026-11"]) == {("t", "2026-11"): 5}
    await one.close()
    await other.close()


async def test_commits_at_the_same_time_are_all_made(place: Place) -> None:
    """Operators' scripts that run side by side, through two gateways."""
    stores = [place.store(), place.store()]
    for each in stores:
        await each.open()
    revisions = await asyncio.gather(
        *(stores[n % 2].commit([put(f"k{n}", {"n": n})], DEED) for n in range(40))
    )
    assert sorted(revisions) == list(range(1, 41))
    read = await stores[0].read()
    assert {each.id: each.version for each in read.records} == {
        f"k{n}": revision for n, revision in enumerate(revisions)
    }
    assert len(await all_entries(stores[1])) == 40
    for each in stores:
        await each.close()


async def test_a_caller_that_leaves_leaves_nothing_half_done(store: Store) -> None:
    """An operator whose connection breaks in the middle of a change."""
    writes = [put("a", {"n": 1}), put("b", {"n": 1})]
    for turns in range(8):
        task = asyncio.ensure_future(store.commit(writes, DEED))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # Whatever was begun is done before this one is.
        await store.commit([put("c", {"turns": turns})], DEED)
        found = await bodies(store)
        assert len(found) in (1, 3)
    assert found["c"] == {"turns": 7}
    entries = await all_entries(store)
    assert [id for id, _, _ in entries].count("a") == [id for id, _, _ in entries].count("b")


async def test_what_was_written_is_there_for_the_next_process(place: Place) -> None:
    """The restart that this is all for."""
    store = place.store()
    await store.open()
    await store.commit([put("a", {"n": 1})], DEED, answer=("key", ANSWER))
    await store.spend({("t", "2026-11"): 2})
    before = (await store.read(), await store.audit())
    await store.close()
    store = place.store()
    await store.open()
    assert (await store.read(), await store.audit()) == before
    assert await store.answered("key") == ANSWER
    assert await store.spent(["2026-11"]) == {("t", "2026-11"): 2}
    await store.close()
