"""What all gateways use of limits, counted in Redis: one script for a request, one for its end."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.cluster.keys import Keys
from gateway.cluster.line import packed
from gateway.cluster.link import Link, Script
from gateway.tenancy.limits import Taken
from gateway.tenancy.shared import Answer, Ask, Correction, CountersError, Found, SharedLimits

KEPT_S: Final = 40 * 24 * 3600
"""A holder that used nothing for so long is forgotten: the budgets of its months are over."""
MARK_S: Final = 24 * 3600
"""How long Redis says that it knows a gateway: much longer than a minute."""
HOLDERS_MAX: Final = 100
"""That one command corrects."""
SCRIPTS: Final = Path(__file__).with_name("scripts")
WINDOW: Final = SCRIPTS.joinpath("window.lua").read_bytes()
"""Put in front of both: they count in the same way."""
RESERVE: Final = Script(WINDOW + SCRIPTS.joinpath("reserve.lua").read_bytes())
CORRECT: Final = Script(WINDOW + SCRIPTS.joinpath("correct.lua").read_bytes())

Words = list[bytes | str | int]


class RedisCounters:
    """`Counters` over a link that knows `RESERVE` and `CORRECT`."""

    def __init__(self, link: Link, keys: Keys, gateway: str) -> None:
        self._link = link
        self._keys = keys
        self._mark = keys.of(f"counts:{gateway}")
        self._run_id = ""

    @property
    def is_up(self) -> bool:
        """Whether Redis can be asked."""
        return self._link.is_up

    def follow(self, shared: SharedLimits) -> None:
        """Tell it when Redis comes and goes, and what Redis may have forgotten."""

        def turned(is_up: bool) -> None:
            if not is_up:
                shared.lost()
                return
            before, self._run_id = self._run_id, self._link.run_id
            is_other = before not in ("", self._run_id)

            def answered(answer: object) -> None:
                if not isinstance(answer, Exception):
                    shared.found(knows_nothing=answer is None, may_lack=is_other)

            self._link.tell(packed(("SET", self._mark, 1, "EX", MARK_S, "GET")), answered)

        self._link.listeners.append(turned)
        if self._link.is_up:
            turned(is_up=True)

    async def reserve(self, asks: Sequence[Ask]) -> Answer:
        """See `Counters`."""
        words: Words = [KEPT_S]
        for each in asks:
            words += _words_of(each)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def answered(reply: object) -> None:
            if not future.done():
                future.set_result(reply)
            else:
                self._unheard(asks, reply)

        self._send(RESERVE, [each.holder for each in asks], words, answered)
        try:
            reply = await future
        except asyncio.CancelledError:
            # The answer may have come a moment ago, and whoever waited has not heard it.
            if future.done() and not future.cancelled():
                self._unheard(asks, future.result())
            raise
        if isinstance(reply, Exception):
            raise CountersError(str(reply))
        return _answer_of(reply)

    def correct(self, corrections: Sequence[Correction]) -> None:
        """See `Counters`."""
        for first in range(0, len(corrections), HOLDERS_MAX):
            some = corrections[first : first + HOLDERS_MAX]
            words: Words = [KEPT_S]
            for each in some:
                words += _words_of_correction(each)
            self._send(CORRECT, [each.holder for each in some], words, _is_entered)

    def _unheard(self, asks: Sequence[Ask], reply: object) -> None:
        """The request was gone when the answer came: what it took is given back."""
        taken = None if isinstance(reply, Exception) else _answer_of(reply).taken
        if taken is None:
            return
        self.correct(
            [
                Correction(
                    each.holder,
                    taken.second,
                    0,
                    0 if each.requests_most is None else -1,
                    -each.tokens,
                    -each.budget,
                    "" if each.budget_most is None else taken.day,
                    "" if each.budget_most is None else taken.month,
                )
                for each in asks
            ]
        )

    def _send(
        self,
        script: Script,
        holders: Sequence[str],
        words: Words,
        answered: Callable[[object], None],
    ) -> None:
        keys = [self._keys.of(f"used:{holder}") for holder in holders]
        command = packed(("EVALSHA", script.sha, len(keys), *keys, *words))
        self._link.tell(command, answered)


def _words_of(ask: Ask) -> Words:
    """As `reserve.lua` wants them."""
    known = ask.known
    return [
        1, "" if ask.requests_most is None else ask.requests_most,
        ask.tokens, "" if ask.tokens_most is None else ask.tokens_most,
        ask.budget, "" if ask.budget_most is None else ask.budget_most, ask.per[0],
        known.day, known.of_day, known.month, known.of_month,
    ]  # fmt: skip


def _words_of_correction(it: Correction) -> Words:
    """As `correct.lua` wants them."""
    known = it.known
    return [
        it.ago_s if it.second is None else "", 0 if it.second is None else it.second,
        it.requests, it.tokens, it.budget, it.day, it.month,
        *(("", 0, "", 0) if known is None else known), int(it.may_lack),
    ]  # fmt: skip


def _answer_of(reply: Any) -> Answer:
    """Of what `reserve.lua` returns."""
    is_taken, second, micros, day, month, rows = reply
    return Answer(
        Taken(second, day.decode(), month.decode()) if is_taken else None,
        second + micros / 1e6,
        tuple(
            [
                Found(
                    row[0], row[1] / 1e3, row[2] / 1e3, row[3], row[4] / 1e3, row[5] / 1e3, row[6]
                )
                for row in rows
            ]
        ),
    )


def _is_entered(answer: object) -> None:
    """Nothing: a lost line is told elsewhere, and a minute gives back what this did not."""
