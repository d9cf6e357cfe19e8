"""The way to Redis for as long as the gateway lives: one line after another, each found anew.

It says when there is one and when there is none. What was asked of a lost line is lost: nothing is
said again here, since nobody knows whether it was done.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Final

from gateway.cluster.connect import SHARDED_MIN, Door, NoRedisError
from gateway.cluster.line import Answered, Heard, Line, LineLostError, RedisSaidError

LOGGER = logging.getLogger("fairgate.cluster")
PAUSE_S: Final = 0.2
"""Between two tries to have a line."""
PAUSE_S_MAX: Final = 1.0
STEADY_S: Final = 1.0
"""After a line that held so long the next one is opened without a pause."""


class Script:
    """A Lua script, and how Redis knows it."""

    __slots__ = ("sha", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.sha = sha1(text, usedforsecurity=False).hexdigest()


class Link:
    """Commands to Redis while there is a line; `turned` hears when one comes and when it goes."""

    def __init__(self, door: Door, *, inbox: str, scripts: tuple[Script, ...]) -> None:
        """`inbox` is the channel that is listened to; `scripts` are brought along by each line."""
        self._door = door
        self._inbox = inbox
        self._scripts = scripts
        self._where = door.where
        self._line: Line | None = None
        self._ended: asyncio.Future[str] | None = None
        self._warned: tuple[str, ...] = ()
        self.is_sharded = False
        """Whether what is published has to stay in its shard."""
        self.run_id = ""
        """Of the Redis that the line leads to: another one may lack what the last one knew."""
        self.listeners: list[Callable[[bool], None]] = []
        """Hear that a line came (True) or went."""
        self.losses = 0
        """Lines that were lost so far."""

    @property
    def is_up(self) -> bool:
        """Whether there is a line."""
        return self._line is not None

    def tell(self, command: bytes, answered: Answered) -> None:
        """Send a packed command with what else this turn of the loop says. Never raises."""
        if self._line is None:
            answered(LineLostError(f"{self._where} cannot be reached"))
        else:
            self._line.tell(command, answered)

    def say(self, command: bytes) -> None:
        """Send a packed command that is not answered; dropped where there is no line."""
        if self._line is not None:
            self._line.say(command)

    async def ask(self, *words: bytes | str | int) -> object:
        """The answer to a command. Raises RedisSaidError and LineLostError."""
        if self._line is None:
            raise LineLostError(f"{self._where} cannot be reached")
        return await self._line.ask(*words)

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[bytes | str | int]
    ) -> object:
        """The answer of a script. Raises as `ask` does."""
        return await self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)

    def let_go(self, reason: str) -> None:
        """End the line that there is; `hold` makes another one unless it was cancelled."""
        if self._line is not None:
            self._line.end(reason)

    async def hold(self, heard: Heard) -> None:
        """Have a line and, each time it is lost, another one. Until cancelled; never raises.

        `heard` hears what is published to the inbox.
        """
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        said = ""
        while True:
            self._ended = ended = loop.create_future()
            try:
                line = await self._opened(ended, heard)
            except NoRedisError as error:
                if said != str(error):
                    said = str(error)
                    LOGGER.warning("no way to %s: %s", self._where, said)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                continue
            opened_at = loop.time()
            try:
                said = ""
                if not ended.done():
                    self._line = line
                    LOGGER.info("connected to %s", self._where)
                    self._tell_all(is_up=True)
                reason = await ended
                LOGGER.warning("lost %s: %s", self._where, reason)
            finally:
                line.end("the gateway ends")
            if loop.time() - opened_at >= STEADY_S:
                pause_s = PAUSE_S
            else:  # It fell at once, and so may the next one.
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)

    async def _opened(self, ended: "asyncio.Future[str]", heard: Heard) -> Line:
        """A line that knows the scripts and listens to the inbox. Raises NoRedisError."""

        def over(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)
            if self._line is not None and self._ended is ended:
                self._line = None
                self.losses += 1
                self._tell_all(is_up=False)

        line, facts = await self._door.open(heard, over)
        try:
            self._warn(facts.warnings())
            self.run_id = facts.run_id
            asks = [line.ask("SCRIPT", "LOAD", script.text) for script in self._scripts]
            self.is_sharded = self._door.is_cluster and facts.version >= SHARDED_MIN
            shard = "S" if self.is_sharded else ""
            asks.append(line.ask(f"{shard}SUBSCRIBE", self._inbox))
            # Later ones are not answered: here it would be seen that it is not allowed.
            asks.append(line.ask(f"{shard}PUBLISH", f"{self._inbox}:nobody", b""))
            await asyncio.gather(*asks)
        except (LineLostError, RedisSaidError) as error:
            line.end(str(error))
            raise NoRedisError(str(error)) from None
        except BaseException:
            line.end("it was not used")
            raise
        return line

    def _tell_all(self, *, is_up: bool) -> None:
        for each in self.listeners:
            each(is_up)

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for warning in warnings:
            if warning not in self._warned:
                LOGGER.warning("%s %s", self._where, warning)
        self._warned = warnings
