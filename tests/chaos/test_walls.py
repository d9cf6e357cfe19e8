"""A firewall between the gateway and an engine: packets dropped and refused, and what follows."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.conftest import Say

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
ALONE = ("unshare", "--net")


def test_an_engine_behind_a_wall_is_left_and_found_again(say: Say) -> None:
    """A dropped packet is no error; only time tells, and the engine knows nothing of it."""
    can = (*ALONE, "iptables", "--list", "INPUT")
    try:
        able = subprocess.run(can, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("needs root, unshare and iptables")
    command = (*ALONE, sys.executable, "-m", "tests.chaos.walls")
    told = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    say(told.stdout.strip().replace("\n", "\n  "))
    assert told.returncode == 0, told.stderr[-4000:]
