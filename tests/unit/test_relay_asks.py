"""What the relay asks the gate for: everything of a request that the scheduler can decide by."""

import asyncio
import logging
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from gateway.api.auth import Asking
from gateway.api.models import ModelTable
from gateway.api.prefix import Prefixes
from gateway.api.relay import Relay
from gateway.api.routes import CHAT, EMBEDDINGS, MESSAGES, RESPONSES, Route
from gateway.core.messages import Reason, Request
from gateway.core.policy import Bounds
from gateway.errors import RefusedError
from gateway.runtime.gate import Grant, Waits
from gateway.telemetry.record import SettledRequest
from gateway.tenancy.keys import Keyring, Principal
from gateway.tenancy.users import UserNames
from gateway.upstream.fleet import Fleet

ANYBODY = Principal(tenant="acme", user="app", tier=0, max_tier=0)
LONG = "It was a bright cold day in April. " * 50


class ShutGate:
    """Remembers what it is asked for and refuses it."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        self.asked: list[Request] = []

    @asynccontextmanager
    async def admitted(self, request: Request, waits: Waits | None = None) -> AsyncIterator[Grant]:
        """Never: raises RefusedError."""
        self.asked.append(request)
        raise RefusedError(self.reason, 7.0)
        yield


class FaultyGate(ShutGate):
    """Has a fault of our own making."""

    @asynccontextmanager
    async def admitted(self, request: Request, waits: Waits | None = None) -> AsyncIterator[Grant]:
        """Never: raises ValueError."""
        self.asked.append(request)
        raise ValueError("a fault")
        yield


class Client:
    """Sends one request to a relay and keeps the answer."""

    def __init__(
        self,
        *,
        prefixes: Prefixes | None = None,
        reason: Reason = Reason.QUEUE_FULL,
        gate: ShutGate | None = None,
    ) -> None:
        self.gate = gate or ShutGate(reason)
        self.settled: list[SettledRequest] = []
        self.sent: list[MutableMapping[str, Any]] = []
        fleet = Fleet(
            tell=lambda _: None,
            clock=lambda: 5.0,
            scrape_interval_s=1.0,
            stream_buffer_bytes=1,
            is_hungry=lambda _: False,
        )
        self.relay = Relay(
            gate=self.gate,
            fleet=fleet,
            keyring=Keyring({}, ANYBODY),
            asking=Asking(
                tier_ranks={"all": 0},
                service_tiers={},
                users=UserNames(1, clock=lambda: 5.0),
            ),
            models=ModelTable(configured=frozenset({"m"}), aliases={"alias": "m"}, cards=dict),
            bounds=Bounds(),
            tiers=("all",),
            keepalive_after_s=5.0,
            clock=lambda: 5.0,
            settled=self.settled.append,
            prefixes=prefixes,
        )

    async def send(self, body: dict[str, object], route: Route = CHAT, **headers: str) -> Request:
        """What the gate was asked for; underscores of header names stand for dashes."""
        pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        messages = [{"type": "http.request", "body": orjson.dumps(body)}]

        async def receive() -> MutableMapping[str, Any]:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def keep(message: MutableMapping[str, Any]) -> None:
            self.sent.append(message)

        await self.relay({"type": "http", "headers": pairs}, receive, keep, route)
        return self.gate.asked[-1]


def chat(text: str, model: str = "m") -> dict[str, object]:
    """A chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}]}


async def test_the_beginning_of_a_prompt_is_told_where_something_is_decided_by_it() -> None:
    """A conversation would be computed anew on whichever replica is free."""
    client = Client(prefixes=Prefixes())
    first = await client.send(chat(LONG))
    assert len(first.prefix) == 6
    assert (await client.send(chat(LONG, model="alias"))).prefix == first.prefix
    assert (await Client().send(chat(LONG))).prefix == ()


async def test_what_decodes_nothing_has_no_beginning_to_be_cached() -> None:
    """Embeddings leave no KV behind; hashing them would be work for nothing."""
    client = Client(prefixes=Prefixes())
    assert (await client.send({"model": "m", "input": LONG}, EMBEDDINGS)).prefix == ()


async def test_session_and_read_timeout_reach_the_scheduler() -> None:
    """A header that is read and then dropped helps nobody."""
    client = Client()
    asked = await client.send(chat("Hi"), x_session_id="s1", x_stainless_read_timeout="60")
    assert asked.session is not None
    assert asked.session.endswith(" s1")
    assert (asked.read_timeout_s, asked.patience_s) == (60.0, None)


@pytest.mark.parametrize(
    ("reason", "status", "code", "hints"),
    [
        (Reason.PROMPT_TOO_LONG, 400, "context_length_exceeded", set()),
        (Reason.WAIT_TOO_LONG, 429, "patience_spent", {b"retry-after", b"retry-after-ms"}),
        (Reason.TENANT_QUEUE_FULL, 429, "rate_limit_exceeded", {b"retry-after", b"retry-after-ms"}),
    ],
)
async def test_a_refusal_on_arrival_is_told_with_its_own_status(
    reason: Reason, status: int, code: str, hints: set[bytes]
) -> None:
    """A stream is refused like a plain request as long as its headers are not out."""
    client = Client(reason=reason)
    await client.send({**chat("Hi"), "stream": True})
    begun, body = client.sent[0], client.sent[-1]
    assert begun["status"] == status
    assert orjson.loads(body["body"])["error"]["code"] == code
    assert {name for name, _ in begun["headers"] if name.startswith(b"retry")} == hints


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES], ids=lambda route: route.name)
async def test_a_fault_of_the_gateway_is_told_logged_and_counted(
    route: Route, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that just ends leaves client and operator without a word."""
    client = Client(gate=FaultyGate(Reason.QUEUE_FULL))
    caplog.set_level(logging.ERROR, "fairgate.relay")
    await client.send({**chat("Hi"), "input": "Hi", "stream": streams}, route)
    begun, body = client.sent
    assert begun["status"] == 500
    assert orjson.loads(body["body"])["error"]["code"] == "internal_error"
    assert "a fault" not in body["body"].decode(), "what went wrong is the operator's to know"
    assert "a fault" in caplog.text
    (record,) = client.settled
    assert (record.outcome, record.status) == ("internal_error", 500)
