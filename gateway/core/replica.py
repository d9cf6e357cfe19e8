"""What is believed of one replica: its own ledger, corrected by late and partial reports.

The ledger is exact for what came through this gateway; a report corrects only the *foreign* part
(load that others put there), slots and KV figures that were never configured, and speed. Gauges
lag by seconds, read zero at a cold start and are blind during long prefills, so a report is
compared with the ledger of the instant at which it was asked for.
"""

from collections import deque

from gateway.core.ledger import Grant, Ledger
from gateway.core.messages import ReplicaReport, Request
from gateway.core.rates import Mean, Rate

FOREIGN_WINDOW = 3
"""Scrapes whose minimum is the foreign load: a gauge may still count what has just ended."""
FRESH_INTERVALS = 3
"""A report older than this many scrape intervals is stale."""
SLOTS_SIGHTINGS = 2
"""Scrapes that must show a full engine before its slots count as learnt."""
KV_FULL = 0.9
"""An engine that fills this share of its KV may queue for want of KV rather than of slots."""
FROZEN_S = 10.0
"""With no step for this long an engine's gauges show what was, not what is."""
ITL_TOKENS_MIN = 50
"""Fewer tokens than this say nothing of the speed."""
PREFILL_TOKENS_MIN = 512
"""Shorter prompts measure overhead rather than the prefill rate."""
PREFILL_TOKENS_PER_S = 8_000.0
"""Prefill rate until one is learnt: half of what an A100 does for a 7B model (Vidur profiles)."""
STEP_S = 0.03
"""Engine step until one is learnt."""
SPEED_HALVING_S = 5.0
"""With no new samples the excess of the measured TPOT over a limit halves in this time."""
RELEASE_HALF_LIFE_S = 5.0
LEARNING_SHARE = 0.3


