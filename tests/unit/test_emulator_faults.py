"""Fault texts, their lifetimes and how often they strike."""

import pytest

from gateway.emulator.faults import DEFAULT_VALUES, Fault, FaultKind, Faults, parse_fault


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_can_be_written_and_read_back(kind: FaultKind) -> None:
    """A fault that the command line cannot name can be tried by nobody."""
    assert parse_fault(kind) == Fault(kind, DEFAULT_VALUES.get(kind, 0.0))
    fault = Fault(kind, 5.0, 2)
    assert str(fault) == f"{kind}:5*2"
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text", ["", "boom", "stall:x", "stall:-1", "stall:nan", "busy*0", "busy*x"]
)
def test_nonsense_is_refused_with_a_hint(text: str) -> None:
    """A misspelt fault would silently test the sunny day."""
    with pytest.raises(ValueError, match="fault"):
        parse_fault(text)


def test_a_counted_fault_strikes_that_often() -> None:
    """A retry could not be shown to succeed on the same engine."""
    faults = Faults(Clock())
    faults.inject("error-500*2")
    assert [faults.strike(FaultKind.ERROR_500) for _ in range(3)] == [True, True, False]


def test_a_counted_cut_is_gone_after_its_last_stream() -> None:
    """The continuation of a stream would be cut as the first was."""
    faults = Faults(Clock())
    faults.inject("die-midstream:4*1")
    assert faults.cut == Fault(FaultKind.DIE_MIDSTREAM, 4.0, 1)
    assert faults.strike(FaultKind.DIE_MIDSTREAM)
    assert faults.cut is None


def test_a_timed_fault_ends_by_itself() -> None:
    """An engine frozen from the command line could never thaw."""
    clock = Clock()
    faults = Faults(clock)
    faults.inject("freeze:3")
    clock.now += 2
    assert faults.left_s(FaultKind.FREEZE) == 1
    assert faults.is_active(FaultKind.FREEZE)
    clock.now += 1
    assert faults.left_s(FaultKind.REFUSE) is None
    assert not faults.is_active(FaultKind.FREEZE)
    assert faults.active() == ()


def test_one_cut_takes_the_place_of_another() -> None:
    """Which of two cuts strikes would depend on their order."""
    faults = Faults(Clock())
    faults.inject("stall:1", "die-midstream:2")
    assert [fault.kind for fault in faults.active()] == [FaultKind.DIE_MIDSTREAM]
    faults.clear("stall")
    assert faults.cut is not None
    faults.clear()
    assert faults.cut is None


def test_a_list_with_a_mistake_changes_nothing_and_changes_are_told() -> None:
    """Half of a scenario would be active after its error."""
    faults, told = Faults(Clock()), []
    faults.on_change = lambda: told.append(faults.active())
    with pytest.raises(ValueError, match="boom"):
        faults.inject("busy", "boom")
    assert not told
    faults.inject("busy")
    faults.clear("busy")
    assert told == [(Fault(FaultKind.BUSY),), ()]
