"""Fields of a JSON body, checked and converted as vLLM's pydantic models do it.

Collects every problem before it refuses, since the real error lists them all.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from gateway.emulator.refusals import SCHEMA_KIND, Refusal, refusal

INT64_MAX = 2**63 - 1
Entry = tuple[str, str, str, str, dict[str, object] | None]
"""One problem as the error shows it: type, loc, msg, input, ctx."""

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})
_INPUT_SHOWN = 200
"""Characters of a wrong value that the error repeats."""
_PROBLEMS_SHOWN = 10


class Problem(Exception):
    """What is wrong with one value."""

    def __init__(self, kind: str, message: str, ctx: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.ctx = ctx


def read_json(body: bytes) -> dict[str, Any]:
    """The body as an object.

    Raises:
        Refusal: empty, no JSON, or JSON that is no object.
    """
    if not body:
        raise _refused([("missing", "body", "Field required", "None", None)])
    try:
        # Not orjson: the standard library's messages and big integers are what the engine shows.
        value = json.loads(body)
    except json.JSONDecodeError as error:
        ctx: dict[str, object] = {"error": error.msg}
        raise _refused(
            [("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", ctx)]
        ) from None
    except UnicodeDecodeError:
        ctx = {"error": "invalid utf-8"}
        raise _refused(
            [("json_invalid", "body.0", "JSON decode error", "<dict of 0 items>", ctx)]
        ) from None
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _refused([("model_attributes_type", "body", message, shown(value), None)])
    return value


class Fields:
    """Reads typed fields of a body; `refuse_problems` raises what was found wrong on the way."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.problems: list[Entry] = []

    def require(self, name: str, convert: Callable[[Any], Any]) -> Any:
        """A field that must be there."""
        if name not in self.body:
            self.missing(name)
            return None
        return self.optional(name, convert, nullable=False)

    def optional(
        self,
        name: str,
        convert: Callable[[Any], Any],
        default: Any = None,
        *,
        nullable: bool = True,
    ) -> Any:
        """A field that may be absent or, when nullable, null."""
        value = self.body.get(name)
        if value is None and (nullable or name not in self.body):
            return default
        try:
            return convert(value)
        except Problem as problem:
            self.add(problem, name, value)
            return default

    def missing(self, name: str) -> None:
        """Note that a field is not there."""
        self.problems.append(("missing", f"body.{name}", "Field required", shown(self.body), None))

    def add(self, problem: Problem, name: str, value: object) -> None:
        """Note that a field is wrong."""
        self.problems.append(
            (problem.kind, f"body.{name}", str(problem), shown(value), problem.ctx)
        )

    def adopt(self, name: str, nested: "Fields") -> None:
        """Take over the problems of the object under `name`."""
        for kind, loc, message, value, ctx in nested.problems:
            place = loc.removeprefix("body.")
            self.problems.append((kind, f"body.{name}.{place}", message, value, ctx))

    def refuse_problems(self) -> None:
        """Raises `Refusal` when anything was wrong."""
        if self.problems:
            raise _refused(self.problems)


def as_int(value: Any) -> int:
    """An integer, or what pydantic makes one of."""
    if isinstance(value, int):
        number = int(value)
    elif isinstance(value, float):
        if not math.isfinite(value) or value != int(value):
            raise Problem(
                "int_from_float",
                "Input should be a valid integer, got a number with a fractional part",
            )
        number = int(value)
    elif isinstance(value, str):
        number = _parsed_int(value)
    else:
        raise Problem("int_type", "Input should be a valid integer")
    return number


def as_int64(value: Any) -> int:
    """An integer of 64 bits."""
    number = as_int(value)
    if number > INT64_MAX:
        raise Problem(
            "less_than_equal",
            f"Input should be less than or equal to {INT64_MAX}",
            {"le": INT64_MAX},
        )
    return number


def as_float(value: Any) -> float:
    """A number."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            raise Problem("float_parsing", message) from None
    raise Problem("float_type", "Input should be a valid number")


def as_bool(value: Any) -> bool:
    """A truth value, or one of the words for it."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    if isinstance(value, str | int | float):
        message = "Input should be a valid boolean, unable to interpret input"
        raise Problem("bool_parsing", message)
    raise Problem("bool_type", "Input should be a valid boolean")


def as_str(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise Problem("string_type", "Input should be a valid string")
    return value


def as_list(value: Any) -> list[Any]:
    """A list of anything."""
    if not isinstance(value, list):
        raise Problem("list_type", "Input should be a valid list")
    return value


def as_dict(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise Problem("dict_type", "Input should be a valid dictionary")
    return value


def shown(value: object) -> str:
    """How an error repeats a value: containers are described, long ones cut."""
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _INPUT_SHOWN else f"{text[:_INPUT_SHOWN]}...[truncated]"


def _parsed_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise Problem("int_parsing", message) from None


def _refused(problems: list[Entry]) -> Refusal:
    """The 400 of the schema style, whose `param` is the first problem's place."""
    lines: list[str] = []
    for kind, loc, message, value, ctx in problems[:_PROBLEMS_SHOWN]:
        entry: dict[str, object] = {"type": kind, "loc": loc, "msg": message, "input": value}
        lines.append(f"  {entry if ctx is None else entry | {'ctx': ctx}}")
    label = "error" if len(problems) == 1 else "errors"
    if len(problems) > _PROBLEMS_SHOWN:
        lines.append(f"  ...and {len(problems) - _PROBLEMS_SHOWN} more {label}")
    message = "\n".join([f"{len(problems)} validation {label}:", *lines])
    return refusal(400, message, SCHEMA_KIND, param=problems[0][1])
