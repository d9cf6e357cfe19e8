"""What is believed of one replica: its own ledger, corrected by late and partial reports.

The ledger is exact for what came through this gateway; a report corrects only the *foreign* part
(load that others put there), slots and KV figures that were never configured, and speed. Gauges
lag by seconds, read zero at a cold start and are blind during long prefills, so a report is
compared with the ledger of the instant at which it was asked for.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.absence import Absence
from gateway.core.affinity import Cache
from gateway.core.breaker import Circuit
from gateway.core.flows import Waiting
from gateway.core.kinds import Kind
from gateway.core.ledger import Ledger
from gateway.core.limiter import ConcurrencyLimit
from gateway.core.plain import (
    plain_report,
    report_of,
)
from gateway.core.rates import Mean, Rate
from gateway.core.report import ReplicaReport
from gateway.core.sightings import Sightings
from gateway.core.speed import (
    ITL_TOKENS_MIN,
    LEARNING_SHARE,
    LONG_PREFILL_TOKENS,
    Speed,
    itl_between,
)
from gateway.core.vitality import Vitality

FRESH_INTERVALS: Final = 3
"""A report older than this many scrape intervals is stale."""
FROZEN_S: Final = 10.0
"""With no step for this long an engine's gauges show what was, not what is."""
RELEASE_HALF_LIFE_S: Final = 5.0
KV_SHARE_TOKENS_MIN: Final = 1_000
"""A smaller ledger says nothing of the share of it that is really held."""


