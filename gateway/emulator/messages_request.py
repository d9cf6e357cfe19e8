"""Bodies of Anthropic's Messages API to calls; their tokens are those of the same chat.

The server turns these requests into chats, and so this module does.
"""

from typing import Any

from gateway.emulator import schema
from gateway.emulator.calls import Call, Card, Turn
from gateway.emulator.parsing import text_of
from gateway.emulator.refusals import bad_request
from gateway.emulator.tools import Chosen, chosen_tool

NO_MESSAGES = "Cannot apply chat template to an empty conversation. Provide at least one message."
ROLES = ("user", "assistant", "system")


def parse_message(body: bytes, card: Card) -> Call:
    """A call of /v1/messages.

    Raises:
        Refusal: as the engine would answer, but for the shape of its errors.
    """
    fields = schema.Fields(schema.read_json(body))
    optional = fields.optional
    model = fields.require("model", schema.as_str)
    turns = _conversation(fields)
    max_tokens = fields.require("max_tokens", _as_positive)
    stops = optional("stop_sequences", schema.as_list) or []
    streams = optional("stream", schema.as_bool, default=False)
    temperature = optional("temperature", schema.as_float, default=1.0)
    top_p = optional("top_p", schema.as_float, default=1.0)
    prompt = _prompt(fields, turns, card)
    tool = _tool(fields)
    return Call(
        form="message",
        model=model,
        prompts=(prompt,),
        max_tokens=max_tokens,
        stops=tuple(map(str, stops)),
        temperature=temperature,
        top_p=top_p,
        streams=streams,
        tool=tool,
        script=None if tool is None else tuple(card.vocabulary.encode(tool.arguments)),
    ).check(card)


def parse_count(body: bytes, card: Card) -> Call:
    """A call of /v1/messages/count_tokens, which is to be counted only.

    Raises:
        Refusal: as the engine would answer, but for the shape of its errors.
    """
    fields = schema.Fields(schema.read_json(body))
    model = fields.require("model", schema.as_str)
    prompt = _prompt(fields, _conversation(fields), card)
    return Call(form="message", model=model, prompts=(prompt,)).check_prompts(card)


def _prompt(fields: schema.Fields, turns: list[Turn], card: Card) -> tuple[int, ...]:
    fields.refuse_problems()
    if not turns:
        raise bad_request(NO_MESSAGES)
    ids = card.vocabulary.encode_chat(turns, opens_answer=True, continues_last=False)
    return tuple(ids)


def _conversation(fields: schema.Fields) -> list[Turn]:
    """(role, text) of each message, the system's first."""
    system = text_of(fields.body.get("system"))
    turns = [("system", system)] if system else []
    for index, message in enumerate(fields.require("messages", schema.as_list) or []):
        place = f"messages.{index}"
        if not isinstance(message, dict):
            problem = schema.Problem(
                "model_attributes_type",
                "Input should be a valid dictionary or object to extract fields from",
            )
            fields.add(problem, place, message)
            continue
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            names = "'user', 'assistant' or 'system'"
            problem = schema.Problem(
                "literal_error", f"Input should be {names}", {"expected": names}
            )
            fields.add(problem, f"{place}.role", role)
        elif not isinstance(content, str | list):
            problem = schema.Problem("string_type", "Input should be a valid string")
            fields.add(problem, f"{place}.content", content)
        else:
            turns.extend(_turns(str(role), content))
    return turns


def _turns(role: str, content: str | list[Any]) -> list[Turn]:
    """A message, after the results of tools that it brings."""
    if isinstance(content, str):
        return [(role, content)]
    blocks = [block for block in content if isinstance(block, dict)]
    results = [
        ("tool", text_of(block.get("content")))
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    others = [block for block in blocks if block.get("type") != "tool_result"]
    if others or not results:
        results.append((role, text_of(others)))
    return results


def _tool(fields: schema.Fields) -> Chosen | None:
    given = fields.body.get("tools")
    if given is None:
        return None
    tools = [
        (str(tool.get("name")), tool.get("input_schema") or {})
        for tool in given
        if isinstance(tool, dict)
    ]
    choice = fields.body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else "auto"
    if kind == "tool" and isinstance(choice, dict):
        return chosen_tool((choice.get("name"),), tools)
    return chosen_tool("required" if kind == "any" else kind, tools)


def _as_positive(value: Any) -> int:
    number = schema.as_int(value)
    if number <= 0:
        reason = "max_tokens must be positive"
        raise schema.Problem("value_error", f"Value error, {reason}", {"error": ValueError(reason)})
    return number
