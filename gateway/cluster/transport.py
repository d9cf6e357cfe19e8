"""Messages between gateways by Redis' PUBLISH: one channel for each gateway.

What each waits for goes at the end of the turn of the loop, the rest with it or soon after. Not
streams: what was said to a gateway that was away is too old to be acted on, and both ways are
numbered, so that a gap is seen and told anew. So nothing is kept in Redis, nothing has to be read
there by a command of its own, and a failover can lose what was said but never repeat it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_bytes
from typing import Final

from gateway.cluster.keys import Keys
from gateway.cluster.line import LineLostError, RedisSaidError
from gateway.cluster.link import Link
from gateway.cluster.messages import Beat, Led, Message, Told
from gateway.cluster.parts import Joiner, PartError, parts_of
from gateway.cluster.rows import VERSION
from gateway.cluster.wire import WireError, decoded, encoded
from gateway.core.messages import Finished, FirstToken, Progressed

LOGGER = logging.getLogger("fairgate.cluster")
HEADS_MAX: Final = 10_000
"""Gateways whose channel is known ready to be sent; then they are made anew."""
LINGER_S: Final = 0.005
"""What nobody waits for may wait so long itself, to go with something else."""
SKIP: Final = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n"
"""No answer to the next command: it would wake the loop once more for each payload."""


class RedisTransport:
    """`Transport` over a link."""

    def __init__(self, link: Link, keys: Keys, gateway: str) -> None:
        self._link = link
        self._keys = keys
        self._gateway = gateway
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: dict[str, list[Message]] = {}
        self._is_flushing = False
        self._later: asyncio.TimerHandle | None = None
        self._heads: dict[tuple[str, bool], bytes] = {}
        self._joiner = Joiner(VERSION)
        link.listeners.append(self._turned)
        self._heard: Callable[[Sequence[Message]], None] = _nobody
        self._lost: Callable[[], None] = _nothing
        self._is_foreign_told = False
        self.payloads_sent = self.payloads_heard = 0
        self.bytes_sent = self.bytes_heard = 0
        self.foreign = 0
        """Payloads that were not understood."""

    @property
    def is_up(self) -> bool:
        """Whether there is a line to Redis."""
        return self._link.is_up

    def post(self, to: str, message: Message) -> None:
        """See `Transport`."""
        loop = self._loop
        if loop is None:
            return
        found = self._outbox.get(to)
        if found is None:
            self._outbox[to] = [message]
        else:
            found.append(message)
        if self._is_flushing:
            return
        if _is_urgent(message):
            self._is_flushing = True
            loop.call_soon(self._flush)
        elif self._later is None:
            self._later = loop.call_later(LINGER_S, self._flush)

    async def run(
        self, heard: Callable[[Sequence[Message]], None], lost: Callable[[], None]
    ) -> None:
        """See `Transport`."""
        self._loop = asyncio.get_running_loop()
        self._heard, self._lost = heard, lost
        try:
            await self._link.hold(self._received)
        finally:
            self._heard, self._lost = _nobody, _nothing

    async def close(self) -> None:
        """See `Transport`."""
        self._flush()
        self._loop = None
        with suppress(LineLostError, RedisSaidError):
            await self._link.ask("PING")  # answered once all that was posted is
        self._link.let_go("the gateway ends")

    def _flush(self) -> None:
        self._is_flushing = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        outbox = self._outbox
        if not outbox:
            return
        self._outbox = {}
        if not self._link.is_up:
            self._lost()
            return
        for to, messages in outbox.items():
            self._publish(to, messages)

    def _publish(self, to: str, messages: list[Message]) -> None:
        payload = encoded(self._gateway, messages)
        try:
            parts = parts_of(payload, VERSION, _unique)
        except PartError as error:
            LOGGER.error("not sent: %s", error)
            self._lost()
            return
        head = self._head(to)
        for part in parts:
            self._link.say(b"%b$%d\r\n%b\r\n" % (head, len(part), part))
        self.payloads_sent += 1
        self.bytes_sent += len(payload)

    def _head(self, to: str) -> bytes:
        """The beginning of the command that publishes to a gateway."""
        key = (to, self._link.is_sharded)
        head = self._heads.get(key)
        if head is None:
            verb = b"SPUBLISH" if self._link.is_sharded else b"PUBLISH"
            inbox = self._keys.inbox(to).encode()
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = b"%b*3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                SKIP,
                len(verb),
                verb,
                len(inbox),
                inbox,
            )
            self._heads[key] = head
        return head

    def _received(self, data: bytes) -> None:
        self.bytes_heard += len(data)
        try:
            payload = self._joiner.joined(data)
            if payload is None:
                return
            messages = decoded(payload)
        except (PartError, WireError) as error:
            self.foreign += 1
            if not self._is_foreign_told:
                self._is_foreign_told = True
                LOGGER.error("another gateway is not understood: %s", error)
            return
        self.payloads_heard += 1
        self._heard(messages)

    def _turned(self, is_up: bool) -> None:
        if not is_up:
            self._lost()


def _is_urgent(message: Message) -> bool:
    """Whether a client may be waiting for it right now."""
    if isinstance(message, Told):
        return not isinstance(message.event, FirstToken | Progressed | Finished)
    return not isinstance(message, Beat | Led)


def _unique() -> bytes:
    return token_bytes(16)


def _nobody(_: Sequence[Message]) -> None:
    """Nobody listens."""


def _nothing() -> None:
    """Nothing is lost on nobody."""
