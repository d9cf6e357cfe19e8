"""Batches for tests: a store, files and a relay of their own, and input files."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.api.disconnect import Receive, Scope, Send
from gateway.api.errand import ERRAND
from gateway.api.routes import Route
from gateway.batch.desk import Caller, Desk
from gateway.batch.files import Files, files_at
from gateway.batch.record import Batch, Owner
from gateway.batch.runner import Runner
from gateway.batch.sqlite import SqliteBatches
from gateway.batch.store import BatchStore, Quota
from gateway.batch.tools import Limits, Tools
from gateway.core.messages import Usage

ALICE = Owner(tenant="acme", user="alice")
CHAT = "/v1/chat/completions"
CALLER = Caller(owner=ALICE, key_id="k", tier="background")
QUOTA = Quota(files=100, bytes=1 << 30, open_batches=50)
LIMITS = Limits(
    quota=QUOTA,
    file_bytes=64 << 20,
    lines=50_000,
    line_bytes=1 << 20,
    in_flight=64,
    attempts=2,
    keep_s=86_400.0,
    lease_s=60.0,
)
USAGE = Usage(prompt_tokens=3, output_tokens=2, cached_tokens=1)


def line(number: int, **body: object) -> bytes:
    """One line of input."""
    asked = {"model": "m", "messages": [{"role": "user", "content": f"line {number}"}], **body}
    text = {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": asked}
    return json.dumps(text).encode() + b"\n"


def lines(count: int) -> bytes:
    """A file of so many lines."""
    return b"".join(line(number) for number in range(count))


class FakeRelay:
    """Answers each line with what it said, as the relay would to a client."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        """Contents of the requests, in the order in which they came."""
        self.under_way = 0
        self.most = 0
        self.held = asyncio.Event()
        """Answers wait for it."""
        self.held.set()
        self.answers_max: int | None = None
        """Of more requests than these each waits for ever."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.statuses: dict[str, list[tuple[int, bytes, list[tuple[bytes, bytes]]]]] = {}
        """What the next requests of these contents are answered, instead of a success."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        message = await receive()
        asked = json.loads(message["body"])
        content = asked["messages"][0]["content"]
        # As if an engine had been sent it at once.
        scope[ERRAND].life = SimpleNamespace(sent_at=0.0, usage=USAGE)
        self.seen.append(content)
        self.headers = scope["headers"]
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.held.wait()
            if self.answers_max is not None and len(self.seen) > self.answers_max:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        headers = [(b"x-request-id", content.encode())]
        status, body = 200, json.dumps({"said": content}).encode()
        planned = self.statuses.get(content)
        if planned:
            status, body, more = planned.pop(0)
            headers += more
        if status == 0:
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


@dataclass(slots=True)
class Wall:
    """A clock that stands until it is moved."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Bench:
    """All that batches need, without a gateway."""

    tools: Tools
    runner: Runner
    desk: Desk
    relay: FakeRelay
    wall: Wall
    is_leaving: list[bool] = field(default_factory=list)

    async def submitted(self, data: bytes, **wish: Any) -> Batch:
        """A batch of these lines."""
        file = await uploaded(self.desk, data)
        asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **wish}
        return await self.desk.create(CALLER, asked)

    async def batch(self, batch_id: str) -> Batch:
        """As it is."""
        return (await self.desk.batch(CALLER, batch_id)).batch

    async def until(self, batch_id: str, *statuses: str) -> Batch:
        """The batch, once it is in one of these."""

        async def is_there() -> bool:
            return (await self.batch(batch_id)).status in statuses

        await reached(is_there)
        return await self.batch(batch_id)

    async def answered(self, batch_id: str, count: int) -> None:
        """Wait until so many of its lines have been kept."""

        async def has_enough() -> bool:
            return (await self.batch(batch_id)).counts.completed >= count

        await reached(has_enough)

    async def forgotten(self, file_id: str) -> None:
        """Wait until there is no such file."""

        async def is_gone() -> bool:
            return await self.tools.store.file(file_id) is None

        await reached(is_gone)

    async def text(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of a file; none of one that is not there."""
        if file_id is None:
            return []
        file = await self.desk.file(CALLER, file_id)
        data = b"".join([piece async for piece in await self.desk.content(file)])
        return [json.loads(each) for each in data.splitlines()]


async def reached(condition: Callable[[], Awaitable[bool]], within_s: float = 20.0) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - conditions here are not events of ours
            await asyncio.sleep(0.002)


async def uploaded(desk: Desk, data: bytes, name: str = "in.jsonl", **fields: str) -> str:
    """The id of a file, sent as a form in pieces."""
    edge = b"--edge"
    head = b"".join(
        b'%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        % (edge, key.encode(), value.encode())
        for key, value in {"purpose": "batch", **fields}.items()
    )
    head += b'%b\r\ncontent-disposition: form-data; name="file"; filename="%b"\r\n\r\n' % (
        edge,
        name.encode(),
    )
    form = head + data + b"\r\n--edge--\r\n"

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(form), 65_536):
            yield form[at : at + 65_536]

    file = await desk.upload(
        CALLER, pieces(), content_type=b"multipart/form-data; boundary=edge", length=None
    )
    return file.id


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    limits: Limits = LIMITS,
    relay: FakeRelay | None = None,
    files: Files | None = None,
    wall: Wall | None = None,
    holder: str = "h",
    store: BatchStore | None = None,
) -> AsyncIterator[Bench]:
    """Batches at work in `folder`, until the block ends."""
    relay, wall = relay or FakeRelay(), wall or Wall()
    leaving: list[bool] = []
    tools = Tools(
        store=store or SqliteBatches(folder / "batches.db"),
        files=files or files_at(str(folder / "files")),
        limits=limits,
        serve=relay,
        wall=wall,
        holder=holder,
        is_leaving=lambda: bool(leaving),
    )
    runner = Runner(tools, lambda batch: [(b"x-fairgate-tier", batch.tier.encode())], look_s=0.01)
    await tools.store.open()
    await tools.files.open()
    running = asyncio.get_running_loop().create_task(runner.run())
    try:
        yield Bench(tools, runner, Desk(tools, runner), relay, wall, leaving)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await tools.store.close()
        tools.files.close()
