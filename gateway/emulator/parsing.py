"""Bodies of chats, completions and token counts to `Call`s, as tolerant as the engine.

Unknown fields are ignored, a missing model means the base model, a number may come as a string.
"""

from collections.abc import Callable
from typing import Any

from gateway.emulator import schema
from gateway.emulator.calls import Call, Card, StreamOptions, Turn
from gateway.emulator.refusals import bad_request
from gateway.emulator.tools import Chosen, chosen_tool
from gateway.emulator.vocabulary import Vocabulary

NO_TEMPLATE_FOR_BOTH = (
    "continue_final_message and add_generation_prompt are not compatible. Use "
    "continue_final_message when you want the model to continue the final message, and "
    "add_generation_prompt when you want to add a header that will prompt it to start a new "
    "assistant message instead."
)
NO_MESSAGES = "Cannot apply chat template to an empty conversation. Provide at least one message."
NO_PROMPT = "Either prompt or prompt_embeds must be provided and non-empty."

Parse = Callable[[bytes, Card], Call]


def parse_chat(body: bytes, card: Card) -> Call:
    """A call of /v1/chat/completions.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    turns = turns_in(fields)
    common = _common(fields, card)
    prompt = templated(fields, turns, card)
    limit = fields.optional("max_completion_tokens", schema.as_int)
    if limit is not None:
        common["max_tokens"] = limit
    if fields.optional("logprobs", schema.as_bool, default=False):
        common["top_logprobs"] = fields.optional("top_logprobs", schema.as_int, default=0)
    fields.refuse_problems()
    tool = _tool_of_chat(fields)
    script = None if tool is None else tuple(card.vocabulary.encode(tool.arguments))
    prompts = (tuple(prompt),)
    return Call(form="chat", prompts=prompts, tool=tool, script=script, **common).check(card)


def parse_completion(body: bytes, card: Card) -> Call:
    """A call of /v1/completions: text, token ids, or a list of either.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    prompts = prompts_in(fields, "prompt", card.vocabulary)
    common = _common(fields, card)
    common["top_logprobs"] = fields.optional("logprobs", schema.as_int)
    fields.refuse_problems()
    if fields.body.get("prompt") in (None, ""):
        raise bad_request(NO_PROMPT, param="prompt")
    if not prompts:
        raise bad_request("You must pass at least one prompt")
    return Call(form="completion", prompts=prompts, **common).check(card)


def parse_tokenize(body: bytes, card: Card) -> tuple[list[int], bool]:
    """The ids of a /tokenize call, and whether their texts are wanted.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    shows_text = fields.optional("return_token_strs", schema.as_bool, default=False)
    if "messages" in fields.body:
        ids = templated(fields, turns_in(fields), card)
    else:
        text = fields.require("prompt", schema.as_str)
        if text is None and "prompt" not in fields.body:
            fields.missing("messages")
        ids = card.vocabulary.encode(text or "")
    fields.refuse_problems()
    return ids, shows_text


def parse_detokenize(body: bytes, card: Card) -> str:
    """The text of a /detokenize call; ids that do not exist have none.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    ids = fields.require("tokens", schema.as_list) or []
    fields.refuse_problems()
    known = len(card.vocabulary)
    return card.vocabulary.decode([id for id in ids if isinstance(id, int) and 0 <= id < known])


def text_of(content: Any) -> str:
    """A message's text: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _common(fields: schema.Fields, card: Card) -> dict[str, Any]:
    """The arguments of `Call` that both forms share, read in the order errors are listed in."""
    optional = fields.optional
    model = optional("model", schema.as_str) or card.models[0]
    frequency = optional("frequency_penalty", schema.as_float, default=0.0)
    ignores_end = optional("ignore_eos", schema.as_bool, default=False)
    max_tokens = optional("max_tokens", schema.as_int)
    min_tokens = optional("min_tokens", schema.as_int, default=0)
    n = optional("n", schema.as_int, default=1)
    presence = optional("presence_penalty", schema.as_float, default=0.0)
    seed = optional("seed", schema.as_int64)
    stop = fields.body.get("stop") or []
    return {
        "model": model,
        "max_tokens": max_tokens,
        "ignores_end": ignores_end,
        "min_tokens": min_tokens,
        "n": n,
        "penalises_output": bool(frequency or presence),
        "seed": seed,
        "stops": tuple([stop] if isinstance(stop, str) else list(map(str, stop))),
        "streams": optional("stream", schema.as_bool, default=False),
        "stream_options": _stream_options(fields),
        "temperature": optional("temperature", schema.as_float, default=1.0),
        "top_p": optional("top_p", schema.as_float, default=1.0),
        "priority": optional("priority", schema.as_int64, default=0, nullable=False),
        "return_token_ids": optional("return_token_ids", schema.as_bool, default=False),
    }


def _tool_of_chat(fields: schema.Fields) -> Chosen | None:
    given, choice = fields.body.get("tools"), fields.body.get("tool_choice")
    functions = [tool.get("function") or {} for tool in given or () if isinstance(tool, dict)]
    tools = [(str(one.get("name")), one.get("parameters") or {}) for one in functions]
    if isinstance(choice, dict):
        choice = ((choice.get("function") or {}).get("name"),)
    return chosen_tool(choice, None if given is None else tools)


def _stream_options(fields: schema.Fields) -> StreamOptions | None:
    given = fields.optional("stream_options", schema.as_dict)
    if given is None:
        return None
    nested = schema.Fields(given)
    options = StreamOptions(
        include_usage=nested.optional("include_usage", schema.as_bool, default=False),
        continuous=nested.optional("continuous_usage_stats", schema.as_bool, default=False),
    )
    fields.adopt("stream_options", nested)
    return options


def turns_in(fields: schema.Fields) -> list[Turn]:
    """(role, text) of each message."""
    turns: list[Turn] = []
    for index, message in enumerate(fields.require("messages", schema.as_list) or []):
        if not isinstance(message, dict):
            problem = schema.Problem("dict_type", "Input should be a valid dictionary")
            fields.add(problem, f"messages.{index}", message)
        elif "role" not in message:
            fields.missing(f"messages.{index}.role")
        else:
            turns.append((str(message["role"]), text_of(message.get("content"))))
    return turns


def templated(fields: schema.Fields, turns: list[Turn], card: Card) -> list[int]:
    """Ids of the conversation in the chat template."""
    opens = fields.optional("add_generation_prompt", schema.as_bool, default=True)
    continues = fields.optional("continue_final_message", schema.as_bool, default=False)
    fields.refuse_problems()
    if opens and continues:
        raise bad_request(NO_TEMPLATE_FOR_BOTH)
    if not turns:
        raise bad_request(NO_MESSAGES)
    return card.vocabulary.encode_chat(turns, opens_answer=opens, continues_last=continues)


def prompts_in(
    fields: schema.Fields, name: str, vocabulary: Vocabulary
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each prompt, in whichever of its four forms they came."""
    given = fields.body.get(name)
    if isinstance(given, str) or (isinstance(given, list) and given and _is_ids(given)):
        given = [given]
    prompts: list[tuple[int, ...]] = []
    for one in given if isinstance(given, list) else [] if given is None else [None]:
        if isinstance(one, str):
            prompts.append(tuple(vocabulary.encode(one)))
        elif isinstance(one, list) and _is_ids(one):
            prompts.append(tuple(one))
        else:
            fields.add(schema.Problem("list_type", "Input should be a valid list"), name, given)
            break
    return tuple(prompts)


def _is_ids(value: list[Any]) -> bool:
    return all(isinstance(id, int) for id in value)
