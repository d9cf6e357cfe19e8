"""Responses that an engine works on although nobody waits for their answer.

Asked with `background: true` an engine answers at once that a response is queued, and its work
would run outside of all queues: it keeps its slot until the engine, asked now and then, says that
it is over. What it costs and whose it is, others know.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gateway.api.passing import beginning_of
from gateway.api.routes import RESPONSES_PREFIX
from gateway.core.messages import Outcome, Usage
from gateway.errors import OverloadedError
from gateway.upstream.connection import UpstreamBrokenError
from gateway.upstream.figures import parsed, response_id_of, usage_of
from gateway.upstream.fleet import Fleet
from gateway.upstream.sse import PlainMeter

LOGGER = logging.getLogger("fairgate.relay")

BACKGROUND_S_MAX = 3_600.0
"""It is waited for no longer: vLLM 0.32 leaves one `queued` for ever whose work failed in it."""
ASK_S_MIN = 0.25
ASK_S_MAX = 5.0
ASK_SHARE = 0.1
"""It is asked about after so much of the time that it has taken, within these two bounds."""
ANSWER_S_MAX = 10.0
FAILURES_MAX = 5
"""So many questions in a row may come to nothing."""
ANSWER_BYTES_MAX = 1 << 20
"""A longer one has output, and is over."""

UNFINISHED = frozenset({"queued", "in_progress"})
_OUTCOMES = {
    "completed": Outcome.DONE,
    "incomplete": Outcome.DONE,
    "cancelled": Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How the work on a response ended."""

    outcome: Outcome
    usage: Usage | None = None


def unfinished_in(body: bytes) -> str | None:
    """The id of the response that `body` is; None where it is none that is still worked on."""
    fields = parsed(body)
    if not isinstance(fields, dict) or fields.get("status") not in UNFINISHED:
        return None
    return response_id_of(fields)


class Backgrounds:
    """All responses that are worked on in the background."""

    def __init__(self) -> None:
        self._ends: dict[str, Callable[[], object]] = {}

    def expect(self, response_id: str, end: Callable[[], object]) -> None:
        """Call `end` when the response is cancelled; until `forget`."""
        self._ends[response_id] = end

    def forget(self, response_id: str) -> None:
        """It ended."""
        self._ends.pop(response_id, None)

    def cancelled(self, response_id: str) -> None:
        """Its client had it cancelled."""
        end = self._ends.get(response_id)
        if end is not None:
            end()

    async def ended(self, fleet: Fleet, replica: str, response_id: str) -> Ended:
        """Wait until the work is over that `replica` does for a response."""
        time, again = asyncio.get_running_loop().time, asyncio.Event()
        began_at, failures = time(), 0
        self.expect(response_id, again.set)
        try:
            while (ran_s := time() - began_at) < BACKGROUND_S_MAX:
                pause_s = min(max(ASK_S_MIN, ran_s * ASK_SHARE), ASK_S_MAX)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await again.wait()
                again.clear()
                told = await _told(fleet, replica, response_id)
                if isinstance(told, Ended):
                    return told
                failures = 0 if told else failures + 1
                if failures >= FAILURES_MAX:
                    LOGGER.warning("%s tells no more of %s", replica, response_id)
                    return Ended(Outcome.FAILED)
        finally:
            self.forget(response_id)
        LOGGER.warning("%s is at work on %s for too long", replica, response_id)
        return Ended(Outcome.CANCELLED)


async def _told(fleet: Fleet, replica: str, response_id: str) -> Ended | bool:
    """How it ended; True while it is worked on, False where that cannot be told now."""
    path = f"{RESPONSES_PREFIX}{response_id}".encode("ascii", "replace")
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            answer = await fleet.client(replica).send(
                path, method=b"GET", meter=PlainMeter(lambda: 0.0)
            )
            try:
                body = await beginning_of(answer, ANSWER_BYTES_MAX)
            finally:
                answer.close()
    except (UpstreamBrokenError, OverloadedError, TimeoutError):
        return False
    if answer.status == 404:
        return Ended(Outcome.FAILED)  # it was started anew, and knows nothing of it
    if answer.status >= 400:
        return False
    if len(body) > ANSWER_BYTES_MAX:
        return Ended(Outcome.DONE)
    fields = parsed(body)
    status = fields.get("status") if isinstance(fields, dict) else None
    if status in UNFINISHED:
        return True
    if not isinstance(status, str):
        return False
    return Ended(_OUTCOMES.get(status, Outcome.FAILED), usage_of(fields.get("usage")))
