"""The way of one answer from its engine to its client; of a stream whole events leave.

It knows how long the client has been taking nothing; what follows from that, or from the end of
the stream, is decided elsewhere.
"""

from collections.abc import Callable

from gateway.api.reply import JSON_TYPE, Direct, Reply
from gateway.api.rewrite import Rewrite
from gateway.api.whole import WholeEvents
from gateway.continuation.strand import Strand
from gateway.upstream.connection import Answer


class Outlet:
    """What one exchange sends to its client."""

    __slots__ = ("_clock", "_reply", "_unsent", "_whole", "held_at", "rewrite", "strand",
                 "writing_since")  # fmt: skip

    def __init__(
        self,
        reply: Reply,
        rewrite: Rewrite | None,
        strand: Strand | None,
        clock: Callable[[], float],
    ) -> None:
        self._reply = reply
        self._clock = clock
        self.rewrite = rewrite
        self.strand = strand
        """What is kept of a stream that may be continued; None for any other."""
        self._whole: WholeEvents | None = None
        """Made once a read ended within an event, where nothing else holds that back."""
        self._unsent: int | None = None
        """What the client had not taken when it was last looked at."""
        self.held_at = 0.0
        """When the client was last seen to hold it up."""
        self.writing_since: float | None = None
        """When the write began that the client has not taken yet."""

    def look_at_client(self, now: float) -> None:
        """A client that has taken anything since the last look is slow, and no more than that."""
        direct, unsent = self._reply.direct, None
        if self.writing_since is not None:
            self.held_at = now
            unsent = None if direct is None else direct.unsent()
            if unsent is not None and self._unsent is not None and unsent < self._unsent:
                self.writing_since = now
        self._unsent = unsent

    async def write(self, data: bytes) -> None:
        """Send it as it is."""
        self.writing_since = self._clock()
        await self._reply.write(data)
        self.writing_since = None

    async def carry(self, answer: Answer, first: bytes) -> None:
        """Pass a stream on to its end, `first` before what is still to be read.

        Raises UpstreamBrokenError. Whatever ended it, all whole events have left.
        """
        failure = await self._carried(answer, first)
        # From here on only the client can hold it up.
        self.writing_since = self._clock()
        try:
            if self.rewrite is not None and (waiting := self.rewrite.waiting()):
                await self._reply.write(waiting)
            if failure is not None:
                raise failure
        finally:
            failure = None  # it knows this frame, which must not know it for ever

    async def _carried(self, answer: Answer, first: bytes) -> BaseException | None:
        """Pass on what there is; returns what it failed with, be it that it was cancelled."""
        try:
            await self._carry_all(answer, first)
        except BaseException as error:
            return error
        return None

    async def _carry_all(self, answer: Answer, first: bytes) -> None:
        reply, strand = self._reply, self.strand
        data = first
        while data:
            data = self._passed(data)
            if data:
                await self.write(data)
            if reply.direct is not None and not (strand is not None and strand.is_broken):
                await self._pour(answer, reply.direct)
            if strand is not None and strand.is_broken:
                return
            data = await answer.read()

    async def carry_plain(self, answer: Answer, first: bytes) -> None:
        """The same of a plain answer, which is changed only if `first` is all of it."""
        reply, rewrite = self._reply, self.rewrite
        is_whole = answer.is_complete and not answer.has_data
        if is_whole and rewrite is not None:
            first = rewrite.plain(first)
        headers = [(b"content-type", answer.header(b"content-type") or JSON_TYPE)]
        if is_whole:
            await reply.whole(answer.status, headers, first)
            return
        await reply.begin(answer.status, headers)
        data = first
        while data:
            await self.write(data)
            data = await answer.read()
        await reply.finish()

    def rest(self) -> bytes:
        """The beginning of an event, with which a stream ended that is complete all the same."""
        if self.rewrite is not None:
            return self.rewrite.rest()
        return b"" if self._whole is None else self._whole.held

    async def _pour(self, answer: Answer, direct: Direct) -> None:
        """Let what arrives pass without a turn of the loop, while the client keeps up."""
        await answer.pour(self._pushed)
        if self.writing_since is not None:
            await direct.drained()
            self.writing_since = None

    def _pushed(self, arrived: bytes, framed: bytes) -> bool:
        """Some of the stream arrived, `framed` with its framing; whether the client keeps up."""
        data = self._passed(arrived)
        strand = self.strand
        if not data or self._reply.push(data, framed if data is arrived else b""):
            return strand is None or not strand.is_broken
        self.writing_since = self._clock()
        return False

    def _passed(self, data: bytes) -> bytes:
        """What the client gets of it now."""
        if self.strand is not None:
            data = self.strand.chunk(data)
        if self.rewrite is not None:
            return self.rewrite.chunk(data) if data else data
        if self._whole is None:
            if not data or data.endswith(b"\n\n"):
                return data
            self._whole = WholeEvents()
        return self._whole.chunk(data)
