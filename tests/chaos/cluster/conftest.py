"""What all of these happen to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer, running_redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """One Redis, which forgets everything when it ends."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with running_redis(folder, ("--save", "", "--appendonly", "no")) as server:
        yield server
