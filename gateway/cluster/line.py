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

PULSE_S: Final = 0.045
"""How often the line is looked at; a quiet one is asked for a sign of life."""
SILENT_PULSES: Final = 3
"""Looks in a row, at each of which nothing had come of what was due: Redis is silent.

They are counted and not timed: a loop that was late, or a process that was stopped, has looked once
however long that took, and finds what came meanwhile before it looks again.
"""
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
        "_due", "_ended", "_heard", "_is_flushing", "_loop", "_misses", "_out", "_pulse", "_reader",
        "_transport", "_unsent_bytes", "came", "reason",
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
        self._unsent_bytes = 0
        self._is_flushing = False
        self._misses = 0
        self._pulse: asyncio.TimerHandle | None = None
        self.came = 0
        """Reads of the socket so far."""
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
        if self._pulse is not None:
            self._pulse.cancel()
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
        self._pulse = self._loop.call_later(PULSE_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Answers, and what was published."""
        reader = self._reader
        self.came += 1
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

    def _look(self) -> None:
        """One pulse: whether anything came since the last one."""
        self._pulse = self._loop.call_later(PULSE_S, self._look)
        if self.came:
            self.came = self._misses = 0
        elif self._due:
            self._misses += 1
            if self._misses >= SILENT_PULSES:
                self.end(f"Redis said nothing for {SILENT_PULSES * PULSE_S:g} s")
                return
        if not self._due:
            self.tell(PING, _is_alive)


def packed(words: Words) -> bytes:
    """A command as it is sent."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # of one word, its stub says
    return command


def _is_alive(answer: object) -> None:
    """Nothing but that it came."""
