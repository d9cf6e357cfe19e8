"""A request and its limits: what is reserved for it, what it is told, what it is charged."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.api.auth import Asked
from gateway.api.life import Life
from gateway.api.limiting import Limiting, duration
from gateway.api.reply import Reply
from gateway.api.routes import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, Route
from gateway.api.wire import parse
from gateway.core.messages import Request, Usage
from gateway.errors import BeyondLimitError, RateLimitedError
from gateway.tenancy.limits import Allowance, Limits, Owner
from tests.unit.test_budget import NOON

ACME = Owner("tenant", "acme")
PROMPT, OUTPUT = 100, 40
PLENTY = Allowance(requests_per_minute=10, tokens_per_minute=10_000, budget_tokens=100_000)


class Door:
    """Lets requests of one tenant in, and settles them."""

    def __init__(self, allowance: Allowance = PLENTY) -> None:
        self.limits = Limits(lambda: 1000.0, lambda: NOON)
        self.limits.configure({ACME: allowance})
        self.limiting = Limiting(self.limits, self._estimate, lambda: NOON)
        self.estimated: list[Request] = []
        self.reply = Reply(self._send, b"id")

    def _estimate(self, request: Request) -> tuple[int, int]:
        self.estimated.append(request)
        return PROMPT, OUTPUT

    async def _send(self, _: Any) -> None:
        """Nobody listens."""

    def admitted(self, route: Route = CHAT, **fields: Any) -> Life:
        """A request that was let in."""
        life = Life(request_id="x", route=route, began_at=0.0)
        life.call = asyncio.run(parse(route, orjson.dumps({"model": "m", **fields}), 128))
        life.model = "m"
        life.asked = Asked("acme", "alice", 0, None)
        self.limiting.admit(life, self.reply, "k1")
        return life

    @property
    def used(self) -> tuple[int, int, int]:
        """(requests, tokens a minute, tokens of the budget)"""
        (holder,) = self.limits.holders_of("acme", "", "")
        spent = self.limits.books.spent((holder.id, "2026-11"))
        return holder.requests.used, holder.tokens.used, spent

    @property
    def told(self) -> dict[str, str]:
        """Headers."""
        return {name.decode(): value.decode() for name, value in self.reply._headers}


@pytest.mark.parametrize(
    ("route", "fields", "tokens"),
    [
        (CHAT, {"max_tokens": 7}, PROMPT + 7),
        (CHAT, {"max_tokens": 7, "n": 3}, PROMPT + 21),
        (CHAT, {}, PROMPT + OUTPUT),
        (CHAT, {"n": 3}, PROMPT + 3 * OUTPUT),
        (EMBEDDINGS, {"input": ["a", "b"]}, PROMPT),
        (COUNT_TOKENS, {"messages": []}, 0),
    ],
)
def test_the_clients_maximum_is_reserved_or_else_what_is_likely(
    route: Route, fields: dict[str, Any], tokens: int
) -> None:
    """Too little lets the budget be overrun, too much refuses what would fit."""
    door = Door()
    door.admitted(route, **fields)
    assert door.used == (1, tokens, tokens)


def test_an_image_is_no_prompt_of_its_length() -> None:
    """A photo of two megabytes is a thousand tokens, not half a million."""
    door = Door()
    life = Life(request_id="x", route=CHAT, began_at=0.0)
    life.call = asyncio.run(parse(CHAT, b'{"model":"m"}' + b" " * 2000, 1))
    life.asked = Asked("acme", "alice", 0, None)
    life.media_bytes = 1900
    door.limiting.admit(life, door.reply, "")
    assert door.estimated[0].body_bytes == life.call.size - 1900


@pytest.mark.parametrize(
    ("state", "used"),
    [
        # Refused by the scheduler, or no replica answered.
        ({"outcome": "over_capacity", "status": 429}, (0, 0, 0)),
        ({"outcome": "patience_spent", "status": 429, "sent_at": 1.0}, (0, 0, 0)),
        ({"outcome": "upstream_failed", "status": 502, "sent_at": 1.0}, (0, 0, 0)),
        # The client's own mistake, which an engine has looked at.
        ({"outcome": "invalid_request", "status": 400, "sent_at": 1.0}, (1, 0, 0)),
        ({"outcome": "invalid_request", "status": 400}, (0, 0, 0)),
        # Left while it waited; after it was sent; in the middle of its stream.
        ({"outcome": "cancelled"}, (0, 0, 0)),
        ({"outcome": "cancelled", "sent_at": 1.0}, (1, PROMPT, PROMPT)),
        ({"outcome": "cancelled", "sent_at": 1.0, "usage": Usage(output_tokens=3)},
         (1, PROMPT + 3, PROMPT + 3)),
        ({"outcome": "cancelled", "sent_at": 1.0, "first_at": 2.0,
          "usage": Usage(output_tokens=3)}, (1, PROMPT + 3, PROMPT + 3)),
        ({"outcome": "client_stalled", "sent_at": 1.0, "first_at": 2.0,
          "usage": Usage(output_tokens=3)}, (1, PROMPT + 3, PROMPT + 3)),
        # It broke in the middle.
        ({"outcome": "upstream_failed", "status": 200, "sent_at": 1.0, "first_at": 2.0,
          "usage": Usage(output_tokens=3)}, (1, PROMPT + 3, PROMPT + 3)),
        # It went well: cached tokens are tokens.
        ({"status": 200, "sent_at": 1.0, "first_at": 2.0,
          "usage": Usage(prompt_tokens=80, output_tokens=900, cached_tokens=60)}, (1, 980, 980)),
        # It went well, and the engine did not say what it took.
        ({"status": 200, "sent_at": 1.0, "first_at": 2.0}, (1, PROMPT + 7, PROMPT + 7)),
    ],
)  # fmt: skip
def test_what_ran_is_charged_and_what_did_not_is_given_back(
    state: dict[str, Any], used: tuple[int, int, int]
) -> None:
    """A user pays for what engines did for him: not more, and not less."""
    door = Door()
    life = door.admitted(max_tokens=7)
    status = state.pop("status", 0)
    for name, value in state.items():
        setattr(life, name, value)
    for _ in range(2):
        door.limiting.settle(life, status)
        assert door.used == used


def test_what_is_left_is_told_in_openais_words() -> None:
    """Clients that pace themselves read these, and would run into the wall without them."""
    door = Door()
    door.admitted(max_tokens=7)
    assert {name: text for name, text in door.told.items() if "ratelimit" in name} == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "1m1s",
        "x-ratelimit-limit-tokens": "10000",
        "x-ratelimit-remaining-tokens": str(10_000 - PROMPT - 7),
        "x-ratelimit-reset-tokens": "1m1s",
    }


def test_anthropics_clients_are_told_in_their_words_too() -> None:
    """Their reset is an instant."""
    door = Door(Allowance(tokens_per_minute=10_000))
    door.admitted(MESSAGES, max_tokens=7)
    assert {name: text for name, text in door.told.items() if name.startswith("anthropic")} == {
        "anthropic-ratelimit-tokens-limit": "10000",
        "anthropic-ratelimit-tokens-remaining": str(10_000 - PROMPT - 7),
        "anthropic-ratelimit-tokens-reset": "2026-11-30T12:01:01Z",
    }


def test_a_refusal_tells_how_the_limits_stand_and_holds_nothing() -> None:
    """Who is refused most needs to know."""
    door = Door(Allowance(requests_per_minute=1, tokens_per_minute=10_000))
    door.admitted(max_tokens=7)
    door.reply = Reply(door._send, b"id")
    with pytest.raises(RateLimitedError):
        door.admitted(max_tokens=7)
    assert door.told["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(BeyondLimitError):
        door.admitted(max_tokens=10_000)
    assert door.used[:2] == (1, PROMPT + 7)


def test_who_has_no_limits_is_neither_estimated_nor_told() -> None:
    """What is switched off costs nothing."""
    door = Door(Allowance())
    life = door.admitted(max_tokens=7)
    assert life.reservation is None
    assert door.estimated == []
    assert door.told == {"x-request-id": "id"}
    door.limiting.settle(life, 200)


def test_who_may_run_how_many_is_left_to_the_scheduler() -> None:
    """What is more than that waits, and is not refused."""
    life = Door(Allowance(concurrent=3)).admitted()
    assert life.caps == (("tenant:acme", 3),)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, b"0ms"), (0.0121, b"13ms"), (1.0, b"1s"), (59.2, b"1m0s"), (61.0, b"1m1s")],
)
def test_durations_are_written_as_sdks_read_them(seconds: float, text: bytes) -> None:
    """A number without a unit is read as anything between milliseconds and hours."""
    assert duration(seconds) == text
