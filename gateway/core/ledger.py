"""The gateway's own book of one replica: exact and immediate where the engine's metrics are late.

Every grant is entered when it is decided and leaves when its upstream ends. Sums are kept beside
the grants so that no question costs more than O(1); `invariants.py` derives them again in tests.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from gateway.core.flows import Waiting
from gateway.core.plain import age_s, instant_of

HISTORY_MAX = 4_096
"""Remembered changes of the sums: a scrape is compared with the book of when it was sent."""
HISTORY_KEPT_S = 60.0
"""A scrape that takes longer than this finds no other book after a restart than one so old."""


class Grant:
    """One request on one replica, from its release to the end of its upstream."""

    __slots__ = (
        "cached_tokens", "charged", "found_room", "granted_at", "in_use", "is_recalled",
        "is_started", "kv_tokens", "move_asked_at", "output_tokens", "predicted_tokens",
        "prefill_tokens", "sequences", "slots", "tier", "waiting", "was_favoured",
    )  # fmt: skip

    def __init__(
        self, waiting: Waiting, *, sequences: int, cached_tokens: int, granted_at: float
    ) -> None:
        request = waiting.request
        # First what each batch of progress reads of all that runs: compiled, attributes lie in the
        # order in which they are named, and what lies together comes into the cache together.
        self.output_tokens = 0
        """Produced so far, as far as we were told."""
        self.predicted_tokens = waiting.output_tokens * request.sequences
        """Output that its charge and its KV allow for already."""
        self.kv_tokens = max(0, waiting.kv_tokens - cached_tokens)
        self.prefill_tokens = waiting.prompt_tokens - cached_tokens
        self.sequences = sequences
        """What it is charged: at most the replica's slots."""
        self.charged = waiting.cost
        """What its flow has been charged until now."""
        self.waiting = waiting
        self.tier = request.tier
        """Rank of the tier it was released for."""
        self.is_started = False
        self.was_favoured = False
        """Whether its tier's floor or its age, not its rank, let it go."""
        self.slots = sequences if waiting.kind.decodes else 0
        """Slots it takes: none where nothing is decoded."""
        self.cached_tokens = cached_tokens
        """Prompt tokens that the replica is expected to hold already."""
        self.granted_at = granted_at
        self.is_recalled = False
        """Whether it was asked back and the answer is out."""
        self.move_asked_at = float("-inf")
        """When it was last asked to end here and go on elsewhere."""
        self.in_use = 0
        """Sequences there when it was released, itself included."""
        self.found_room = False
        """Whether the engine could begin with it at once, as far as we know."""

    @property
    def is_endable(self) -> bool:
        """Whether it may end and begin anew: its client has seen nothing, and no promise is broken.

        The same from its entry into a ledger to its end.
        """
        return not (self.waiting.request.streams or self.was_favoured)


