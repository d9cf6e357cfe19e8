"""What docs/cluster.md says in figures is what the code does."""

from pathlib import Path

import pytest

from gateway.cluster import deciders, follower, guests, leader, ports
from tests.simulation.cluster.traffic import (
    bytes_of,
    messages_of_a_beat,
    messages_of_a_request,
)

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text()
ALL = {**messages_of_a_request(), **messages_of_a_beat()}


def cells(first: str) -> list[str]:
    """The rest of the one row of a table that begins with this cell."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


@pytest.mark.parametrize("name", ALL)
def test_a_message_has_as_many_bytes_as_documented(name: str) -> None:
    """Whoever sizes a Redis reads this table."""
    _, alone, among = cells(name)
    assert (float(alone), float(among)) == (
        round(bytes_of(ALL[name])),
        round(bytes_of(ALL[name], 15)),
    )


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("heartbeat", ports.BEAT_S),
        ("lease", ports.LEASE_S),
        ("gathering", leader.GATHER_S),
        ("alone", follower.ALONE_AFTER_S),
        ("given up", guests.GIVE_UP_S),
        ("checkpoint", deciders.CHECKPOINT_EVERY_S),
    ],
)
def test_a_constant_is_the_documented_one(name: str, seconds: float) -> None:
    """Alerts and time limits of others are made from these."""
    assert float(cells(name)[0].split()[0]) == seconds


def test_a_leader_can_be_measured() -> None:
    """The command that the page names; a leader that refuses everything would be quick."""
    from tests.simulation.cluster.traffic import Line

    assert 0.0 < Line().run(4, 200) < 1.0
