"""The real `openai` client through a real gateway: what it reads, raises and tries again."""

import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.tenancy.keys import key_hash
from tests.support.gateway import Running, eventually, running_gateway

FAST = EmulatorOptions(profile="instant", max_num_seqs=4, embeddings=True, models=("m", "lora"))
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "Say something, please."}
]
ALICE, BATCH = "fg-alice", "fg-batch"
KEYS = [
    {"tenant": "acme", "user": "alice", "tier": "standard", "max_tier": "high",
     "key_sha256": key_hash(ALICE.encode())},
    {"tenant": "acme", "user": "batch", "tier": "background", "models": ["lora"],
     "key_sha256": key_hash(BATCH.encode())},
]  # fmt: skip


def sdk(running: Running, api_key: str = "sk-any", retries: int = 0) -> AsyncOpenAI:
    """The client as a user sets it up."""
    return AsyncOpenAI(base_url=f"{running.url}/v1", api_key=api_key, max_retries=retries)


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """One quick engine with a model and an adapter."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator) -> AsyncIterator[Running]:
    """An open gateway before it."""
    async with running_gateway(engine.url) as gateway:
        yield gateway


@pytest.fixture
async def guarded(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway with keys before it."""
    async with running_gateway(engine.url, keys=KEYS) as gateway:
        yield gateway


async def test_a_chat_is_answered_with_its_usage(running: Running) -> None:
    """The commonest call of all."""
    async with sdk(running) as client:
        answer = await client.chat.completions.create(
            model="m", messages=MESSAGES, max_completion_tokens=8
        )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer._request_id, "what a user quotes to the operator"


async def test_a_stream_says_the_same_as_a_plain_answer(running: Running) -> None:
    """Token by token, and the usage last."""
    async with sdk(running) as client:
        plain = await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=8, temperature=0
        )
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=8, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == plain.choices[0].message.content
    assert chunks[-1].usage == plain.usage
    await eventually(lambda: running.in_flight == 0)


async def test_completions_embeddings_and_models_work(running: Running) -> None:
    """Older tools, retrieval, and whatever fills a menu."""
    async with sdk(running) as client:
        completion = await client.completions.create(model="m", prompt=["a", "b"], max_tokens=3)
        stream = await client.completions.create(model="m", prompt="a", max_tokens=3, stream=True)
        parts = [chunk.choices[0].text async for chunk in stream]
        vectors = await client.embeddings.create(model="m", input=["a", "b"])
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("lora")
    assert len(completion.choices) == 2
    assert any(parts)
    assert len(vectors.data) == 2
    assert vectors.data[0].embedding
    assert sorted(models) == ["lora", "m"]
    assert one.id == "lora"


async def test_the_service_tier_is_honoured_and_reported(running: Running) -> None:
    """OpenAI's own words; what comes back is the tier that was used."""
    async with sdk(running) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=MESSAGES, max_tokens=2, service_tier="flex"
        )
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=2, service_tier="priority", stream=True
        )
        tiers = {chunk.service_tier async for chunk in stream}
        untold = await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=2)
    assert raw.headers["x-fairgate-tier"] == "background"
    assert raw.parse().service_tier == "flex"
    assert tiers == {"priority"}
    assert untold.service_tier is None, "who did not ask is not told"


async def test_a_bad_request_is_a_bad_request_error(running: Running) -> None:
    """The gateway's own and the engine's look the same."""
    async with sdk(running, retries=2) as client:
        with pytest.raises(openai.BadRequestError) as ours:
            await client.chat.completions.create(model="m", messages=MESSAGES, n=10_000)
        with pytest.raises(openai.BadRequestError) as engines:
            await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=10**7)
    assert (ours.value.param, ours.value.code) == ("n", "invalid_request")
    assert "max_sequences" in ours.value.message
    assert engines.value.code == "invalid_request"
    assert "max_tokens" in engines.value.message


async def test_an_unknown_model_is_a_not_found_error(running: Running) -> None:
    """Spelt wrong: found out at once, not after the queue."""
    async with sdk(running) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nope", messages=MESSAGES)
        with pytest.raises(openai.NotFoundError) as unlisted:
            await client.models.retrieve("nope")
    assert missing.value.code == unlisted.value.code == "model_not_found"
    assert missing.value.type == "invalid_request_error"


