"""Responses that a real vLLM keeps: fetched, cancelled and gone on from, as if asked directly."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.e2e.vllm.tiny.asking import Both, comparable, response

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROUTE = "/v1/responses"
ENDS_S_MAX = 30.0


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_is_fetched_as_it_was_made(both: Both, is_stream: bool) -> None:
    """Who lost the connection fetches the answer instead of paying for it again."""
    made = await both.through.post(ROUTE, json=response(stream=is_stream))
    ident = id_of(made)
    fetched, direct = [await client.get(f"{ROUTE}/{ident}") for client in each(both)]
    assert fetched.status_code == 200
    assert fetched.content == direct.content
    if not is_stream:
        assert fetched.content == made.content


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_conversation_goes_on_from_a_response(both: Both, is_stream: bool) -> None:
    """The second turn knows the first one, and says what it would have said directly."""
    told = []
    for client in each(both):
        first = await client.post(ROUTE, json=response())
        second = await client.post(
            ROUTE,
            json=response(input="Go on.", previous_response_id=id_of(first), stream=is_stream),
        )
        assert second.status_code == 200, second.text
        told.append(final_of(second))
    ours, theirs = told
    assert ours["output"][0]["content"] == theirs["output"][0]["content"]
    assert ours["usage"] == theirs["usage"]
    assert ours["usage"]["input_tokens"] > 30, "the first turn is in the prompt"


async def test_a_background_response_is_watched_until_it_is_done(both: Both) -> None:
    """An agent starts a long job, and looks again later."""
    ident = id_of(await both.through.post(ROUTE, json=response(background=True)))
    done = await until_ended(both.through, ident)
    assert (done["status"], done["usage"]["output_tokens"]) == ("incomplete", 8)


async def test_a_cancelled_response_ends_in_the_engine(both: Both) -> None:
    """A job that nobody wants any more must not go on."""
    asked = response(background=True, max_output_tokens=900, ignore_eos=True)
    ident = id_of(await both.through.post(ROUTE, json=asked))
    cancelled = await both.through.post(f"{ROUTE}/{ident}/cancel")
    assert cancelled.status_code == 200
    assert cancelled.json()["status"] == "cancelled"
    assert (await both.direct.get(f"{ROUTE}/{ident}")).json()["status"] == "cancelled"
    await both.until_nothing_runs()


async def test_a_stream_of_a_background_response_is_taken_up_again(both: Both) -> None:
    """After a broken connection the client asks for what it has not seen yet."""
    asked = response(background=True, stream=True)
    made = await both.through.post(ROUTE, json=asked)
    again, direct = [
        await client.get(f"{ROUTE}/{id_of(made)}?stream=true&starting_after=3")
        for client in each(both)
    ]
    assert again.headers["content-type"] == direct.headers["content-type"]
    assert again.content == direct.content
    assert made.content.endswith(again.content)


async def test_what_cannot_be_cancelled_is_said_in_the_engines_words(both: Both) -> None:
    """The engine knows best why."""
    ident = id_of(await both.through.post(ROUTE, json=response()))
    ours, theirs = [await client.post(f"{ROUTE}/{ident}/cancel") for client in each(both)]
    assert (ours.status_code, theirs.status_code) == (400, 400)
    assert ours.json()["error"]["message"] == theirs.json()["error"]["message"]
    assert ours.json()["error"]["code"] == "invalid_request"


async def test_what_was_not_to_be_stored_is_not_there(both: Both) -> None:
    """`store: false` is a promise."""
    ident = id_of(await both.through.post(ROUTE, json=response(store=False)))
    gone = await both.through.get(f"{ROUTE}/{ident}")
    assert gone.status_code == 404
    assert gone.json()["error"]["type"] == "invalid_request_error"


async def test_a_response_made_behind_the_gateways_back_does_not_exist(both: Both) -> None:
    """Nobody knows whose it is, so nobody may have it."""
    ident = id_of(await both.direct.post(ROUTE, json=response()))
    answers = [
        await both.through.get(f"{ROUTE}/{ident}"),
        await both.through.post(f"{ROUTE}/{ident}/cancel"),
        await both.through.post(ROUTE, json=response(previous_response_id=ident)),
    ]
    assert [answer.status_code for answer in answers] == [404] * 3
    assert {answer.json()["error"]["code"] for answer in answers} == {"response_not_found"}


async def test_a_stored_response_is_the_same_each_time_it_is_made(both: Both) -> None:
    """The store must not change what is answered at once."""
    await both.assert_same(ROUTE, response(store=True, metadata={"ticket": "7"}))


def each(both: Both) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
    """The gateway's client first."""
    return both.through, both.direct


def id_of(answer: httpx.Response) -> str:
    """The response's id, from an answer or the first event of a stream."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        return str(events_of(answer)[0]["response"]["id"])
    return str(answer.json()["id"])


def final_of(answer: httpx.Response) -> dict[str, Any]:
    """The whole response, from an answer or the last event of a stream; ids aside."""
    text = comparable(answer.content)
    if answer.headers["content-type"].startswith("text/event-stream"):
        final: dict[str, Any] = events_of(answer)[-1]["response"]
        return final
    whole: dict[str, Any] = json.loads(text)
    return whole


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """What stands in the events."""
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def until_ended(client: httpx.AsyncClient, ident: str) -> dict[str, Any]:
    """The response once it is neither queued nor under way."""
    async with asyncio.timeout(ENDS_S_MAX):
        while True:
            answer = await client.get(f"{ROUTE}/{ident}")
            told: dict[str, Any] = answer.json()
            if told["status"] not in ("queued", "in_progress"):
                return told
            await asyncio.sleep(0.05)
