"""Whatever a stream holds, wherever and however often it breaks: its client hears it as a whole."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.continuation.strand import Strand
from tests.support.breaking import CHAT, COMPLETIONS, Heard, body, told
from tests.support.playing import in_pieces, played
from tests.support.streams import COMPACT, SPACED, TEXTS, text_of
from tests.support.token_engine import answer

PATHS = st.sampled_from([CHAT, COMPLETIONS])
OPTIONS = st.sampled_from([{}, {"stream_options": {"include_usage": True}}])


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any], int]:
    """(path, body, tokens an event)."""
    path = draw(PATHS)
    fields: dict[str, Any] = {"max_tokens": draw(st.integers(1, 24)), **draw(OPTIONS)}
    if path == CHAT:
        fields["messages"] = [{"role": "user", "content": draw(st.text(max_size=5))}]
    else:
        fields["prompt"] = draw(st.text(max_size=5))
    if draw(st.booleans()):
        fields["return_token_ids"] = True
    return path, body(path, **fields), draw(st.integers(1, 5))


@given(requests(), st.data())
def test_it_is_the_same_text_however_often_it_breaks(
    request: tuple[str, dict[str, Any], int], data: st.DataObject
) -> None:
    """One character doubled or lost makes code that does not run."""
    path, asked, group = request
    size = len(told(path, asked, group))
    # Before its first whole event it is tried anew, not gone on with.
    first = told(path, asked, group).index(b"\n\n") + 2
    cuts = data.draw(st.lists(st.integers(first, size), max_size=4))
    sizes = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=4))
    heard, strand = played(path, asked, cuts, group=group, feed=in_pieces(*sizes))
    assert strand.obstacle is None
    options = {"include_usage": True}
    whole = Heard(b"".join(answer(path, {**asked, "stream_options": options}, group)).decode())
    heard.check_is(whole)


@given(requests(), st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_unbroken_it_is_the_stream_of_who_did_not_ask_for_ids(
    request: tuple[str, dict[str, Any], int], sizes: list[int]
) -> None:
    """Continuation would otherwise change the answers of all who never need it."""
    path, asked, group = request
    heard, strand = played(path, asked, [], group=group, feed=in_pieces(*sizes))
    options = {"include_usage": True}
    plain = b"".join(answer(path, {**asked, "stream_options": options}, group))
    assert heard.stream.encode() == plain
    assert strand.is_done


@st.composite
def chunks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """(a stream with ids, the same without), in any layout, with texts that look like ids."""
    separators = draw(st.sampled_from([COMPACT, COMPACT, SPACED]))
    with_ids, plain = "", ""
    for number in range(draw(st.integers(1, 6))):
        text = draw(TEXTS)
        ids = draw(st.lists(st.integers(0, 300_000), min_size=1, max_size=3))
        delta: dict[str, Any] = {"content": text}
        for shown in (True, False):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            event: dict[str, Any] = {"id": "1", "object": "o", "created": 1, "model": "m"}
            event["choices"] = [{**choice, "token_ids": ids if shown else None}]
            if number == 0:
                event["prompt_token_ids"] = [1, 2] if shown else None
            line = f"data: {text_of(event, separators)}\n\n"
            if shown:
                with_ids += line
            else:
                plain += line
    return with_ids.encode(), plain.encode()


@given(chunks(), st.lists(st.integers(1, 200), min_size=1, max_size=3))
def test_only_ids_are_taken_out_whatever_the_text_looks_like(
    streams: tuple[bytes, bytes], sizes: list[int]
) -> None:
    """An answer about token ids would lose what it is about."""
    with_ids, plain = streams
    strand = Strand(is_chat=True, is_greedy=True, shows_ids=False)
    assert in_pieces(*sizes)(strand, with_ids) == plain
    count = sum(
        len(json.loads(event[6:])["choices"][0]["token_ids"])
        for event in with_ids.decode().split("\n\n")[:-1]
    )
    assert strand.output_tokens == count
