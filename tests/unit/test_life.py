"""The notebook of one request: each attempt is new to the engine and old to the queue."""

import asyncio

import pytest

from gateway.api.auth import Asked
from gateway.api.life import Life
from gateway.api.routes import CHAT, COMPLETIONS
from gateway.api.wire import parse
from gateway.errors import UpstreamFailedError

TIERS = ("high", "low")


@pytest.fixture
def life() -> Life:
    """A request that was read, at instant 10."""
    life = Life(request_id="abc", route=CHAT, began_at=10.0)
    body = b'{"model":"alias","n":2,"max_tokens":5,"stream":true}'
    life.call = asyncio.run(parse(CHAT, body, 8))
    life.model = "real"
    life.asked = Asked("acme", "alice", 1, 30.0, session="s1", read_timeout_s=60.0)
    life.prefix = (7, 8)
    return life


def test_every_attempt_has_an_id_of_its_own_and_the_arrival_of_the_first(life: Life) -> None:
    """Engines have broken on an id seen twice; a retry must not go to the end of the line."""
    first = life.next_request(frozenset())
    second = life.next_request(frozenset({"gpu0"}))
    assert (first.id, second.id) == ("abc-1", "abc-2")
    assert first.arrived_at == second.arrived_at == 10.0
    assert second.excluded == {"gpu0"}


def test_the_scheduler_is_told_what_the_request_is(life: Life) -> None:
    """By the engine's name of the model, whatever alias the client used."""
    request = life.next_request(frozenset())
    assert (request.model, request.tenant, request.user, request.tier) == (
        "real", "acme", "alice", 1,
    )  # fmt: skip
    assert (request.sequences, request.output_tokens_max, request.streams) == (2, 5, True)
    assert (request.patience_s, request.route, request.body_bytes) == (30.0, "chat", 52)
    assert (request.session, request.read_timeout_s, request.prefix) == ("s1", 60.0, (7, 8))
    assert (request.prompt_tokens, request.ttft_target_s) == (None, None)


def test_the_scheduler_is_told_the_exact_length_of_a_prompt_in_tokens() -> None:
    """Estimated from its bytes, a prompt written as numbers looks three times as long."""
    life = Life(request_id="abc", route=COMPLETIONS, began_at=10.0)
    life.call = asyncio.run(parse(COMPLETIONS, b'{"prompt":[10001,10002,10003]}', 8))
    life.asked = Asked("acme", "alice", 1, None)
    assert life.next_request(frozenset()).prompt_tokens == 3


def test_the_record_adds_up(life: Life) -> None:
    """Overhead is what neither the queue nor the engine explains."""
    life.next_request(frozenset())
    life.waited_s, life.sent_at, life.first_at = 3.0, 13.25, 14.0
    life.replica = "gpu0"
    record = life.record(20.0, 200, TIERS)
    assert (record.overhead_s, record.ttft_s, record.duration_s) == (0.25, 4.0, 10.0)
    assert (record.tier, record.outcome, record.status, record.attempts) == ("low", "done", 200, 1)
    assert (record.session, record.prefix) == ("s1", life.prefix)


def test_a_request_that_was_never_sent_has_no_first_token(life: Life) -> None:
    """It was refused or given up in the queue."""
    life.failed(UpstreamFailedError("no"))
    life.waited_s = 7.0
    record = life.record(17.0, 502, TIERS)
    assert (record.ttft_s, record.overhead_s, record.outcome) == (None, 0.0, "upstream_failed")


def test_overhead_is_never_negative(life: Life) -> None:
    """A retry was sent first before it waited for the second time."""
    life.sent_at, life.waited_s = 10.5, 4.0
    assert life.record(20.0, 200, TIERS).overhead_s == 0.0
