"""Looks for the best position of a few dozen knobs in a bounded number of trials.

Random changes of the present first, then one knob after the other from the best so far, and anew
from a shaken best once nothing near is better. Everything is drawn from one seed and judged in
batches of one size, so that the path is the same however many processors try.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from gateway.lab.knobs import Knob, turned

BATCH = 6
"""Documents judged together: both cores of a small machine have three each."""
MOVES_MAX = 5
"""Of one knob: a position down, one up, both ends, and back to where it was."""
RANDOM_SHARE = 0.35
"""Of the budget, for what is drawn around the present."""
TURNED_AT_ONCE = (1, 2, 4)
"""Knobs that a random change turns."""
SHAKEN = 3
"""Knobs that are turned to get away from where nothing near is better."""
DRAWS_MAX = 200
"""Draws for one batch; most policies that are no valid ones are found out before they are tried."""

Document = dict[str, Any]
Order = tuple[float, ...]


class Search:
    """One search; `best` is what it found so far."""

    def __init__(
        self,
        present: Mapping[str, Any],
        knobs: Sequence[Knob],
        *,
        is_valid: Callable[[Document], bool],
        mark_of: Callable[[Document], str],
        judge: Callable[[Sequence[Document]], Sequence[Order]],
        budget: int,
        seed: int,
    ) -> None:
        """`judge` tells the order of each document, smaller is better; `budget`: how many."""
        self._present: Document = dict(present)
        self.best = self._present
        self.best_order: Order = ()
        self.trials = 0
        self._knobs = list(knobs)
        self._is_valid = is_valid
        self._mark_of = mark_of
        self._judge = judge
        self._budget = budget
        self._dice = Random(seed)
        self._seen: set[str] = set()
        self._found: Document = self.best
        self._order: Order = ()

    def steps(self) -> Iterator[bool]:
        """Judge batch after batch; each step tells whether the best became better."""
        yield from self._try([self._present])
        randoms = int(self._budget * RANDOM_SHARE)
        while self.trials < randoms and (
            batch := self._drawn(self._present, TURNED_AT_ONCE, BATCH)
        ):
            yield from self._try(batch)
        base, order = self.best, self.best_order
        while self.trials < self._budget:
            yield from self._climb(base, order)
            shaken = self._drawn(self.best, (SHAKEN,), 1)
            if not shaken:
                return
            yield from self._try(shaken)
            base, order = shaken[0], self._order

    def _climb(self, base: Document, order: Order) -> Iterator[bool]:
        """Knob after knob from `base` on, until a whole round of them makes nothing better."""
        is_better = True
        while is_better:
            is_better = False
            knobs = self._dice.sample(self._knobs, len(self._knobs))
            while knobs and self.trials < self._budget:
                batch: list[Document] = []
                while knobs and len(batch) + MOVES_MAX <= BATCH:
                    knob = knobs.pop()
                    # Ends, since slots are whole and many a small step does nothing; and the
                    # present position, so that what does not help is turned back.
                    ends = (knob.positions[0], knob.positions[-1])
                    moves = [*knob.near(base), *ends, knob.of(self._present)]
                    batch += self._new(turned(base, knob, each) for each in moves)
                if not batch:
                    continue
                yield from self._try(batch[: self._budget - self.trials])
                if self._order < order:
                    base, order, is_better = self._found, self._order, True

    def _drawn(self, around: Document, sizes: Sequence[int], count: int) -> list[Document]:
        """So many new documents, each with some knobs of `around` turned; fewer: none are left."""
        batch: list[Document] = []
        for _ in range(DRAWS_MAX):
            if len(batch) == min(count, self._budget - self.trials):
                break
            drawn = around
            for knob in self._dice.sample(self._knobs, self._dice.choice(sizes)):
                drawn = turned(drawn, knob, self._dice.choice(knob.positions))
            batch += self._new([drawn])
        return batch

    def _new(self, documents: Iterable[Document]) -> list[Document]:
        """Those that were never judged, and that are policies."""
        fresh = []
        for document in documents:
            mark = self._mark_of(document)
            if mark not in self._seen:
                self._seen.add(mark)
                if self._is_valid(document):
                    fresh.append(document)
        return fresh

    def _try(self, batch: Sequence[Document]) -> Iterator[bool]:
        """Judge them; `_found` and `_order` are those of the best of them, the first of equals."""
        self._seen.update(map(self._mark_of, batch))
        orders = self._judge(batch)
        self.trials += len(batch)
        self._order, place = min((order, place) for place, order in enumerate(orders))
        self._found = batch[place]
        is_better = not self.best_order or self._order < self.best_order
        if is_better:
            self.best, self.best_order = self._found, self._order
        yield is_better
