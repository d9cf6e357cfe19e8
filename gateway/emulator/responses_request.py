"""Bodies of OpenAI's Responses API to calls; what was stored earlier is part of the prompt."""

from collections.abc import Callable
from typing import Any

from gateway.emulator import schema
from gateway.emulator.calls import Call, Card, Turn
from gateway.emulator.parsing import text_of
from gateway.emulator.refusals import bad_request
from gateway.emulator.tools import NO_TOOLS, Chosen, chosen_tool

NO_LIST = "Tool choice 'required' must be specified with 'tools' parameter."

_REPEATED = (
    *("instructions", "metadata", "max_tool_calls", "previous_response_id", "prompt"),
    *("reasoning", "text", "user"),
)
"""Fields that the answer shows as they came, or null."""
_DEFAULTS: dict[str, object] = {
    "parallel_tool_calls": True,
    "background": False,
    "service_tier": "auto",
    "truncation": "disabled",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "tools": [],
}
"""Fields that the answer shows with these values where they are absent or null."""

Past = Callable[[str], tuple[Turn, ...]]
"""The conversation of a stored response, by its id; raises `Refusal` when there is none."""


def parse_response(body: bytes, card: Card, past: Past) -> Call:
    """A call of /v1/responses.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    optional, given = fields.optional, fields.body
    turns = _turns(fields)
    previous = optional("previous_response_id", schema.as_str)
    stop = given.get("stop") or []
    common = {
        "model": optional("model", schema.as_str) or card.models[0],
        "max_tokens": optional("max_output_tokens", schema.as_int),
        "streams": optional("stream", schema.as_bool, default=False),
        "temperature": optional("temperature", schema.as_float, default=1.0),
        "top_p": optional("top_p", schema.as_float, default=1.0),
        "seed": optional("seed", schema.as_int64),
        "priority": optional("priority", schema.as_int64, default=0, nullable=False),
        "penalises_output": any(given.get(f"{word}_penalty") for word in ("frequency", "presence")),
        "stops": tuple([stop] if isinstance(stop, str) else list(map(str, stop))),
    }
    request = _repeated(fields)
    fields.refuse_problems()
    if previous is not None:
        # Instructions are not inherited: the present ones, if any, come first.
        is_system = bool(turns) and turns[0][0] == "system"
        turns = [*turns[:is_system], *past(previous), *turns[is_system:]]
    tool = _tool(fields)
    ids = card.vocabulary.encode_chat(turns, opens_answer=True, continues_last=False)
    script = None if tool is None else tuple(card.vocabulary.encode(tool.arguments))
    return Call(
        form="response",
        prompts=(tuple(ids),),
        tool=tool,
        script=script,
        turns=tuple(turn for turn in turns if turn[0] != "system"),
        request=request,
        **common,
    ).check(card)


def _turns(fields: schema.Fields) -> list[Turn]:
    """(role, text) of each item of the input, the instructions first."""
    instructions = fields.optional("instructions", schema.as_str)
    turns = [("system", instructions)] if instructions else []
    given = fields.body.get("input")
    if "input" not in fields.body:
        fields.missing("input")
    elif isinstance(given, str):
        turns.append(("user", given))
    elif isinstance(given, list) and all(isinstance(item, dict) for item in given):
        turns += map(_turn, given)
    else:
        problem = schema.Problem("string_type", "Input should be a valid string")
        fields.add(problem, "input", given)
    return turns


def _turn(item: dict[str, Any]) -> Turn:
    match item.get("type"):
        case "function_call":
            return "assistant", str(item.get("arguments", ""))
        case "function_call_output":
            return "tool", text_of(item.get("output"))
        case _:
            return str(item.get("role", "user")), text_of(item.get("content"))


def _repeated(fields: schema.Fields) -> dict[str, Any]:
    """What the answer shows of the request, and what decides how it is kept."""
    given = fields.body
    shown = {name: given.get(name) for name in _REPEATED}
    for name, default in _DEFAULTS.items():
        value = given.get(name)
        shown[name] = default if value is None else value
    shown["tool_choice"] = given.get("tool_choice", "auto") if shown["tools"] else "none"
    shown["request_id"] = fields.optional("request_id", schema.as_str)
    shown["store"] = fields.optional("store", schema.as_bool, default=True)
    shown["background"] = fields.optional("background", schema.as_bool, default=False)
    return shown


def _tool(fields: schema.Fields) -> Chosen | None:
    """The tool that is forced; without a parser the engine answers `auto` with text."""
    choice = fields.body.get("tool_choice") or "auto"
    given = fields.body.get("tools") or []
    if isinstance(choice, dict):
        choice = (choice.get("name"),)
    if choice in ("auto", "none"):
        return None
    if not given:
        raise bad_request(NO_LIST, param="tool_choice")
    tools = [
        (str(tool.get("name")), tool.get("parameters") or {})
        for tool in given
        if isinstance(tool, dict) and tool.get("type", "function") == "function"
    ]
    if not tools:
        raise bad_request(NO_TOOLS)
    return chosen_tool(choice, tools)
