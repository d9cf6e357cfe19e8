"""How hard-pressed the gateway itself is, and how many of the lowest tiers must stay out for it.

Engines that are full are the scheduler's affair. Here it is the event loop that is late, or memory
that runs out: then whatever is done for anybody takes from everybody.
"""

import os
from contextlib import suppress
from pathlib import Path

RISE_LOOKS = 5
"""So many more looks must find it hard-pressed than do not before one tier more stays out: a look
falls anywhere into a pause, and one pause, of the garbage collector say, is no pressure."""
FALL_LOOKS = 20
"""And so many in a row must find it at ease before one more may come in again."""
EASE = 0.5
"""At ease is below this share of the lag's bound."""
MEMORY_EASE = 0.95
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
STATM = "/proc/self/statm"
STATM_BYTES_MAX = 256
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CGROUP_SHARE = 0.9
"""Of a container's memory; beyond its limit the kernel ends the process."""


class Pressure:
    """Counts looks; `level` is how many of the lowest tiers stay out."""

    def __init__(self, *, lag_max_s: float, memory_max: int | None) -> None:
        self.configure(lag_max_s=lag_max_s, memory_max=memory_max)
        self.level = 0
        self._pressed = 0
        self._eased = 0

    def configure(self, *, lag_max_s: float, memory_max: int | None) -> None:
        """`lag_max_s`: 0 for no bound; `memory_max` in bytes, None for no bound."""
        self._lag_max_s = lag_max_s
        self._memory_max = memory_max

    def look(self, lag_s: float, memory: int, tiers: int) -> int:
        """Take in one look; returns the level, at most `tiers` - 1, or 1 where there is but one."""
        is_late = 0.0 < self._lag_max_s <= lag_s
        is_full = self._memory_max is not None and memory >= self._memory_max
        is_calm = (not self._lag_max_s or lag_s < EASE * self._lag_max_s) and (
            self._memory_max is None or memory < MEMORY_EASE * self._memory_max
        )
        self._pressed = self._pressed + 1 if is_late or is_full else max(0, self._pressed - 1)
        self._eased = self._eased + 1 if is_calm else 0
        if self._pressed >= RISE_LOOKS:
            self.level, self._pressed = self.level + 1, 0
        elif self._eased >= FALL_LOOKS and self.level:
            self.level, self._eased = self.level - 1, 0
        self.level = min(self.level, max(1, tiers - 1))
        return self.level


def floor_of(level: int, tiers: int) -> int | None:
    """The first rank that stays out; None: nobody does. The first tier never does beside others."""
    return max(1 if tiers > 1 else 0, tiers - level) if level else None


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        # A file object would take six more system calls, ten times a second.
        statm = os.open(STATM, os.O_RDONLY)
        try:
            return int(os.read(statm, STATM_BYTES_MAX).split()[1]) * PAGE_BYTES
        finally:
            os.close(statm)
    return 0


def memory_limit(path: Path = CGROUP_LIMIT, *, sharers: int = 1) -> int | None:
    """What a container lets the process use, with some room to spare; None: it does not say.

    `sharers`: so many processes like this one are in it.
    """
    with suppress(OSError, ValueError):
        return int(int(path.read_text()) * CGROUP_SHARE) // sharers
    return None