class Ledger:
    """All grants of one replica and their sums, in sequences and tokens."""

    __slots__ = (
        "_history", "by_tier", "endable_by_tier", "endable_kv_by_tier", "grants", "in_flight",
        "kv_tokens", "sequences", "unstarted", "unstarted_kv_by_tier", "unstarted_prompt_tokens",
        "unstarted_sequences",
    )  # fmt: skip

    def __init__(self, tiers: int) -> None:
        self.grants: dict[str, Grant] = {}
        self.unstarted: dict[str, Grant] = {}
        """In the order in which they were granted, which is the engine's own order."""
        self.sequences = 0
        """Slots taken."""
        self.in_flight = 0
        """Sequences there, those that take no slot included: what the engine's gauges count."""
        self.kv_tokens = 0
        self.unstarted_sequences = 0
        """Slots taken by what has not begun."""
        self.unstarted_prompt_tokens = 0
        """Less what is expected to be cached."""
        self.by_tier = [0] * tiers
        self.endable_by_tier = [0] * tiers
        """Slots of what can be ended and begun anew, where its tier is preemptible."""
        self.endable_kv_by_tier = [0] * tiers
        self.unstarted_kv_by_tier = [0] * tiers
        self._history: deque[tuple[float, int, int]] = deque(maxlen=HISTORY_MAX)

    def enter(self, grant: Grant, now: float) -> None:
        """A grant was decided."""
        request_id = grant.waiting.request.id
        assert request_id not in self.grants, "one request holds one slot"
        self.grants[request_id] = self.unstarted[request_id] = grant
        self.sequences += grant.slots
        self.in_flight += grant.sequences
        self.kv_tokens += grant.kv_tokens
        self.by_tier[grant.tier] += 1
        if grant.is_endable:
            self.endable_by_tier[grant.tier] += grant.slots
            self.endable_kv_by_tier[grant.tier] += grant.kv_tokens
        self.unstarted_sequences += grant.slots
        self.unstarted_prompt_tokens += grant.prefill_tokens
        self.unstarted_kv_by_tier[grant.tier] += grant.kv_tokens
        self._history.append((now, self.in_flight, self.kv_tokens))

    def start(self, request_id: str) -> Grant | None:
        """The engine began to produce; None when that was known or the grant is gone."""
        grant = self.unstarted.pop(request_id, None)
        if grant is None:
            return None
        grant.is_started = True
        self.unstarted_sequences -= grant.slots
        self.unstarted_prompt_tokens -= grant.prefill_tokens
        self.unstarted_kv_by_tier[grant.tier] -= grant.kv_tokens
        assert self.unstarted_sequences >= 0, "ledger underflow: unstarted"
        return grant

    def leave(self, request_id: str, now: float) -> Grant:
        """The upstream of a grant ended."""
        grant = self.grants.pop(request_id)
        if not grant.is_started:
            self.start(request_id)
            grant.is_started = False
        self.sequences -= grant.slots
        self.in_flight -= grant.sequences
        self.kv_tokens -= grant.kv_tokens
        self.by_tier[grant.tier] -= 1
        if grant.is_endable:
            self.endable_by_tier[grant.tier] -= grant.slots
            self.endable_kv_by_tier[grant.tier] -= grant.kv_tokens
        assert self.sequences >= 0, "ledger underflow: sequences"
        assert self.kv_tokens >= 0, "ledger underflow: KV tokens"
        self._history.append((now, self.in_flight, self.kv_tokens))
        return grant

    def produced(self, output_tokens: dict[str, int]) -> list[Grant]:
        """Running grants made so many tokens so far; returns those that outgrew their prediction.

        More than predicted raises the KV they hold. Grants that are gone are skipped.
        """
        outgrown: list[Grant] = []
        for request_id, tokens in output_tokens.items():
            grant = self.grants.get(request_id)
            if grant is None or tokens <= grant.output_tokens:
                continue
            grant.output_tokens = tokens
            if tokens > grant.predicted_tokens:
                outgrown.append(grant)
                growth = grant.prefill_tokens * grant.sequences + tokens - grant.kv_tokens
                if growth > 0:
                    grant.kv_tokens += growth
                    self.kv_tokens += growth
                    if grant.is_endable:
                        self.endable_kv_by_tier[grant.tier] += growth
                    if not grant.is_started:
                        self.unstarted_kv_by_tier[grant.tier] += growth
        return outgrown

    def note(self, now: float) -> None:
        """Remember what the sums are at `now`, for a scrape that comes back later."""
        self._history.append((now, self.in_flight, self.kv_tokens))

    def at(self, instant: float) -> tuple[int, int] | None:
        """(sequences in flight, KV tokens) as of `instant`; None when that is forgotten."""
        for changed_at, in_flight, kv_tokens in reversed(self._history):
            if changed_at <= instant:
                return in_flight, kv_tokens
        if len(self._history) < HISTORY_MAX:
            return 0, 0
        return None

    def snapshot(self, now: float) -> list[list[float | None]]:
        """The changes that a scrape in flight may ask for: (age, in flight, KV tokens)."""
        recent: list[list[float | None]] = []
        for changed_at, in_flight, kv_tokens in reversed(self._history):
            age = age_s(changed_at, now)
            if age is None or age > HISTORY_KEPT_S:
                # What was there when the remembered time begins, whenever that came to be.
                recent.append([None, in_flight, kv_tokens])
                break
            recent.append([age, in_flight, kv_tokens])
        return recent[::-1]

    def restore(self, data: Sequence[Sequence[Any]], now: float) -> None:
        """Remember the changes that `snapshot` gave instead of those of entering the grants."""
        self._history.clear()
        for age, in_flight, kv_tokens in data:
            self._history.append((instant_of(age, now), int(in_flight), int(kv_tokens)))

    def resize(self, tier_of: dict[int, int], tiers: int) -> None:
        """Re-count by tier after a policy change; `tier_of` maps old ranks to new ones."""
        self.by_tier, self.unstarted_kv_by_tier = [0] * tiers, [0] * tiers
        self.endable_by_tier, self.endable_kv_by_tier = [0] * tiers, [0] * tiers
        for grant in self.grants.values():
            grant.tier = tier_of[grant.tier]
            self.by_tier[grant.tier] += 1
            if grant.is_endable:
                self.endable_by_tier[grant.tier] += grant.slots
                self.endable_kv_by_tier[grant.tier] += grant.kv_tokens
            if not grant.is_started:
                self.unstarted_kv_by_tier[grant.tier] += grant.kv_tokens
