"""Two real replicas for the whole session, and a way to say figures past pytest's capture."""

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.vllm.engines import running_vllm

PORTS = (18101, 18102)
FLAGS = (
    "--max-model-len", "4096", "--kv-cache-memory-bytes", "256M", "--scheduling-policy", "fcfs",
)  # fmt: skip

Say = Callable[[str], None]


@pytest.fixture(scope="session")
def engines() -> Iterator[list[str]]:
    """Two equal replicas of the `slow` model, four sequences each."""
    with running_vllm(*PORTS, flags=FLAGS) as urls:
        yield urls


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print although pytest captures: the figures are the result."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return write
