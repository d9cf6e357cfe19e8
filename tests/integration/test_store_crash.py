"""Gateways that are killed in the middle of changes: what was acknowledged is there, whole.

tests/chaos/test_store_kills.py does the same at length.
"""

from pathlib import Path

from tests.support.killing import killed_at_any_moment, one_of_two_killed


async def test_a_gateway_killed_at_any_moment_keeps_each_acknowledged_change_whole(
    tmp_path: Path,
) -> None:
    """An operator who was told that a key is revoked, or a tenant who was sold a tier."""
    killed = await killed_at_any_moment(tmp_path / "fairgate.db", seed=1, writes=150, kills=4)
    assert killed >= 3


async def test_of_two_gateways_on_one_file_the_other_goes_on(tmp_path: Path) -> None:
    """A worker that is killed must neither block its neighbours nor take their changes along."""
    await one_of_two_killed(tmp_path / "fairgate.db", seed=1, writes=60)
