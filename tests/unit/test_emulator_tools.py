"""Which tool the emulated engine calls, and with what."""

import json
from typing import Any

import pytest

from gateway.emulator.logprobs import TOP_LOGPROBS_MAX, chat_logprobs
from gateway.emulator.refusals import Refusal
from gateway.emulator.tools import SCHEMA_DEPTH_MAX, arguments_for, chosen_tool
from gateway.emulator.vocabulary import Vocabulary

TOOLS: list[tuple[str, dict[str, Any]]] = [("one", {}), ("two", {"type": "object"})]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {}),
        ({"type": "string"}, "word"),
        ({"type": "string", "enum": ["b", "a"]}, "b"),
        ({"type": "array", "items": {"type": "integer"}}, [7]),
        ({"type": ["string", "null"]}, None),
        (
            {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "boolean"}}},
            {"a": 1.5, "b": True},
        ),
        ({"properties": {"a": {"properties": {"b": {"type": "null"}}}}}, {"a": {"b": None}}),
    ],
)
def test_arguments_fit_the_types_of_their_schema(schema: dict[str, Any], value: object) -> None:
    """Tools would be called with what they refuse."""
    assert json.loads(arguments_for(schema)) == value


def test_a_schema_without_end_is_answered() -> None:
    """A nested schema would end the emulator with a stack overflow."""
    schema: dict[str, Any] = {}
    schema["properties"] = {"again": schema}
    assert arguments_for(schema).count("again") == SCHEMA_DEPTH_MAX


def test_what_is_required_is_the_first_and_what_is_named_that_one() -> None:
    """Agents would be handed another tool's call."""
    first, named = chosen_tool("required", TOOLS), chosen_tool(("two",), TOOLS)
    assert first is not None
    assert named is not None
    assert (first.name, first.is_named) == ("one", False)
    assert (named.name, named.is_named) == ("two", True)


@pytest.mark.parametrize("choice", [None, "none"])
def test_without_a_choice_or_tools_nothing_is_called(choice: object) -> None:
    """Every chat would end in a call."""
    assert chosen_tool(choice, None) is None
    assert chosen_tool("none", TOOLS) is None


@pytest.mark.parametrize(
    ("choice", "tools"),
    [(None, TOOLS), ("auto", TOOLS), ("required", None), (("x",), TOOLS), ("none", [])],
)
def test_a_choice_that_cannot_be_is_refused(choice: object, tools: Any) -> None:
    """A typing error would be answered with text."""
    with pytest.raises(Refusal) as caught:
        chosen_tool(choice, tools)
    assert caught.value.status == 400


def test_alternatives_have_a_bound() -> None:
    """One number in a request would multiply the size of the answer."""
    vocabulary = Vocabulary()
    (token,) = chat_logprobs(vocabulary, [300], 10_000)["content"]
    assert len(token["top_logprobs"]) == TOP_LOGPROBS_MAX
    (plain,) = chat_logprobs(vocabulary, [300], 0)["content"]
    assert plain["top_logprobs"] == []
    assert plain["logprob"] == token["logprob"]
