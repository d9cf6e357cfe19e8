"""The request log as a workload: what the gateway wrote is what is asked again."""

import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import pytest

from gateway.api.prefix import PREFIX_BLOCKS_MAX
from gateway.core.messages import PREFIX_BLOCK_TOKENS, Usage
from gateway.sim.workload.job import Job, Source
from gateway.sim.workload.lines import LINE_BYTES_MAX
from gateway.sim.workload.log_survey import NAMED_MAX, NAMES_MAX, Logged, Survey
from gateway.sim.workload.logged import LOGGED_BLOCK_TOKENS, OUTPUT_TOKENS, STRIDE, RequestLogFile
from gateway.telemetry.log import line_of
from gateway.telemetry.record import SettledRequest
from tests.unit.test_metrics import record

TIERS = ("critical", "standard")
NOON = 1.8e9
"""Unix time of the first arrival."""


def used(prompt_tokens: int, output_tokens: int) -> Usage:
    """What an engine charged for."""
    return Usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def written(folder: Path, records: Iterable[SettledRequest | bytes]) -> Path:
    """A log of these, as the gateway writes it."""
    path = folder / "requests.jsonl"
    lines = [each if isinstance(each, bytes) else line_of(each, NOON) for each in records]
    path.write_bytes(b"".join(lines))
    return path


def source(folder: Path, *records: SettledRequest | bytes, **options: object) -> RequestLogFile:
    """The workload of a log of these."""
    wanted = {"tiers": TIERS, **options}
    return RequestLogFile(written(folder, records), **wanted)  # type: ignore[arg-type]  # free keywords


def jobs(folder: Path, *records: SettledRequest | bytes, **options: object) -> list[Job]:
    """Its jobs."""
    return list(source(folder, *records, **options).jobs())


def test_a_line_of_the_gateway_is_a_job(tmp_path: Path) -> None:
    """What ran yesterday is asked again, with all that a scheduler may know of it."""
    (job,) = jobs(
        tmp_path,
        record(
            arrived_at=7.0,
            tier="standard",
            tenant="acme",
            user="alice",
            usage=used(100, 40),
            output_tokens_max=64,
            session="s",
            prefix=tuple((9 << 32) + number for number in range(PREFIX_BLOCKS_MAX)),
        ),
    )
    assert (job.number, job.arrived_at, job.tier) == (0, 0.0, 1)
    assert (job.tenant, job.user) == ("acme", "alice")
    assert (job.prompt_tokens, job.output_tokens, job.output_tokens_max) == (100, 40, 64)
    assert job.prefix == (7, 15, 23, 31)
    assert job.session is not None
    assert job.leaves_at is None


def test_what_is_read_of_a_line_is_what_the_gateway_writes() -> None:
    """A field that was renamed there would silently have its default here."""
    assert set(Logged.__struct_fields__) <= set(SettledRequest.__struct_fields__)
    assert LOGGED_BLOCK_TOKENS == PREFIX_BLOCK_TOKENS
    assert STRIDE == 8


def test_lines_are_asked_in_order_of_arrival(tmp_path: Path) -> None:
    """A log is in order of ends: a long answer stands far behind those that came after it."""
    found = jobs(
        tmp_path,
        record(arrived_at=5.0, user="b"),
        record(arrived_at=6.5, user="c"),
        record(arrived_at=5.0, user="b2"),
        record(arrived_at=3.0, user="a"),
    )
    assert [(job.number, job.user) for job in found] == [(0, "a"), (1, "b"), (2, "b2"), (3, "c")]
    assert [job.arrived_at for job in found] == pytest.approx([0.0, 2.0, 2.0, 3.5], abs=1e-5)


def test_bad_lines_are_counted_and_named_and_cost_nothing_else(tmp_path: Path) -> None:
    """A full disk tears lines: the rest of the day can still be played."""
    torn = line_of(record(), NOON)[:40] + b"\n"
    found = source(
        tmp_path,
        record(),
        torn,
        b"\n",
        b'{"tier": "standard"}\n',
        b"\xff\xfe\n",
        b'{"x": "' + b"y" * LINE_BYTES_MAX + b'"}\n',
        record(tier="platinum"),
        record(arrived_at=-NOON - 5),
        record(arrived_at=1.0),
        b'{"arrived_at": 1e400, "tier": "standard", "outcome": "done", "duration_s": 1}\n',
    )
    survey = found.survey
    assert (survey.lines, survey.played, survey.bad) == (9, 2, 7)
    assert len(list(found.jobs())) == 2
    said = "\n".join(survey.named)
    for number, why in (
        (2, ""),
        (4, "arrived_at"),
        (5, "malformed"),
        (6, "longer than"),
        (7, "no tier 'platinum'"),
        (8, ">= 0"),
        (10, ""),
    ):
        assert f"line {number}: " in said
        assert why in said


