"""The sliding minute: what fits, when it fits, and what is given back."""

import pytest

from gateway.tenancy.window import SLOTS_MAX, Window


def test_the_whole_allowance_may_be_used_at_once_and_comes_back_a_minute_later() -> None:
    """A batch job that sends its minute's requests in one burst is within its rights."""
    window = Window()
    for _ in range(5):
        assert window.fits_at(1, 5, 100.2) == 100.2
        window.add(1, 100.2)
    assert window.fits_at(1, 5, 100.2) == 161.0
    assert window.fits_at(1, 5, 160.99) == 161.0
    assert window.fits_at(1, 5, 161.0) == 161.0
    assert window.fits_at(5, 5, 161.0) == 161.0


def test_no_minute_sees_more_than_one_allowance_whatever_the_edge() -> None:
    """A fixed window lets two allowances through within a second, and an engine drowns."""
    window = Window()
    window.add(10, 59.9)
    for now in (60.0, 60.1, 90.0, 119.9, 120.0):
        at = window.fits_at(1, 10, now)
        assert at is not None
        assert at >= 119.9


def test_what_waits_is_told_the_slot_that_makes_room_for_all_of_it() -> None:
    """A hint that is too early is a second refusal; one too late is lost time."""
    window = Window()
    window.add(30, 0.5)
    window.add(50, 10.5)
    window.add(20, 20.5)
    assert window.fits_at(30, 100, 21.0) == 61.0
    assert window.fits_at(31, 100, 21.0) == 71.0
    assert window.fits_at(100, 100, 21.0) == 81.0
    assert window.empty_at(21.0) == 81.0


def test_what_is_more_than_the_allowance_never_fits() -> None:
    """An endless series of 429s would tell nobody that the request is too large."""
    assert Window().fits_at(11, 10, 0.0) is None


def test_what_is_given_back_is_free_at_once_and_does_not_count_twice() -> None:
    """A short answer must not hold the place of the long one that was feared."""
    window = Window()
    slot = window.add(80, 0.0)
    window.correct(slot, -50, 5.0)
    assert window.used == 30
    assert window.fits_at(70, 100, 5.0) == 5.0
    window.add(70, 5.0)
    assert window.fits_at(30, 100, 6.0) == 61.0
    window.correct(slot, -30, 62.0)
    assert window.used == 70, "it had left the window already"


def test_what_was_too_little_counts_from_when_it_is_known() -> None:
    """A user whose answers are longer than foreseen would otherwise have them for nothing."""
    window = Window()
    slot = window.add(10, 0.0)
    window.correct(slot, 90, 300.0)
    assert window.used == 90
    assert window.fits_at(11, 100, 300.0) == 361.0


def test_a_lower_allowance_than_what_was_used_waits_for_what_was_used() -> None:
    """Limits that are lowered while a gateway runs must not fail on what is there."""
    window = Window()
    window.add(100, 0.0)
    window.add(5, 30.0)
    assert window.fits_at(1, 5, 31.0) == 91.0
    assert window.fits_at(5, 5, 31.0) == 91.0


@pytest.mark.parametrize("step_s", [0.01, 0.7, 3.3])
def test_it_never_holds_more_slots_than_it_says(step_s: float) -> None:
    """One holder with millions of requests must not be one with millions of entries."""
    window, now = Window(), 0.0
    for _ in range(500):
        window.add(1, now)
        now += step_s
        assert len(window._slots) <= SLOTS_MAX
