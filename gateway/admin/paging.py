"""Long lists in pages: how many, and after what. A place in a list survives what comes and goes.

A place is the sort key of the last item that was told, so an item that left in the meantime is
missed by nobody.
"""

import base64
import binascii
import heapq
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field

from gateway.errors import BadRequestError

T = TypeVar("T")
V = TypeVar("V")

LIMIT_MAX = 1_000
LIMIT = 100
PLACE_CHARS_MAX = 2_048

Scalar = str | int | float
"""Whole numbers of at most 64 bits."""
Key = tuple[Scalar, ...]


class Page(BaseModel):
    """Which part of a list is asked for."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[
        int, Field(ge=1, le=LIMIT_MAX, description="Most items that are told at once.")
    ] = LIMIT
    after: Annotated[
        str | None,
        Field(max_length=PLACE_CHARS_MAX, description="The `next` of the page before."),
    ] = None


class Listing(BaseModel, Generic[T]):
    """One page."""

    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool = Field(description="Whether there is anything behind this page.")
    next: str | None = Field(description="Asks for the page behind this one, as `after`.")


def page_of(
    items: Iterable[T], page: Page, *, key: Callable[[T], Key], view: Callable[[T], V]
) -> dict[str, Any]:
    """The page of `items`, by their `key`, each as `view` has it: the fields of a `Listing`.

    All keys must have one shape. Raises BadRequestError where `after` is no place of this list.
    """
    items = list(items)
    if page.after is not None:
        place = _known(page.after)
        try:
            items = [item for item in items if key(item) > place]
        except TypeError:
            raise _no_place() from None
    found = heapq.nsmallest(page.limit + 1, items, key=key)
    shown = found[: page.limit]
    has_more = len(found) > page.limit
    following = named(key(shown[-1])) if has_more else None
    return {"data": [view(item) for item in shown], "has_more": has_more, "next": following}


def named(place: Key) -> str:
    """A place as it goes into `next`."""
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode("ascii").rstrip("=")


def _known(after: str) -> Key:
    try:
        text = base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True)
        parts = orjson.loads(text)
    except (binascii.Error, ValueError):
        raise _no_place() from None
    if (
        not parts
        or not isinstance(parts, list)
        or not all(isinstance(part, Scalar) for part in parts)
    ):
        raise _no_place()
    return tuple(parts)


def _no_place() -> BadRequestError:
    return BadRequestError("after is no place of this list: take `next` of a page.", param="after")
