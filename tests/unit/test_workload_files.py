"""An operator's own workload: what is read, and what is refused with the number of its line."""

import json
from pathlib import Path

import pytest

from gateway.sim.workload.lines import LINE_BYTES_MAX, line_at, lines_of
from gateway.sim.workload.own import NAMED_MAX, OwnFile

HEADER = "arrival_s,prompt_tokens,output_tokens,tier,tenant,user,note"


def csv_file(folder: Path, *lines: str, header: str = HEADER) -> Path:
    """A CSV file of these lines."""
    path = folder / "mine.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def json_file(folder: Path, *rows: object) -> Path:
    """A JSONL file of these rows."""
    path = folder / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def row(at: float, **more: object) -> dict[str, object]:
    """A row with what it must have."""
    return {"arrival_s": at, "prompt_tokens": 5, "output_tokens": 7, **more}


def test_both_kinds_say_the_same(tmp_path: Path) -> None:
    """A table that was exported and a script that writes JSON are the same workload."""
    mine = csv_file(tmp_path, "0.5,5,7,1,acme,alice,x", '2,5,7,,,"b, c",', "2,5,7,0,t,u,")
    same = json_file(
        tmp_path,
        row(0.5, tier=1, tenant="acme", user="alice", note=["x"]),
        row(2, user="b, c"),
        row(2.0, tier=0, tenant="t", user="u"),
    )
    jobs = list(OwnFile(mine).jobs())
    assert jobs == list(OwnFile(same).jobs())
    assert [(job.number, job.arrived_at) for job in jobs] == [(0, 0.5), (1, 2.0), (2, 2.0)]
    assert [(job.tier, job.tenant, job.user) for job in jobs] == [
        (1, "acme", "alice"),
        (0, "default", "b, c"),
        (0, "t", "u"),
    ]


def test_columns_may_stand_in_any_order_and_files_end_as_windows_has_it(tmp_path: Path) -> None:
    """Spreadsheets write a mark at the beginning and two bytes at each end of line."""
    path = tmp_path / "mine.csv"
    path.write_bytes(
        b"\xef\xbb\xbfoutput_tokens, arrival_s,prompt_tokens,output_tokens_max,session\r\n"
        b"7,0,5,9,s1\r\n\r\n8,1,6,,\r\n"
    )
    first, second = OwnFile(path).jobs()
    assert (first.prompt_tokens, first.output_tokens) == (5, 7)
    assert (first.output_tokens_max, first.session) == (9, "s1")
    assert (second.arrived_at, second.output_tokens_max, second.session) == (1.0, None, None)
    assert OwnFile(path).ended(first, 1.0) is None


def test_load_limit_and_size_are_as_for_traces(tmp_path: Path) -> None:
    """An own day is scaled like a recorded one, and what fits nowhere is counted."""
    path = json_file(tmp_path, row(0), row(4, prompt_tokens=94), row(8), row(9))
    source = OwnFile(path, load=2.0, limit=2, tokens_max=100)
    assert [(job.number, job.arrived_at) for job in source.jobs()] == [(0, 0.0), (1, 4.0)]
    assert source.refused == 1
    with pytest.raises(ValueError, match="load must be positive"):
        OwnFile(path, load=0.0)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("0,5", "2 cells under a header of 7"),
        ("x,5,7,,,,", "float"),
        ("-1,5,7,,,,", ">= 0"),
        ("nan,5,7,,,,", "arrival_s"),
        ("inf,5,7,,,,", "arrival_s must be a number"),
        ("0,0,7,,,,", ">= 1"),
        ("0,5.5,7,,,,", "int"),
        ("0,,7,,,,", "prompt_tokens"),
        ("0,5,7,4,,,", "no tier 4 of 4"),
        ("0,5,7,-1,,,", ">= 0"),
        ('0,5,7,1,"a', "end of data"),
        ("0,5,7,1,a," + "x" * LINE_BYTES_MAX, "longer than"),
    ],
)
def test_a_bad_line_of_a_table_is_named(tmp_path: Path, line: str, what: str) -> None:
    """Nobody finds it among a million otherwise."""
    path = csv_file(tmp_path, "0,5,7,,,,", line, "1,5,7,,,,")
    with pytest.raises(ValueError, match=rf"line 3: .*{what}"):
        OwnFile(path, tiers=4)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{", "JSON|truncated"),
        (b'{"arrival_s": 1}', "prompt_tokens"),
        (b'{"arrival_s": "1", "prompt_tokens": 5, "output_tokens": 7}', "float"),
        (b"[1, 5, 7]", "object"),
        (b'{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 7, "user": "\xff"}', "utf-8"),
        (b" " * LINE_BYTES_MAX + b"{}", "longer than"),
        (b'{"arrival_s": 0.5, "prompt_tokens": 5, "output_tokens": 7}', "sort by arrival_s"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, text: bytes, what: str) -> None:
    """The same."""
    path = tmp_path / "mine.jsonl"
    path.write_bytes(json.dumps(row(1)).encode() + b"\n\n" + text + b"\n")
    with pytest.raises(ValueError, match=rf"(?i)line 3: .*({what})"):
        OwnFile(path)


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    """A million complaints help nobody."""
    path = csv_file(tmp_path, *["a,5,7,,,,"] * (NAMED_MAX + 3))
    with pytest.raises(ValueError, match=r"line 2: .*\n(?s:.*)line 11: .*\nand 3 more bad lines"):
        OwnFile(path)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("mine.csv", "", "no requests"),
        ("mine.csv", HEADER + "\n", "no requests"),
        ("mine.csv", "0,5,7\n0,5,7\n", "header lacks arrival_s, prompt_tokens, output_tokens"),
        ("mine.jsonl", "\n\n", "no requests"),
        ("mine.txt", "0,5,7\n", r"a \.csv or a \.jsonl file"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(
    tmp_path: Path, name: str, text: str, what: str
) -> None:
    """An empty run is no result."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=what):
        OwnFile(tmp_path / name)


def test_a_file_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    """The command line tells it as it is."""
    with pytest.raises(FileNotFoundError):
        OwnFile(tmp_path / "none.csv")


def test_a_file_that_changes_under_a_run_stops_it(tmp_path: Path) -> None:
    """Better no result than one of two files."""
    path = json_file(tmp_path, row(0), row(1))
    source = OwnFile(path)
    path.write_text("{\n")
    with pytest.raises(ValueError, match="changed meanwhile: line 1"):
        list(source.jobs())


def test_lines_are_read_within_a_bound_and_found_again(tmp_path: Path) -> None:
    """A file without line ends, a dump of a database, must not fill the memory."""
    path = tmp_path / "any"
    long = b"x" * (3 * LINE_BYTES_MAX)
    path.write_bytes(b"one\n\n" + long + b"\r\n  \nfour\r\n" + long)
    found = list(lines_of(path))
    assert [(line.number, line.text) for line in found] == [
        (1, b"one"),
        (3, None),
        (5, b"four"),
        (6, None),
    ]
    with path.open("rb") as file:
        assert line_at(file, found[2].place) == b"four"
        assert line_at(file, found[0].place) == b"one"
        assert len(line_at(file, found[1].place)) == LINE_BYTES_MAX
