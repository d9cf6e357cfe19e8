"""What scrapes show of an engine's load: what others put there, and how many it runs at once.

Only counted, never guessed: the newest scrapes decide, and a gauge that cannot be believed is
passed over. How the load of now follows from it is not known here.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

FOREIGN_WINDOW: Final = 3
"""Scrapes whose minimum is the foreign load: a gauge may still count what has just ended."""
FOREIGN_MEMORY: Final = 64
"""Scrapes whose 95th percentile stands for the foreign load while there are none."""
FOREIGN_QUANTILE: Final = 0.95
SLOTS_SIGHTINGS: Final = 2
"""Scrapes that must show a full engine before its slots count as learnt."""
KV_FULL: Final = 0.9
"""An engine that fills this share of its KV may queue for want of KV rather than of slots."""


class Sightings:
    """The last scrapes of one engine, as far as they show sequences."""

    __slots__ = ("_foreign_recent", "_foreign_seen", "_full", "learnt_slots", "proven_sequences")

    def __init__(self) -> None:
        self.learnt_slots: int | None = None
        self.proven_sequences = 0
        """The most it was ever seen to run at once: its slots are no fewer."""
        self._foreign_seen: deque[int] = deque(maxlen=FOREIGN_WINDOW)
        self._foreign_recent: deque[int] = deque(maxlen=FOREIGN_MEMORY)
        self._full: deque[int] = deque(maxlen=SLOTS_SIGHTINGS)

    def foreign(self, seen: int) -> int:
        """So many were there that are not ours; returns how many to count."""
        self._foreign_seen.append(seen)
        self._foreign_recent.append(seen)
        return min(self._foreign_seen)

    def add_foreign(self, sequences: int) -> None:
        """What was ours in the last scrapes is so no more."""
        self._foreign_seen = deque(
            (seen + sequences for seen in self._foreign_seen), maxlen=FOREIGN_WINDOW
        )

    def foreign_lately(self) -> int:
        """The foreign load that few of the last scrapes exceeded."""
        recent = sorted(self._foreign_recent)
        return recent[int(FOREIGN_QUANTILE * (len(recent) - 1))] if recent else 0

    def ran(self, running: int, *, waiting: int, kv_use: float, unstarted: int) -> None:
        """It ran so many at once; `unstarted` of ours had shown no sign of life.

        vLLM does not export max_num_seqs: a full engine with a queue shows it. A queue behind a
        long prefill or for want of KV says nothing of the slots, and too low a figure would not
        correct itself: headroom keeps the lower tiers from probing it.
        """
        self.proven_sequences = max(self.proven_sequences, running)
        if self.learnt_slots is not None and running > self.learnt_slots:
            self.learnt_slots = running
        if waiting < 1 or running < 1:
            return
        if unstarted > waiting or kv_use >= KV_FULL:
            return
        self._full.append(running)
        if len(self._full) == SLOTS_SIGHTINGS:
            seen = max(self._full)
            self.learnt_slots = max(self.learnt_slots or 0, seen)

    def snapshot(self) -> dict[str, Any]:
        """What was seen, as plain values."""
        return {
            "learnt_slots": self.learnt_slots,
            "proven_sequences": self.proven_sequences,
            "foreign_seen": list(self._foreign_seen),
            "foreign_recent": list(self._foreign_recent),
            "full": list(self._full),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave."""
        self.learnt_slots = data["learnt_slots"]
        self.proven_sequences = data["proven_sequences"]
        self._foreign_seen.extend(data["foreign_seen"])
        self._foreign_recent.extend(data["foreign_recent"])
        self._full.extend(data["full"])
