"""What engines would fetch: found wherever it stands, refused unless it is allowed."""

import asyncio
import json
from typing import Any

import pytest

from gateway.api import media
from gateway.api.call import Call
from gateway.api.media import MediaRule, may_fetch
from gateway.api.outline import OUTLINED_BYTES
from gateway.api.routes import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, ROUTES, Route
from gateway.api.wire import parse
from gateway.errors import BadRequestError

INSIDE = "http://169.254.169.254/latest/meta-data"
DATA = "data:image/png;base64,iVBORw0KGgo="


def said(*content: Any, **more: Any) -> dict[str, Any]:
    """A message of these parts."""
    return {"messages": [{"role": "user", "content": list(content)}], **more}


def with_url(url: Any) -> list[tuple[Route, dict[str, Any], str]]:
    """(route, body, the place of the address) for each place in which an engine reads one."""
    part = {"type": "image_url", "image_url": {"url": url}}
    video = {"content": [{"type": "video_url", "video_url": {"url": url}}]}
    source = {"type": "image", "source": {"type": "url", "url": url}}
    inside = {"type": "tool_result", "tool_use_id": "1", "content": [source]}
    first = "messages[0].content[0]"
    return [
        (CHAT, said(part), f"{first}.image_url.url"),
        (CHAT, said({"type": "text", "text": "x"}, part), "messages[0].content[1].image_url.url"),
        (CHAT, said({"type": "audio_url", "audio_url": {"url": url}}), f"{first}.audio_url.url"),
        (CHAT, said({"type": "video_url", "video_url": {"url": url}}), f"{first}.video_url.url"),
        (CHAT, said({"image_url": url}), f"{first}.image_url"),
        (CHAT, said({"audio_url": url}), f"{first}.audio_url"),
        (CHAT, said({"video_url": url, "uuid": "1"}), f"{first}.video_url"),
        (CHAT, said({"type": "image_url", "uuid": "1", "image_url": {"url": url}}),
         f"{first}.image_url.url"),
        (CHAT, said({"type": "image_url", "image_url": [{"url": url}]}),
         f"{first}.image_url[0].url"),
        (CHAT, said({"type": "image", "url": url}), f"{first}.url"),
        (CHAT, said({"type": "image", "image": url}), f"{first}.image"),
        (CHAT, said({"type": "input_image", "image_url": url}), f"{first}.image_url"),
        (CHAT, said({"type": "file", "file": {"file_url": url}}), f"{first}.file.file_url"),
        (CHAT, said({"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}),
         f"{first}.input_audio.data"),
        (RESPONSES, {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}]}]}, "input[0].content[0].image_url"),
        (RESPONSES, {"input": [{"role": "user", "content": [
            {"type": "input_file", "file_url": url}]}]}, "input[0].content[0].file_url"),
        (RESPONSES, {"input": [{"type": "computer_call_output", "call_id": "1", "output": {
            "type": "computer_screenshot", "image_url": url}}]}, "input[0].output.image_url"),
        (MESSAGES, said(source), f"{first}.source.url"),
        (MESSAGES, said(inside), f"{first}.content[0].source.url"),
        (MESSAGES, {"messages": [], "system": [source]}, "system[0].source.url"),
        (MESSAGES, said({"type": "document", "source": {"type": "url", "url": url}}),
         f"{first}.source.url"),
        (COUNT_TOKENS, said(source), f"{first}.source.url"),
        (EMBEDDINGS, said(part), f"{first}.image_url.url"),
        (EMBEDDINGS, {"input": [{"text": "x", "image": url}]}, "input[0].image"),
        (ROUTES["/pooling"], said(part), f"{first}.image_url.url"),
        (ROUTES["/classify"], said(part), f"{first}.image_url.url"),
        (ROUTES["/tokenize"], said(part), f"{first}.image_url.url"),
        (ROUTES["/score"], {"text_1": "x", "text_2": video}, "text_2.content[0].video_url.url"),
        (ROUTES["/score"], {"text_1": [video], "text_2": "x"},
         "text_1[0].content[0].video_url.url"),
        (ROUTES["/score"], {"queries": video, "items": "x"}, "queries.content[0].video_url.url"),
        (ROUTES["/score"], {"data_1": "x", "data_2": video}, "data_2.content[0].video_url.url"),
        (ROUTES["/rerank"], {"query": video, "documents": ["x"]},
         "query.content[0].video_url.url"),
        (ROUTES["/v1/rerank"], {"query": "x", "documents": [video]},
         "documents[0].content[0].video_url.url"),
    ]  # fmt: skip


