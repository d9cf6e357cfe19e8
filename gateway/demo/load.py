"""The load of one phase: light users at random instants, a power user who never lets go.

It tells the tally what each request meets, and knows nothing of who reads it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random

import httpx
import orjson

from gateway.demo.plan import LIGHT_USERS, POWER_USER, DemoUser, Phase
from gateway.demo.tally import Tally

MODEL = "demo"
PATH = "/v1/chat/completions"
SPREAD = 0.5
"""Pauses are uniform within this share of their mean, either way."""
FAILED_PAUSE_S = 0.25
"""The power user's pause after a failure; without it, a refusing gateway would be hammered."""
CONNECT_S_MAX = 10.0
EVENT = "data: "
LAST_EVENT = "data: [DONE]"


class AnswerFailedError(Exception):
    """A request got another answer than a stream to its end."""


class Load:
    """The users of one phase, and the gateway they talk to."""

    def __init__(self, url: str, phase: Phase, tally: Tally, random: Random) -> None:
        self._url = url
        self._phase = phase
        self._tally = tally
        self._random = random
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Send until the phase ends; what is under way then is broken off."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # A request in a queue is silent for long; the phase's end is what bounds it.
        timeout = httpx.Timeout(None, connect=CONNECT_S_MAX)
        client = httpx.AsyncClient(
            base_url=self._url, timeout=timeout, limits=limits, trust_env=False
        )
        with suppress(TimeoutError):
            async with client, asyncio.timeout(self._phase.length_s), asyncio.TaskGroup() as tasks:
                if self._phase.is_flooded:
                    for _ in range(POWER_USER.outstanding):
                        tasks.create_task(self._flood(client))
                for user in LIGHT_USERS:
                    tasks.create_task(self._ask_now_and_then(client, user, tasks))
                await asyncio.Event().wait()

    async def _flood(self, client: httpx.AsyncClient) -> None:
        while True:
            if not await self._ask(client, POWER_USER):
                await asyncio.sleep(FAILED_PAUSE_S)

    async def _ask_now_and_then(
        self, client: httpx.AsyncClient, user: DemoUser, tasks: asyncio.TaskGroup
    ) -> None:
        """Send at instants of its own, whatever becomes of the requests before."""
        account, pause_s = self._tally.accounts[user.name], self._phase.pause_s
        with suppress(TimeoutError):
            async with asyncio.timeout(self._phase.sending_until_s):
                first_s = self._random.uniform(0, self._phase.first_within_s)
                await asyncio.sleep(self._phase.lead_s + first_s)
                while True:
                    if account.waiting < user.outstanding:
                        tasks.create_task(self._ask(client, user))
                    await asyncio.sleep(self._random.uniform(1 - SPREAD, 1 + SPREAD) * pause_s)

    async def _ask(self, client: httpx.AsyncClient, user: DemoUser) -> bool:
        """One request; False when it failed."""
        account = self._tally.accounts[user.name]
        number = account.send(self._clock())
        try:
            async for has_token in answered(client, user, number):
                account.begin(number, self._clock())
                account.tokens += has_token
        except (AnswerFailedError, httpx.HTTPError) as error:
            self._tally.fail(user.name, number, str(error) or type(error).__name__)
            return False
        self._tally.end(self._clock())
        return True


async def answered(client: httpx.AsyncClient, user: DemoUser, number: int) -> AsyncIterator[bool]:
    """One streamed chat, event by event: whether it brings a token.

    The comments by which a gateway says "still waiting" are no events.

    Raises:
        AnswerFailedError: refused, failed midway, or ended too early.
        httpx.HTTPError: the connection broke.
    """
    body = orjson.dumps(
        {
            "model": MODEL,
            "stream": True,
            "max_tokens": user.output_tokens_max,
            "messages": [{"role": "user", "content": f"Question {number} of {user.name}?"}],
        }
    )
    headers = {"content-type": "application/json", "x-fairgate-user": user.name}
    async with client.stream("POST", PATH, content=body, headers=headers) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise AnswerFailedError(f"{response.status_code}: {text[:200]}")
        async for line in response.aiter_lines():
            if line == LAST_EVENT:
                return
            if line.startswith(EVENT):
                yield brings_token(line.removeprefix(EVENT))
    raise AnswerFailedError("the stream ended without [DONE]")


def brings_token(event: str) -> bool:
    """Whether this event of a chat holds a token; the first one only says who speaks.

    Raises:
        AnswerFailedError: it is an error.
    """
    chunk = orjson.loads(event)
    if "error" in chunk:
        raise AnswerFailedError(str(chunk["error"].get("message", chunk["error"])))
    choices = chunk.get("choices")
    return bool(choices) and "role" not in choices[0]["delta"]
