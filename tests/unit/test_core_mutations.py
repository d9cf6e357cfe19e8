"""Each planted fault must be caught by the test that claims to protect from it."""

import pytest

from tests.support.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_planted_fault_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever trusts a green test run."""
    mutation.plant(monkeypatch)
    with pytest.raises(AssertionError):
        mutation.caught_by()
