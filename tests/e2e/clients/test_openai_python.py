"""The `openai` package for Python: only its base URL and key say that a gateway is there."""

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionUserMessageParam

from tests.e2e.clients.filling import filled
from tests.e2e.clients.site import KEY, MODEL, NARROW_KEY, OTHER_MODEL, Site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ASKED: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "How is the weather?"}]
WEATHER: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
RESPONSE_TOOL: Any = {"type": "function", "strict": False, **WEATHER["function"]}
STALLED_S_MAX = 5.0


@pytest.fixture
def client(site: Site) -> Iterator[OpenAI]:
    """As any application makes it."""
    with OpenAI(base_url=f"{site.url}/v1", api_key=KEY) as made:
        yield made


def test_a_chat_says_the_same_plain_and_streamed(client: OpenAI) -> None:
    """The commonest call of all."""
    plain = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=12, temperature=0
    )
    stream = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(parts) == plain.choices[0].message.content
    assert chunks[-1].usage == plain.usage
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 12
    assert plain._request_id


def test_a_stream_shows_no_usage_that_was_not_asked_for(client: OpenAI) -> None:
    """A chunk without choices breaks applications that read the first one."""
    stream = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=4, temperature=0, stream=True
    )
    chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert {chunk.usage for chunk in chunks} == {None}
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_helper_that_gathers_a_stream_gathers_it(client: OpenAI) -> None:
    """It checks the order of events more strictly than a loop does."""
    with client.chat.completions.stream(model=MODEL, messages=ASKED, max_tokens=6) as stream:
        kinds = {event.type for event in stream}
        whole = stream.current_completion_snapshot
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert whole.choices[0].message.content


def test_a_completion(client: OpenAI) -> None:
    """Of two prompts, and as a stream."""
    two = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3)
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=3, stream=True)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert "".join(chunk.choices[0].text for chunk in stream)


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_tool_is_called(client: OpenAI, choice: str) -> None:
    """Agents live on this."""
    named: Any = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=[WEATHER], max_tokens=60,
        tool_choice=named if choice == "named" else "required",
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)


def test_a_tool_is_called_in_a_stream(client: OpenAI) -> None:
    """Its arguments come in pieces, which the helper puts together."""
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=60
    ) as stream:
        whole = stream.get_final_completion()
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.function.name == "weather"
    assert "city" in json.loads(call.function.arguments)


def test_the_second_turn_of_an_agent_is_taken(client: OpenAI) -> None:
    """What a tool found goes back in a message of its own."""
    first = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=60
    )
    said = first.choices[0].message
    assert said.tool_calls
    found: Any = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "Rain."}
    history: Any = [*ASKED, said.model_dump(exclude_none=True), found]
    second = client.chat.completions.create(
        model=MODEL, messages=history, tools=[WEATHER], tool_choice="none", max_tokens=8
    )
    assert second.choices[0].message.content


def test_a_tool_choice_without_a_parser_is_a_bad_request(client: OpenAI) -> None:
    """As with a vLLM that was started without one: its operator reads what to set."""
    with pytest.raises(openai.BadRequestError, match="--enable-auto-tool-choice"):
        client.chat.completions.create(model=MODEL, messages=ASKED, tools=[WEATHER])


def test_a_response_is_made_fetched_and_gone_on_from(client: OpenAI) -> None:
    """The newest route, with what its store adds."""
    made = client.responses.create(model=MODEL, input="Say something.", max_output_tokens=8)
    fetched = client.responses.retrieve(made.id)
    following = client.responses.create(
        model=MODEL, input="Go on.", previous_response_id=made.id, max_output_tokens=8
    )
    assert made.output_text
    assert fetched.output_text == made.output_text
    assert following.usage is not None
    assert made.usage is not None
    assert following.usage.input_tokens > made.usage.input_tokens


def test_a_response_streams_its_events(client: OpenAI) -> None:
    """From `created` to the last one, which holds the whole."""
    stream = client.responses.create(
        model=MODEL, input="Say something.", max_output_tokens=8, stream=True
    )
    events = list(stream)
    kinds = [event.type for event in events]
    parts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == "".join(parts)
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 8


def test_a_response_calls_a_tool(client: OpenAI) -> None:
    """The same agents, on the newer route."""
    made = client.responses.create(
        model=MODEL, input="How is the weather?", tools=[RESPONSE_TOOL], tool_choice="required",
        max_output_tokens=60,
    )  # fmt: skip
    (call,) = [item for item in made.output if item.type == "function_call"]
    assert call.name == "weather"
    assert "city" in json.loads(call.arguments)


