"""Tells an address of each change of the advice, signed, a bounded number of times.

It takes news without waiting and sends them one after another; of each pool only the newest counts.
What the advice is, and whether this gateway may tell it, is decided elsewhere.
"""

import asyncio
import hmac
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

import httpx
import orjson

from gateway.upstream.unanswered import UNANSWERED

LOGGER = logging.getLogger("fairgate.scaling")
PENDING_MAX: Final = 256
"""Pools with news that were not told yet; beyond it the oldest news are dropped."""
BACKOFF_S: Final = 1.0
BACKOFF_S_MAX: Final = 30.0
TRY_AGAIN: Final = frozenset({408, 425, 429})
"""Answers below 500 that may be another one next time."""
SIGNATURE: Final = "x-fairgate-signature"
TIMESTAMP: Final = "x-fairgate-timestamp"
DELIVERY: Final = "x-fairgate-delivery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where news go."""

    url: str = field(repr=False)
    secret: bytes = field(repr=False)
    timeout_s: float
    attempts: int


Post = Callable[[Target, bytes, Mapping[str, str]], Awaitable[int | None]]
"""Sends a body; the status of the answer, None where there was none in time."""


def signature_of(secret: bytes, timestamp: str, body: bytes) -> str:
    """What `x-fairgate-signature` says: HMAC-SHA256 over `TIMESTAMP.BODY`."""
    return "sha256=" + hmac.new(secret, timestamp.encode() + b"." + body, sha256).hexdigest()


async def posted(target: Target, body: bytes, headers: Mapping[str, str]) -> int | None:
    """Over HTTP; neither the environment's proxies nor redirects lead anywhere else."""
    trusted = None
    if target.url.startswith("https:"):
        trusted = await asyncio.to_thread(ssl.create_default_context)
    try:
        async with (
            asyncio.timeout(target.timeout_s),
            httpx.AsyncClient(trust_env=False, verify=trusted or False) as http,
            # Of the answer only the status counts: however long it is, it is not read.
            http.stream("POST", target.url, content=body, headers=dict(headers)) as answer,
        ):
            return answer.status_code
    except UNANSWERED:
        return None


class AdviceWebhook:
    """One address, and what it has not been told yet."""

    def __init__(
        self,
        *,
        wall: Callable[[], float],
        post: Post = posted,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: token_hex(8),
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Of deliveries, by outcome."""
        self.target: Target | None = None
        """None: nobody is told."""
        self._wall = wall
        self._post = post
        self._pause = pause
        self._new_id = new_id
        self._pending: dict[str, Mapping[str, Any]] = {}
        self._told: dict[str, object] = {}
        """By pool, the advice that was last taken here: the same again is no news."""
        self._has_news = asyncio.Event()

    def tell(self, pool: str, advised: object, news: Mapping[str, Any]) -> None:
        """Take news of a pool; waits for nobody."""
        if self.target is None or self._told.get(pool) == advised:
            return
        while len(self._told) >= PENDING_MAX and pool not in self._told:
            self._told.pop(next(iter(self._told)))
        self._told[pool] = advised
        if self._pending.pop(pool, None) is not None:
            self.counts["superseded"] += 1
        while len(self._pending) >= PENDING_MAX:
            self._pending.pop(next(iter(self._pending)))
            self.counts["dropped"] += 1
        self._pending[pool] = news
        self._has_news.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._has_news.wait()
            while self._pending:
                pool = next(iter(self._pending))
                outcome = await self._deliver(pool, self._pending.pop(pool))
                self.counts[outcome] += 1
            self._has_news.clear()

    async def _deliver(self, pool: str, news: Mapping[str, Any]) -> str:
        id, made_at = self._new_id(), round(self._wall(), 3)
        body = orjson.dumps({"object": "scale.advised", "id": id, "at": made_at, **news})
        attempt = 0
        while (target := self.target) is not None:
            attempt += 1
            status = await self._post(target, body, self._headers(target, id, body))
            if status is not None and 200 <= status < 300:
                return "delivered"
            is_final = status is not None and status < 500 and status not in TRY_AGAIN
            if is_final or attempt >= target.attempts:
                reason = "no answer" if status is None else f"HTTP {status}"
                LOGGER.warning("the webhook was not told of the advice for %s: %s", pool, reason)
                return "failed"
            await self._pause(min(BACKOFF_S_MAX, BACKOFF_S * 2 ** (attempt - 1)))
            if pool in self._pending:
                return "superseded"
        return "dropped"

    def _headers(self, target: Target, id: str, body: bytes) -> dict[str, str]:
        """Signed anew for each attempt, so that a late one is not refused as an old one."""
        timestamp = str(int(self._wall()))
        return {
            "content-type": "application/json",
            "user-agent": "fairgate",
            DELIVERY: id,
            TIMESTAMP: timestamp,
            SIGNATURE: signature_of(target.secret, timestamp, body),
        }
