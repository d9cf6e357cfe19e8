"""Messages between gateways as bytes: whatever is said arrives as it was said, or not at all."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.messages import (
    Astray,
    Beat,
    Decided,
    Happened,
    Led,
    Left,
    Message,
    Open,
    Placed,
    Ruling,
    Synced,
    Told,
)
from gateway.cluster.wire import WireError, decoded, encoded
from gateway.core.messages import (
    Arrived,
    Bounced,
    Cancelled,
    Fault,
    Finished,
    FirstToken,
    Granted,
    MoveWanted,
    Outcome,
    Progressed,
    Reason,
    RecallDone,
    Recalled,
    RecallTooLate,
    Refused,
    Request,
    Usage,
)

TAG = 0xFEDC_BA98_7654_3210 << 32
words = st.text(max_size=12)
counts = st.integers(0, 1 << 40)
durations = st.floats(0, 1e6)
names = st.frozensets(words, max_size=3)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Or None."""
    return st.none() | strategy


requests = st.builds(
    Request,
    id=words, model=words, tier=st.integers(0, 31), tenant=words, user=words,
    arrived_at=st.just(0.0), prompt_tokens=maybe(counts), output_tokens_max=maybe(counts),
    sequences=st.integers(1, 128), streams=st.booleans(), body_bytes=counts,
    patience_s=maybe(durations), route=words, excluded=names, only=maybe(words),
    prefix=st.lists(st.integers(0, (1 << 32) - 1), max_size=32).map(
        lambda blocks: tuple(TAG | block for block in blocks)
    ),
    session=maybe(words), read_timeout_s=maybe(durations), ttft_target_s=maybe(durations),
    is_continuation=st.booleans(), is_continuable=st.booleans(),
    caps=st.lists(st.tuples(words, counts), max_size=2).map(tuple),
)  # fmt: skip
plain = st.builds(
    Request,
    id=words, model=words, tier=st.integers(0, 3), tenant=words, user=words,
    arrived_at=st.just(0.0),
)  # fmt: skip
usages = st.builds(Usage, prompt_tokens=counts, output_tokens=counts, cached_tokens=counts)
events: st.SearchStrategy[Happened] = st.one_of(
    st.builds(Arrived, plain | requests),
    st.builds(FirstToken, words),
    st.builds(
        Progressed, words, st.dictionaries(words, counts, max_size=3), st.none(), names
    ),
    st.builds(
        Finished, words, st.sampled_from(Outcome), maybe(usages), maybe(durations),
        fault=maybe(st.sampled_from(Fault)), goes_on=st.booleans(),
    ),
    *(st.builds(kind, words) for kind in (Bounced, RecallDone, RecallTooLate, Cancelled)),
)  # fmt: skip
rulings: st.SearchStrategy[Ruling] = st.one_of(
    st.builds(Granted, words, words, durations),
    st.builds(Refused, words, st.sampled_from(Reason), maybe(durations)),
    st.builds(Recalled, words, words),
    st.builds(MoveWanted, words, words),
    st.builds(Placed, words, counts, maybe(durations)),
    st.builds(Astray, words),
)
opens = st.builds(Open, plain | requests, durations, maybe(words), durations, st.booleans(), counts)
place = (st.just("me"), words, counts, counts, counts)
numbered: dict[str, Any] = {"epoch": counts, "session": counts, "number": counts}
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Told, *place[:2], **numbered, event=events, ago_s=st.none()),
    st.builds(Decided, *place[:2], **numbered, decision=rulings),
    st.builds(Beat, *place),
    st.builds(Led, *place),
    st.builds(Synced, *place[:4], st.lists(opens, max_size=3).map(tuple)),
    st.builds(Left, *place[:3]),
)


@given(st.lists(messages, max_size=5))
def test_what_is_said_arrives_as_it_was_said(said: list[Message]) -> None:
    """Users whose request would be weighed otherwise at the leader than at its own gateway."""
    assert decoded(encoded("me", said)) == said


@pytest.mark.parametrize("ago_s", [None, 0.0, 12.5])
def test_the_age_of_what_was_told_arrives(ago_s: float | None) -> None:
    """Who waited for long must not begin anew at a leader."""
    request = Request(id="r", model="m", tier=0, tenant="t", user="u", arrived_at=0.0)
    for event in (Arrived(request), Progressed("a", {"r": 1})):
        said = Told("me", "p", epoch=1, session=2, number=3, event=event, ago_s=ago_s)
        assert decoded(encoded("me", [said])) == [said]


def test_no_instant_leaves_the_process() -> None:
    """Clocks of two machines have nothing in common."""
    request = Request(id="r", model="m", tier=0, tenant="t", user="u", arrived_at=9.0)
    said = Told("me", "p", epoch=1, session=2, number=3, event=Arrived(request), ago_s=1.0)
    (heard,) = decoded(encoded("me", [said]))
    assert isinstance(heard, Told)
    assert isinstance(heard.event, Arrived)
    assert heard.event.request.arrived_at == 0.0
    (progress,) = decoded(
        encoded("me", [replace(said, event=Progressed("a", {"r": 1}, heard_at=9.0))])
    )
    assert isinstance(progress, Told)
    assert progress.event == Progressed("a", {"r": 1}, heard_at=None)


def test_a_beginning_of_two_kinds_is_cut_where_they_meet() -> None:
    """Hashes that are not of one prompt would come out as others, and steer requests wrongly."""
    blocks = (TAG | 1, TAG | 2, 7, TAG | 3)
    request = Request(
        id="r", model="m", tier=0, tenant="t", user="u", arrived_at=0.0, prefix=blocks
    )
    (heard,) = decoded(encoded("me", [Synced("me", "p", 1, 1, (Open(request, 1.0),))]))
    assert isinstance(heard, Synced)
    assert heard.requests[0].request.prefix == blocks[:2]


def _bytes_of(*rows: object) -> bytes:
    return msgspec.msgpack.encode(("me", list(rows)))


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", b"{}", encoded("me", [Left("me", "p", 1)])[:-1],
        encoded("me", [Left("me", "p", 1)]) + b"\x00",
        _bytes_of((99, "p", 1, 1, 1)), _bytes_of((9, "p", 1, 1)), _bytes_of((9, "p", "1", 1, 1)),
        _bytes_of((3, "p", 1, 1, 1, "r", "no such outcome", None, None, None, False)),
        b"\x91" * 2000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_as_a_whole(payload: bytes) -> None:
    """A gateway of another version must be noticed, and not be half understood."""
    with pytest.raises(WireError):
        decoded(payload)


def test_a_usual_request_is_small() -> None:
    """The network between gateways carries one for each request."""
    request = Request(
        id="0123456789abcdef", model="llama-3-8b", tier=2, tenant="acme", user="alice",
        arrived_at=0.0, prompt_tokens=512, output_tokens_max=256, streams=True, body_bytes=2048,
    )  # fmt: skip
    said = Told(
        "gateway-1",
        "llama-3-8b",
        epoch=1_796_000_000_000,
        session=1,
        number=1,
        event=Arrived(request),
        ago_s=0.001,
    )
    assert len(encoded("gateway-1", [said])) < 150