class Replica:
    """Belief about one engine, in sequences, tokens and seconds."""

    __slots__ = (
        "_foreign_seen", "_full_sightings", "_last_prefill_end", "_prefill_rate", "_previous",
        "_progress", "_progressed_at", "busy_until", "foreign", "configured_slots", "is_draining",
        "is_lost", "is_removed", "judged_at", "kv_capacity_tokens", "kv_use_tokens_scraped",
        "ledger", "ledger_kv_at_scrape", "learnt_slots", "models", "name", "open_tiers",
        "proven_sequences", "release_rate", "report", "reported_at", "round_trip_s", "tpot_at",
        "tpot_s", "weight",
    )  # fmt: skip

    def __init__(self, name: str, *, tiers: int) -> None:
        self.name = name
        self.models: frozenset[str] = frozenset()
        self.weight = 1.0
        self.ledger = Ledger(tiers)
        self.configured_slots: int | None = None
        self.is_lost = False
        self.is_draining = False
        self.is_removed = False
        self.busy_until = 0.0
        self.open_tiers: int | None = None
        """Tiers 0 .. open_tiers-1 may release one ordinary request here; None: to be judged."""
        self.judged_at = 0.0
        self.release_rate = Rate(RELEASE_HALF_LIFE_S)
        self.forget()

    def touch(self) -> None:
        """Something changed: the gates must be judged again before the next release."""
        self.open_tiers = None

    def forget(self) -> None:
        """Drop all that was learnt from the engine: it may come back as another one."""
        self.report: ReplicaReport | None = None
        self.reported_at: float | None = None
        self.learnt_slots: int | None = None
        self.proven_sequences = 0
        """The most it was ever seen to run at once: its slots are no fewer."""
        self.kv_capacity_tokens: int | None = None
        self.kv_use_tokens_scraped = 0.0
        self.ledger_kv_at_scrape = 0
        self.tpot_s: float | None = None
        self.tpot_at = 0.0
        self.round_trip_s = 0.0
        self._previous: ReplicaReport | None = None
        self._progress = -1.0
        self._progressed_at = 0.0
        self._foreign_seen: deque[int] = deque(maxlen=FOREIGN_WINDOW)
        self.foreign = 0
        """Sequences there that did not come through this gateway."""
        self._full_sightings: deque[int] = deque(maxlen=SLOTS_SIGHTINGS)
        self._prefill_rate = Mean(LEARNING_SHARE)
        self._last_prefill_end = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether anything new may be put here at all."""
        return not (self.is_lost or self.is_draining or self.is_removed)

    def may_serve(self, request: Request) -> bool:
        """Whether `request` may run here at all: its model, and it did not fail here before."""
        return self.is_usable and request.model in self.models and self.name not in request.excluded

    @property
    def slots(self) -> int | None:
        """Sequences the engine can run at once; None while that is unknown."""
        if self.configured_slots is not None:
            return self.configured_slots
        if self.report is not None and self.report.slots is not None:
            return self.report.slots
        return self.learnt_slots

    @property
    def occupied(self) -> int:
        """Sequences running or waiting in the engine now, ours and foreign."""
        return self.ledger.sequences + self.foreign

    @property
    def waiting(self) -> int:
        """Estimate of the sequences that wait inside the engine now."""
        slots = self.slots
        if slots is None:
            # What it ran before it can run again without a sign that it started.
            return max(
                0, min(self.ledger.unstarted_sequences, self.occupied - self.proven_sequences)
            )
        if self.kv_capacity_tokens is not None and self.kv_tokens > self.kv_capacity_tokens:
            return max(self.ledger.unstarted_sequences, self.occupied - slots, 0)
        return max(0, self.occupied - slots)

    @property
    def kv_tokens(self) -> float:
        """KV tokens in use: the last scrape plus what the ledger gained since."""
        if self.report is None or self.report.kv_use is None:
            return float(self.ledger.kv_tokens)
        growth = self.ledger.kv_tokens - self.ledger_kv_at_scrape
        return max(0.0, self.kv_use_tokens_scraped + growth)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second that the engine prefills."""
        learnt = self._prefill_rate.value
        return PREFILL_TOKENS_PER_S if learnt is None else learnt

    @property
    def step_s(self) -> float:
        """Duration of one engine step: its TPOT, or a guess until one was seen."""
        return STEP_S if self.tpot_s is None else self.tpot_s

    def tpot_over(self, limit_s: float, now: float) -> bool:
        """Whether the TPOT exceeds `limit_s`, given that silence halves the excess."""
        if self.tpot_s is None or self.tpot_s <= limit_s:
            return False
        excess_s = self.tpot_s - limit_s
        silent_s = max(0.0, now - self.tpot_at)
        # Without the decay a gate closed by a slow moment would never see a sample again.
        return bool(excess_s * 0.5 ** (silent_s / SPEED_HALVING_S) > 0.02 * limit_s)

    def is_report_fresh(self, now: float, interval_s: float) -> bool:
        """Whether a report arrived within the last `FRESH_INTERVALS` scrape intervals."""
        return self.reported_at is not None and (
            now - self.reported_at < FRESH_INTERVALS * interval_s
        )

    def take_report(
        self, report: ReplicaReport, *, sent_at: float, now: float, round_trip_s: float
    ) -> None:
        """Correct the belief by a scrape that was asked for at `sent_at`."""
        previous, self._previous = self._previous, report
        self.report = report
        self.reported_at = now
        self.round_trip_s = round_trip_s
        self.start_plain(sent_at, queued=report.waiting or 0)
        own = self.ledger.at(sent_at)
        self._take_load(report, None if own is None else own[0], now)
        self._take_kv(report, own)
        if previous is not None:
            self._learn_tpot(previous, report, now)

    def take_tpot(self, tpot_s: float, now: float) -> None:
        """One of our own streams measured the speed; used where the engine reports none."""
        if self.report is not None and self.report.itl_count is not None:
            return
        self._set_tpot(tpot_s, now)

    def take_first_token(self, grant: Grant, now: float) -> None:
        """A first token came: the time since the prefill before it measures the prefill rate."""
        elapsed_s = now - max(grant.granted_at, self._last_prefill_end)
        self._last_prefill_end = now
        prompt_tokens = grant.waiting.prompt_tokens
        # One that waited for a slot would measure the wait.
        if grant.found_room and prompt_tokens >= PREFILL_TOKENS_MIN and elapsed_s > 0.0:
            self._prefill_rate.add(prompt_tokens / elapsed_s)

    def has_room_for(self, sequences: int) -> bool:
        """Whether the engine can begin with this many at once, as far as is known."""
        if self.waiting:
            return False
        return self.slots is None or self.occupied + sequences <= self.slots

    def prefilled_share(self, grant: Grant, now: float) -> float:
        """Share of its prompt, 0..1, that the engine has probably computed for `grant`."""
        expected_s = grant.waiting.prompt_tokens / self.prefill_rate
        if grant.is_started or expected_s <= 0.0:
            return 1.0
        return min(1.0, (now - grant.granted_at) / expected_s)

    def start_plain(self, as_of: float, *, queued: int) -> None:
        """A plain request shows no first token: infer that the engine began with it by `as_of`.

        It did when its predicted prefill has passed and the engine's queue, as scraped, is
        shorter than its rank from the newest; without a scrape the prefill alone decides.
        """
        for rank, grant in self.ledger.rank_of_unstarted():
            waiting = grant.waiting
            if waiting.request.streams or rank <= queued:
                continue
            prefill_s = waiting.prompt_tokens / self.prefill_rate + self.step_s
            if grant.granted_at + prefill_s <= as_of:
                self.ledger.start(waiting.request.id)

    def _take_load(self, report: ReplicaReport, own: int | None, now: float) -> None:
        if report.running is None or report.waiting is None:
            return
        is_frozen = self._is_frozen(report, now)
        if own is not None:
            # An idle engine makes no step, so it would never correct what it showed last.
            is_past = is_frozen and not own and not self.ledger.grants
            seen = 0 if is_past else max(0, report.running + report.waiting - own)
            self._foreign_seen.append(seen)
            self.foreign = min(self._foreign_seen)
        self.proven_sequences = max(self.proven_sequences, report.running)
        self._learn_slots(report.running, report.waiting, report.kv_use or 0.0)

    def _is_frozen(self, report: ReplicaReport, now: float) -> bool:
        counters = (report.iterations, report.prompt_tokens, report.generation_tokens)
        known = [counter for counter in counters if counter is not None]
        if not known or sum(known) != self._progress:
            self._progress, self._progressed_at = sum(known), now
        return now - self._progressed_at >= FROZEN_S

    def _take_kv(self, report: ReplicaReport, own: tuple[int, int] | None) -> None:
        if not report.kv_capacity_tokens:
            return
        self.kv_capacity_tokens = report.kv_capacity_tokens
        # At a cold start and in a long prefill the gauges read zero whatever runs.
        is_blind = report.running == report.waiting == 0 and own is not None and own[0] > 0
        if report.kv_use is not None and not is_blind:
            self.kv_use_tokens_scraped = report.kv_use * report.kv_capacity_tokens
            self.ledger_kv_at_scrape = self.ledger.kv_tokens if own is None else own[1]

    def _learn_slots(self, running: int, waiting: int, kv_use: float) -> None:
        """vLLM does not export max_num_seqs: a full engine with a queue shows it.

        A queue behind a long prefill or for want of KV says nothing of the slots, and too low a
        figure would not correct itself: headroom keeps the lower tiers from probing it.
        """
        if self.learnt_slots is not None and running > self.learnt_slots:
            self.learnt_slots = running
        if waiting < 1 or running < 1:
            return
        if self.ledger.unstarted_sequences > waiting or kv_use >= KV_FULL:
            return
        self._full_sightings.append(running)
        if len(self._full_sightings) == SLOTS_SIGHTINGS:
            seen = max(self._full_sightings)
            self.learnt_slots = max(self.learnt_slots or 0, seen)

    def _learn_tpot(self, previous: ReplicaReport, report: ReplicaReport, now: float) -> None:
        if (
            report.itl_count is None
            or previous.itl_count is None
            or report.itl_sum_s is None
            or previous.itl_sum_s is None
        ):
            return
        tokens = report.itl_count - previous.itl_count
        if tokens >= ITL_TOKENS_MIN:
            self._set_tpot((report.itl_sum_s - previous.itl_sum_s) / tokens, now)
        else:
            # Too few to judge: keep the older scrape as the base, so that they add up.
            self._previous = previous if tokens >= 0 else report

    def _set_tpot(self, tpot_s: float, now: float) -> None:
        self.tpot_s = max(0.0, tpot_s)
        self.tpot_at = now
