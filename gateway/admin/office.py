"""What the gateway was told at run time: the one way in, and the one that knows the store.

A change is judged, committed and applied in this order and one at a time; to the scheduler it is
one event between two decisions. What other gateways changed on the same store is noticed within
`POLL_S` and applied in the same way. A store that is lost while running stops changes, nothing
else. What records mean is in `overlay.py` and `key_records.py`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any, Protocol

from gateway.admin.fitting import Fitted, UnfitError, fitted, judged, told
from gateway.admin.key_records import (
    ACCESS,
    allowance_in,
    allowances_of,
    homeless,
    key_of,
    keyring_of,
)
from gateway.admin.objections import InvalidDocumentError
from gateway.admin.overlay import Name, Overlay
from gateway.core.scheduler import Scheduler
from gateway.settings import Settings, SettingsError
from gateway.settings_problems import dotted
from gateway.settings_sources import Sources
from gateway.tenancy.keys import Keyring
from gateway.tenancy.limits import Limits
from gateway.tenancy.store.port import (
    Answer,
    AuditEntry,
    Contents,
    Deed,
    Kind,
    Record,
    Store,
    StoreError,
    Write,
)

LOGGER = logging.getLogger("fairgate.store")
POLL_S = 0.25
"""How often it is looked whether another gateway changed something."""
RETRY_S = 5.0
"""How long after a fault of ours it is tried again."""
NAMES_TOLD = 100
"""Most records of one change that are named to who listens."""
HOMELESS = "tiers: "
"""How an objection begins that is about requests whose tier would be gone."""
PROBLEMS_TOLD = 20
"""Most faults of a refused change that its error lists."""


class House(Protocol):
    """The gateway, as far as changes go."""

    settings: Settings
    scheduler: Scheduler
    clock: Callable[[], float]
    keyring: Keyring
    """All keys that let somebody in."""
    limits: Limits
    """How much each may use."""

    def objections(self, settings: Settings) -> tuple[str, ...]:
        """Why it could not go on with these settings, one line each."""

    def reload(
        self, settings: Settings, keyring: Keyring | None = None, *, homeless_to: str | None = None
    ) -> frozenset[str]:
        """Go on with other settings and keys, at once; nothing that waits or runs is dropped.

        `homeless_to`: the tier of requests of whose tier nobody says where they go. Raises
        SettingsError where there are any and it is None, and for unreadable certificates.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What was changed, by whom where that was this gateway."""

    revision: int
    names: tuple[Name, ...]
    deed: Deed | None

    def told(self) -> dict[str, Any]:
        """For who listens to what happens."""
        deed = self.deed
        return {
            "revision": self.revision,
            "records": [{"kind": kind, "id": id} for kind, id in self.names[:NAMES_TOLD]],
            "who": None if deed is None else deed.who,
            "action": None if deed is None else deed.action,
            "request_id": None if deed is None else deed.request_id,
        }


@dataclass(frozen=True, slots=True)
class Judged:
    """A change that fits, and is not made yet."""

    fitted: Fitted | None
    """None: only keys are touched."""
    keyring: Keyring | None = None
    homeless_to: str | None = None
    """Where requests go of whose tier the settings say nothing."""


Plan = Callable[[], Sequence[Write]]
"""Looks at what there is and says what to write; raises GatewayError for what must not be."""


class Office:
    """Everything that operators decided at run time, as this gateway knows it."""

    def __init__(self, house: House, store: Store, wall: Callable[[], float] = time) -> None:
        """`wall` tells seconds since 1970."""
        self.house = house
        self.store = store
        self.wall = wall
        self.revision = 0
        self.fault: str | None = None
        """Why the store cannot be used now."""
        self.listeners: list[Callable[[Changed], None]] = []
        """Each hears of every change, after it is in force; must not block."""
        self._records: dict[Kind, dict[str, Record]] = {}
        self._fitted = Fitted(house.settings, Overlay(house.settings.sources.tree))
        self._lock = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store. Raises StoreError: without it nobody knows who may come in."""
        try:
            await self.store.open()
            contents = await self.store.read()
        except StoreError as error:
            self.fault = str(error)
            LOGGER.error("the gateway cannot start without its store: %s", error)
            raise
        self._become(contents.records)
        self.revision = contents.revision

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Go on with what the store holds, and with what is changed from now on."""
        if self._records:
            await self._apply_all()
        self._polling = tasks.create_task(self._poll())

    async def stop(self) -> None:
        """Let go of the store; a change under way is finished first."""
        if self._polling is not None:
            self._polling.cancel()
        async with self._lock:
            with suppress(StoreError):
                await self.store.close()

    @property
    def settings(self) -> Settings:
        """What is in force."""
        return self.house.settings

    @property
    def sources(self) -> Sources:
        """What the configuration says."""
        return self.house.settings.sources

    @property
    def set_aside(self) -> Mapping[Name, tuple[str, ...]]:
        """Records that are not in force since they do not fit the configuration, and why."""
        return self._fitted.set_aside

    @property
    def contents(self) -> Contents:
        """All records as this gateway knows them, be they in force or not."""
        records = (each for by_id in self._records.values() for each in by_id.values())
        return Contents(revision=self.revision, records=tuple(records))

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: Kind | None = None,
        record_id: str | None = None,
    ) -> tuple[AuditEntry, ...]:  # fmt: skip
        """See `Store.audit`."""
        return await self.store.audit(before=before, limit=limit, kind=kind, record_id=record_id)

    async def answered(self, idempotency_key: str) -> Answer | None:
        """See `Store.answered`."""
        return await self.store.answered(idempotency_key)

    def record(self, kind: Kind, record_id: str) -> Record | None:
        """One record of the store, be it in force or not."""
        return self._records.get(kind, {}).get(record_id)

    def records(self, kind: Kind) -> Mapping[str, Record]:
        """All records of one kind, by id."""
        return self._records.get(kind, {})

    def is_shadowed(self, name: Name) -> bool:
        """Whether the configuration has something of the same name, which is in force instead."""
        return name in self._fitted.overlay.shadowed

    async def change(
        self,
        writes: Sequence[Write] | Plan,
        deed: Deed,
        answer: tuple[str, Answer] | None = None,
        *,
        homeless_to: str | None = None,
    ) -> int:
        """Make this part of the store and of the running gateway, all or nothing.

        A plan is asked what to write once nothing else changes any more. `homeless_to` is the tier
        of requests whose tier is gone where `moved_to` does not say it. Returns the new revision.
        Raises GatewayError where it makes no sense, ConflictError where another gateway changed
        the same, StoreError where it cannot be kept: what was not acknowledged may have been
        changed or not.
        """
        async with self._lock:
            try:
                await self._catch_up()
                writes = tuple(writes() if callable(writes) else writes)
                judgement = await self._judge(writes, homeless_to=homeless_to)
                revision = await self.store.commit(writes, deed, answer)
            except StoreError as error:
                self._lost(error)
                raise
            except ValueError as error:
                raise InvalidDocumentError(f"It cannot be kept: {error}.") from None
            if revision == self.revision + 1:
                self._enter(writes, revision)
                self._apply(judgement, writes)
                self.revision = revision
            else:
                await self._refresh()
        self._publish(Changed(revision=revision, names=_names(writes), deed=deed))
        return revision

    async def rehearse(self, plan: Plan, *, homeless_to: str | None = None) -> Settings:
        """The settings that `plan` would lead to; nothing is changed. Raises as `change` does."""
        async with self._lock:
            judgement = await self._judge(tuple(plan()), homeless_to=homeless_to)
        return self.settings if judgement.fitted is None else judgement.fitted.settings

    async def reread(self, settings: Settings) -> frozenset[str]:
        """Go on with a configuration that was read again, under what the store holds.

        Returns the top-level keys that changed. Raises SettingsError, and changes nothing, where
        it does not fit what the store holds.
        """
        async with self._lock:
            try:
                judgement = await self._judge((), settings.sources)
            except InvalidDocumentError as error:
                raise SettingsError(tuple(error.message.split("\n"))) from None
            assert judgement.fitted is not None
            changed = self.house.reload(judgement.fitted.settings, judgement.keyring)
            self._fitted = judgement.fitted
            return changed

    async def _judge(
        self,
        writes: Sequence[Write],
        sources: Sources | None = None,
        *,
        homeless_to: str | None = None,
    ) -> Judged:
        """Whether it can be done. Raises InvalidDocumentError."""
        if sources is None and all(_is_of_keys(write) for write in writes):
            return Judged(None)
        records = self._after(writes)
        try:
            found = await asyncio.to_thread(
                judged,
                sources or self.sources,
                records,
                set_aside=self.set_aside,
                written=frozenset(_names(writes)),
            )
        except UnfitError as unfit:
            lines = tuple(map(told, unfit.problems))
            raise _invalid(lines, dotted(unfit.problems[0].place) or None) from None
        keys = [record for record in records if record.kind == "key"]
        objections = self.house.objections(found.settings)
        if homeless_to is None:
            objections += self._homeless(found.settings, keys)
        else:
            if homeless_to not in found.settings.tier_names:
                raise _invalid((f"moved_to: there is no tier {homeless_to!r}",), "moved_to")
            objections = tuple(each for each in objections if not each.startswith(HOMELESS))
        if objections:
            raise _invalid(objections, objections[0].partition(":")[0])
        keyring = self.house.keyring
        is_touched = any(write.kind == "key" for write in writes)
        if is_touched or not _are_alike_to_keys(self.settings, found.settings):
            keyring = await self._keyring(found.settings, keys)
        return Judged(found, keyring, homeless_to)

    def _homeless(self, settings: Settings, keys: Sequence[Record]) -> tuple[str, ...]:
        """Tiers of keys that would be gone, where they are there now."""
        if _are_alike_to_keys(self.settings, settings):
            return ()
        lost = homeless(settings, keys) - homeless(self.settings, keys)
        return tuple(
            f"moved_to: {count} keys have the tier {tier!r}: say where their requests go"
            for tier, count in sorted(lost.items())
        )

    async def _keyring(self, settings: Settings, keys: Sequence[Record]) -> Keyring:
        """All keys under these settings."""
        is_closed = self.record("policy", ACCESS) is not None
        return await asyncio.to_thread(
            keyring_of, settings, keys, is_closed=is_closed, wall=self.wall
        )

    def _apply(self, judgement: Judged, writes: Sequence[Write]) -> None:
        """Between two decisions: no await."""
        if judgement.fitted is not None:
            self.house.reload(
                judgement.fitted.settings, judgement.keyring, homeless_to=judgement.homeless_to
            )
            self._fitted = judgement.fitted
            self.house.limits.become(allowances_of(self.records("key").values()))
            return
        self._turn_keys(write.id for write in writes if write.kind == "key")

    def _turn_keys(self, ids: Iterable[str]) -> None:
        """The keyring follows the records of these keys."""
        keyring, settings = self.house.keyring, self.house.settings
        for key_id in ids:
            record = self.record("key", key_id)
            self.house.limits.put(key_id, None if record is None else allowance_in(record))
            key = None if record is None else key_of(settings, record)
            if key is None:
                keyring.drop(key_id)
            else:
                keyring.put(key)

    async def _apply_all(self) -> None:
        """Go on with all records as they are; what does not fit is set aside, and told."""
        records = self._after(())
        found = await asyncio.to_thread(fitted, self.sources, records)
        keys = [record for record in records if record.kind == "key"]
        keyring = await self._keyring(found.settings, keys)
        for (kind, record_id), problems in found.set_aside.items():
            LOGGER.error(
                "%s %r of the store does not fit the configuration and is not in force: %s",
                kind, record_id, "; ".join(problems[:PROBLEMS_TOLD]),
            )  # fmt: skip
        try:
            self.house.reload(found.settings, keyring, homeless_to=found.settings.tier_names[-1])
        except SettingsError as error:
            LOGGER.error("what the store holds cannot be put into force: %s", error)
            self._turn_keys(self.records("key"))
        self._fitted = found
        self.house.limits.become(allowances_of(keys))

    async def _poll(self) -> None:
        pause_s = POLL_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = POLL_S
            try:
                async with self._lock:
                    await self._catch_up()
            except StoreError as error:
                self._lost(error)
            except Exception:
                LOGGER.exception("what another gateway changed could not be put into force")
                pause_s = RETRY_S

    async def _catch_up(self) -> None:
        """Know what others changed."""
        revision = await self.store.revision()
        if revision != self.revision or self.fault is not None:
            await self._refresh()

    async def _refresh(self) -> None:
        """Read what others changed, and put it into force."""
        # One that was lost may have come back as an older one: then nothing is known of it.
        changes = None if self.fault is not None else await self.store.changes(self.revision)
        if changes is not None:
            revision = changes.revision
            names = (*((each.kind, each.id) for each in changes.records), *changes.gone)
            for kind, record_id in changes.gone:
                self._records.get(kind, {}).pop(record_id, None)
            for record in changes.records:
                self._records.setdefault(record.kind, {})[record.id] = record
        else:
            before = self._after(())
            contents = await self.store.read()
            revision = contents.revision
            self._become(contents.records)
            names = _differing(before, contents.records)
        if self.fault is not None:
            LOGGER.warning("the store can be used again")
            self.fault = None
        if all(kind == "key" for kind, _ in names):
            self._turn_keys(record_id for _, record_id in names)
        else:
            await self._apply_all()
        self.revision = revision
        if names:
            self._publish(Changed(revision=revision, names=names, deed=None))

    def _become(self, records: Iterable[Record]) -> None:
        self._records = {}
        for record in records:
            self._records.setdefault(record.kind, {})[record.id] = record

    def _after(self, writes: Sequence[Write]) -> list[Record]:
        """All records as they would be after `writes`."""
        records = {
            (kind, record_id): record
            for kind, by_id in self._records.items()
            for record_id, record in by_id.items()
        }
        for write in writes:
            records.pop((write.kind, write.id), None)
            if write.body is not None:
                record = Record(kind=write.kind, id=write.id, version=0, body=write.body)
                records[write.kind, write.id] = record
        return list(records.values())

    def _enter(self, writes: Sequence[Write], revision: int) -> None:
        for write in writes:
            by_id = self._records.setdefault(write.kind, {})
            by_id.pop(write.id, None)
            if write.body is not None:
                by_id[write.id] = Record(
                    kind=write.kind, id=write.id, version=revision, body=write.body
                )

    def _lost(self, error: StoreError) -> None:
        if self.fault is None:
            LOGGER.error("the store cannot be used; what is known stays in force: %s", error)
        self.fault = str(error)

    def _publish(self, changed: Changed) -> None:
        for listener in self.listeners:
            listener(changed)


def homeless_tiers(old: Settings, new: Settings) -> tuple[str, ...]:
    """What the change from one to the other says too little of, one line each."""
    return tuple(
        f"{HOMELESS}{name!r} was removed: say in moved_to where its requests go"
        for name in old.tier_names
        if name not in new.tier_names and name not in new.moved_to
    )


def moves(old: Settings, new: Settings, homeless_to: str) -> dict[str, str]:
    """Where the requests of each tier go that is gone."""
    names = new.tier_names
    return {
        name: new.moved_to.get(name, homeless_to) for name in old.tier_names if name not in names
    }


def _names(writes: Sequence[Write]) -> tuple[Name, ...]:
    return tuple((write.kind, write.id) for write in writes)


def _differing(before: Iterable[Record], after: Iterable[Record]) -> tuple[Name, ...]:
    """Names of what came, went or has another version."""
    old = {(each.kind, each.id): each.version for each in before}
    new = {(each.kind, each.id): each.version for each in after}
    return tuple(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))


def _is_of_keys(write: Write) -> bool:
    """Whether only the keyring has to know."""
    return write.kind == "key" or (write.kind, write.id) == ("policy", ACCESS)


def _are_alike_to_keys(old: Settings, new: Settings) -> bool:
    """Whether each key is to both the same caller."""
    return all(
        getattr(old, name) == getattr(new, name)
        for name in ("tier_names", "default_tier", "moved_to", "models", "keys", "is_open")
    )


def _invalid(lines: tuple[str, ...], param: str | None) -> InvalidDocumentError:
    return InvalidDocumentError("\n".join(lines[:PROBLEMS_TOLD]), param=param)
