"""One response that its engine finishes whoever waits for it, and the slot that it keeps meanwhile.

Who left, and why, is known to its exchange.
"""

from collections.abc import Callable

from gateway.api.background import Ended, unfinished_in
from gateway.api.interruption import Leaver
from gateway.api.life import Life
from gateway.api.surroundings import Surroundings
from gateway.core.messages import Outcome
from gateway.errors import UpstreamFailedError
from gateway.runtime.gate import Grant
from gateway.upstream.sse import PlainMeter, StreamMeter


class Work:
    """What an engine works on in the background."""

    __slots__ = ("_around", "_grant", "_id", "_life", "is_unwatched")

    def __init__(
        self, response_id: str, life: Life, grant: Grant, around: Surroundings, *, streams: bool
    ) -> None:
        self._id = response_id
        self._life = life
        self._grant = grant
        self._around = around
        self.is_unwatched = not streams
        """Whether nobody waits for it here: its end is asked for then, not heard."""

    def begins(self, left: Callable[[], None], cancelled: Callable[[], None]) -> None:
        """From now on it goes on without its client.

        `left`: the client leaves its events; `cancelled`: another request ended it.
        """
        departure = self._life.departure
        if not self.is_unwatched:
            self._around.backgrounds.expect(self._id, cancelled)
        if departure is not None:
            departure.ends(None if self.is_unwatched else Leaver(left))

    async def wait_ended(self) -> None:
        """Keep the slot until the engine is done with it."""
        life, replica = self._life, self._grant.replica
        ended = Ended(Outcome.CANCELLED)
        try:
            ended = await self._around.backgrounds.ended(self._around.fleet, replica, self._id)
        finally:
            life.usage = ended.usage
            if ended.outcome is Outcome.FAILED:
                life.outcome = UpstreamFailedError.code
            elif ended.outcome is Outcome.CANCELLED:
                life.outcome = "cancelled"
            self._grant.finish(ended.outcome, ended.usage)

    def close(self) -> None:
        """It ended, or is followed no more."""
        self._around.backgrounds.forget(self._id)


def working_on(meter: StreamMeter | PlainMeter, first: bytes) -> str | None:
    """The id of the response that an engine began with, unless it is done with it."""
    if isinstance(meter, PlainMeter):
        return unfinished_in(first)
    return None if meter.ident is None or meter.is_done else meter.ident.decode()
