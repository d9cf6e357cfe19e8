"""Whatever a body looks like: what the gateway changes in it is all that differs."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.routes import CHAT
from gateway.api.wire import REMOVED_FIELDS, parse, rewritten

NUMBERS = ("0", "-0", "1e400", "1E-7", "12345678901234567890123", "0.10", "-1.5e+3", "1.0")
NAMES = ("a", "x y", "é", "\\u0061", "messages", "stream_option", "model ", *REMOVED_FIELDS)
SPACE = st.sampled_from(("", " ", "\n", "\t \r\n"))
STRINGS = st.one_of(
    st.text(max_size=8).filter(str.isprintable).map(json.dumps),
    st.sampled_from(('"\\ud83d\\ude00"', '"\\"model\\":1"', '"é\\/"', '"}{]["', '"\\\\"')),
)
VALUES = st.recursive(
    st.one_of(STRINGS, st.sampled_from((*NUMBERS, "true", "false", "null"))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.dictionaries(STRINGS, inner, max_size=3).map(
            lambda items: (
                "{" + " , ".join(f"{name} :{value}" for name, value in items.items()) + "}"
            )
        ),
    ),
    max_leaves=6,
)
OPTIONS = st.sampled_from(
    ("null", "{}", '{"include_usage":false,"x":1e400}', ' { "y":[1.0] } ', '{"include_usage":null}')
)
MEMBERS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NAMES).map(lambda name: f'"{name}"'), VALUES),
        st.tuples(st.sampled_from(('"model"', '"mod\\u0065l"')), st.sampled_from(('"m"', "null"))),
        st.tuples(st.just('"stream_options"'), OPTIONS),
        st.tuples(st.just('"stream"'), st.sampled_from(("true", "null"))),
    ),
    max_size=6,
)


def exactly(text: str | bytes) -> Any:
    """The object of a body in which every number is still what was written."""
    return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)


@given(
    MEMBERS, SPACE, st.sampled_from(("new", 'ne"w\\', "北京")), st.integers(-9, 9), st.booleans()
)
def test_a_changed_body_is_the_clients_with_our_changes(
    pairs: list[tuple[str, str]], space: str, model: str, priority: int, asks_usage: bool
) -> None:
    """A number written anew, a name lost, a field doubled: the engine would do something else."""
    text = f"{space}{{{space}" + f",{space}".join(f"{n}{space}:{v}" for n, v in pairs) + "}" + space
    wanted = exactly(text)
    call = asyncio.run(parse(CHAT, text.encode(), 8))
    for name in REMOVED_FIELDS:
        wanted.pop(name, None)
    assert exactly(call.body) == wanted
    assert call.model == wanted.get("model")

    with_more = {**wanted, "priority": str(priority)}
    if asks_usage:
        with_more["stream_options"] = {
            **(wanted.get("stream_options") or {}),
            "include_usage": True,
        }
    changed = bytes(rewritten(call, priority=priority, asks_usage=asks_usage))
    assert exactly(changed) == with_more
    renamed = bytes(rewritten(call, model=model, priority=priority, asks_usage=asks_usage))
    assert exactly(renamed) == {**with_more, "model": model}
    top = [name for name, _ in json.loads(renamed, object_pairs_hook=lambda pairs: pairs)]
    assert len(top) == len(set(top)), "some engines refuse a name that comes twice"
