"""OpenAI's Responses API of the emulated engine; its wire format is held against recordings."""

import asyncio
import json
from typing import Any

import pytest

from gateway.emulator.archive import RESPONSES_REMEMBERED_MAX
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.integration.test_emulator_wire import client_of, named_events_of

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def created(client: Any, **fields: Any) -> dict[str, Any]:
    """A response that was not streamed."""
    body = {"input": "hello", "max_output_tokens": 5, "temperature": 0, **fields}
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_found_again_until_it_was_not_to_be_stored(stream: bool) -> None:
    """Clients poll for what they sent off, and privacy is what they ask for by `store`."""
    async with client_of() as client:
        for store in (True, False):
            body = {"input": "hello", "max_output_tokens": 5, "stream": stream, "store": store}
            answer = await client.post(PATH, json=body)
            response = answer.json() if not stream else last_of(answer.content)
            found = await client.get(f"{PATH}/{response['id']}")
            assert found.status_code == (200 if store else 404)
            if store:
                assert found.json() == response


def last_of(body: bytes) -> dict[str, Any]:
    """The response in the last event."""
    response: dict[str, Any] = named_events_of(body)[-1][1]["response"]
    return response


async def test_an_id_is_known_to_one_engine_alone() -> None:
    """A gateway that asks another replica must see what that costs."""
    async with client_of() as one, client_of() as other:
        id = (await created(one))["id"]
        for method, path in (("GET", f"{PATH}/{id}"), ("POST", f"{PATH}/{id}/cancel")):
            answer = await other.request(method, path)
            assert answer.status_code == 404
            error = answer.json()["error"]
            assert error["message"] == f"Response with id '{id}' not found."
            assert (error["type"], error["param"]) == ("invalid_request_error", "response_id")
        answer = await other.post(PATH, json={"input": "x", "previous_response_id": id})
        assert answer.status_code == 404
        assert (await one.get(f"{PATH}/{id}")).status_code == 200


async def test_a_conversation_goes_on_from_a_stored_response() -> None:
    """Stickiness would be tested without anything that needs it."""
    async with client_of() as client:
        first = await created(client)
        then = await created(client, input="more", previous_response_id=first["id"])
        alone = await created(client, input="more")
    assert then["previous_response_id"] == first["id"]
    assert then["usage"]["input_tokens"] > alone["usage"]["input_tokens"]


async def test_the_first_two_events_come_before_the_engine_has_started() -> None:
    """The first event is a sign of life on every route but this one."""
    options = EmulatorOptions(profile="instant", faults=("freeze",))
    async with client_of(options) as client:
        body = {"input": "hello", "stream": True}
        async with client.stream("POST", PATH, json=body) as response:
            lines = response.aiter_lines()
            names: list[str] = []
            async with asyncio.timeout(2):
                while len(names) < 2:
                    line = await anext(lines)
                    names += [line] if line.startswith("event: ") else []
    assert names == ["event: response.created", "event: response.in_progress"]


async def test_numbers_count_all_events_of_a_stream() -> None:
    """A client that goes on after a number would miss what had none."""
    async with client_of() as client:
        body = {"input": "hello", "max_output_tokens": 20, "stream": True}
        events = named_events_of((await client.post(PATH, json=body)).content)
    assert [body["sequence_number"] for _, body in events] == list(range(len(events)))


async def test_an_answer_that_fits_is_completed_and_a_cut_one_incomplete() -> None:
    """Truncated answers would pass for whole ones."""
    options = EmulatorOptions(profile="instant", natural_tokens=5)
    async with client_of(options) as client:
        whole = await created(client, max_output_tokens=None)
        cut = await created(client)
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
    assert (cut["status"], cut["incomplete_details"]["reason"]) == (
        *("incomplete", "max_output_tokens"),
    )


async def test_a_background_response_is_queued_then_done() -> None:
    """Work that nobody waits for still takes a slot, and its answer has no usage yet."""
    async with running_emulator(EmulatorOptions(profile="instant")) as emulator:
        emulator.faults.inject("freeze")
        async with client_at(emulator.url) as client:
            queued = await created(client, background=True)
            assert (queued["status"], queued["usage"], queued["output"]) == ("queued", None, [])
            emulator.faults.clear()
            done = await wait_status(client, queued["id"], "incomplete")
    assert done["usage"]["output_tokens"] == 5
    assert done["background"] is True


async def test_a_background_response_is_cancelled_and_gives_its_slot_back() -> None:
    """Cancelling would free nothing but the client's patience."""
    async with running_emulator(EmulatorOptions(profile="instant")) as emulator:
        emulator.faults.inject("freeze")
        async with client_at(emulator.url) as client:
            id = (await created(client, background=True))["id"]
            cancelled = await client.post(f"{PATH}/{id}/cancel")
            assert cancelled.json()["status"] == "cancelled"
            emulator.faults.clear()
            assert emulator.engine.running + emulator.engine.waiting == 0
            again = await client.post(f"{PATH}/{id}/cancel")
            done = (await created(client))["id"]
            finished = await client.post(f"{PATH}/{done}/cancel")
            assert (await client.get(f"{PATH}/{id}")).json()["status"] == "cancelled"
    for answer in (again, finished):
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "Cannot cancel a synchronous response."


def client_at(url: str) -> Any:
    """A client of an emulator that runs already."""
    import httpx

    return httpx.AsyncClient(base_url=url, timeout=5)


async def wait_status(client: Any, id: str, status: str) -> dict[str, Any]:
    """Poll, as clients of this API do."""
    async with asyncio.timeout(5):
        while True:
            found: dict[str, Any] = (await client.get(f"{PATH}/{id}")).json()
            if found["status"] == status:
                return found
            await asyncio.sleep(0.005)


async def test_a_forced_tool_is_called_with_arguments_that_fit() -> None:
    """Agents send little else than tools."""
    fields = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weather"},
        "max_output_tokens": 50,
    }
    async with client_of() as client:
        (item,) = (await created(client, **fields))["output"]
        streamed = await client.post(PATH, json={"input": "hello", "stream": True, **fields})
    events = named_events_of(streamed.content)
    said = "".join(body["delta"] for name, body in events if name.endswith("arguments.delta"))
    assert (item["type"], item["name"]) == ("function_call", "weather")
    assert json.loads(item["arguments"]) == json.loads(said) == {"city": "word"}
    assert last_of(streamed.content)["output"][0]["arguments"] == said
    assert [name for name, _ in events if "delta" not in name][2:] == [
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_the_oldest_responses_are_forgotten() -> None:
    """An emulator that runs for days would eat the machine's memory."""
    from gateway.emulator.archive import Archive, Kept
    from gateway.emulator.refusals import Refusal

    archive = Archive()
    for number in range(RESPONSES_REMEMBERED_MAX + 5):
        archive.keep(f"r{number}", Kept(body={"status": "completed"}))
    assert len(archive) == RESPONSES_REMEMBERED_MAX
    with pytest.raises(Refusal):
        archive.body_of("r4")
    assert archive.body_of("r5") == b'{"status":"completed"}'
