"""Whether an engine that goes on holds fewer of our requests than we have there.

A stream may be silent and well: it waits in the engine's queue, it was preempted, or its prompt is
computed. All of those the engine counts as running or waiting. One that it counts nowhere, scrape
after scrape while it makes steps, is lost in there. Foreign requests and gauges that lag only hide
that; which request is the lost one is not known here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.plain import age_s, finite, known_instant
from gateway.core.report import Rank, ReplicaReport

SCRAPES = 5
"""Scrapes in a row that must lack a request: gauges are those of the last step, and lag."""
GROWTHS = 2
"""So many of them must have come after a step that was made meanwhile."""


class Absence:
    """What the reports of one engine lack, in requests; instants are those of asking for them."""

    __slots__ = ("_growths", "_least", "_ranks", "_scrapes", "clear_since", "since")

    def __init__(self) -> None:
        self._ranks: tuple[tuple[float, float | None], ...] = ()
        """Of each data-parallel rank its counter, and since when that stands still."""
        self.clear_since: float | None = None
        """Since when every report says that nothing waits in the engine; None: one says other."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Nothing is missing, as far as is known."""
        self.since: float | None = None
        """Since when every report lacks something; None: the last one lacks nothing."""
        self._least = self._scrapes = self._growths = 0

    @property
    def missing(self) -> int:
        """Requests that are surely not in the engine; 0 until enough reports agree."""
        is_proven = self._scrapes >= SCRAPES and self._growths >= GROWTHS
        return self._least if is_proven else 0

    def present(self, report: ReplicaReport, *, sent_at: float, still_s: float) -> int | None:
        """Requests in those parts of the engine that do something; None where it does not say.

        A rank that has work and has made no step for `still_s` does nothing; the gauges of such a
        one show for ever what was there when it stopped.
        """
        self._look_at_ranks(report.ranks, sent_at)
        if report.running is None or report.waiting is None:
            self.clear_since = None
            return None
        if report.waiting:
            self.clear_since = None
        elif self.clear_since is None:
            self.clear_since = sent_at
        stuck = 0
        for rank, (_, since) in zip(report.ranks, self._ranks, strict=True):
            if since is not None and sent_at - since >= still_s:
                stuck += rank.sequences
        return report.running + report.waiting - stuck

    def take(self, short: int, *, sent_at: float, has_grown: bool) -> None:
        """A report lacks so many requests, fewer than 1 for none; `has_grown`: steps were made."""
        if short < 1:
            self.begin_anew()
            return
        if self.since is None:
            self.since, self._least = sent_at, short
        else:
            self._growths += has_grown
        self._least = min(self._least, short)
        self._scrapes += 1

    def snapshot(self, now: float) -> dict[str, Any]:
        """All of it, as plain values."""
        return {
            "ranks": [[finite(work), age_s(since, now)] for work, since in self._ranks],
            "clear_age_s": age_s(self.clear_since, now),
            "since_age_s": age_s(self.since, now),
            "counts": [self._least, self._scrapes, self._growths],
        }

    def restore(self, data: Mapping[str, Any], now: float) -> None:
        """Go on at `now` from what `snapshot` gave, perhaps under another clock."""
        self._ranks = tuple(
            (work or 0.0, known_instant(since, now)) for work, since in data["ranks"]
        )
        self.clear_since = known_instant(data["clear_age_s"], now)
        self.since = known_instant(data["since_age_s"], now)
        self._least, self._scrapes, self._growths = data["counts"]

    def _look_at_ranks(self, ranks: Sequence[Rank], sent_at: float) -> None:
        before = self._ranks if len(self._ranks) == len(ranks) else ((-1.0, None),) * len(ranks)
        self._ranks = tuple(
            (rank.steps, (sent_at if since is None else since))
            if rank.sequences and rank.steps == steps
            else (rank.steps, None)
            for rank, (steps, since) in zip(ranks, before, strict=True)
        )
