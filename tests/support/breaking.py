"""A fleet of token engines behind a gateway that continues, and what a client made of a stream."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.token_engine import MODEL, TokenEngine, answer, running_token_engine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ON = [{"name": "standard", "continuation": True}]
TURNS = [{"role": "user", "content": "Say something."}]


def body(path: str, **fields: Any) -> dict[str, Any]:
    """A greedy stream of 20 tokens."""
    what = {"messages": TURNS} if path == CHAT else {"prompt": "a b"}
    return {
        "model": MODEL, **what, "stream": True, "max_tokens": 20, "temperature": 0, **fields,
    }  # fmt: skip


def told(path: str, asked: Mapping[str, Any], group: int = 1) -> bytes:
    """The whole stream of an engine that the gateway asks for usage and token ids."""
    options = {"include_usage": True, **(asked.get("stream_options") or {})}
    full = {**asked, "return_token_ids": True, "stream_options": options}
    return b"".join(answer(path, full, group))


@dataclass(frozen=True, slots=True)
class Heard:
    """What a client of chats or completions reads in a stream."""

    stream: str

    @property
    def lines(self) -> list[str]:
        """Its lines; those of a text are none, whatever it holds."""
        return self.stream.split("\n")

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Its chunks and errors."""
        return [json.loads(line[6:]) for line in self.lines if line.startswith("data: {")]

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The choices of its chunks."""
        return [choice for chunk in self.chunks for choice in chunk.get("choices", ())]

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(
            each["text"] if "text" in each else each["delta"].get("content") or ""
            for each in self.choices
        )

    @property
    def ids(self) -> list[int]:
        """All token ids."""
        return [each for choice in self.choices for each in choice.get("token_ids") or ()]

    @property
    def reasons(self) -> list[str]:
        """Why it ended: once, if it is well."""
        return [each["finish_reason"] for each in self.choices if each["finish_reason"]]

    @property
    def usages(self) -> list[dict[str, Any]]:
        """Usages of chunks without a choice."""
        return [each["usage"] for each in self.chunks if each.get("choices") == []]

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Errors in it."""
        return [each["error"] for each in self.chunks if "error" in each]

    @property
    def comments(self) -> list[str]:
        """Comments in it."""
        return [line for line in self.lines if line.startswith(":")]

    @property
    def frames(self) -> set[tuple[Any, ...]]:
        """What must be the same in all chunks."""
        names = ("id", "object", "created", "model")
        return {tuple(each[name] for name in names) for each in self.chunks if "id" in each}

    def check_is(self, whole: "Heard") -> None:
        """To its client it is the same answer as `whole`."""
        assert self.errors == []
        assert self.text == whole.text
        assert self.ids == whole.ids
        assert self.reasons == whole.reasons
        assert self.usages == whole.usages
        assert len(self.frames) == 1
        assert self.lines.count("data: [DONE]") == 1
        assert self.stream.endswith("data: [DONE]\n\n")
        roles = [each for each in self.choices if "role" in each.get("delta", {})]
        assert len(roles) == sum("role" in each.get("delta", {}) for each in whole.choices)


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway before token engines."""

    running: Running
    engines: list[TokenEngine]
    http: httpx.AsyncClient

    async def heard(self, path: str, asked: Mapping[str, Any]) -> Heard:
        """The whole of one stream, after which nothing is held any more."""
        reply = await self.http.post(path, json=dict(asked))
        assert reply.status_code == 200, reply.text
        await eventually(lambda: self.running.in_flight == 0)
        return Heard(reply.text)

    async def metrics(self) -> str:
        """What it counted."""
        return (await self.http.get("/metrics")).text


@asynccontextmanager
async def site(count: int = 2, *, group: int = 1, **overrides: Any) -> AsyncIterator[Site]:
    """A gateway, with continuation on, before so many equal engines."""
    settings: dict[str, Any] = {"tiers": ON, "retries__attempts": 4, **overrides}
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(running_token_engine(group=group)) for _ in range(count)
        ]
        running = await stack.enter_async_context(
            running_gateway(*(engine.url for engine in engines), **settings)
        )
        http = await stack.enter_async_context(client(running))
        yield Site(running, engines, http)
