"""Bodies of the routes that read texts and generate nothing: embeddings, scores, classes.

Each text, or pair of texts, becomes one prompt; all count as prompt tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.emulator import schema
from gateway.emulator.calls import Call, Card
from gateway.emulator.parsing import prompts_in, templated, text_of, turns_in
from gateway.emulator.refusals import bad_request

_PAIRS = (
    *(("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")),
)
"""What a score's two sides may be called."""
LENGTHS = "Input lengths must be either 1:1, 1:N or N:N"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A call for numbers about texts."""

    call: Call
    as_base64: bool = False
    documents: tuple[str, ...] = ()
    """Of a rerank, in the order of its prompts."""
    top_n: int = 0
    """How many of them are wanted; 0: all."""


Parse = Callable[[bytes, Card], Pooled]


def parse_texts(body: bytes, card: Card) -> Pooled:
    """A call with texts, token ids or a conversation.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    prompts: tuple[tuple[int, ...], ...]
    if "messages" in fields.body:
        prompts = (tuple(templated(fields, turns_in(fields), card)),)
    else:
        if "input" not in fields.body:
            fields.missing("input")
        prompts = prompts_in(fields, "input", card.vocabulary)
    call = _call(fields, prompts, card)
    return Pooled(call=call, as_base64=fields.body.get("encoding_format") == "base64")


def parse_scores(body: bytes, card: Card) -> Pooled:
    """A call that compares one text with each of several, or two lists one by one.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    given = fields.body
    first, second = next((pair for pair in _PAIRS if set(pair) <= given.keys()), _PAIRS[-1])
    for name in (first, second):
        if name not in given:
            fields.missing(name)
    fields.refuse_problems()
    pairs = _paired(_texts(given[first]), _texts(given[second]))
    return Pooled(call=_call(fields, _prompts(pairs, card), card))


def parse_rerank(body: bytes, card: Card) -> Pooled:
    """A call that puts documents in the order of their relevance to a query.

    Raises:
        Refusal: as the engine would answer.
    """
    fields = schema.Fields(schema.read_json(body))
    for name in ("query", "documents"):
        if name not in fields.body:
            fields.missing(name)
    top_n = fields.optional("top_n", schema.as_int, default=0, nullable=False)
    if top_n < 0:
        message = "Input should be greater than or equal to 0"
        problem = schema.Problem("greater_than_equal", message, {"ge": 0})
        fields.add(problem, "top_n", top_n)
    fields.refuse_problems()
    documents = _texts(fields.body["documents"])
    pairs = _paired(_texts(fields.body["query"])[:1], documents)
    call = _call(fields, _prompts(pairs, card), card)
    return Pooled(call=call, documents=tuple(documents), top_n=top_n)


def _call(fields: schema.Fields, prompts: tuple[tuple[int, ...], ...], card: Card) -> Call:
    model = fields.optional("model", schema.as_str) or card.models[0]
    fields.refuse_problems()
    if not prompts:
        raise bad_request("You must pass at least one prompt")
    return Call(form="completion", model=model, prompts=prompts, max_tokens=0).check_prompts(card)


def _texts(given: Any) -> list[str]:
    """Texts, alone or in a list; of anything else the parts that are text."""
    items = given if isinstance(given, list) else [given]
    return [
        text_of(item["content"] if isinstance(item, dict) and "content" in item else item)
        for item in items
    ]


def _paired(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second) or not first:
        raise bad_request(LENGTHS)
    return list(zip(first, second, strict=True))


def _prompts(pairs: list[tuple[str, str]], card: Card) -> tuple[tuple[int, ...], ...]:
    encode = card.vocabulary.encode
    return tuple((*encode(one), *encode(other)) for one, other in pairs)
