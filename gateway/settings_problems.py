"""What is wrong with single values, in words an operator can act on.

It knows which values may be a secret that must not be repeated in a message. What values mean
together is not known here.
"""

import difflib
from collections.abc import Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.settings_document import Document, keys_at
from gateway.settings_sources import Place, Problem

SHOWN_LENGTH_MAX = 60

ATTRIBUTES = {field.alias or name: name for name, field in Document.model_fields.items()}

Parts = dict[Place, object]
"""Valid values by their place: ("listen",) a section, ("keys", 3) one item of a list."""

# Somebody may have pasted a credential here: the value is not repeated.
SECRET_KEYS = frozenset(
    {"admin", "api_key_env", "files", "key_sha256", "keys", "replicas", "store", "url"}
)


def parsed(key: str, value: object, problems: list[Problem]) -> Parts:
    """The valid parts of one top-level key; the faults of the others are told to `problems`.

    Items of a list are judged one by one, so that a fault in one hides nothing about the rest.
    """
    items = list(enumerate(value)) if isinstance(value, list) and value else [(None, value)]
    parts: Parts = {}
    for index, item in items:
        try:
            document = Document.model_validate({key: item if index is None else [item]})
        except ValidationError as error:
            problems.extend(_problem(details, index) for details in error.errors(include_url=False))
            continue
        part = getattr(document, ATTRIBUTES[key])
        parts[(key,) if index is None else (key, index)] = part if index is None else part[0]
    return parts


def dotted(place: Place) -> str:
    """`models[0].replicas[1].url`"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _problem(details: ErrorDetails, index: int | None) -> Problem:
    """One fault that pydantic found, at its place in the whole tree."""
    place = tuple(part for part in details["loc"] if part != "[key]")
    if index is not None and len(place) > 1:
        place = (place[0], index, *place[2:])
    return Problem(place, _message(details, place))


def _message(details: ErrorDetails, place: Place) -> str:
    """What is wrong, what was given (never a secret) and what is allowed."""
    match details["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _unknown_key(place)
        case "value_error":
            wanted = str(details["ctx"]["error"])
        case "literal_error":
            wanted = f"must be {details['ctx']['expected']}"
        case "model_type" | "dict_type":
            wanted = "must be a mapping of keys"
        case "tuple_type":
            wanted = "must be a list"
        case _:
            wanted = details["msg"].replace("Input should", "must")
    given = _shown(details["input"], place)
    return f"{given} is not allowed: {wanted}" if given else wanted


def _unknown_key(place: Place) -> str:
    """The message for a key that its section does not have, with the likeliest meant one."""
    close = difflib.get_close_matches(str(place[-1]), keys_at(place[:-1]), n=1)
    return f"unknown key; did you mean {close[0]}?" if close else "unknown key"


def _shown(value: object, place: Place) -> str:
    """`value` as it may stand in a message; empty where it could hold a secret."""
    names = [part for part in place if isinstance(part, str)]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None:
        return "null"
    if names and names[-1] in SECRET_KEYS:
        return ""
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}..."