async def test_spent_patience_is_a_rate_limit_error_that_says_when_to_come_back() -> None:
    """SDKs wait as long as they are told, and guess when they are not."""
    slow = EmulatorOptions(profile="demo", max_num_seqs=1)
    async with (
        running_emulator(slow) as engine,
        running_gateway({"url": engine.url, "max_num_seqs": 1}) as running,
        sdk(running) as client,
    ):

        async def ask(patience_s: float) -> None:
            await client.chat.completions.create(
                model="emulated", messages=MESSAGES, max_tokens=500,
                extra_headers={"x-fairgate-patience-s": str(patience_s)},
            )  # fmt: skip

        blockers = [asyncio.create_task(ask(60.0)) for _ in range(3)]
        await eventually(lambda: running.in_flight == 3)
        with pytest.raises(openai.RateLimitError) as refused:
            await ask(0.05)
        for blocker in blockers:
            blocker.cancel()
        await asyncio.gather(*blockers, return_exceptions=True)
        await eventually(lambda: running.in_flight == 0)
    assert refused.value.code == "patience_spent"
    headers = refused.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 30
    assert int(headers["retry-after-ms"]) >= 1000


@pytest.mark.parametrize("streams", [True, False])
async def test_an_engine_that_fails_is_an_internal_server_error_or_tried_again(
    engine: Emulator, running: Running, streams: bool
) -> None:
    """With one replica there is nobody else to ask: the client's own retry is the last resort."""

    async def ask(client: AsyncOpenAI) -> object:
        return await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=2, stream=streams
        )

    engine.faults.inject("error-500*1")
    async with sdk(running) as client:
        with pytest.raises(openai.InternalServerError) as failed:
            await ask(client)
    assert failed.value.code == "upstream_failed"
    engine.faults.inject("error-500*1")
    async with sdk(running, retries=1) as client:
        assert await ask(client)
    await eventually(lambda: running.in_flight == 0)


@pytest.mark.parametrize("fault", ["die-midstream:2", "close-midstream:2", "error-midstream:2"])
async def test_a_stream_that_breaks_raises_and_does_not_just_end(
    engine: Emulator, running: Running, fault: str
) -> None:
    """The SDK takes a stream that merely ends for a success, and the user for the whole answer."""
    engine.faults.inject(fault)
    parts = 0

    async def read_all(stream: AsyncIterator[object]) -> None:
        nonlocal parts
        async for _ in stream:
            parts += 1

    async with sdk(running, retries=2) as client:
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=8, stream=True
        )
        with pytest.raises(openai.APIError) as broken:
            await read_all(stream)
    assert parts == 2
    assert broken.value.message
    assert len(engine.received) == 1, "nothing is sent again once something was delivered"


async def test_comments_while_waiting_are_not_taken_for_chunks() -> None:
    """After an `id:` field, or with data in it, a comment would break the SDK's decoder."""
    slow = EmulatorOptions(profile="demo", max_num_seqs=1)
    async with (
        running_emulator(slow) as engine,
        running_gateway({"url": engine.url, "max_num_seqs": 1}, keepalive_after_s=0.02) as running,
        sdk(running) as client,
    ):

        async def ask(tokens: int) -> list[str]:
            stream = await client.chat.completions.create(
                model="emulated", messages=MESSAGES, max_tokens=tokens, stream=True
            )
            return [chunk.choices[0].delta.content or "" async for chunk in stream]

        answers = await asyncio.gather(*(ask(6) for _ in range(5)))
    assert all(any(parts) for parts in answers)


async def test_a_wrong_key_is_an_authentication_error(guarded: Running, engine: Emulator) -> None:
    """And costs no engine anything."""
    for api_key in ("fg-wrong", ALICE + "x", key_hash(ALICE.encode())):
        async with sdk(guarded, api_key, retries=2) as client:
            with pytest.raises(openai.AuthenticationError) as refused:
                await client.chat.completions.create(model="m", messages=MESSAGES)
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        assert refused.value.code == "invalid_api_key"
        assert refused.value.type == "authentication_error"
    assert engine.received == ()


async def test_a_key_has_its_tier_and_may_ask_up_to_its_best(guarded: Running) -> None:
    """From the configuration, where only the key's hash stands."""

    async def tier(**asked: str) -> str:
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=MESSAGES, max_tokens=1, extra_headers=asked
        )
        return raw.headers["x-fairgate-tier"]

    async with sdk(guarded, ALICE) as client:
        assert await tier() == "standard"
        assert await tier(**{"x-fairgate-tier": "background"}) == "background"
        assert await tier(**{"x-fairgate-tier": "critical"}) == "high"
        with pytest.raises(openai.BadRequestError):
            await tier(**{"x-fairgate-tier": "gold"})


async def test_a_key_sees_and_uses_only_its_models(guarded: Running) -> None:
    """What it may not use does not exist for it."""
    async with sdk(guarded, BATCH) as client:
        assert [model.id async for model in client.models.list()] == ["lora"]
        with pytest.raises(openai.NotFoundError) as forbidden:
            await client.chat.completions.create(model="m", messages=MESSAGES)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="x", messages=MESSAGES)
        answer = await client.chat.completions.create(model="lora", messages=MESSAGES, max_tokens=1)
    assert forbidden.value.message == unknown.value.message.replace("`x`", "`m`")
    assert answer.model == "lora"


