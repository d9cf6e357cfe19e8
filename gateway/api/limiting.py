"""Between one request and the limits it comes under: what it needs, what it took, what it is told.

Which limits there are, and whether they stand against it, is decided in `gateway.tenancy.limits`.
"""

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from gateway.api.life import Life
from gateway.api.reply import Reply
from gateway.core.messages import Request
from gateway.tenancy.limits import Holders, Limits, Need, Standing, caps_of
from gateway.tenancy.shared import SharedLimits, Standings

Estimate = Callable[[Request], tuple[int, int]]
"""Prompt tokens, and output tokens per sequence, that a request will most likely have."""


class Limiting:
    """Reserves before a request is queued, and settles when it has ended."""

    def __init__(
        self,
        limits: Limits,
        estimate: Estimate,
        wall: Callable[[], float],
        shared: SharedLimits | None = None,
    ) -> None:
        """`wall` tells seconds since 1970; `shared`: where limits hold over several gateways."""
        self._limits = limits
        self._shared = shared
        self._estimate = estimate
        self._wall = wall

    def admit(self, life: Life, reply: Reply, key_id: str) -> Awaitable[None] | None:
        """Reserve what it needs, and tell its client what is left; None: it is done.

        Raises the errors of `Limits.reserve`, as what is returned does; then nothing is reserved.
        """
        asked = life.asked
        assert asked is not None
        holders = self._limits.holders_of(asked.tenant, asked.user, key_id)
        if not holders:
            return None
        life.caps = caps_of(holders)
        need = self._need(life)
        if self._shared is not None:
            return self._admit_shared(self._shared, holders, need, life=life, reply=reply)
        try:
            life.reservation = self._limits.reserve(holders, need)
        finally:
            self._tell(self._limits.standing(holders), life, reply)
        return None

    def settle(self, life: Life, status: int) -> None:
        """It ended, and its client was told this status: 0 where it was told none."""
        reservation, limits = life.reservation, self._shared or self._limits
        if reservation is None:
            return
        usage = life.usage
        is_left = life.sent_at is not None and life.outcome in ("cancelled", "client_stalled")
        if life.first_at is None and not is_left:
            # Nothing ran. A client's own mistake is a request all the same: engines looked at it.
            is_mistake = life.sent_at is not None and 400 <= status < 429
            limits.settle(reservation, 0, is_counted=is_mistake)
        elif usage is not None:
            tokens = (usage.prompt_tokens or life.prompt_tokens) + usage.output_tokens
            limits.settle(reservation, tokens, is_counted=True)
        else:
            tokens_known = life.prompt_tokens if is_left else None
            limits.settle(reservation, tokens_known, is_counted=True)

    async def _admit_shared(
        self, shared: SharedLimits, holders: Holders, need: Need, *, life: Life, reply: Reply
    ) -> None:
        verdict = await shared.reserve(holders, need)
        life.reservation = verdict.reservation
        self._tell(verdict.standings, life, reply)
        if verdict.refused is not None:
            raise verdict.refused

    def _need(self, life: Life) -> Need:
        call, asked = life.call, life.asked
        assert call is not None
        assert asked is not None
        if not life.route.uses_gpu:
            return Need(0, 0)
        files_bytes = 0 if call.upload is None else call.upload.file_bytes
        limit, sequences = call.output_tokens_max, call.sequences
        prompt_tokens, output_tokens = self._estimate(
            Request(
                id=life.request_id,
                model=life.model,
                tier=asked.tier,
                tenant=asked.tenant,
                user=asked.user,
                arrived_at=life.began_at,
                prompt_tokens=call.prompt_tokens,
                output_tokens_max=limit,
                sequences=sequences,
                body_bytes=max(1, call.size - life.media_bytes - files_bytes),
                route=life.route.name,
            )
        )
        life.prompt_tokens = prompt_tokens
        if limit is not None:
            tokens = prompt_tokens + limit * sequences
            return Need(tokens, tokens)
        return Need(prompt_tokens + output_tokens * sequences, prompt_tokens + sequences)

    def _tell(self, standings: Standings, life: Life, reply: Reply) -> None:
        requests, tokens = standings
        for name, standing in ((b"requests", requests), (b"tokens", tokens)):
            if standing is None:
                continue
            reply.add_header(b"x-ratelimit-limit-" + name, b"%d" % standing.most)
            reply.add_header(b"x-ratelimit-remaining-" + name, b"%d" % standing.left)
            reply.add_header(b"x-ratelimit-reset-" + name, duration(standing.empty_in_s))
            if life.route.is_anthropic:
                self._tell_as_anthropic(name, standing, reply)

    def _tell_as_anthropic(self, name: bytes, standing: Standing, reply: Reply) -> None:
        front = b"anthropic-ratelimit-" + name
        at = datetime.fromtimestamp(self._wall(), UTC) + timedelta(seconds=standing.empty_in_s)
        reply.add_header(front + b"-limit", b"%d" % standing.most)
        reply.add_header(front + b"-remaining", b"%d" % standing.left)
        reply.add_header(front + b"-reset", f"{at:%Y-%m-%dT%H:%M:%SZ}".encode("ascii"))


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: `12ms`, `59s`, `1m1s`; never too short."""
    if seconds < 1.0:
        return b"%dms" % math.ceil(seconds * 1_000)
    minutes, rest = divmod(math.ceil(seconds), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
