"""A gateway that leads a pool: what its guests tell goes into its scheduler, what is decided, back.

A new leader grants nothing before everybody who lives has told what it has, or had two heartbeats
for it; of whoever is missing, what it had by the last checkpoint stays reserved for a while. It
refuses to know who leads and until when: it is begun and ended.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, Protocol

from gateway.cluster.guests import (
    GIVE_UP_S,
    SILENT_S,
    Coming,
    Desk,
    Guest,
    come,
)
from gateway.cluster.inner import inner_event, inner_id, ranked
from gateway.cluster.messages import (
    Astray,
    Beat,
    Left,
    Message,
    OfScheduler,
    Open,
    Placed,
    Synced,
    Told,
)
from gateway.cluster.ports import BEAT_S, CHECKPOINT_BYTES_MAX
from gateway.core.claims import claims, take_claims
from gateway.core.messages import (
    Adopted,
    Arrived,
    Bounced,
    Cancelled,
    Disowned,
    Event,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Progressed,
    RecallDone,
    RecallTooLate,
    Refused,
    Request,
    Withdrawn,
)
from gateway.core.pool import Pool
from gateway.core.scheduler import Scheduler

GATHER_S: Final = 2 * BEAT_S
ABSENT_S: Final = 1.0
"""What missing gateways had stays taken for so long from when a new leader begins to grant."""
FAULTS: Final = (ValueError, LookupError, TypeError, AttributeError)
"""What a checkpoint of another form ends in when it is read."""


class Host(Protocol):
    """The gateway that leads."""

    name: str
    scheduler: Scheduler
    owners: dict[str, tuple["Leadership", Guest]]
    """Whose each request in the scheduler is, by the id that it has there, but for one's own."""

    def feed(self, event: Event, now: float) -> None:
        """Let the scheduler take it in, and carry out what it decides."""

    def post(self, to: str, message: Message) -> None:
        """Send."""

    def pool_of(self, model: str) -> str | None:
        """Name of the pool that serves a model."""


