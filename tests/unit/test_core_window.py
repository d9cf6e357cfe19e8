"""How many lines of a batch are with the scheduler at once."""

from gateway.core.window import Window


def test_a_window_opens_with_what_runs() -> None:
    """Idle slots must find lines waiting, and no more of them than have a use."""
    window = Window(lines_max=100, bytes_max=1_000)
    assert window.room(running=0, waiting=0, size=0) == 8
    assert window.room(running=0, waiting=8, size=10) == 0, "the gates are shut"
    assert window.room(running=40, waiting=8, size=10) == 10
    assert window.room(running=90, waiting=8, size=10) == 2, "no more than there may be"


def test_large_bodies_shut_the_window() -> None:
    """All requests share the memory for bodies."""
    window = Window(lines_max=100, bytes_max=1_000)
    assert window.room(running=1, waiting=0, size=1_000) == 0
    assert window.room(running=0, waiting=0, size=0) > 0
