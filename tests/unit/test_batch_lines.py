"""Lines of a batch's input: which are refused, why, and that a body is kept as it was written."""

import json

import pytest

from gateway.batch.lines import Fault, Line, Tally, examined, parsed, whole_lines
from tests.support.batches import CHAT, line

GOOD = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}}


def written(**changes: object) -> bytes:
    """A good line, changed."""
    return json.dumps({**GOOD, **changes}).encode()


def test_a_body_is_kept_byte_for_byte() -> None:
    """Whoever compares a batch's answers with direct ones needs the same requests."""
    body = b'{"model": "m",  "temperature":1.50, "x": "\\u00e9"}'
    data = b'{"custom_id":"a","method":"POST","url":"%b","body":%b}' % (CHAT.encode(), body)
    assert examined(data, number=1, endpoint=CHAT) == Line(custom_id="a", body=body)
    assert parsed(data).body == body


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b"[]", "invalid_line", None),
        (b'{"custom_id":"a"}', "invalid_line", None),
        (written(custom_id=7), "invalid_line", None),
        (written(custom_id=""), "invalid_custom_id", "custom_id"),
        (written(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (written(method="GET"), "invalid_method", "method"),
        (written(url="/v1/embeddings"), "mismatched_url", "url"),
        (written(body=[]), "invalid_body", "body"),
        (written(body={}), "invalid_body", "body.model"),
        (written(body={"model": 1}), "invalid_body", "body.model"),
        (written(body={"model": "m", "stream": True}), "invalid_body", "body.stream"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(data: bytes, code: str, param: str | None) -> None:
    """Of fifty thousand lines the user must find the one."""
    found = examined(data, number=17, endpoint=CHAT)
    assert isinstance(found, Fault)
    assert (found.code, found.line, found.param) == (code, 17, param)


def test_a_stream_that_is_switched_off_is_no_stream() -> None:
    """SDKs write `stream: false` into every body."""
    for value in (False, None):
        found = examined(written(body={"model": "m", "stream": value}), number=1, endpoint=CHAT)
        assert isinstance(found, Line)


def tally(**changes: int) -> Tally:
    """A count of a small file."""
    bounds = {"lines_max": 10, "line_bytes_max": 1_000, "part_lines": 2, "faults_max": 3, **changes}
    return Tally(endpoint=CHAT, **bounds)


def test_parts_begin_where_their_first_request_stands() -> None:
    """A gateway that takes over a part must not read the file from its beginning."""
    data = b"\n" + b"".join(line(number) for number in range(5))
    found = tally()
    lines, rest = whole_lines(data)
    found.count(lines, 0)
    assert (found.lines, rest, found.verdict()) == (5, b"", ())
    assert [first for first, _ in found.starts] == [0, 2, 4]
    for first, start in found.starts:
        assert data[start:].startswith(line(first))


def test_parts_go_on_over_slices() -> None:
    """A file is never read whole."""
    data = b"".join(line(number) for number in range(4))
    found, at = tally(), 0
    for each in data.splitlines():
        found.count([each], at)
        at += len(each) + 1
    whole = tally()
    whole.count(whole_lines(data)[0], 0)
    assert found.starts == whole.starts


def test_a_custom_id_stands_once() -> None:
    """Two answers of one id could not be told apart."""
    found = tally()
    found.count([written(), b"", written()], 0)
    assert [(fault.code, fault.line) for fault in found.verdict()] == [("duplicate_custom_id", 3)]


def test_an_empty_file_is_no_batch() -> None:
    """It would be completed before it began, and nobody would know why."""
    found = tally()
    found.count([b"", b"  "], 0)
    assert [fault.code for fault in found.verdict()] == ["empty_file"]


def test_too_many_requests_are_refused_as_such() -> None:
    """Who sends a file of a million lines is told the bound."""
    found = tally(lines_max=2)
    found.count([line(number).rstrip() for number in range(4)], 0)
    assert [fault.code for fault in found.verdict()] == ["too_many_requests"]
    assert found.is_hopeless


def test_a_line_beyond_the_bound_is_named_and_the_others_are_looked_at() -> None:
    """One picture that is too large must not hide what else is wrong."""
    found = tally()
    found.count([line(0).rstrip(), line(1, x="y" * 1_000), b"x"], 0)
    assert [(each.code, each.line) for each in found.verdict()] == [
        ("line_too_long", 2), ("invalid_json_line", 3),
    ]  # fmt: skip


def test_no_more_faults_are_told_than_there_is_use_for() -> None:
    """A file of the wrong kind has as many faults as lines."""
    found = tally()
    found.count([b"x"] * 100, 0)
    assert len(found.verdict()) == 3
    assert found.number == 3, "the rest need not be read"
