"""The emulated engine under the real openai client: what users hold must be able to read it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Emulator, openai.AsyncOpenAI]]:
    """An emulator, and a client that does not try again."""
    async with running_emulator(EmulatorOptions(profile="instant")) as emulator:
        url = f"{emulator.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            yield emulator, client


async def test_responses_are_read_whole_and_as_events() -> None:
    """Events that the library does not know are dropped in silence."""
    async with running() as (_, client):
        whole = await client.responses.create(model="emulated", input="hi", max_output_tokens=5)
        stream = await client.responses.create(
            model="emulated", input="hi", max_output_tokens=5, stream=True
        )
        events = [event async for event in stream]
        found = await client.responses.retrieve(whole.id)
    assert whole.output_text
    assert found.output_text == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens == 5
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text


async def test_a_failing_stream_of_a_response_is_told() -> None:
    """Silence after half an answer would be taken for its end."""
    async with running() as (emulator, client):
        emulator.faults.inject("error-midstream:5")
        stream = await client.responses.create(model="emulated", input="hi", stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "error"
    assert events[-1].message.startswith("EngineCore")


async def test_speech_is_transcribed() -> None:
    """The library builds the form that the gateway must not touch."""
    speech = ("a.wav", b"RIFF" * 100)
    async with running() as (emulator, client):
        heard = await client.audio.transcriptions.create(model="emulated", file=speech)
        sizes = {upload.size_bytes for upload in emulator.uploads}
    assert heard.text.startswith("A transcription of 400 bytes")
    assert sizes == {400}


async def test_a_tool_is_called_in_a_response() -> None:
    """Its item would not be recognised."""
    async with running() as (_, client):
        response = await client.responses.create(
            model="emulated", input="hi", tools=[WEATHER], tool_choice="required"
        )
    (item,) = response.output
    assert item.type == "function_call"
    assert (item.name, item.arguments) == ("weather", "{}")
