"""The gateway's own book of one replica: exact and immediate where the engine's metrics are late.

Every grant is entered when it is decided and leaves when its upstream ends. Sums are kept beside
the grants so that no question costs more than O(1); `invariants.py` derives them again in tests.
"""

from collections import deque

from gateway.core.fairqueue import Waiting

HISTORY_MAX = 4_096
"""Remembered changes of the sums: a scrape is compared with the book of when it was sent."""


class Grant:
    """One request on one replica, from its release to the end of its upstream."""

    __slots__ = (
        "charged", "found_room", "granted_at", "is_started", "kv_tokens", "output_tokens",
        "sequences", "waiting", "was_owed",
    )  # fmt: skip

    def __init__(self, waiting: Waiting, *, sequences: int, granted_at: float) -> None:
        self.waiting = waiting
        self.sequences = sequences
        """What it is charged: at most the replica's slots."""
        self.kv_tokens = waiting.kv_tokens
        self.granted_at = granted_at
        self.is_started = False
        self.output_tokens = 0
        """Produced so far, as far as we were told."""
        self.charged = waiting.cost
        """What its flow has been charged until now."""
        self.was_owed = False
        """Whether its tier's floor let it go."""
        self.found_room = False
        """Whether the engine could begin with it at once, as far as we know."""

    @property
    def tier(self) -> int:
        """Rank of the tier it was released for."""
        return self.waiting.request.tier


class Ledger:
    """All grants of one replica and their sums, in sequences and tokens."""

    __slots__ = (
        "_history", "by_tier", "grants", "kv_tokens", "sequences", "unstarted",
        "unstarted_kv_by_tier", "unstarted_prompt_tokens", "unstarted_sequences",
    )  # fmt: skip

    def __init__(self, tiers: int) -> None:
        self.grants: dict[str, Grant] = {}
        self.unstarted: dict[str, Grant] = {}
        """In the order in which they were granted, which is the engine's own order."""
        self.sequences = 0
        self.kv_tokens = 0
        self.unstarted_sequences = 0
        self.unstarted_prompt_tokens = 0
        self.by_tier = [0] * tiers
        self.unstarted_kv_by_tier = [0] * tiers
        self._history: deque[tuple[float, int, int]] = deque(maxlen=HISTORY_MAX)

    def enter(self, grant: Grant, now: float) -> None:
        """A grant was decided."""
        request_id = grant.waiting.request.id
        assert request_id not in self.grants, "one request holds one slot"
        self.grants[request_id] = self.unstarted[request_id] = grant
        self.sequences += grant.sequences
        self.kv_tokens += grant.kv_tokens
        self.by_tier[grant.tier] += 1
        self.unstarted_sequences += grant.sequences
        self.unstarted_prompt_tokens += grant.waiting.prompt_tokens
        self.unstarted_kv_by_tier[grant.tier] += grant.kv_tokens
        self._remember(now)

    def start(self, request_id: str) -> Grant | None:
        """The engine began to produce; None when that was known or the grant is gone."""
        grant = self.unstarted.pop(request_id, None)
        if grant is None:
            return None
        grant.is_started = True
        self.unstarted_sequences -= grant.sequences
        self.unstarted_prompt_tokens -= grant.waiting.prompt_tokens
        self.unstarted_kv_by_tier[grant.tier] -= grant.kv_tokens
        assert self.unstarted_sequences >= 0, "ledger underflow: unstarted"
        return grant

    def leave(self, request_id: str, now: float) -> Grant:
        """The upstream of a grant ended."""
        grant = self.grants[request_id]
        if not grant.is_started:
            self.start(request_id)
            grant.is_started = False
        del self.grants[request_id]
        self.sequences -= grant.sequences
        self.kv_tokens -= grant.kv_tokens
        self.by_tier[grant.tier] -= 1
        assert self.sequences >= 0, "ledger underflow: sequences"
        assert self.kv_tokens >= 0, "ledger underflow: KV tokens"
        self._remember(now)
        return grant

    def produced(self, request_id: str, output_tokens: int) -> Grant | None:
        """A running grant made `output_tokens` so far: more than predicted raises its KV."""
        grant = self.grants.get(request_id)
        if grant is None:
            return None
        grant.output_tokens = max(grant.output_tokens, output_tokens)
        growth = grant.waiting.prompt_tokens * grant.sequences + output_tokens - grant.kv_tokens
        if growth > 0:
            grant.kv_tokens += growth
            self.kv_tokens += growth
            if not grant.is_started:
                self.unstarted_kv_by_tier[grant.tier] += growth
        return grant

    def at(self, instant: float) -> tuple[int, int] | None:
        """(sequences, KV tokens) as they stood at `instant`; None when that is forgotten."""
        for changed_at, sequences, kv_tokens in reversed(self._history):
            if changed_at <= instant:
                return sequences, kv_tokens
        if len(self._history) < HISTORY_MAX:
            return 0, 0
        return None

    def rank_of_unstarted(self) -> list[tuple[int, Grant]]:
        """(rank from the newest, grant) of all unstarted: the newest has rank 1."""
        return list(enumerate(reversed(self.unstarted.values()), start=1))

    def resize(self, tier_of: dict[int, int], tiers: int) -> None:
        """Re-count by tier after a policy change; `tier_of` maps old ranks to new ones."""
        by_tier, unstarted = [0] * tiers, [0] * tiers
        for rank, count in enumerate(self.by_tier):
            by_tier[tier_of[rank]] += count
        for rank, kv_tokens in enumerate(self.unstarted_kv_by_tier):
            unstarted[tier_of[rank]] += kv_tokens
        self.by_tier, self.unstarted_kv_by_tier = by_tier, unstarted

    def _remember(self, now: float) -> None:
        self._history.append((now, self.sequences, self.kv_tokens))
