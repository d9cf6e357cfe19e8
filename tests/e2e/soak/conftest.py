"""How long the soak lasts, and a way to say figures past pytest's capture."""

import os
import sys
from collections.abc import Callable

import pytest

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print although pytest captures: the figures are the result."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return write


@pytest.fixture(scope="session")
def seconds() -> float:
    """`SOAK_SECONDS`: how long slow readers read."""
    return float(os.environ.get("SOAK_SECONDS", "300"))


@pytest.fixture(scope="session")
def readers() -> int:
    """`SOAK_READERS`: how many of them there are at once."""
    return int(os.environ.get("SOAK_READERS", "1000"))


@pytest.fixture(scope="session")
def names() -> int:
    """`SOAK_NAMES`: how many names are made up."""
    return int(os.environ.get("SOAK_NAMES", "1000000"))
