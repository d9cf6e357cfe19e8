"""The responses that this one engine remembers: they are found nowhere else, and not for ever."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.emulator.calls import Turn
from gateway.emulator.refusals import not_cancellable, unknown_response

RESPONSES_REMEMBERED_MAX = 1024
"""The oldest are forgotten beyond this."""

UNFINISHED = frozenset({"queued", "in_progress"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One response as it stands."""

    body: dict[str, Any]
    turns: tuple[Turn, ...] = ()
    """The conversation, its answer included."""
    sequence_ids: tuple[str, ...] = ()
    """What still works on it."""


class Archive:
    """All remembered responses of one emulator."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, id: str, kept: Kept) -> None:
        """Remember, in place of what was known under that id."""
        self._kept[id] = kept
        self._kept.move_to_end(id)
        if len(self._kept) > RESPONSES_REMEMBERED_MAX:
            self._kept.popitem(last=False)

    def body_of(self, id: str) -> bytes:
        """The JSON of a response.

        Raises:
            Refusal: 404 when it is not known.
        """
        return orjson.dumps(self._find(id).body)

    def turns_of(self, id: str) -> tuple[Turn, ...]:
        """The conversation up to a response, itself included.

        Raises:
            Refusal: 404 when it is not known.
        """
        return self._find(id).turns

    def cancel(self, id: str) -> tuple[str, ...]:
        """Mark a response as cancelled; returns the sequences that are to be aborted.

        Raises:
            Refusal: 404 when it is not known, 400 when it is finished.
        """
        kept = self._find(id)
        if kept.body["status"] not in UNFINISHED:
            raise not_cancellable()
        self.keep(id, Kept(body={**kept.body, "status": "cancelled"}, turns=kept.turns))
        return kept.sequence_ids

    def _find(self, id: str) -> Kept:
        kept = self._kept.get(id)
        if kept is None:
            raise unknown_response(id)
        return kept
