"""The real `anthropic` client through a real gateway: what it reads, raises and tries again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic

from gateway.emulator.options import EmulatorOptions
from gateway.tenancy.keys import key_hash
from tests.support.gateway import eventually
from tests.support.house import House, house

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAST = EmulatorOptions(profile="instant", max_num_seqs=4)
SLOW = EmulatorOptions(profile="demo", max_num_seqs=1)
KEYS = [
    {"tenant": "acme", "user": "alice", "tier": "standard", "key_sha256": key_hash(b"fg-alice")}
]
TURNS: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Say something."}]
ASKS: dict[str, Any] = {"model": "emulated", "messages": TURNS, "max_tokens": 8}
WEATHER: anthropic.types.ToolParam = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def sdk(house: House, api_key: str = "fg-alice", retries: int = 0) -> AsyncAnthropic:
    """The client as a user sets it up."""
    return AsyncAnthropic(base_url=house.running.url, api_key=api_key, max_retries=retries)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    """A gateway with keys before one quick engine, for all tests of this file."""
    async with house(FAST, keys=KEYS) as whole:
        yield whole


@pytest.fixture
def alone(built: House) -> House:
    """The same, without faults, and nothing was asked of it yet."""
    built.forget()
    return built


async def test_a_message_is_answered_with_its_usage(alone: House) -> None:
    """The commonest call of all."""
    async with sdk(alone) as client:
        answer = await client.messages.create(**ASKS)
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 8)
    assert answer.usage.input_tokens > 0
    assert answer._request_id, "what a user quotes to the operator"
    record = await alone.settle()
    assert record.usage is not None
    assert record.usage.output_tokens == 8


async def test_a_stream_says_the_same_as_a_plain_answer(alone: House) -> None:
    """Piece by piece, and the whole message at the end."""
    asks = {**ASKS, "extra_body": {"temperature": 0}}
    async with sdk(alone) as client:
        plain = await client.messages.create(**asks)
        async with client.messages.stream(**asks) as stream:
            pieces = [piece async for piece in stream.text_stream]
            whole = await stream.get_final_message()
    assert plain.content[0].type == "text"
    assert "".join(pieces) == plain.content[0].text
    assert whole.usage.output_tokens == plain.usage.output_tokens
    assert whole.content[0].type == "text"
    assert whole.content[0].text == plain.content[0].text


async def test_tokens_are_counted(alone: House) -> None:
    """Agents ask before they send what may be too long."""
    async with sdk(alone) as client:
        count = await client.messages.count_tokens(model="emulated", messages=TURNS)
        answer = await client.messages.create(**ASKS)
    assert count.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize("streams", [True, False])
async def test_a_tool_is_called(alone: House, streams: bool) -> None:
    """Most of what agents do."""
    asks = {
        **ASKS, "tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"},
        "max_tokens": 64,
    }  # fmt: skip
    async with sdk(alone) as client:
        if streams:
            async with client.messages.stream(**asks) as stream:
                answer: anthropic.types.Message = await stream.get_final_message()
        else:
            answer = await client.messages.create(**asks)
    (block,) = answer.content
    assert block.type == "tool_use"
    assert block.name == "weather"
    assert isinstance(block.input, dict)


async def test_errors_are_raised_as_what_they_are(alone: House) -> None:
    """Programs decide by the class; each says where it can be looked up."""
    async with sdk(alone, retries=2) as client:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**{**ASKS, "model": "nope"})
        with pytest.raises(anthropic.BadRequestError) as engines:
            await client.messages.create(**{**ASKS, "messages": []})
        with pytest.raises(anthropic.BadRequestError) as ours:
            await client.messages.create(**ASKS, extra_headers={"x-fairgate-tier": "gold"})
    async with sdk(alone, "fg-wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            await client.messages.create(**ASKS)
    kinds = [
        (unknown, "not_found_error"), (engines, "invalid_request_error"),
        (ours, "invalid_request_error"), (wrong, "authentication_error"),
    ]  # fmt: skip
    for raised, kind in kinds:
        body: Any = raised.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == kind
        assert raised.value.request_id
    assert len(alone.seen) == 1, "none of them is worth a second try"


@pytest.mark.parametrize("streams", [True, False])
async def test_an_engine_that_fails_is_an_internal_error_or_tried_again(
    alone: House, streams: bool
) -> None:
    """With one replica there is nobody else to ask: the client's own retry is the last resort."""
    alone.engines[0].faults.inject("error-500*1")
    async with sdk(alone) as client:
        with pytest.raises(anthropic.InternalServerError) as failed:
            await client.messages.create(**ASKS, stream=streams)
    body: Any = failed.value.body
    assert (failed.value.status_code, body["error"]["type"]) == (502, "api_error")
    alone.engines[0].faults.inject("error-500*1")
    async with sdk(alone, retries=1) as client:
        assert await client.messages.create(**ASKS, stream=streams)


@pytest.mark.parametrize("fault", ["die-midstream", "close-midstream", "error-midstream"])
async def test_a_stream_that_breaks_raises_and_does_not_just_end(alone: House, fault: str) -> None:
    """The user would take half an answer for the whole."""
    alone.engines[0].faults.inject(f"{fault}:3")
    read = 0

    async def read_all(stream: AsyncIterator[object]) -> None:
        nonlocal read
        async for _ in stream:
            read += 1

    async with sdk(alone, retries=2) as client:
        stream = await client.messages.create(**ASKS, stream=True)
        with pytest.raises(anthropic.APIStatusError) as broken:
            await read_all(stream)
    assert read == 3
    body: Any = broken.value.body
    assert body["type"] == "error"
    assert len(alone.seen) == 1, "nothing is sent again once something was delivered"


async def test_pings_while_waiting_are_not_taken_for_events() -> None:
    """A comment with a place in the line means nothing to this client; a ping is skipped."""
    async with (
        house(SLOW, replica={"max_num_seqs": 1}, keepalive_after_s=0.02) as slow,
        sdk(slow) as client,
    ):

        async def ask() -> str:
            async with client.messages.stream(**ASKS) as stream:
                return await stream.get_final_text()

        answers = await asyncio.gather(*(ask() for _ in range(5)))
        assert all(answers)
        blocker = asyncio.create_task(client.messages.create(**{**ASKS, "max_tokens": 500}))
        await eventually(lambda: slow.running.in_flight)
        with pytest.raises(anthropic.RateLimitError) as refused:
            await asyncio.gather(*(
                client.messages.create(**ASKS, extra_headers={"x-fairgate-patience-s": "0.05"})
                for _ in range(4)
            ))  # fmt: skip
        blocker.cancel()
    body: Any = refused.value.body
    assert (body["error"]["type"], body["error"]["code"]) == ("rate_limit_error", "patience_spent")
    assert int(refused.value.response.headers["retry-after"]) >= 1
