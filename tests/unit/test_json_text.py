"""Members of JSON objects are found and changed by their place in the text."""

import json

import pytest

from gateway.upstream.json_text import end_of_value, member, members, with_value, without

TEXT = b'{ "a" : "}\\"," , "b":[1,{"c":2},"]"] ,"c": {"a":{}}, "d":-1.5e3,"e":null}'


def test_members_are_those_of_the_outer_object() -> None:
    """A client's metadata inside must not pass for the engine's own fields."""
    found = {each.name: TEXT[each.value : each.end] for each in members(TEXT, 0)}
    values = {name.decode(): json.loads(value) for name, value in found.items()}
    assert values == json.loads(TEXT)
    assert list(members(b"{}", 0)) == []
    inner = member(TEXT, 0, b"c")
    assert inner is not None
    assert [each.name for each in members(TEXT, inner.value)] == [b"a"]


@pytest.mark.parametrize(
    ("text", "end"),
    [(b'"a\\"b" ,', 6), (b"[[]],", 4), (b'{"a":"}"}}', 9), (b"12]", 2), (b"[1", 2), (b"", 0)],
)
def test_values_end_where_they_end(text: bytes, end: int) -> None:
    """A text that is cut off ends there."""
    assert end_of_value(text, 0) == end


def test_a_value_is_set_in_its_place_or_put_first() -> None:
    """Everything else keeps its bytes."""
    assert with_value(b'{"a": 1 ,"b":2}', 0, b"a", b"9", adds=True) == b'{"a": 9 ,"b":2}'
    assert with_value(b'{"b":2}', 0, b"a", b"9", adds=True) == b'{"a":9,"b":2}'
    assert with_value(b"{ }", 0, b"a", b"9", adds=True) == b'{"a":9 }'
    assert with_value(b'{"b":2}', 0, b"a", b"9", adds=False) == b'{"b":2}'


@pytest.mark.parametrize("name", ["a", "b", "c", "d", "e", "absent"])
def test_a_member_leaves_with_one_comma(name: str) -> None:
    """First, last or between."""
    expected = json.loads(TEXT)
    expected.pop(name, None)
    assert json.loads(without(TEXT, 0, name.encode())) == expected
    assert without(b'{"a":1}', 0, b"a") == b"{}"
