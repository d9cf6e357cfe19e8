"""Sends a live engine what it is told to send, and says when each token came.

Prompts are words that nobody sent before, so that no cache of prefixes has them.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from gateway.core.report import ReplicaReport
from gateway.upstream.client import EngineClient
from gateway.upstream.connection import UpstreamBrokenError
from gateway.upstream.dialects.registry import detect
from gateway.upstream.replicas import ReplicaAddress
from gateway.upstream.sse import StreamMeter

TIMEOUT_S = 60.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORD_CHARS = 5
SAMPLE_WORDS = 64
"""Words of the prompt from which the engine's tokens for a word are learnt."""


class EngineFault(Exception):
    """The engine does not do what is needed of it; the message says what."""


@dataclass(slots=True)
class Heard:
    """One answer: instants of a monotonic clock."""

    sent_at: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    marks: list[tuple[float, int]] = field(default_factory=list)
    """(instant, events so far), at each read."""

    @property
    def first_at(self) -> float:
        """Its first token."""
        return self.marks[0][0]

    @property
    def last_at(self) -> float:
        """Its last token."""
        return self.marks[-1][0]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What /metrics says, and the text that says it."""

    report: ReplicaReport
    text: str


class LiveEngine:
    """One engine, as a client and as an operator reach it. Made within an event loop."""

    def __init__(self, url: str, *, model: str | None = None, api_key: str | None = None) -> None:
        self.model = model or ""
        self.max_model_len: int | None = None
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False
        )
        self.clock = asyncio.get_running_loop().time
        self._client = EngineClient(
            ReplicaAddress("engine", url, api_key=api_key),
            buffer_bytes_max=1 << 20,
            clock=self.clock,
        )
        self._tokens_per_word = 1.0

    async def open(self, dice: Random) -> None:
        """Ask what it serves, and learn how it counts words.

        Raises:
            EngineFault: it serves nothing, or nothing of that name.
        """
        cards = (await self._get("/v1/models")).json().get("data") or [{}]
        names = [card.get("id") for card in cards]
        card = cards[0] if not self.model else next(
            (card for card in cards if card.get("id") == self.model), {}
        )  # fmt: skip
        if not card.get("id"):
            raise EngineFault(f"no model {self.model!r} there; there are {names}")
        self.model = card["id"]
        length = card.get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else None
        few = await self.ask(self._words(1, dice), tokens=1)
        many = await self.ask(self._words(1 + SAMPLE_WORDS, dice), tokens=1)
        per_word = (many.prompt_tokens - few.prompt_tokens) / SAMPLE_WORDS
        if per_word <= 0:
            raise EngineFault("it does not count the tokens of prompts")
        self._tokens_per_word = per_word

    def prompt(self, tokens: int, dice: Random) -> str:
        """Text of about so many tokens."""
        return self._words(max(1, round(tokens / self._tokens_per_word)), dice)

    async def scrape(self) -> Scrape:
        """Its metrics now.

        Raises:
            EngineFault: none that anybody knows.
        """
        raw = (await self._get("/metrics")).content
        dialect = detect(raw)
        if dialect is None:
            raise EngineFault("its /metrics are of no engine that is known")
        return Scrape(dialect.parse(raw), raw.decode(errors="replace"))

    async def ask(self, prompt: str, *, tokens: int) -> Heard:
        """One streamed completion of exactly `tokens` tokens.

        Raises:
            EngineFault: it answers otherwise.
        """
        asked: Mapping[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        heard = Heard(self.clock())
        meter = StreamMeter(self.clock, lambda: None)
        try:
            await self._stream(json.dumps(asked).encode(), meter, heard)
        except (UpstreamBrokenError, OSError) as error:
            raise EngineFault(str(error)) from error
        usage = meter.usage
        if usage is None or not heard.marks:
            raise EngineFault("a stream without tokens, or without usage at its end")
        heard.prompt_tokens, heard.output_tokens = usage.prompt_tokens, usage.output_tokens
        # The event that tells the usage is no token.
        heard.marks = [(at, min(seen, usage.output_tokens)) for at, seen in heard.marks]
        return heard

    async def ask_all(self, prompts: Sequence[str], *, tokens: int) -> list[Heard]:
        """All at once. Raises EngineFault as soon as one of them fails."""
        try:
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(self.ask(prompt, tokens=tokens)) for prompt in prompts]
        except ExceptionGroup as group:
            raise EngineFault(str(group.exceptions[0])) from group
        return [task.result() for task in asked]

    async def aclose(self) -> None:
        """Let its connections go."""
        self._client.close()
        await self._http.aclose()

    async def _stream(self, body: bytes, meter: StreamMeter, heard: Heard) -> None:
        answer = await self._client.send(
            b"/v1/completions", body, headers=b"content-type: application/json\r\n", meter=meter
        )
        try:
            if answer.status != 200:
                raise EngineFault(f"status {answer.status}: {(await answer.read())[:200]!r}")
            seen = 0
            while await answer.read():
                if meter.events > seen:
                    seen = meter.events
                    heard.marks.append((self.clock(), seen))
        finally:
            answer.close()

    async def _get(self, path: str) -> httpx.Response:
        try:
            found = await self._http.get(path)
            found.raise_for_status()
        except httpx.HTTPError as error:
            raise EngineFault(f"{path}: {error or type(error).__name__}") from error
        return found

    def _words(self, count: int, dice: Random) -> str:
        return " ".join("".join(dice.choices(LETTERS, k=WORD_CHARS)) for _ in range(count))