async def test_the_callers_key_never_reaches_the_engine(guarded: Running, engine: Emulator) -> None:
    """Gateways have handed their users' keys to whatever listened behind them."""
    secrets = {"cookie": "session=1", "x-secret": "s3cret", "openai-organization": "org"}
    async with sdk(guarded, ALICE) as client:
        await client.chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=1, extra_headers=secrets
        )
    (received,) = engine.received
    assert {name for name, _ in received.headers} == {
        "host", "user-agent", "accept-encoding", "content-type", "content-length", "x-request-id",
    }  # fmt: skip
    assert ALICE not in repr(received)


TOOL: openai.types.chat.ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.mark.parametrize("streams", [True, False])
async def test_a_tool_is_called(running: Running, streams: bool) -> None:
    """Its arguments are JSON that must not lose a character on the way."""
    asks: dict[str, Any] = {
        "model": "m", "messages": MESSAGES, "tools": [TOOL], "max_tokens": 64,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }  # fmt: skip
    async with sdk(running) as client:
        if streams:
            parts = [chunk async for chunk in await client.chat.completions.create(
                **asks, stream=True
            )]  # fmt: skip
            calls = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
            name = calls[0].function.name
            arguments = "".join(call.function.arguments or "" for call in calls)
        else:
            answer = await client.chat.completions.create(**asks)
            (call,) = answer.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
    assert name == "weather"
    assert isinstance(json.loads(arguments), dict)


async def test_a_response_is_made_fetched_and_gone_on_from(running: Running) -> None:
    """The newer of OpenAI's two languages: its state lies in the engine."""
    async with sdk(running) as client:
        first = await client.responses.create(model="m", input="hello", max_output_tokens=6)
        again = await client.responses.retrieve(first.id)
        second = await client.responses.create(
            model="m", input="and then?", max_output_tokens=6, previous_response_id=first.id
        )
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(first.id)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.retrieve("resp_unknown")
    assert first.output_text
    assert again.output_text == first.output_text
    assert second.previous_response_id == first.id
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert unknown.value.code == "response_not_found"


async def test_a_response_in_the_background_is_cancelled(
    engine: Emulator, running: Running
) -> None:
    """Nobody waits for it, and the engine must not either."""
    engine.faults.inject("freeze")
    async with sdk(running) as client:
        queued = await client.responses.create(
            model="m", input="hello", max_output_tokens=4000, background=True
        )
        cancelled = await client.responses.cancel(queued.id)
    assert (queued.status, cancelled.status) == ("queued", "cancelled")
    await eventually(lambda: engine.engine.running + engine.engine.waiting == 0)


async def test_a_streamed_response_is_a_sequence_of_named_events(running: Running) -> None:
    """From its announcement to its completion, with the text in between."""
    async with sdk(running) as client:
        stream = await client.responses.create(
            model="m", input="hello", max_output_tokens=6, stream=True
        )
        events = [event async for event in stream]
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1]
    assert events[0].type == "response.created"
    assert last.type == "response.completed"
    assert text == last.response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("fault", ["die-midstream:5", "close-midstream:5"])
async def test_a_streamed_response_that_breaks_raises(
    engine: Emulator, running: Running, fault: str
) -> None:
    """Without the completion its reader would wait, or take what it has for all."""
    engine.faults.inject(fault)
    async with sdk(running, retries=2) as client:
        stream = await client.responses.create(
            model="m", input="hello", max_output_tokens=6, stream=True
        )
        with pytest.raises(openai.APIError) as broken:
            async for _ in stream:
                pass
    assert broken.value.code == "upstream_failed"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("streams", [True, False])
async def test_speech_is_transcribed_byte_for_byte(running: Running, streams: bool) -> None:
    """What the engine hears is named by its length and checksum: the upload arrived unharmed."""
    sound = bytes(range(256)) * 1_000
    asks: dict[str, Any] = {"model": "m", "file": ("speech.wav", sound)}
    async with sdk(running) as client:
        if streams:
            stream = await client.audio.transcriptions.create(**asks, stream=True)
            parts = [part.model_extra async for part in stream]
            text = "".join(part["choices"][0]["delta"]["content"] for part in parts if part)
        else:
            text = (await client.audio.transcriptions.create(**asks)).text
        translated = await client.audio.translations.create(**asks)
    heard = f"{len(sound)} bytes with checksum {sha256(sound).hexdigest()}."
    assert text == f"A transcription of {heard}"
    assert translated.text == f"A translation of {heard}"
