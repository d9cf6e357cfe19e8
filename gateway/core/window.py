"""How many lines of a batch are with the scheduler at once.

As many as it lets through, and some more that wait, so that a slot that becomes free finds one;
what waits beyond that would only take memory, and be given back when the batch is cancelled.
"""

WAITING_MIN = 8
"""So many wait at least, if the bounds allow it."""
WAITING_SHARE = 0.25
"""Of those that run, so many more wait."""


class Window:
    """The bounds on what one batch has under way in this gateway."""

    def __init__(self, *, lines_max: int, bytes_max: int) -> None:
        self._lines_max = lines_max
        self._bytes_max = bytes_max

    def room(self, *, running: int, waiting: int, size: int) -> int:
        """How many lines more may be handed over; `size` is that of all bodies under way.

        One line is always let in where nothing is under way, however large it is.
        """
        if not running and not waiting:
            return min(WAITING_MIN, self._lines_max)
        if size >= self._bytes_max:
            return 0
        wanted = WAITING_MIN + int(running * WAITING_SHARE) - waiting
        return max(0, min(wanted, self._lines_max - running - waiting))
