"""How much was used within the last minute, and when there is room again.

A sliding window over slots of one second, and not a token bucket nor a window that begins with
each minute: in *any* sixty seconds no more than the allowance is let through. A bucket that holds
a minute's allowance lets almost twice that through in its first minute after a rest, and a fixed
window does so within a moment around its edge. The whole allowance may be used at once; what was
used comes back slot by slot, a minute later, so the instant at which something will fit is known
and not guessed. The price is coarseness: a slot leaves as a whole, so what was used counts for
between 60 and 61 seconds.
"""

from collections import deque

MINUTE_S = 60
SLOTS_MAX = MINUTE_S + 1
"""Slots of a window: sixty whole seconds and the one that has begun."""


class Slot:
    """What was used within one second of the clock."""

    __slots__ = ("amount", "second", "untold")

    def __init__(self, second: int, amount: int) -> None:
        self.second = second
        self.amount = amount
        self.untold = 0
        """What of it is still to be told where all gateways count."""


class Window:
    """What was used within the last minute; at most `SLOTS_MAX` slots. Instants never go back."""

    __slots__ = ("_slots", "used")

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.used = 0
        """Right after `fits_at`, `add` or `correct`; later it may be less."""

    def fits_at(self, amount: int, most: int, now: float) -> float | None:
        """When `amount` more is within `most`: `now`, or a later instant; None: never."""
        self._forget(now)
        excess = self.used + amount - most
        if excess <= 0:
            return now
        if amount > most:
            return None
        for slot in self._slots:
            excess -= slot.amount
            if excess <= 0:
                return float(slot.second + SLOTS_MAX)
        raise AssertionError("what is used is the sum of the slots")

    def empty_at(self, now: float) -> float:
        """When nothing of what was used counts any more, if nothing more is used."""
        self._forget(now)
        return float(self._slots[-1].second + SLOTS_MAX) if self._slots else now

    def missed(self, now: float, *, is_all: bool) -> list[tuple[int, int]]:
        """(seconds ago, what is untold, or all) of each slot; from now on it counts as told."""
        self._forget(now)
        end = int(now)
        found = [
            (end - each.second, amount)
            for each in self._slots
            if (amount := each.amount if is_all else each.untold)
        ]
        for each in self._slots:
            each.untold = 0
        return found

    @property
    def newest(self) -> Slot:
        """That of the last `add`."""
        return self._slots[-1]

    def add(self, amount: int, now: float) -> Slot:
        """Use `amount` now, whether it fits or not; returns what `correct` needs."""
        self._forget(now)
        second = int(now)
        self.used += amount
        if self._slots and self._slots[-1].second == second:
            slot = self._slots[-1]
            slot.amount += amount
            return slot
        slot = Slot(second, amount)
        self._slots.append(slot)
        return slot

    def correct(self, slot: Slot, difference: int, now: float) -> None:
        """It was more or less than was used in `slot`, which was told by `add`.

        What is given back counts from when it was used; what was too little counts from now.
        """
        if difference > 0:
            self.add(difference, now)
            return
        self._forget(now)
        if slot.second >= int(now) - MINUTE_S:
            slot.amount += difference
            self.used += difference

    def _forget(self, now: float) -> None:
        slots, first = self._slots, int(now) - MINUTE_S
        while slots and slots[0].second < first:
            self.used -= slots.popleft().amount
