"""A thousand changes by gateways that are killed all the time, again and again."""

from pathlib import Path

import pytest

from tests.chaos.conftest import Say
from tests.support.killing import killed_at_any_moment, one_of_two_killed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

WRITES = 1000
KILLS = 12


@pytest.mark.parametrize("seed", range(10))
async def test_each_acknowledged_change_of_a_thousand_is_there_whole(
    tmp_path: Path, seed: int, say: Say
) -> None:
    """An operator who was told that a key is revoked, or a tenant who was sold a tier."""
    file = tmp_path / "fairgate.db"
    killed = await killed_at_any_moment(file, seed=seed, writes=WRITES, kills=KILLS)
    say(f"seed {seed}: {WRITES} changes, killed {killed} times, nothing lost or half there")
    assert killed >= KILLS // 2


@pytest.mark.parametrize("seed", range(10))
async def test_of_two_gateways_on_one_file_the_other_goes_on(tmp_path: Path, seed: int) -> None:
    """A worker that is killed must neither block its neighbours nor take their changes along."""
    await one_of_two_killed(tmp_path / "fairgate.db", seed=seed, writes=200)
