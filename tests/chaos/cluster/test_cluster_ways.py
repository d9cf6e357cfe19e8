"""The way to Redis: a master that is replaced, and a gateway that is cut off from it."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cluster.partition import by_proxy, parted
from tests.chaos.cluster.sentinels import DOWN_AFTER_MS, running_sentinels
from tests.chaos.cluster.verdict import DEGRADED_S, RECOVERY_S, tried
from tests.chaos.cluster.watching import taken_s
from tests.chaos.conftest import Say

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
ALONE = ("unshare", "--net")
FAILOVER_S = DOWN_AFTER_MS / 1_000 + 6.0
"""The sentinels wait, agree and promote."""


async def test_sentinels_replace_the_master(tmp_path: Path, say: Say) -> None:
    """The lease may be lost with it: its epoch must still be above all that were."""
    with running_sentinels(tmp_path) as redis:
        async with tried(tmp_path, redis.url, say) as case:
            redis.master.kill()
            await taken_s(lambda: case.house.all_alone(case.house.members), DEGRADED_S)
            back_s = await taken_s(case.house.is_whole, FAILOVER_S + RECOVERY_S)
            case.figures = f"master killed: one again after {back_s:.2f} s"


async def test_a_leader_behind_a_wall_stops_and_another_one_leads(tmp_path: Path, say: Say) -> None:
    """It cannot know that the others go on without it: it has to stop in time by itself."""
    if not _has_firewall():
        say(f"by a proxy: {await parted(tmp_path, by_proxy)}")
        return
    command = (*ALONE, sys.executable, "-m", "tests.chaos.cluster.partition", str(tmp_path))
    done = await asyncio.to_thread(
        subprocess.run, command, check=False, capture_output=True, text=True, cwd=ROOT
    )
    say(f"by iptables: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr[-4000:]


def _has_firewall() -> bool:
    try:
        can = (*ALONE, "iptables", "--list", "INPUT")
        return subprocess.run(can, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
