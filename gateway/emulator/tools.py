"""The tool that a request makes the model call, and arguments that fit its schema.

Only forced calls are emulated (`required` or a named function); the engine without a tool parser
refuses to choose by itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.emulator.refusals import bad_request

SCHEMA_DEPTH_MAX = 8
"""Schemas may refer to themselves; deeper levels get null."""

NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NO_LIST = "When using `tool_choice`, `tools` must be set."
EMPTY_LIST = (
    "`tools` must not be an empty array. "
    "Either provide at least one tool or omit the field entirely."
)
NO_MATCH = "The tool specified in `tool_choice` does not match any of the specified `tools`"

_SAMPLES: Mapping[str, object] = {
    "string": "word",
    "integer": 7,
    "number": 1.5,
    "boolean": True,
    "null": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A call that the answer will consist of."""

    name: str
    arguments: str
    """JSON, ASCII only."""
    is_named: bool
    """Whether the client named it; then the answer's end is told as an ordinary stop."""


def chosen_tool(
    choice: object, tools: Sequence[tuple[str, Mapping[str, Any]]] | None
) -> Chosen | None:
    """The tool that `choice` forces: the first one, or the one named; None when it forces none.

    Args:
        choice: None, "none", "auto", "required", or (a 1-tuple of) the name of a tool.
        tools: (name, JSON schema) of each; None when the request has no such field.

    Raises:
        Refusal: as the engine would answer.
    """
    if tools is not None and not tools:
        raise bad_request(EMPTY_LIST, param="tools")
    if choice is None:
        choice = "auto" if tools else "none"
    if choice == "none":
        return None
    if tools is None:
        raise bad_request(NO_LIST, param="tool_choice")
    if choice == "auto":
        raise bad_request(NO_TOOLS)
    if choice == "required":
        name, schema = tools[0]
        return Chosen(name=name, arguments=arguments_for(schema), is_named=False)
    for name, schema in tools:
        if choice == (name,):
            return Chosen(name=name, arguments=arguments_for(schema), is_named=True)
    raise bad_request(NO_MATCH, param="tool_choice")


def arguments_for(schema: Mapping[str, Any]) -> str:
    """A JSON value that fits the schema, as far as its types go."""
    return json.dumps(_sample(schema, SCHEMA_DEPTH_MAX))


def _sample(schema: object, depth: int) -> object:
    if not isinstance(schema, Mapping) or not depth:
        return None
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = schema.get("type", "object")
    if kind == "object":
        wanted = schema.get("properties")
        properties = wanted if isinstance(wanted, Mapping) else {}
        return {str(name): _sample(inner, depth - 1) for name, inner in properties.items()}
    if kind == "array":
        return [_sample(schema.get("items"), depth - 1)]
    return _SAMPLES.get(kind) if isinstance(kind, str) else None
