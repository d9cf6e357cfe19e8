"""What `fairgate top` says in its rows: the figure that counts, and the reason that counts."""

from typing import Any

import pytest

from gateway.shown import shown
from gateway.top.picture import VIEWS, Picture, taken
from gateway.top.rows import COLUMNS, Rows, rows_of, seconds
from tests.support.pictures import Answering, batch, line, overview, replica, request, shut


def replicas(*found: dict[str, Any]) -> Rows:
    """The rows of these."""
    told = {"data": list(found), "has_more": False}
    rows = rows_of(Picture(overview(), replicas=told), "replicas")
    assert rows is not None
    return rows


def why(found: dict[str, Any]) -> str:
    """What is said of the gates of one."""
    return replicas(found).lines[0].cells[-1]


def test_every_cell_has_its_heading() -> None:
    """A row that is one short shows each figure under its neighbour's name."""
    gateway = Answering(
        **{
            "overview": overview(tiers=[line("high")], tenants=[line("acme")]),
            "overview/users": {"users": [line("alice", tenant="acme")], "users_more": 0},
            "replicas": {"data": [replica("a"), {"name": "d", "live": None, "members": ["a"]}]},
            "requests": {"data": [request(0)]},
            "batches": {"data": [batch(0)]},
        }
    )
    picture = taken(gateway, VIEWS, 20)
    for view in VIEWS:
        rows = rows_of(picture, view)
        assert rows is not None
        assert {len(row.cells) for row in rows.lines} == {len(COLUMNS[view])}


@pytest.mark.parametrize(
    ("live", "state", "said"),
    [
        ({"is_up": False, "health": {"error": "connection refused"}}, "down", "connection refused"),
        ({"is_up": False}, "down", "does not answer"),
        ({"is_draining": True, "gates": [shut("high", "is drained")]}, "draining", "is drained"),
        (
            {"circuit": {"state": "open", "reason": "3 failures", "open_s": 4.0}},
            "tripped",
            "3 failures, for 4.0s",
        ),
        ({"circuit": {"state": "half_open", "reason": None, "open_s": None}}, "trying", "breaker"),
        ({"is_usable": False}, "unusable", ""),
        ({}, "up", ""),
    ],
)
def test_a_replica_says_how_it_is_and_why(live: dict[str, Any], state: str, said: str) -> None:
    """Who is called at night asks first which engine it is, and then what is wrong with it."""
    (row,) = replicas(replica("a", **live)).lines
    assert row.cells[1] == state
    assert said in row.cells[-1]


def test_a_shut_gate_says_by_what_and_for_whom() -> None:
    """`full` and `kept for the tiers above` are mended in different ways."""
    gates = [shut("critical", None), shut("standard", "is full"), shut("background", "is full")]
    (row,) = replicas(replica("a", gates=gates)).lines
    assert row.cells[-2:] == ("critical", "standard, background: is full")
    assert why(replica("a", gates=gates[1:])) == "is full"
    assert replicas(replica("a", gates=[shut("high", None)])).lines[0].cells[-2] == "all"
    assert replicas(replica("a", gates=gates[1:])).lines[0].cells[-2] == "none"


def test_a_batch_says_how_far_it_is_and_what_keeps_it() -> None:
    """Who made it asks when it is done; who is on call, why it does not go on."""
    held = batch(1, waits_for="the storage is full: /data", left_s=None)
    told = {"data": [batch(0), held, batch(2, status="completed", left_s=None)], "has_more": True}
    rows = rows_of(Picture(overview(), batches=told), "batches")
    assert rows is not None
    runs, waits, done = rows.lines
    assert runs.cells[1:] == (
        *("in_progress", "background", "acme", "alice", "12000", "3", "50000", "90m"),
        "",
    )
    assert waits.cells[-2:] == ("-", "the storage is full: /data")
    assert ([runs.mood, waits.mood, done.mood], rows.more) == (["well", "bad", "idle"], 1)


def test_names_that_callers_made_up_cannot_drive_a_terminal() -> None:
    """A user named by an escape sequence would clear the operator's screen, or retitle it."""
    evil = "\x1b[2Jbob\r\n\x9b31m\u202e"
    told = {"users": [line(evil, tenant=evil)], "users_more": 0}
    rows = rows_of(Picture(overview(), users=told), "users")
    assert rows is not None
    assert all(cell.isprintable() for cell in rows.lines[0].cells)
    assert shown(evil) == "?[2Jbob???31m?"
    assert shown("北京 alice") == "北京 alice"


def test_what_was_not_asked_for_is_not_there() -> None:
    """Another view must not show the figures of the one before."""
    for view in ("users", "replicas", "requests"):
        assert rows_of(Picture(overview()), view) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "-"), (0.04, "0.0s"), (9.96, "10.0s"), (41, "41s"), (700, "12m"), (40_000, "11h")],
)
def test_durations_are_short(value: float | None, said: str) -> None:
    """Eighty columns hold no microseconds."""
    assert seconds(value) == said


def test_more_than_is_told_is_counted() -> None:
    """Twenty rows of ten thousand must not look like all."""
    gateway = Answering(
        overview=overview(waiting=10_000),
        requests={"data": [request(number) for number in range(100)]},
    )
    rows = rows_of(taken(gateway, ("requests",), 20), "requests")
    assert rows is not None
    assert (len(rows.lines), rows.more) == (20, 9_980)
    assert gateway.asked == [
        ("overview", {"limit": 1}),
        ("requests", {"state": "waiting", "limit": 20}),
    ]
