"""Each planted fault must be caught by the test that claims to protect from it."""

import pytest

from tests.support.catching import QUIET, Mutation
from tests.support.mutations import BREAKS, MUTATIONS
from tests.support.planting import CORE

MUTATIONS_MIN = 25


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
@pytest.mark.sources
def test_every_planted_fault_is_caught(mutation: Mutation) -> None:
    """Whoever trusts a green test run."""
    with pytest.raises(AssertionError):
        mutation.run()


def test_every_module_that_decides_has_a_fault_of_its_own() -> None:
    """Whoever changes a module that no test looks at."""
    deciding = {path.stem for path in CORE.glob("*.py")} - QUIET
    assert deciding <= {mutation.file.removesuffix(".py") for mutation in MUTATIONS}
    assert len(MUTATIONS) >= MUTATIONS_MIN


def test_every_invariant_has_a_fault_that_breaks_it() -> None:
    """Whoever trusts that what is promised of the scheduler would be missed."""
    assert all(BREAKS.values())
    assert {name for names in BREAKS.values() for name in names} <= {
        mutation.name for mutation in MUTATIONS
    }