def test_only_the_first_bad_lines_are_named(tmp_path: Path) -> None:
    """A file of another program has a million of them."""
    found = source(tmp_path, record(), *[b"{}\n"] * 50)
    assert found.survey.bad == 50
    assert len(found.survey.named) == NAMED_MAX
    assert "and 40 more bad lines" in found.survey.told()


def test_what_no_engine_was_asked_for_is_left_out_and_said(tmp_path: Path) -> None:
    """Mistakes and spent budgets are no load, under any policy."""
    found = source(
        tmp_path,
        record(),
        record(outcome="invalid_request", status=400, usage=None),
        record(outcome="invalid_request", status=400, usage=None),
        record(outcome="model_not_found", status=404, usage=None),
        record(outcome="rate_limit_exceeded", status=429, usage=None),
        record(outcome="insufficient_quota", status=429, usage=None),
        record(outcome="done", status=422, usage=None),
        record(model="other"),
        model="m",
    )
    assert found.survey.played == 1
    assert found.survey.left_out == {
        "another model": 1,
        "done": 1,
        "insufficient_quota": 1,
        "invalid_request": 2,
        "model_not_found": 1,
        "rate_limit_exceeded": 1,
    }
    assert "2 left out: invalid_request" in found.survey.told()
    assert found.survey.models == {"m": 7, "other": 1}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ("queue_full", 429),
        ("patience_spent", 429),
        ("no_replica", 503),
        ("upstream_failed", 502),
        ("stalled", 200),
    ],
)
def test_what_was_refused_is_asked_again(tmp_path: Path, outcome: str, status: int) -> None:
    """Another policy might have served it: that is the question."""
    found = source(
        tmp_path,
        *[record(usage=used(100, length), body_bytes=600) for length in (30, 40, 50)],
        record(outcome=outcome, status=status, usage=None, body_bytes=3_000, arrived_at=9.0),
    )
    *_, job = found.jobs()
    assert found.survey.guessed == 1
    assert job.prompt_tokens == 500
    assert job.output_tokens in (30, 40, 50)
    assert job.leaves_at is None


@pytest.mark.parametrize("outcome", ["cancelled", "client_stalled", "response_cancelled"])
def test_a_client_that_gave_up_does_so_again(tmp_path: Path, outcome: str) -> None:
    """Served sooner it might have stayed; as late as then, it must leave again."""
    answers = [record(usage=used(100, length)) for length in (10, 20, 300, 400)]
    left = record(outcome=outcome, status=409, duration_s=12.0, arrived_at=5.0, usage=used(80, 50))
    *_, job = jobs(tmp_path, *answers, left)
    assert job.prompt_tokens == 80
    assert job.output_tokens in (300, 400)
    assert job.leaves_at == pytest.approx(job.arrived_at + 12.0)


def test_a_guess_is_within_what_the_client_asked_for(tmp_path: Path) -> None:
    """An engine would not have produced more."""
    answers = [record(usage=used(100, 400))]
    (_, bounded), (_, longest), (_, unknown) = (
        jobs(tmp_path, *answers, record(outcome="cancelled", arrived_at=9.0, **more))
        for more in (
            {"usage": used(9, 50), "output_tokens_max": 60},
            {"usage": used(9, 900), "output_tokens_max": 2_000},
            {"usage": used(9, 900)},
        )
    )
    assert bounded.output_tokens == 60
    assert longest.output_tokens == 900
    assert unknown.output_tokens == 900
    (alone,) = jobs(tmp_path, record(outcome="queue_full", status=429, usage=None))
    assert alone.output_tokens == OUTPUT_TOKENS


