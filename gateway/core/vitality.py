"""Signs of life of one engine: data events, counters that grow, connections that are refused.

`/health` is none of them: it says 200 while the engine behind it stands still. Nothing is judged
here; each sign is kept with its instant.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from gateway.core.plain import age_s, finite, instant_of, known_instant
from gateway.core.report import ReplicaReport

TAKES_S = 10.0
"""An engine that began with a request so lately takes requests."""


class Vitality:
    """When one engine last did what."""

    __slots__ = (
        "_counters", "_gauges", "_is_refusing", "began_at", "heard_at", "progressed_at",
        "refused_at", "still_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self.refused_at: float | None = None
        """Since when nobody listened; what was sent before can hardly be answered any more."""
        self._is_refusing = False
        self.forget()

    def forget(self) -> None:
        """Another engine may be there now; that connections were refused is remembered."""
        self._counters: tuple[float | None, ...] = ()
        self._gauges: tuple[float | None, ...] = ()
        self.progressed_at: float | None = None
        """When its counters last grew, or the first report came; None while there was none."""
        self.still_until: float | None = None
        """When it was last asked, if its counters had not grown by then."""
        self.heard_at = -inf
        """When the last data event of any request came, as far as we were told."""
        self.began_at = -inf
        """When it last began with a request."""

    def hear(self, at: float) -> bool:
        """A data event came at that instant; returns whether that is news."""
        is_news = at > self.heard_at
        if is_news:
            self.heard_at = at
        return is_news

    def begin(self, now: float) -> None:
        """The engine began to answer a request."""
        self.began_at = now
        self.hear(now)

    def takes(self, now: float) -> bool:
        """Whether it is known to take requests, so that what it fails may be at fault itself."""
        return now - self.began_at < TAKES_S

    def refuse(self, now: float) -> None:
        """A connection was refused."""
        if not self._is_refusing:
            self._is_refusing, self.refused_at = True, now

    def take(self, report: ReplicaReport, *, sent_at: float, now: float) -> tuple[bool, bool]:
        """A scrape came, asked for at `sent_at`: (the engine did something, it was started anew).

        It did where a counter grew, or a gauge moved: an engine that goes on after a pause may
        have nothing left to do but to drop what was given up meanwhile.
        """
        counters = (report.iterations, report.prompt_tokens, report.generation_tokens)
        before, self._counters = self._counters, counters
        gauges = (report.running, report.waiting, report.kv_use)
        shown, self._gauges = self._gauges, gauges
        self._is_refusing = False
        pairs = [
            (one, other)
            for one, other in zip(before, counters, strict=False)
            if one is not None and other is not None
        ]
        has_moved = before != counters or not any(each is not None for each in counters)
        if has_moved:
            self.progressed_at, self.still_until = now, None
        else:
            self.still_until = sent_at
        is_new = any(other < one for one, other in pairs)
        has_shown = any(each is not None for each in shown)
        did = any(other > one for one, other in pairs) or (has_shown and shown != gauges)
        if did and not is_new:
            self.refused_at = None  # it was there all the time
        return did and not is_new, is_new

    def snapshot(self, now: float) -> dict[str, Any]:
        """All of it, as plain values."""
        return {
            "counters": [finite(each) for each in self._counters],
            "gauges": [finite(each) for each in self._gauges],
            "is_refusing": self._is_refusing,
            "refused_age_s": age_s(self.refused_at, now),
            "progressed_age_s": age_s(self.progressed_at, now),
            "still_age_s": age_s(self.still_until, now),
            "heard_age_s": age_s(self.heard_at, now),
            "began_age_s": age_s(self.began_at, now),
        }

    def restore(self, data: Mapping[str, Any], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        self._counters = tuple(data["counters"])
        self._gauges = tuple(data["gauges"])
        self._is_refusing = data["is_refusing"]
        self.refused_at = known_instant(data["refused_age_s"], now)
        self.progressed_at = known_instant(data["progressed_age_s"], now)
        self.still_until = known_instant(data["still_age_s"], now)
        self.heard_at = instant_of(data["heard_age_s"], now)
        self.began_at = instant_of(data["began_age_s"], now)
