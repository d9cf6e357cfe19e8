"""Stores on a disk and in Redis against the one in memory: any commits, conflicts and restarts."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.tenancy.store.memory import MemoryStore
from gateway.tenancy.store.port import (
    Answer,
    AnsweredError,
    ConflictError,
    Deed,
    Kept,
    Kind,
    Store,
    StoreError,
    Write,
)
from tests.support.redis_server import RedisServer, running_redis
from tests.support.stores import Place

KEPT = Kept(records=6, audit=9, audit_bytes=3_000, answers=3, answers_bytes=1_500)
EXAMPLES, STEPS = 8, 15
PERIODS = ["2026-09", "2026-10", "2026-11", "2026-12", "2027-01", "2026-11-01", "2026-11-02"]

kinds: st.SearchStrategy[Kind] = st.sampled_from(["key", "tenant"])
ids = st.sampled_from(["a", "b:c", "ä", ""])
values: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=400), st.just([])
)
documents = st.none() | st.dictionaries(st.sampled_from(["n", "m"]), values, max_size=2)
# -1: the version that is there.
versions = st.sampled_from([None, None, -1, -1, 0, 1, 3])
drafts = st.lists(
    st.tuples(kinds, ids, documents, versions), max_size=4, unique_by=lambda each: each[:2]
)
deeds = st.builds(
    Deed,
    at=st.floats(0, 2e9),
    who=st.text(max_size=5),
    action=st.sampled_from(["key.create", "key.rotate"]),
    request_id=st.text(max_size=5),
)
answers = st.builds(
    Answer,
    fingerprint=st.text(max_size=3),
    status=st.sampled_from([200, 201]),
    body=st.binary(max_size=600),
    headers=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=1),
)
keys = st.sampled_from(["k1", "k2", "k3", "k4", "k5"])
sums = st.dictionaries(
    st.tuples(st.sampled_from(["t", "u"]), st.sampled_from(PERIODS)), st.integers(-50, 50)
)


class Machine(RuleBasedStateMachine):
    """The same done to both; what they say and what they hold has to be the same."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = MemoryStore(KEPT)
        self.stores = [self.opened(), self.opened()]

    def opened(self) -> Store:
        """One more view of the store under test."""
        store = self.place.store(KEPT)
        self.runner.run(store.open())
        return store

    async def outcome(self, store: Store, *arguments: Any) -> object:
        """What came of a commit."""
        try:
            return await store.commit(*arguments)
        except ConflictError as refusal:
            return (refusal.kind, refusal.record_id, refusal.found)
        except AnsweredError:
            return "answered"
        except StoreError as refusal:
            return str(refusal)

    @rule(draft=drafts, deed=deeds, answer=st.none() | st.tuples(keys, answers), by=st.booleans())
    def commit(self, draft: Any, deed: Deed, answer: Any, by: bool) -> None:
        """By one of two gateways."""
        there = {(each.kind, each.id): each.version for each in self.read(self.model).records}
        writes = [
            Write(kind=k, id=i, body=b, expected=there.get((k, i), 0) if v == -1 else v)
            for k, i, b, v in draft
        ]
        told = self.runner.run(self.outcome(self.stores[by], writes, deed, answer))
        assert told == self.runner.run(self.outcome(self.model, writes, deed, answer))

    @rule(amounts=sums, by=st.booleans())
    def spend(self, amounts: Any, by: bool) -> None:
        """By one of two gateways."""
        self.runner.run(self.stores[by].spend(amounts))
        self.runner.run(self.model.spend(amounts))

    @rule(which=st.booleans())
    def restart(self, which: bool) -> None:
        """One of the gateways."""
        self.runner.run(self.stores[which].close())
        self.stores[which] = self.opened()

    @rule(
        before=st.none() | st.integers(0, 20),
        limit=st.integers(1, 9),
        kind=st.none() | kinds,
        id=st.none() | ids,
    )
    def look_back(self, before: int | None, limit: int, kind: Kind | None, id: str | None) -> None:
        """Any page of the audit."""
        found, wanted = (
            self.runner.run(each.audit(before=before, limit=limit, kind=kind, record_id=id))
            for each in (self.stores[0], self.model)
        )
        assert found == wanted

    @rule(since=st.integers(0, 12))
    def catch_up(self, since: int) -> None:
        """As a gateway does that was at this revision."""
        found, wanted = (
            self.runner.run(each.changes(since)) for each in (self.stores[0], self.model)
        )
        assert found == wanted

    @invariant()
    def they_hold_the_same(self) -> None:
        """All that can be asked of it."""
        for store in self.stores:
            assert self.read(store) == self.read(self.model)
        assert self.held(self.stores[0]) == self.held(self.model)

    def read(self, store: Store) -> Any:
        """Its records."""
        return self.runner.run(store.read())

    def held(self, store: Store) -> Any:
        """All else."""

        async def all_of_it() -> Any:
            known = [await store.answered(f"k{n}") for n in range(1, 6)]
            return known, await store.spent(PERIODS), await store.audit(), await store.revision()

        return self.runner.run(all_of_it())

    def teardown(self) -> None:
        """Let go."""
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all examples; each has a prefix of its own."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_every_store_does_what_the_one_in_memory_does(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whoever moves from one store to another, and every test that uses the simplest one."""
    url = request.getfixturevalue("redis_server").url if kind == "redis" else ""

    class Fresh(Machine):
        def __init__(self) -> None:
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            self.place = Place(kind, folder=folder, redis_url=url)
            super().__init__()

    run_state_machine_as_test(
        Fresh, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
    )