def call_of(route: Route, body: dict[str, Any] | bytes) -> Call:
    """The call in a body."""
    raw = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
    return asyncio.run(parse(route, raw, 128))


def looked(call: Call, *hosts: str) -> int:
    """Bytes of media, as the relay asks for them. Raises BadRequestError."""
    return asyncio.run(MediaRule(hosts).check(call)) if may_fetch(call) else 0


@pytest.mark.parametrize(
    ("route", "body", "place"),
    with_url(INSIDE),
    ids=[f"{route.name}-{place}" for route, _, place in with_url("")],
)
def test_an_address_is_refused_in_every_place_and_its_place_is_told(
    route: Route, body: dict[str, Any], place: str
) -> None:
    """One forgotten place, and a client reads the cloud's credentials through an engine."""
    with pytest.raises(BadRequestError) as caught:
        looked(call_of(route, body), "images.example.org")
    assert (caught.value.status, caught.value.param) == (400, place)
    assert INSIDE not in caught.value.message


@pytest.mark.parametrize("url", [DATA, DATA.replace("data", "DATA"), "", None])
def test_what_the_body_brings_along_passes_everywhere(url: str | None) -> None:
    """Data URLs are how images are sent; an absent one is a cached image's."""
    for route, body, _ in with_url(url):
        size = looked(call_of(route, body))
        assert size == len(url or ""), "so much of the body is no prompt"


@pytest.mark.parametrize(
    "url",
    [
        "https://images.example.org/a.png?x=1#y", "http://images.example.org:80/a",
        "HTTPS://Images.Example.ORG/a", "https://cdn.example.com/a", "https://a.b.example.com",
        "http://internal:8080/a",
    ],
)  # fmt: skip
def test_hosts_that_are_allowed_are_fetched_from(url: str) -> None:
    """Whoever runs an image store wants no megabytes in each body."""
    hosts = ("images.example.org", "*.example.com", "internal:8080")
    for route, body, place in with_url(url):
        if not place.endswith(".data"):
            assert looked(call_of(route, body), *hosts) == 0


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/", "https://evil.org/?images.example.org",
        "https://images.example.org.evil.org/", "https://evil-images.example.org/",
        "https://images.example.org@evil.org/", "https://evil.org\\@images.example.org/",
        "https://images.example.org\\.evil.org/", "https://images.example.org:8443/",
        "https://evil.org#.example.com", "https://evil.org/.example.com",
        "ftp://images.example.org/a", "file:///etc/passwd", "/etc/passwd", "a.png",
        " https://images.example.org/", "https://images.example.org/ x", "//images.example.org/a",
        "https://images.example.org./", "https:images.example.org", " data:image/png;base64,x",
        "https://\u0131mages.example.org/", "javascript:x", "https://images.example.org/\u00e9",
        "https://images.example.org/" + "x" * 9_000,
    ],
)  # fmt: skip
def test_nothing_passes_that_some_reader_could_take_for_another_host(url: str) -> None:
    """Each is a way in which a list of hosts was got round somewhere."""
    for route, body, place in with_url(url):
        if place.endswith(".data") and url == "/etc/passwd":
            continue  # as base64 it is a short sound
        with pytest.raises(BadRequestError):
            looked(call_of(route, body), "images.example.org", "*.example.com")


def test_a_word_written_in_escapes_is_the_same_word() -> None:
    """JSON lets every letter be written as a number; engines read it all the same."""
    escaped = (
        b'{"model":"m","messages":[{"role":"user","content":[{"\\u0069mage\\u005f\\u0075rl":'
        b'{"u\\u0072l":"http://10.0.0.1/"}}]}]}'
    )
    with pytest.raises(BadRequestError):
        looked(call_of(CHAT, escaped))
    of_two = (
        b'{"model":"m","messages":[{"content":[{"image_url":"data:x","image_url":"http://x"}]}]}'
    )
    with pytest.raises(BadRequestError):
        looked(call_of(CHAT, of_two))


