"""The `anthropic` package for Python: only its base URL and key say that a gateway is there."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.clients.filling import filled
from tests.e2e.clients.site import KEY, MODEL, Site

anthropic: Any = pytest.importorskip("anthropic", reason="SKIPPED: pip install anthropic")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ASKED = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
STALLED_S_MAX = 5.0


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    """As any application makes it."""
    with anthropic.Anthropic(base_url=site.url, api_key=KEY) as made:
        yield made


def test_a_message_says_the_same_plain_and_streamed(client: Any) -> None:
    """The commonest call of all."""
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 12, "extra_body": {"temperature": 0}}
    plain = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert text == plain.content[0].text == whole.content[0].text
    assert plain.usage.output_tokens == whole.usage.output_tokens == 12
    assert whole.usage.input_tokens == plain.usage.input_tokens
    assert plain.stop_reason == "max_tokens"
    assert plain._request_id


def test_a_raw_stream_has_its_events_in_order(client: Any) -> None:
    """Who reads events, not helpers, relies on the order."""
    events = list(client.messages.create(model=MODEL, messages=ASKED, max_tokens=4, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_tokens_are_counted(client: Any) -> None:
    """Before it asks, a client looks whether it fits."""
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED)
    plain = client.messages.create(model=MODEL, messages=ASKED, max_tokens=1)
    assert counted.input_tokens == plain.usage.input_tokens


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_tool_is_called(client: Any, is_stream: bool) -> None:
    """Agents live on this."""
    asked = {
        "model": MODEL, "messages": ASKED, "max_tokens": 60, "tools": [WEATHER],
        "tool_choice": {"type": "any"},
    }  # fmt: skip
    if is_stream:
        with client.messages.stream(**asked) as stream:
            said = stream.get_final_message()
    else:
        said = client.messages.create(**asked)
    (call,) = [block for block in said.content if block.type == "tool_use"]
    assert (call.name, said.stop_reason) == ("weather", "tool_use")
    assert "city" in call.input


def test_the_second_turn_of_an_agent_is_taken(client: Any) -> None:
    """What a tool found goes back in a block of its own."""
    asked = {"model": MODEL, "max_tokens": 60, "tools": [WEATHER]}
    first = client.messages.create(messages=ASKED, tool_choice={"type": "any"}, **asked)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    found = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    history = [
        *ASKED,
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [found]},
    ]
    second = client.messages.create(messages=history, tool_choice={"type": "none"}, **asked)
    assert second.content[0].type == "text"


def test_errors_are_the_exceptions_that_applications_catch(client: Any, site: Site) -> None:
    """By class, and with the words of the engine or the gateway."""
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="nope", messages=ASKED, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(model=MODEL, messages=ASKED, max_tokens=20_000)
    with (
        anthropic.Anthropic(base_url=site.url, api_key="fg-wrong") as stranger,
        pytest.raises(anthropic.AuthenticationError) as unknown,
    ):
        stranger.messages.create(model=MODEL, messages=ASKED, max_tokens=1)
    raised = (missing, wrong, unknown)
    assert [each.value.body["error"]["type"] for each in raised] == [
        "not_found_error", "invalid_request_error", "authentication_error",
    ]  # fmt: skip
    assert all(each.value.body["error"]["message"] for each in raised)
    assert all(each.value.request_id for each in raised)


@pytest.mark.parametrize("fault", ["error-midstream:5", "die-midstream:5", "close-midstream:5"])
def test_a_stream_that_breaks_raises(client: Any, site: Site, fault: str) -> None:
    """Half an answer must not look like one."""
    site.fault(fault)
    seen: list[Any] = []
    stream = client.messages.create(model=MODEL, messages=ASKED, max_tokens=40, stream=True)
    with pytest.raises(anthropic.APIError) as broken:
        seen.extend(stream)
    assert len(seen) >= 3
    assert broken.value.message


def test_an_engine_that_fails_once_is_tried_again_by_the_client(client: Any, site: Site) -> None:
    """With one replica there is nobody else to ask."""
    site.fault("error-500*1")
    raw = client.messages.with_raw_response.create(model=MODEL, messages=ASKED, max_tokens=2)
    assert raw.retries_taken == 1
    assert raw.parse().content


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_times_out_leaves_nothing_behind(site: Site, is_stream: bool) -> None:
    """It asks again right away; what it gave up must not stand in its own way."""
    site.fault("stall:0")
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 9, "stream": is_stream}
    with anthropic.Anthropic(base_url=site.url, api_key=KEY, timeout=0.5, max_retries=1) as hasty:
        began_at = time.monotonic()
        with pytest.raises(anthropic.APITimeoutError):
            list(hasty.messages.create(**asked))
        assert time.monotonic() - began_at < STALLED_S_MAX
    deadline = time.monotonic() + STALLED_S_MAX
    while site.load():
        assert time.monotonic() < deadline, "the engine still works for somebody who left"
        time.sleep(0.02)


def test_who_sends_too_much_is_told_when_to_come_back(narrow: Site) -> None:
    """A refusal that says nothing is tried again at once, and again."""
    with (
        anthropic.Anthropic(base_url=narrow.url, api_key=KEY, max_retries=0) as client,
        filled(narrow),
        pytest.raises(anthropic.RateLimitError) as refused,
    ):
        client.messages.create(model=MODEL, messages=ASKED, max_tokens=2)
    assert refused.value.body["error"]["type"] == "rate_limit_error"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 30


def test_the_clients_own_retry_waits_as_long_as_it_was_told(narrow: Site) -> None:
    """Its own backoff of half a second would come too early, three times."""
    with (
        anthropic.Anthropic(base_url=narrow.url, api_key=KEY, max_retries=2) as client,
        filled(narrow),
    ):
        began_at = time.monotonic()
        raw = client.messages.with_raw_response.create(model=MODEL, messages=ASKED, max_tokens=2)
        took_s = time.monotonic() - began_at
    assert raw.retries_taken >= 1
    assert took_s >= 1.0
    assert raw.parse().content
