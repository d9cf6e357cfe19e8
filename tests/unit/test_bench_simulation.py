"""The command that says how long a simulation takes, and what memory."""

import re

import pytest

from gateway.bench.simulation import main


def test_it_says_at_each_mark_how_long_it_took_and_what_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run whose memory grows with its length would look like a short one."""
    assert main(["--requests", "60", "--replicas", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = r"{}: [\d.]+ s, peak memory \d+ MiB"
    assert all(
        re.fullmatch(said.format(mark), line)
        for mark, line in zip(("10%", "50%", "100%"), lines, strict=False)
    )
    assert lines[3].startswith("60 requests before 2 replicas")
    assert "60 done" in lines[3]


def test_the_same_load_is_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Two machines, or two versions, could not be compared."""
    digests = set()
    for _ in range(2):
        main(["--requests", "40", "--replicas", "1"])
        digests.add(capsys.readouterr().out.rsplit(" ", 1)[1])
    assert len(digests) == 1


def test_nothing_is_no_load() -> None:
    """A run of no requests would be the fastest."""
    with pytest.raises(SystemExit):
        main(["--requests", "0"])
