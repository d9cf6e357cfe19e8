"""Messages between gateways by Redis' PUBLISH: one channel for each gateway.

Not streams: what was said to a gateway that was away is too old to be acted on, and both ways are
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
from gateway.cluster.messages import Message
from gateway.cluster.parts import Joiner, PartError, parts_of
from gateway.cluster.rows import VERSION
from gateway.cluster.wire import WireError, decoded, encoded

LOGGER = logging.getLogger("fairgate.cluster")
HEADS_MAX: Final = 10_000
"""Gateways whose channel is known ready to be sent; then they are made anew."""


class RedisTransport:
    """`Transport` over a link."""

    def __init__(self, link: Link, keys: Keys, gateway: str) -> None:
        self._link = link
        self._keys = keys
        self._gateway = gateway
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: dict[str, list[Message]] = {}
        self._heads: dict[tuple[str, bool], bytes] = {}
        self._joiner = Joiner(VERSION)
        self._heard: Callable[[Sequence[Message]], None] = _nobody
        self._lost: Callable[[], None] = _nothing
        self._is_foreign_told = False
        self.payloads_sent = self.payloads_heard = 0
        self.bytes_sent = self.bytes_heard = 0
        self.unheard = 0
        """Payloads that nobody was there to hear."""
        self.foreign = 0
        """Payloads that were not understood."""

    @property
    def is_up(self) -> bool:
        """Whether there is a line to Redis."""
        return self._link.is_up

    def post(self, to: str, message: Message) -> None:
        """See `Transport`."""
        outbox, loop = self._outbox, self._loop
        if loop is None:
            return
        if not outbox:
            loop.call_soon(self._flush)
        found = outbox.get(to)
        if found is None:
            outbox[to] = [message]
        else:
            found.append(message)

    async def run(
        self, heard: Callable[[Sequence[Message]], None], lost: Callable[[], None]
    ) -> None:
        """See `Transport`."""
        self._loop = asyncio.get_running_loop()
        self._heard, self._lost = heard, lost
        try:
            await self._link.hold(self._received, self._turned)
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
            self._link.tell(b"%b$%d\r\n%b\r\n" % (head, len(part), part), self._published)
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
            head = b"*3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(verb), verb, len(inbox), inbox)
            self._heads[key] = head
        return head

    def _published(self, answer: object) -> None:
        if answer == 0:
            self.unheard += 1
        elif isinstance(answer, RedisSaidError):
            LOGGER.error("Redis does not publish: %s", answer)
            self._link.let_go(str(answer))
        else:
            # How many heard it; or the line was lost, which is told in another way.
            assert isinstance(answer, int | LineLostError)

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


def _unique() -> bytes:
    return token_bytes(16)


def _nobody(_: Sequence[Message]) -> None:
    """Nobody listens."""


def _nothing() -> None:
    """Nothing is lost on nobody."""