def test_guesses_are_the_tier_s_own_and_the_seed_s(tmp_path: Path) -> None:
    """Background work has answers of another kind than a chat's."""
    answers = [
        record(tier=tier, usage=used(10, first + step), request_id=str(step))
        for tier, first in (("critical", 10), ("standard", 1_000))
        for step in range(100)
    ]
    refused = [
        record(tier=tier, outcome="queue_full", status=429, usage=None, arrived_at=9.0 + number)
        for number in range(50)
        for tier in TIERS
    ]
    guessed = jobs(tmp_path, *answers, *refused)[200:]
    assert {job.output_tokens // 200 for job in guessed if job.tier == 0} == {0}
    long = [job.output_tokens for job in guessed if job.tier == 1]
    assert 1_030 < median(long) < 1_070
    assert guessed == jobs(tmp_path, *answers, *refused)[200:]
    assert guessed != jobs(tmp_path, *answers, *refused, seed=1)[200:]


def test_what_only_reads_stays_so(tmp_path: Path) -> None:
    """An embedding has no answer to be guessed."""
    found = source(tmp_path, record(usage=used(100, 0), output_tokens_max=0))
    (job,) = found.jobs()
    assert job.output_tokens == 0
    assert found.survey.guessed == 0


def test_load_limit_and_size_are_as_for_traces(tmp_path: Path) -> None:
    """Yesterday at twice the traffic is the usual question."""
    records = [record(arrived_at=float(at), usage=used(10 + 25 * (at == 2), 20)) for at in range(6)]
    records.append(record(arrived_at=5.0, outcome="cancelled", duration_s=4.0))
    found = source(tmp_path, *records, load=2.0, tokens_max=50)
    played = list(found.jobs())
    assert [job.arrived_at for job in played] == pytest.approx([0, 0.5, 1.5, 2.0, 2.5, 2.5])
    assert found.refused == 1
    assert played[-1].leaves_at == pytest.approx(2.5 + 4.0)
    assert found.survey.ended_at - found.survey.began_at == pytest.approx(5.0)
    assert len(jobs(tmp_path, *records, limit=3)) == 3
    asked: Source = found
    assert asked.ended(played[0], 1.0) is None
    with pytest.raises(ValueError, match="load must be positive"):
        source(tmp_path, *records, load=-1.0)


def test_a_log_with_nothing_to_play_says_why(tmp_path: Path) -> None:
    """The wrong file, or the wrong names of tiers, is told at once."""
    with pytest.raises(ValueError, match=r"nothing to play\nline 1: there is no tier 'standard'"):
        source(tmp_path, record(), tiers=("gold",))
    with pytest.raises(ValueError, match="1 left out: another model"):
        source(tmp_path, record(), model="x")
    with pytest.raises(ValueError, match="nothing to play"):
        source(tmp_path)
    with pytest.raises(FileNotFoundError):
        RequestLogFile(tmp_path / "none.jsonl", tiers=TIERS)


def test_a_log_that_changes_under_a_run_stops_it(tmp_path: Path) -> None:
    """logrotate with copytruncate would mix two days."""
    found = source(tmp_path, record(), record())
    found.path.write_bytes(b"{" * 5_000)
    with pytest.raises(ValueError, match="changed meanwhile"):
        list(found.jobs())


def test_a_log_of_a_day_does_not_lie_in_memory(tmp_path: Path) -> None:
    """A million lines are half a gigabyte."""
    path = tmp_path / "requests.jsonl"
    line = line_of(record(prefix=tuple(range(PREFIX_BLOCKS_MAX))), NOON)
    path.write_bytes(line * 5_000)
    tracemalloc.start()
    try:
        found = RequestLogFile(path, tiers=TIERS)
        for job in found.jobs():
            assert job.prompt_tokens == 10
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.survey.played == 5_000
    assert held < 400_000 < 5_000 * len(line)


def test_a_survey_tells_a_bounded_number_of_names_apart() -> None:
    """A broken client that makes up models must not fill the memory here either."""
    survey = Survey()
    for number in range(NAMES_MAX + 9):
        line = {"arrived_at": 0, "tier": "t", "outcome": "done", "duration_s": 0}
        survey.see(Logged(**line, model=f"m{number}"))  # type: ignore[arg-type]  # free keywords
    assert len(survey.models) == NAMES_MAX
    assert survey.tiers == {"t": NAMES_MAX + 9}
    assert json.dumps(survey.tiers)
