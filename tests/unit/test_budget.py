"""Days, months, and what was spent in them: told to a store, learnt from it, counted once."""

from datetime import UTC, datetime

import pytest

from gateway.tenancy.budget import Books, Periods


def at(text: str) -> float:
    """Seconds since 1970 of an instant in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOON = at("2026-11-30T12:00:00")
DAY, MONTH = ("tenant:a", "2026-11-30"), ("tenant:a", "2026-11")


@pytest.mark.parametrize(
    ("now", "day", "day_ends", "month", "month_ends"),
    [
        ("2026-11-30T23:59:59", "2026-11-30", "2026-12-01", "2026-11", "2026-12-01"),
        ("2026-12-01T00:00:00", "2026-12-01", "2026-12-02", "2026-12", "2027-01-01"),
        ("2028-02-29T05:00:00", "2028-02-29", "2028-03-01", "2028-02", "2028-03-01"),
        ("2027-01-31T05:00:00", "2027-01-31", "2027-02-01", "2027-01", "2027-02-01"),
    ],
)
def test_periods_are_those_of_utc(
    now: str, day: str, day_ends: str, month: str, month_ends: str
) -> None:
    """Two gateways in two time zones must not count two different days."""
    periods = Periods(at(now))
    assert (periods.of("day"), periods.of("month")) == (day, month)
    assert periods.ends("day") == at(f"{day_ends}T00:00:00")
    assert periods.ends("month") == at(f"{month_ends}T00:00:00")


def test_what_is_spent_counts_for_the_day_and_the_month() -> None:
    """A budget that is changed from one to the other must not forget what was used."""
    books = Books(NOON)
    books.enter("tenant:a", books.now(NOON), 7)
    assert (books.spent(DAY), books.spent(MONTH)) == (7, 7)


def test_another_day_begins_at_nought_and_a_clock_may_go_back() -> None:
    """A time server that corrects a clock across midnight must not stop the budgets."""
    books = Books(NOON)
    yesterday = books.now(NOON)
    books.enter("tenant:a", yesterday, 7)
    tomorrow = books.now(at("2026-12-01T00:00:00"))
    assert books.spent(("tenant:a", tomorrow.day)) == 0
    books.enter("tenant:a", yesterday, -3)
    assert books.taken() == {DAY: 4, MONTH: 4}, "settled late, where it was reserved"
    books.untold()
    assert books.now(NOON).day == "2026-11-30"


def test_what_is_told_is_counted_once_at_each_moment() -> None:
    """Spending that is on its way to the store must be seen by the next request as well."""
    books = Books(NOON)
    books.enter("tenant:a", books.now(NOON), 5)
    assert books.taken() == {DAY: 5, MONTH: 5}
    books.enter("tenant:a", books.now(NOON), 2)
    assert books.spent(DAY) == 7
    books.told()
    assert books.spent(DAY) == 7
    books.learnt({DAY: 105, MONTH: 305, ("tenant:gone", "2026-11"): 9}, {"tenant:a"})
    assert (books.spent(DAY), books.spent(MONTH)) == (107, 307)
    assert books.spent(("tenant:gone", "2026-11")) == 0, "only holders there are are kept"
    assert books.taken() == {DAY: 2, MONTH: 2}


def test_what_a_store_did_not_take_is_told_again_with_what_came_since() -> None:
    """A store that is away for a minute must not make a present of that minute."""
    books = Books(NOON)
    books.enter("tenant:a", books.now(NOON), 5)
    books.taken()
    books.enter("tenant:a", books.now(NOON), 2)
    books.untold()
    assert books.spent(DAY) == 7
    assert books.taken() == {DAY: 7, MONTH: 7}


def test_what_comes_to_nothing_is_not_told() -> None:
    """A store is not asked to write for each request that was refused after all."""
    books = Books(NOON)
    books.enter("tenant:a", books.now(NOON), 5)
    books.enter("tenant:a", books.now(NOON), -5)
    assert books.taken() == {}


def test_periods_that_are_long_over_are_dropped() -> None:
    """Without a store that takes them, sums of years would be kept."""
    books = Books(NOON)
    for month in range(1, 13):
        books.enter("tenant:a", books.now(at(f"2027-{month:02}-05T00:00:00")), 1)
    assert {period for _, period in books.taken()} == {
        "2027-11-05", "2027-11", "2027-12-05", "2027-12",
    }  # fmt: skip