class Leadership:
    """One pool led in one epoch."""

    __slots__ = (
        "_absent", "_arrivals", "_desk", "_host", "_kept", "awaited", "epoch", "gather_until",
        "guests", "is_gathering", "is_over", "pool", "resyncs",
    )  # fmt: skip

    def __init__(
        self, host: Host, pool: str, epoch: int, *, live: Iterable[str], kept: bytes, now: float
    ) -> None:
        """`live`: the gateways that must be heard first; `kept`: the last checkpoint, or b""."""
        self._host = host
        self._desk = Desk(host.name, pool, epoch)
        self._kept = kept
        self.pool = pool
        self.epoch = epoch
        self.guests: dict[str, Guest] = {}
        self.awaited = {each for each in live if each != host.name}
        self.gather_until = now + GATHER_S
        self.is_gathering = True
        self.is_over = False
        self.resyncs = 0
        self._absent = Guest("", now)
        """Stands for the missing, with what they had where nothing else shows it."""
        self._arrivals: dict[str, Coming] = {}
        """What waits while nothing is granted yet, by inner id."""
        for gateway in sorted(self.awaited):
            self._ask(self._guest(gateway, now), now)

    # What comes.

    def hear(self, message: Told | Synced | Beat, now: float) -> None:
        """A follower says something, in this epoch."""
        match message:
            case Told():
                self.told(message, now)
            case Synced():
                self.synced(message, now)
            case Beat():
                self.heard(message, now)

    def synced(self, message: Synced, now: float) -> None:
        """A guest tells all that it has: that is the truth, whatever was thought before."""
        guest = self._guest(message.sender, now)
        if message.session <= guest.session:
            return
        guest.begin(message.session, now)
        guest.rank(message.tiers, self._host.scheduler.policy)
        listed = {inner_id(guest.gateway, each.request.id): each for each in message.requests}
        # What is granted while the picture is put right may be of what runs there already.
        guest.is_synced = False
        for key, each in listed.items():
            if each.replica is not None:
                self._runs(guest, key, each, now)
        self._drop(guest, [each for each in guest.ids if each not in listed], now)
        granted = self._host.scheduler.granted
        never_got = [key for key, each in listed.items() if each.replica is None and key in granted]
        guest.is_synced = True
        for key in never_got:
            self._take_back(guest, key, now)
        waiting = [
            each for key, each in listed.items() if not each.replica and key not in guest.ids
        ]
        entered = [
            (self._entered(guest, each.request, now - each.waited_s), each.was_let_in)
            for each in waiting
            if self._is_mine(guest, each.request)
        ]
        self._come(guest, entered, now)
        self.awaited.discard(guest.gateway)

    def told(self, message: Told, now: float) -> None:
        """Something happened to a guest's request."""
        guest = self._guest(message.sender, now)
        if not guest.takes(message, now):
            if not guest.is_synced:
                self._ask(guest, now)
            return
        event = message.event
        if isinstance(event, Arrived):
            self._arrived(guest, event.request, now - (message.ago_s or 0.0), now)
            return
        happened = inner_event(event, guest.gateway, now, message.ago_s)
        if isinstance(event, Progressed):
            self._host.feed(happened, now)
            return
        key = inner_id(guest.gateway, event.request_id)
        if key not in guest.ids:
            if isinstance(event, Bounced | RecallDone):
                # It ran where nothing is known of here; now it waits, and only that one knows it.
                guest.is_synced = False
                self._ask(guest, now)
            return
        self._host.feed(happened, now)
        if isinstance(event, Finished | Cancelled):
            self._arrivals.pop(key, None)
            self._close(guest, key)
        elif isinstance(event, Bounced | RecallDone):
            self._place(guest, key, now)

    def heard(self, message: Beat, now: float) -> None:
        """A guest is there, and tells how much it has told."""
        guest = self._guest(message.sender, now)
        guest.heard_at = now
        if message.session > guest.session or message.number > guest.told:
            guest.is_synced = guest.is_synced and message.session < guest.session
        if not guest.is_synced:
            self._ask(guest, now)

    # What goes.

    def decided(self, guest: Guest, decision: OfScheduler, now: float) -> None:
        """The scheduler decided about a guest's request."""
        key = decision.request_id
        own_id = guest.ids[key]
        if isinstance(decision, Refused):
            self._close(guest, key)
        if not self.is_over and guest.is_synced:
            told = self._desk.ruling(guest, replace_id(decision, own_id))
            self._host.post(guest.gateway, told)

    def beat(self, live: Collection[str], now: float) -> None:
        """A heartbeat: tell the guests, and look who is silent."""
        for gateway in live:
            if gateway != self._host.name:
                self._guest(gateway, now)
        if now - self._absent.heard_at >= ABSENT_S:
            self._disown(self._absent, now)
        for guest in list(self.guests.values()):
            silent_s = now - guest.heard_at
            if silent_s >= GIVE_UP_S or (silent_s >= SILENT_S and guest.gateway not in live):
                self._give_up(guest, now)
                continue
            if silent_s >= SILENT_S and guest.is_synced:
                guest.is_synced = False
                self._take_out(guest, now)
            self._host.post(guest.gateway, self._desk.led(guest))

    def look(self, now: float) -> bool:
        """Begin to grant, if nobody is awaited any more; whether it has just begun."""
        if not self.is_gathering or (self.awaited and now < self.gather_until):
            return False
        self._inherit(now)
        self.is_gathering = False
        return True

    def arrivals(self) -> list[Coming]:
        """What the guests had waiting when it began; asked for once."""
        found, self._arrivals = list(self._arrivals.values()), {}
        return found

    def rank_anew(self, ranks: tuple[int, ...]) -> None:
        """Tiers have other ranks from now on, by those that they had."""
        for guest in self.guests.values():
            guest.ranks = tuple(ranks[rank] for rank in guest.ranks)
        self._arrivals = {
            each: (ranked(request, ranks), was_let_in)
            for each, (request, was_let_in) in self._arrivals.items()
        }

    def stop(self, now: float) -> None:
        """Grant no more: what waits of the guests leaves the scheduler."""
        self.is_over = True
        for guest in self.guests.values():
            self._take_out(guest, now)

    def end(self, now: float) -> None:
        """Lead no more, after it has stopped: what runs of the guests leaves the scheduler."""
        for guest in list(self.guests.values()):
            self._give_up(guest, now)
        self._disown(self._absent, now)

    def leave(self) -> None:
        """Tell the guests to look for another leader."""
        for gateway in self.guests:
            self._host.post(gateway, Left(self._host.name, self.pool, self.epoch))

    def checkpoint(self) -> bytes:
        """What a new leader needs: who has had how much, and what each gateway has where."""
        pool = self._pool()
        if pool is None or self.is_gathering:
            return b""
        held: dict[str, dict[str, int]] = {}
        for replica in pool.replicas.values():
            for key, grant in replica.ledger.grants.items():
                owner = self._host.owners.get(key)
                gateway = self._host.name if owner is None else owner[1].gateway
                sums = held.setdefault(gateway, {})
                sums[replica.name] = sums.get(replica.name, 0) + grant.sequences
        data = json.dumps({"claims": claims(pool), "held": held}, separators=(",", ":")).encode()
        return data if len(data) <= CHECKPOINT_BYTES_MAX else b""

    # Inside.

    def _guest(self, gateway: str, now: float) -> Guest:
        guest = self.guests.get(gateway)
        if guest is None:
            guest = self.guests[gateway] = Guest(gateway, now)
        return guest

    def _ask(self, guest: Guest, now: float) -> None:
        if guest.may_ask(now):
            self.resyncs += guest.session > 0
            self._host.post(guest.gateway, self._desk.led(guest))

    def _pool(self) -> Pool | None:
        pool = self._host.scheduler.pool_by_model.get(self.pool)
        return pool if pool is not None and min(pool.models) == self.pool else None

    def _open(self, guest: Guest, key: str, own_id: str) -> None:
        guest.ids[key] = own_id
        self._host.owners[key] = (self, guest)

    def _close(self, guest: Guest, key: str) -> None:
        guest.ids.pop(key, None)
        self._host.owners.pop(key, None)

    def _is_mine(self, guest: Guest, request: Request) -> bool:
        if self._host.pool_of(request.model) == self.pool:
            return True
        self._host.post(guest.gateway, self._desk.ruling(guest, Astray(request.id)))
        return False

    def _arrived(self, guest: Guest, request: Request, arrived_at: float, now: float) -> None:
        key = inner_id(guest.gateway, request.id)
        if key in guest.ids:
            guest.is_synced = False  # It cannot come twice: something else is wrong.
            self._ask(guest, now)
        elif self._is_mine(guest, request):
            coming = self._entered(guest, request, arrived_at)
            if self.is_gathering:
                self._arrivals[key] = coming, False
            else:
                self._host.feed(Arrived(coming), now)
                self._place(guest, key, now)

    def _entered(self, guest: Guest, request: Request, arrived_at: float) -> Request:
        self._open(guest, inner_id(guest.gateway, request.id), request.id)
        return guest.inner(request, arrived_at, len(self._host.scheduler.policy.tiers))

    def _come(self, guest: Guest, coming: list[Coming], now: float) -> None:
        """Many at once."""
        if self.is_gathering:
            self._arrivals.update({each[0].id: each for each in coming})
            return
        come(self._host, coming, now)
        for request, was_let_in in coming:
            # Of whatever was let in its client has been told, and each costs as many as there are.
            if not was_let_in:
                self._place(guest, request.id, now)

    def _place(self, guest: Guest, key: str, now: float) -> None:
        place = self._host.scheduler.place_of(key, now)
        if place is not None and guest.is_synced:
            ruling = Placed(guest.ids[key], *place)
            self._host.post(guest.gateway, self._desk.ruling(guest, ruling))

    def _take_back(self, guest: Guest, key: str, now: float) -> None:
        """It waits there: the grant was lost on its way."""
        if self.is_gathering:
            self._drop(guest, [key], now)
        else:
            self._host.feed(RecallDone(key), now)

    def _runs(self, guest: Guest, key: str, told: Open, now: float) -> None:
        assert told.replica is not None
        scheduler = self._host.scheduler
        known = scheduler.granted.get(key)
        if known is not None and known[1].name == told.replica:
            grant = known[0]
            self._host.feed(RecallTooLate(key), now)
            if told.is_started and not grant.is_started:
                self._host.feed(FirstToken(key), now)
            if told.output_tokens > grant.output_tokens:
                self._host.feed(Progressed(told.replica, {key: told.output_tokens}), now)
            return
        self._drop(guest, [key], now)
        tiers = len(scheduler.policy.tiers)
        adopted = Adopted(
            request=guest.inner(told.request, now - told.waited_s, tiers),
            replica=told.replica,
            running_s=told.running_s,
            is_started=told.is_started,
            output_tokens=told.output_tokens,
        )
        self._host.feed(adopted, now)
        if key in scheduler.granted:
            self._open(guest, key, told.request.id)

    def _drop(self, guest: Guest, ids: Collection[str], now: float) -> None:
        """They are no more, or were never: out of the scheduler with them."""
        self._host.feed(Withdrawn(tuple(ids)), now)
        for each in ids:
            self._arrivals.pop(each, None)
            self._close(guest, each)
            self._host.feed(Finished(each, Outcome.CANCELLED), now)

    def _take_out(self, guest: Guest, now: float) -> None:
        """What waits of a guest is not released any more."""
        waiting = self._host.scheduler.waiting
        self._drop(
            guest, [each for each in guest.ids if each in waiting or each in self._arrivals], now
        )

    def _disown(self, guest: Guest, now: float) -> None:
        """It may live, and what it has may run on."""
        for key in list(guest.ids):
            self._arrivals.pop(key, None)
            self._host.feed(Disowned(key), now)
            self._close(guest, key)

    def _give_up(self, guest: Guest, now: float) -> None:
        self._take_out(guest, now)
        self._disown(guest, now)
        del self.guests[guest.gateway]
        self.awaited.discard(guest.gateway)

    def _inherit(self, now: float) -> None:
        pool = self._pool()
        if pool is None or not self._kept:
            return
        try:
            data = json.loads(self._kept)
            missing: dict[str, int] = {}
            for gateway, held in data["held"].items():
                guest = self.guests.get(gateway)
                if gateway != self._host.name and (guest is None or not guest.is_synced):
                    for name, sequences in held.items():
                        missing[name] = missing.get(name, 0) + int(sequences)
            self._absent.heard_at = now
            for name, sequences in missing.items():
                self._reserve(pool, name, sequences, now)
            take_claims(pool, data["claims"])
        except FAULTS:
            return  # Fairness begins anew; the engines' own reports show what runs.

    def _reserve(self, pool: Pool, name: str, sequences: int, now: float) -> None:
        """What missing gateways had on a replica stays taken until it tells what it has."""
        replica = pool.replicas.get(name)
        if replica is None or replica.foreign >= sequences:
            return
        stand_in = Request(
            id=inner_id(self.pool, name),
            model=min(replica.models & pool.models),
            tier=len(pool.policy.tiers) - 1,
            tenant="",
            user="",
            arrived_at=now,
            prompt_tokens=1,
            output_tokens_max=1,
            sequences=sequences - replica.foreign,
        )
        self._host.feed(Adopted(request=stand_in, replica=name), now)
        report = replica.report
        if report is not None and report.running is not None and not replica.is_stale:
            self._host.feed(Disowned(stand_in.id), now)
        elif stand_in.id in self._host.scheduler.granted:
            self._open(self._absent, stand_in.id, stand_in.id)


def replace_id(decision: OfScheduler, request_id: str) -> OfScheduler:
    """The same decision of another id."""
    match decision:
        case Granted():
            return Granted(request_id, decision.replica, decision.waited_s)
        case Refused():
            return Refused(request_id, decision.reason, decision.retry_after_s)
        case _:
            return replace(decision, request_id=request_id)