def test_a_background_response_is_cancelled(client: OpenAI) -> None:
    """And says so afterwards."""
    made = client.responses.create(
        model=MODEL, input="Write a book.", max_output_tokens=4_000, background=True
    )
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_retrieval_audio_and_models(client: OpenAI) -> None:
    """What else applications ask for."""
    vectors = client.embeddings.create(model=MODEL, input=["a", "b"])
    text = client.audio.transcriptions.create(
        model=MODEL, file=("speech.wav", io.BytesIO(b"RIFF" + bytes(50_000)))
    )
    assert [item.index for item in vectors.data] == [0, 1]
    assert vectors.data[0].embedding != vectors.data[1].embedding
    assert text.text
    assert sorted(model.id for model in client.models.list()) == [OTHER_MODEL, MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_exceptions_that_applications_catch(client: OpenAI, site: Site) -> None:
    """By class, and by the code that tells why."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=ASKED)
    with pytest.raises(openai.NotFoundError) as forgotten:
        client.responses.retrieve("resp_0123456789")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=10**7)
    with (
        OpenAI(base_url=f"{site.url}/v1", api_key="fg-wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.chat.completions.create(model=MODEL, messages=ASKED)
    with (
        OpenAI(base_url=f"{site.url}/v1", api_key=NARROW_KEY) as other,
        pytest.raises(openai.NotFoundError) as hidden,
    ):
        other.chat.completions.create(model=MODEL, messages=ASKED)
    raised = (missing, forgotten, wrong, unknown, hidden)
    assert [each.value.code for each in raised] == [
        "model_not_found", "response_not_found", "invalid_request", "invalid_api_key",
        "model_not_found",
    ]  # fmt: skip
    assert all(each.value.request_id for each in raised)


@pytest.mark.parametrize("fault", ["error-midstream:3", "die-midstream:3", "close-midstream:3"])
def test_a_chat_that_breaks_raises(client: OpenAI, site: Site, fault: str) -> None:
    """The package takes a stream that merely ends for a whole answer."""
    site.fault(fault)
    seen: list[Any] = []
    stream = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=40, stream=True)
    with pytest.raises(openai.APIError) as broken:
        seen.extend(stream)
    assert len(seen) >= 3
    assert broken.value.message


@pytest.mark.parametrize("fault", ["die-midstream:7", "close-midstream:7"])
def test_a_response_that_breaks_raises(client: OpenAI, site: Site, fault: str) -> None:
    """The same for named events."""
    site.fault(fault)
    seen: list[Any] = []
    stream = client.responses.create(model=MODEL, input="x", max_output_tokens=40, stream=True)
    with pytest.raises(openai.APIError) as broken:
        seen.extend(stream)
    assert len(seen) >= 3
    assert broken.value.message


def test_an_engines_own_error_is_the_last_event_of_a_response(client: OpenAI, site: Site) -> None:
    """The package hands it to the application, as it does with OpenAI's own."""
    site.fault("error-midstream:7")
    stream = client.responses.create(model=MODEL, input="x", max_output_tokens=40, stream=True)
    last = list(stream)[-1]
    assert last.type == "error"
    assert "EngineCore" in last.message


def test_an_engine_that_fails_once_is_tried_again_by_the_client(client: OpenAI, site: Site) -> None:
    """With one replica there is nobody else to ask."""
    site.fault("error-500*1")
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASKED, max_tokens=2
    )
    assert raw.retries_taken == 1
    assert raw.parse().choices


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_times_out_leaves_nothing_behind(site: Site, is_stream: bool) -> None:
    """It asks again right away; what it gave up must not stand in its own way."""
    site.fault("stall:0")
    with OpenAI(base_url=f"{site.url}/v1", api_key=KEY, timeout=0.5, max_retries=1) as hasty:
        began_at = time.monotonic()
        asked: Any = {"model": MODEL, "messages": ASKED, "max_tokens": 9, "stream": is_stream}
        with pytest.raises(openai.APITimeoutError):
            list(hasty.chat.completions.create(**asked))
        assert time.monotonic() - began_at < STALLED_S_MAX
    until_idle(site)


def test_who_sends_too_much_is_told_when_to_come_back(narrow: Site) -> None:
    """A refusal that says nothing is tried again at once, and again."""
    with (
        OpenAI(base_url=f"{narrow.url}/v1", api_key=KEY, max_retries=0) as client,
        filled(narrow),
        pytest.raises(openai.RateLimitError) as refused,
    ):
        client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=2)
    headers = refused.value.response.headers
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(headers["retry-after"]) <= 30
    assert int(headers["retry-after-ms"]) >= 1


def test_the_clients_own_retry_waits_as_long_as_it_was_told(narrow: Site) -> None:
    """Its own backoff of half a second would come too early, three times."""
    with (
        OpenAI(base_url=f"{narrow.url}/v1", api_key=KEY, max_retries=2) as client,
        filled(narrow),
    ):
        began_at = time.monotonic()
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=ASKED, max_tokens=2
        )
        took_s = time.monotonic() - began_at
    assert raw.retries_taken >= 1
    assert took_s >= 1.0
    assert raw.parse().choices


def until_idle(site: Site) -> None:
    """Wait until the engine has nothing to do. Raises AssertionError after a while."""
    deadline = time.monotonic() + STALLED_S_MAX
    while site.load():
        assert time.monotonic() < deadline, "the engine still works for somebody who left"
        time.sleep(0.02)
