"""One connection to Redis: commands out, one write for each turn of the loop; answers in order.

A client library takes 50 to 100 us for a command; this is for what happens with every request, so
it knows no more of Redis than that answers come in the order of the commands, and that what others
publish comes between them (RESP3). What is asked, and where Redis is, is not known here.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import hiredis

CALM_S: Final = 0.08
"""A line on which nothing came for so long is asked for a sign of life."""
LOOK_S: Final = 0.035
LOOKS: Final = 3
"""So many looks follow, `LOOK_S` apart; if nothing comes before the last, Redis is silent.

They are counted and not timed: a loop that was late, or a process that was stopped, has looked once
however long that took, and finds what came meanwhile before it looks again.
"""
TICK_S: Final = 0.001
"""No timer is shorter: it could be over before the clock has moved."""
UNSENT_BYTES_MAX: Final = 64 << 20
"""Of commands that the connection did not take: beyond it, it is given up. More than the largest
message and the checkpoints of many pools, which would else end each line that carries them."""
DUE_MAX: Final = 100_000
"""Commands without an answer: beyond it, the connection is given up."""

Words = tuple[bytes | str | int, ...]
Answered = Callable[[object], None]
"""Hears the answer; an error is a `RedisSaidError`, a lost line a `LineLostError`."""
Heard = Callable[[bytes], None]
"""Hears each payload that somebody published to a channel that is listened to."""

PING: Final = b"*1\r\n$4\r\nPING\r\n"
NOTHING_YET: Final = object()
UNFIT: Final = (
    "MOVED", "ASK", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN", "NOSCRIPT",
)  # fmt: skip
"""Errors that mean: not here, or not any more; a new line finds where, and brings the scripts."""


class LineLostError(Exception):
    """There is no connection: whether what was asked was done is not known."""


class RedisSaidError(Exception):
    """Redis answered with an error."""


class Line:
    """Commands, and what becomes of them. Ends once, and tells so.

    It is an `asyncio.Protocol` in all but name: a subclass could not be compiled whole.
    """

    __slots__ = (
        "_came_at", "_due", "_ended", "_heard", "_is_flushing", "_look_again", "_looks", "_loop",
        "_out", "_reader", "_transport", "reason",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, heard: Heard, ended: Callable[[str], None]
    ) -> None:
        """`ended` hears the reason, once; neither may raise."""
        self._loop = loop
        self._heard = heard
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader(
            protocolError=RedisSaidError, replyError=RedisSaidError, notEnoughData=NOTHING_YET
        )
        self._due: deque[Answered] = deque()
        self._out: list[bytes] = []
        self._is_flushing = False
        self._came_at = 0.0
        self._looks = 0
        """Since it was asked for a sign of life."""
        self._look_again: asyncio.TimerHandle | None = None
        self.reason: str | None = None
        """Why it ended; None: it has not."""

    def tell(self, command: bytes, answered: Answered) -> None:
        """Send a packed command at the end of this turn of the loop. Never raises."""
        if self.reason is not None:
            answered(LineLostError(self.reason))
            return
        self._due.append(answered)
        self.say(command)

    def say(self, command: bytes) -> None:
        """The same, for what is not answered."""
        if self.reason is not None:
            return
        self._out.append(command)
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    async def ask(self, *words: bytes | str | int) -> object:
        """The answer to a command. Raises RedisSaidError and LineLostError."""
        future: asyncio.Future[object] = self._loop.create_future()

        def answered(answer: object) -> None:
            if future.done():
                return
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.tell(packed(words), answered)
        return await future

    def end(self, reason: str) -> None:
        """Hang up; what is due hears that the line is lost."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._look_again is not None:
            self._look_again.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._out.clear()
        due, self._due = self._due, deque()
        error = LineLostError(reason)
        for answered in due:
            answered(error)
        self._ended(reason)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        """It stands."""
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._came_at = self._loop.time()
        self._look_in(CALM_S)

    def data_received(self, data: bytes) -> None:
        """Answers, and what was published."""
        reader = self._reader
        self._came_at = self._loop.time()
        if self._looks:
            self._looks = 0
            self._look_in(CALM_S)
        try:
            reader.feed(data)
            while self.reason is None:
                answer = reader.gets()
                if answer is NOTHING_YET:
                    return
                if isinstance(answer, hiredis.PushNotification):
                    self._pushed(answer)
                elif self._due:
                    self._due.popleft()(answer)
                    if isinstance(answer, RedisSaidError) and str(answer).startswith(UNFIT):
                        self.end(str(answer))
                else:
                    self.end("Redis answers what it was not asked")
        except RedisSaidError as error:
            self.end(f"Redis speaks something else: {error}")

    def pause_writing(self) -> None:
        """It takes no more: that much was never meant to wait."""
        self.end("Redis takes nothing any more")

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def eof_received(self) -> bool:
        """The other side hung up."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self.end(f"the connection was lost: {error}" if error else "Redis closed the connection")

    def _pushed(self, push: list[object]) -> None:
        kind = push[0]
        if kind in {b"message", b"smessage"}:
            payload = push[2]
            if isinstance(payload, bytes):
                self._heard(payload)
        elif kind in {b"subscribe", b"ssubscribe"}:
            # RESP3 confirms it so, and in no other way.
            if self._due:
                self._due.popleft()(push)
        elif kind in {b"unsubscribe", b"sunsubscribe"}:
            self.end("Redis took the subscription back")

    def _flush(self) -> None:
        self._is_flushing = False
        out, transport = self._out, self._transport
        if self.reason is not None or transport is None or not out:
            return
        self._out = []
        if len(self._due) > DUE_MAX:
            self.end("Redis answers too slowly")
            return
        if not transport.is_closing():  # given up before it was open, and not told yet
            transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _look_in(self, seconds: float) -> None:
        """Look then, and not when it was meant to be before."""
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Whether anything came lately, or since it was asked for."""
        calm_s = CALM_S - (self._loop.time() - self._came_at)
        if not self._looks and calm_s > 0.0:
            self._look_in(max(calm_s, TICK_S))
        elif self._looks == LOOKS:
            self.end(f"Redis said nothing for {CALM_S + LOOKS * LOOK_S:g} s")
        else:
            if not self._due:
                self.tell(PING, _is_alive)
            self._looks += 1
            self._look_in(LOOK_S)


def packed(words: Words) -> bytes:
    """A command as it is sent."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # of one word, its stub says
    return command


def _is_alive(answer: object) -> None:
    """Nothing but that it came."""