@pytest.mark.parametrize(
    "body",
    [
        said({"type": "text", "text": "look at http://10.0.0.1/ and image_url, please"}),
        said({"type": "tool_use", "id": "1", "name": "f", "input": {"image_url": INSIDE}}),
        said(tools=[{"input_schema": {"properties": {"image_url": {"default": INSIDE}}}}]),
        said(tools=[{"type": "mcp", "server_url": INSIDE}], metadata={"image_url": INSIDE}),
        {"messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": json.dumps({"image_url": INSIDE})}}]}]},
        {"input": [{"type": "web_search_call", "action": {"type": "open_page", "url": INSIDE}}]},
        {"input": [{"type": "message", "content": [{"type": "output_text", "text": "x",
                    "annotations": [{"type": "url_citation", "url": INSIDE}]}]}]},
        said({"type": "search_result", "source": INSIDE, "title": "x"}),
        said({"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}),
        said({"type": "document", "source": {"type": "text", "data": "See: http://10.0.0.1."}}),
        {"messages": [], "audio": {"voice": "a", "format": "wav"}, "modalities": ["audio"]},
    ],
)  # fmt: skip
def test_what_nobody_fetches_is_nobodys_business(body: dict[str, Any]) -> None:
    """Agents pass on what they found in the web; refusing that would break them."""
    looked(call_of(CHAT, body))


def test_most_bodies_are_not_looked_at() -> None:
    """The check must not cost what a prompt costs to parse."""
    assert not may_fetch(call_of(CHAT, said({"type": "text", "text": "Hi, \u00e9\u4e2d\n"})))
    assert not may_fetch(call_of(EMBEDDINGS, {"input": ["a", "b"]}))
    assert may_fetch(call_of(CHAT, said({"type": "text", "text": "x", "image": None})))


@pytest.mark.parametrize("before", [1, 63, 64, 300])
def test_an_address_behind_many_mere_texts_is_found(before: int) -> None:
    """A long conversation ends with a picture; and whoever hides one puts it last."""
    turns = [{"role": "user", "content": 'say "content": ['} for _ in range(before)]
    last = said({"type": "image_url", "image_url": {"url": INSIDE}})["messages"]
    for route in (CHAT, MESSAGES, COUNT_TOKENS):
        assert not may_fetch(call_of(route, {"messages": turns})) or before >= 64
        with pytest.raises(BadRequestError):
            looked(call_of(route, {"messages": turns + last}))
    twice = b'{"model":"m","messages":[{"content":"x","content" : [{"image_url":"http://x"}]}]}'
    with pytest.raises(BadRequestError):
        looked(call_of(CHAT, twice))


def large(url: str, filler: int = 0) -> Call:
    """A body beyond what is parsed as it is, with an address behind megabytes."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "x" * OUTLINED_BYTES}]
    parts += [{"type": "text", "text": "y" * 250} for _ in range(filler)]
    return call_of(CHAT, said(*parts, {"type": "image_url", "image_url": {"url": url}}))


@pytest.mark.parametrize("filler", [0, 4_000])
def test_of_a_large_body_the_whole_address_counts(filler: int) -> None:
    """What is shortened for the gateway is fetched as a whole by the engine."""
    image = "data:image/png;base64," + "iVBORw0KGgo" * 100_000
    assert looked(large(image, filler)) == len(image)
    for url in (INSIDE, INSIDE + "x" * 1_000, INSIDE + "x" * 100_000):
        with pytest.raises(BadRequestError) as caught:
            looked(large(url, filler))
        assert caught.value.param is not None
        assert caught.value.param.endswith(".image_url.url")
    at_host = "https://images.example.org/" + "x" * 1_000
    assert looked(large(at_host, filler), "images.example.org") == 0


@pytest.mark.parametrize("slice_bytes", range(93, 101))
async def test_a_word_on_the_edge_of_a_slice_is_found(
    slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hides an address would put it where nobody looks at once."""
    monkeypatch.setattr(media, "SLICE_BYTES", slice_bytes)
    for word in media.WORDS:
        for at in range(slice_bytes - len(word), slice_bytes + 1):
            hidden = b" " * at + b'{"' + word.strip(b'"') + b'":"http://x"}'
            assert await media._objects_in(hidden), (word, at)
    assert max(map(len, media.WORDS)) <= media.WORD_BYTES_MAX
    assert await media._objects_in(b'{"content":"x"},' * 30) == []


async def test_a_body_of_very_many_parts_does_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever streams at the moment would stand still for it."""
    monkeypatch.setattr(media, "VALUES_A_TURN", 100)
    call = await parse(
        CHAT, json.dumps(said(*[{"type": "text", "text": "x"}] * 1_000, {"image": ""})).encode(), 1
    )
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    await MediaRule().check(call)
    task.cancel()
    assert turns > 10


def test_what_cannot_be_read_is_not_passed_on() -> None:
    """What we cannot read an engine might."""
    deep = b'{"model":"m","messages":' + b"[" * 3_000 + b'"image_url"' + b"]" * 3_000 + b"}"
    with pytest.raises(BadRequestError):
        looked(call_of(CHAT, deep))
