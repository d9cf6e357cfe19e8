"""Who is told of advice over the webhook: once, signed, within bounds, and in nobody's way."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.admin.advice_webhook import (
    BACKOFF_S_MAX,
    PENDING_MAX,
    SIGNATURE,
    TIMESTAMP,
    AdviceWebhook,
    Target,
    posted,
    signature_of,
)

TARGET = Target(url="http://hook/x?token=t", secret=b"secret", timeout_s=1.0, attempts=4)


class Hook:
    """An address that answers as the test says; it remembers what it got."""

    def __init__(self, *statuses: int | None) -> None:
        self._statuses = list(statuses)
        self.got: list[tuple[Mapping[str, str], bytes]] = []
        self.naps: list[float] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def post(self, target: Target, body: bytes, headers: Mapping[str, str]) -> int | None:
        """One message."""
        await self.is_open.wait()
        self.got.append((headers, body))
        return self._statuses.pop(0) if self._statuses else 200

    async def nap(self, seconds: float) -> None:
        """Time that passes at once."""
        self.naps.append(seconds)

    def webhook(self, target: Target | None = TARGET) -> AdviceWebhook:
        """Before it."""
        made = AdviceWebhook(
            wall=lambda: 1_800_000_000.25, post=self.post, pause=self.nap, new_id=lambda: "id"
        )
        made.target = target
        return made

    def told(self) -> list[dict[str, Any]]:
        """The messages."""
        return [json.loads(body) for _, body in self.got]


async def settled(webhook: AdviceWebhook, *, turns: int = 50) -> None:
    """Let it send all that it can."""
    task = asyncio.ensure_future(webhook.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_is_told_once_and_signed() -> None:
    """Who scales a fleet by messages must know that they are ours."""
    hook = Hook()
    webhook = hook.webhook()
    webhook.tell("m", 3, {"replicas": 3})
    webhook.tell("m", 3, {"replicas": 3})
    await settled(webhook)
    ((headers, body),) = hook.got
    assert json.loads(body) == {
        "object": "scale.advised", "id": "id", "at": 1_800_000_000.25, "replicas": 3,
    }  # fmt: skip
    assert headers[TIMESTAMP] == "1800000000"
    assert headers[SIGNATURE] == signature_of(b"secret", "1800000000", body)
    assert headers[SIGNATURE] != signature_of(b"other", "1800000000", body)
    assert signature_of(b"k", "1", b"b") == (
        "sha256=2946e37a45bb02a0bf1bf1a7d9219543801fedd301f9f485aebd72c928639bea"
    )
    assert webhook.counts == {"delivered": 1}


async def test_it_is_tried_again_so_many_times_and_no_more() -> None:
    """A receiver that is down for a night must not be called for a night."""
    hook = Hook(500, None, 429, 503)
    webhook = hook.webhook()
    webhook.tell("m", 3, {})
    await settled(webhook)
    assert len(hook.got) == TARGET.attempts
    assert hook.naps == [1.0, 2.0, 4.0]
    assert webhook.counts == {"failed": 1}
    assert max(min(BACKOFF_S_MAX, 2.0**n) for n in range(10)) == BACKOFF_S_MAX


async def test_a_refusal_is_final() -> None:
    """404 does not get better by asking; the next change is told again."""
    hook = Hook(404)
    webhook = hook.webhook()
    webhook.tell("m", 3, {})
    await settled(webhook)
    assert (len(hook.got), webhook.counts["failed"]) == (1, 1)
    webhook.tell("m", 4, {})
    await settled(webhook)
    assert webhook.counts["delivered"] == 1


async def test_newer_news_of_a_pool_take_the_place_of_older() -> None:
    """Late advice that overtakes itself would scale the wrong way."""
    hook = Hook(500)
    hook.is_open.clear()
    webhook = hook.webhook()
    webhook.tell("m", 3, {"replicas": 3})
    task = asyncio.ensure_future(webhook.run())
    await asyncio.sleep(0)
    for replicas in (4, 5):
        webhook.tell("m", replicas, {"replicas": replicas})
    hook.is_open.set()
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [told["replicas"] for told in hook.told()] == [3, 5]
    assert webhook.counts == {"superseded": 2, "delivered": 1}


async def test_what_waits_to_be_told_is_bounded_and_holds_nobody_up() -> None:
    """A receiver that hangs must cost neither memory nor a turn of the loop."""
    hook = Hook()
    webhook = hook.webhook()
    for number in range(PENDING_MAX + 10):
        webhook.tell(f"m{number}", 1, {"replicas": 1})
    assert webhook.counts["dropped"] == 10
    await settled(webhook, turns=3 * PENDING_MAX)
    assert webhook.counts["delivered"] == PENDING_MAX


async def test_without_an_address_nothing_is_kept() -> None:
    """Switched off it costs nothing, and switched on it tells no old news."""
    hook = Hook()
    webhook = hook.webhook(None)
    webhook.tell("m", 3, {})
    webhook.target = TARGET
    await settled(webhook)
    assert hook.got == []


@pytest.mark.parametrize("answer", [b"HTTP/1.1 204 No Content\r\n\r\n", b"", None])
async def test_over_http_it_ends_within_its_time(answer: bytes | None) -> None:
    """A receiver that accepts and says nothing is met in every company."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await asyncio.sleep(2.0)
        writer.write(answer or b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/hook"
        target = Target(url=url, secret=b"s", timeout_s=0.3, attempts=1)
        began_at = asyncio.get_running_loop().time()
        status = await posted(target, b"{}", {"content-type": "application/json"})
        assert status == (204 if answer else None)
        assert asyncio.get_running_loop().time() - began_at < 1.9
        assert "token" not in repr(TARGET)
        assert "secret'" not in repr(TARGET)
