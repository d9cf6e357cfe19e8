"""Lists in pages, whatever comes and goes between two of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.paging import LIMIT_MAX, Page, named, page_of
from gateway.errors import BadRequestError


def pages(items: list[Any], limit: int) -> list[list[Any]]:
    """All pages, one after another."""
    found, after = [], None
    while True:
        page = page_of(items, Page(limit=limit, after=after), key=lambda x: (x,), view=str)
        found.append(page["data"])
        after = page["next"]
        assert page["has_more"] is (after is not None)
        if after is None:
            return found


@given(st.sets(st.integers(-(1 << 63), (1 << 63) - 1)), st.integers(1, 7))
def test_all_pages_together_are_the_list_in_order(items: set[int], limit: int) -> None:
    """Nobody is told twice, and nobody is missed."""
    found = pages(list(items), limit)
    assert [each for page in found for each in page] == [str(each) for each in sorted(items)]
    assert all(len(page) <= limit for page in found)


def test_what_leaves_between_two_pages_takes_nobody_along() -> None:
    """The last item of a page is often gone before the next page is asked for."""
    items = list(range(10))
    first = page_of(items, Page(limit=4), key=lambda x: (x,), view=str)
    items.remove(3)
    items.insert(0, -1)
    rest = page_of(items, Page(after=first["next"]), key=lambda x: (x,), view=str)
    assert rest["data"] == ["4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize(
    "after", ["", "x", "!!!", "AAAA", named(("a", 1, "b")), "W10", "eyJhIjoxfQ", "W1tdXQ", "\u00e9"]
)
def test_a_place_that_is_none_is_refused(after: str) -> None:
    """A page number in `after` would otherwise begin the list anew for ever."""
    with pytest.raises(BadRequestError) as caught:
        page_of([1, 2], Page(after=after), key=lambda x: (x,), view=str)
    assert caught.value.param == "after"


def test_a_page_has_a_bound() -> None:
    """A million items in one answer would stop the loop."""
    Page(limit=LIMIT_MAX)
    for limit in (0, -1, LIMIT_MAX + 1):
        with pytest.raises(ValueError, match="limit"):
            Page(limit=limit)