class Replica:
    """Belief about one engine, in sequences, tokens and seconds."""

    __slots__ = (
        "_kv_share", "_passed_at", "_previous", "_previous_sent_at", "absence", "away", "away_of",
        "busy_until", "cache", "circuit", "configured_slots", "context_tokens", "foreign",
        "fresh_until", "has_queue", "held", "is_draining", "is_lost", "is_removed", "is_stale",
        "is_usable", "judged_at", "kv_capacity_tokens", "kv_use_tokens_scraped", "ledger",
        "ledger_kv_at_scrape", "limit", "models", "name", "moved_at", "open_tiers",
        "orders_by_tier", "place", "ranked", "recalled_at", "release_rate", "report",
        "reported_at", "reserved_for", "reserved_until", "round_trip_s", "scores", "sightings",
        "slots", "speed", "vital", "warm_from", "warm_until", "weight",
    )  # fmt: skip

    def __init__(self, name: str, *, tiers: int, blocks: int) -> None:
        self.name = name
        self.models: frozenset[str] = frozenset()
        self.weight = 1.0
        self.ledger = Ledger(tiers)
        self.configured_slots: int | None = None
        self.context_tokens: int | None = None
        """Longest prompt and output together; None where unknown."""
        self.orders_by_tier = False
        """Whether a higher tier goes ahead of a lower one inside the engine too."""
        self.is_lost = False
        self.is_draining = False
        self.is_removed = False
        self.is_usable = True
        """Whether anything new may be put here at all."""
        self.busy_until = 0.0
        self.recalled_at = float("-inf")
        self.moved_at = float("-inf")
        """When a running request was last asked away from here."""
        self.circuit = Circuit()
        self.vital = Vitality()
        self.held: frozenset[str] = frozenset()
        """Requests whose clients take nothing at present."""
        self.reserved_for: Waiting | None = None
        """Nothing else is put here until this one, passed over for its size, fits."""
        self.reserved_until = 0.0
        self.open_tiers: int | None = None
        """Tiers 0 .. open_tiers-1 may release one ordinary request here; None: to be judged."""
        self.judged_at = 0.0
        self.has_queue = False
        """Whether something waited inside the engine when the gates were judged."""
        self.scores: dict[int, float] = {}
        """Freeness by tier, as far as it was asked for since something changed."""
        self.place = 0
        """Its number in the ranking of its pool."""
        self.ranked = 0
        """Bits of the tiers for which that ranking knows it as it is now."""
        self.away: tuple[int, ...] | None = None
        """Slots kept from each tier for those above, as of `away_of`; None: to be computed."""
        self.away_of: tuple[float, ...] = ()
        self.release_rate = Rate(RELEASE_HALF_LIFE_S)
        self.cache = Cache(blocks)
        self.forget()

    def touch(self) -> None:
        """Something changed: the gates must be judged again before the next release."""
        self.open_tiers = None
        if self.scores:
            self.scores = {}

    def forget(self) -> None:
        """Drop all that was learnt from the engine: it may come back as another one."""
        self.report: ReplicaReport | None = None
        self.reported_at: float | None = None
        self.fresh_until = float("inf")
        """When the last report becomes stale."""
        self.is_stale = False
        self.sightings = Sightings()
        self.speed = Speed()
        self.kv_capacity_tokens: int | None = None
        self.kv_use_tokens_scraped = 0.0
        self.ledger_kv_at_scrape = 0
        self.round_trip_s = 0.0
        self.limit = ConcurrencyLimit()
        self.cache = Cache(self.cache.limit)
        self.warm_from = self.warm_until = 0.0
        """From when to when it is filled slot by slot."""
        self._kv_share = Mean(LEARNING_SHARE)
        self._previous: ReplicaReport | None = None
        self.vital.forget()
        self.absence = Absence()
        self.foreign = 0
        """Sequences there that did not come through this gateway."""
        self._passed_at = 0.0
        self._previous_sent_at = 0.0
        self.slots: int | None = None
        """Sequences the engine can run at once; None while that is unknown."""
        self.count_slots()

    def mark(
        self, *, lost: bool | None = None, draining: bool | None = None, removed: bool | None = None
    ) -> None:
        """Change what keeps it from being used; None leaves one as it is."""
        self.is_lost = self.is_lost if lost is None else lost
        self.is_draining = self.is_draining if draining is None else draining
        self.is_removed = self.is_removed if removed is None else removed
        self.is_usable = not (self.is_lost or self.is_draining or self.is_removed)

    def may_serve(self, kind: Kind) -> bool:
        """Whether a request of this class may run here: its model, and it did not fail here."""
        return self.is_usable and self.name in kind.replicas

    def count_slots(self) -> None:
        """Settle what the slots are: configured, told, or learnt."""
        report = self.report
        slots = self.sightings.learnt_slots
        if self.configured_slots is not None:
            slots = self.configured_slots
        elif report is not None and report.slots is not None:
            slots = report.slots
        if slots != self.slots:
            self.slots = slots
            self.away = None

    @property
    def occupied(self) -> int:
        """Sequences running or waiting in the engine now, ours and foreign."""
        return self.ledger.sequences + self.foreign

    @property
    def waiting(self) -> int:
        """Estimate of the sequences that wait inside the engine now."""
        slots, occupied = self.slots, self.ledger.sequences + self.foreign
        if slots is None:
            # What it ran before it can run again without a sign that it started.
            beyond = occupied - self.sightings.proven_sequences
            return max(0, min(self.ledger.unstarted_sequences, beyond))
        if self.kv_capacity_tokens is not None and self.kv_tokens > self.kv_capacity_tokens:
            return max(self.ledger.unstarted_sequences, occupied - slots, 0)
        return occupied - slots if occupied > slots else 0

    @property
    def kv_tokens(self) -> float:
        """KV tokens in use: the last scrape plus what the ledger gained since."""
        if self.report is None or self.report.kv_use is None or self.is_stale:
            return self.ledger.kv_tokens * self.kv_share
        growth = self.ledger.kv_tokens - self.ledger_kv_at_scrape
        return max(0.0, self.kv_use_tokens_scraped + growth)

    @property
    def kv_share(self) -> float:
        """Share of the ledger's KV tokens that is really held, as scrapes have shown."""
        share = self._kv_share.value
        return 1.0 if share is None else share

    def go_stale(self) -> None:
        """No report for too long: the ledger alone counts, less the foreign load seen lately."""
        self.is_stale = True
        self.foreign = self.sightings.foreign_lately()
        self.scores = {}

    def take_report(
        self,
        report: ReplicaReport,
        *,
        sent_at: float,
        now: float,
        round_trip_s: float,
        interval_s: float,
        target_s: float,
    ) -> tuple[bool, bool]:
        """Correct the belief by a scrape that was asked for at `sent_at`.

        Scrapes come every `interval_s`; `target_s` is the TPOT that the adaptive limit holds.
        Returns what `Vitality.take` does.
        """
        signs = self.vital.take(report, sent_at=sent_at, now=now)
        previous, self._previous = self._previous, report
        since, self._previous_sent_at = self._previous_sent_at, sent_at
        self.report = report
        self.reported_at = now
        self.fresh_until = now + FRESH_INTERVALS * interval_s
        self.is_stale = False
        self.round_trip_s = round_trip_s
        self.start_plain(sent_at, queued=report.waiting or 0)
        own = self.ledger.at(sent_at)
        self._take_load(report, None if own is None else own[0], now)
        self._take_kv(report, own)
        # Those that decode beside a long prompt are slow, however few they are.
        if previous is not None and not self._is_prefilling_long(since):
            in_use = self.foreign + (self.ledger.in_flight if own is None else own[0])
            if not self._learn_tpot(previous, report, in_use=in_use, now=now, target_s=target_s):
                self._previous, self._previous_sent_at = previous, since
        self.count_slots()
        return signs

    def take_tpot(
        self, tpot_s: float, tokens: float, *, in_use: float, now: float, target_s: float
    ) -> None:
        """One of our own streams measured the speed; used where the engine reports none.

        `in_use`: sequences there, on average over its life.
        """
        if self.report is None or self.report.itl_count is None or self.is_stale:
            self.speed.take_tpot(tpot_s, in_use, now)
            self.limit.sampled(tpot_s, tokens, in_use=in_use, target_s=target_s)

    def pass_time(self, now: float) -> None:
        """What recovers by itself has recovered until `now`."""
        self.limit.rested(max(0.0, now - self._passed_at))
        self._passed_at = now

    def has_room_for(self, sequences: int) -> bool:
        """Whether the engine can begin with this many at once, as far as is known."""
        if self.waiting:
            return False
        return self.slots is None or self.occupied + sequences <= self.slots

    def start_plain(self, as_of: float, *, queued: int) -> None:
        """A plain request shows no first token: infer that the engine began with it by `as_of`.

        It did when its predicted prefill has passed and the engine's queue, as scraped, is
        shorter than its rank from the newest; without a scrape the prefill alone decides.
        """
        if not self.ledger.unstarted:
            return
        for rank, grant in enumerate(reversed(list(self.ledger.unstarted.values())), start=1):
            waiting = grant.waiting
            if waiting.request.streams or rank <= queued or not waiting.kind.decodes:
                continue
            prefill_s = grant.prefill_tokens / self.speed.prefill_rate + self.speed.step_s
            if grant.granted_at + prefill_s <= as_of:
                self.ledger.start(waiting.request.id)

    def measured(self, now: float) -> dict[str, Any]:
        """What was learnt from scrapes and is nobody else's business, as plain values."""
        return {
            "kv_share": self._kv_share.value,
            "previous_sent_age_s": now - self._previous_sent_at,
            "passed_age_s": now - self._passed_at,
            "previous": plain_report(self._previous),
        }

    def restore_measured(self, data: Mapping[str, Any], now: float) -> None:
        """Go on at `now` from what `measured` gave, perhaps under another clock."""
        self._kv_share.value = data["kv_share"]
        self._previous_sent_at = now - data["previous_sent_age_s"]
        self._passed_at = now - data["passed_age_s"]
        self._previous = report_of(data["previous"])

    def _take_load(self, report: ReplicaReport, own: int | None, now: float) -> None:
        if report.running is None or report.waiting is None:
            return
        progressed_at = self.vital.progressed_at
        is_frozen = progressed_at is not None and now - progressed_at >= FROZEN_S
        if own is not None:
            # An idle engine makes no step, so it would never correct what it showed last.
            is_past = is_frozen and not own and not self.ledger.grants
            seen = 0 if is_past else max(0, report.running + report.waiting - own)
            self.foreign = self.sightings.foreign(seen)
        self.sightings.ran(
            report.running,
            waiting=report.waiting,
            kv_use=report.kv_use or 0.0,
            unstarted=self.ledger.unstarted_sequences,
        )

    def _take_kv(self, report: ReplicaReport, own: tuple[int, int] | None) -> None:
        if not report.kv_capacity_tokens:
            return
        self.kv_capacity_tokens = report.kv_capacity_tokens
        # At a cold start and in a long prefill the gauges read zero whatever runs.
        is_blind = report.running == report.waiting == 0 and own is not None and own[0] > 0
        if report.kv_use is not None and not is_blind:
            self.kv_use_tokens_scraped = report.kv_use * report.kv_capacity_tokens
            self.ledger_kv_at_scrape = self.ledger.kv_tokens if own is None else own[1]
            if self.ledger_kv_at_scrape >= KV_SHARE_TOKENS_MIN and not self.foreign:
                # Shared prefixes, and answers not yet written, make the ledger an over-estimate.
                self._kv_share.add(min(1.0, self.kv_use_tokens_scraped / self.ledger_kv_at_scrape))

    def _is_prefilling_long(self, since: float) -> bool:
        """Whether a long prompt was computed at any time since the scrape of that instant."""
        if self.speed.had_long_prefill(since):
            return True
        return any(
            grant.prefill_tokens >= LONG_PREFILL_TOKENS for grant in self.ledger.unstarted.values()
        )

    def _learn_tpot(
        self,
        previous: ReplicaReport,
        report: ReplicaReport,
        *,
        in_use: float,
        now: float,
        target_s: float,
    ) -> bool:
        """Take in the speed between two scrapes; False: too few tokens, let them add up."""
        between = itl_between(previous, report)
        if between is None:
            return True
        tokens, took_s = between
        if tokens >= ITL_TOKENS_MIN:
            tpot_s = took_s / tokens
            self.speed.take_tpot(tpot_s, in_use, now)
            self.limit.sampled(tpot_s, tokens, in_use=in_use, target_s=target_s)
        return not 0 <= tokens < ITL_TOKENS_MIN
