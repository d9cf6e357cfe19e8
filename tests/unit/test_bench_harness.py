"""A whole small benchmark, with fake engines in the part of the gateways."""

import sys
from pathlib import Path

import pytest

from gateway.bench.contenders import Contender, Site
from gateway.bench.harness import Harness, Measurement
from gateway.bench.launch import OWN_PATH, Cores
from gateway.bench.load_spec import LoadSpec
from gateway.bench.scenarios import Plan, Scenario
from gateway.bench.targets import DIRECT, Entrant


def answer_itself(program: str, site: Site) -> list[str]:
    """An engine in the gateway's place."""
    return [program, "-m", "gateway.bench.upstream", "--port", str(site.port)]


def give_up(program: str, site: Site) -> list[str]:
    """A gateway with a setting it does not like."""
    return [program, "-c", "raise SystemExit('unknown setting')"]


ANSWERS = Contender(
    name="answers",
    binary=sys.executable,
    prepare=answer_itself,
    install="",
    ready_path="/health",
    python_path=OWN_PATH,
)
GIVES_UP = Contender(name="gives-up", binary=sys.executable, prepare=give_up, install="")
PLAN = Plan(
    name="tiny",
    rounds=2,
    warm_up=LoadSpec(port=0, warm_s=0.0, window_s=0.05),
    scenarios=(
        Scenario(name="paired", is_paired=True, load=LoadSpec(port=0, warm_s=0.0, window_s=0.1)),
        Scenario(
            name="streams",
            is_paired=False,
            load=LoadSpec(
                port=0,
                stream=True,
                connections=4,
                events=3,
                events_per_s=400,
                warm_s=0.0,
                window_s=0.2,
            ),
        ),
    ),
)


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What the harness said."""
    return []


@pytest.fixture(scope="module")
def measured(said: list[str]) -> Measurement:
    """Two rounds with a contender that answers and one that does not start."""
    entrants = [Entrant(contender=one, program=sys.executable) for one in (ANSWERS, GIVES_UP)]
    return Harness(PLAN, entrants, Cores(), said.append).measure()


def test_every_round_has_every_run(measured: Measurement) -> None:
    """A missing run would shift the median to whatever is left."""
    for index in range(PLAN.rounds):
        assert set(measured.runs(index, "answers")) == {"paired", "streams"}
        assert set(measured.runs(index, DIRECT)) == {"paired"}


def test_runs_have_work_and_the_contenders_own_usage(measured: Measurement) -> None:
    """The figures divide one by the other."""
    for index in range(PLAN.rounds):
        streams = measured.runs(index, "answers")["streams"]
        assert streams.load.events > 0
        assert streams.load.errors == 0
        assert streams.contender is not None
        assert streams.contender.rss_bytes > 5_000_000
        assert measured.runs(index, DIRECT)["paired"].contender is None


def test_a_contender_that_does_not_start_is_left_out_with_its_reason(
    measured: Measurement, said: list[str]
) -> None:
    """One broken peer must not cost the others' results, nor be tried again each round."""
    assert "unknown setting" in measured.failures["gives-up"]
    assert measured.runs(0, "gives-up") == {}
    assert sum("gives-up" in line for line in said) == 1


def test_without_any_contender_left_the_run_ends() -> None:
    """Two minutes of going direct tell nothing about a gateway that did not start."""
    entrants = [Entrant(contender=GIVES_UP, program=sys.executable)]
    measured = Harness(PLAN, entrants, Cores(), lambda line: None).measure()
    assert measured.rounds == [{}]
    assert "gives-up" in measured.failures


def test_a_contender_runs_in_a_folder_of_the_run(tmp_path: Path) -> None:
    """A gateway that keeps a database must not write into the caller's folder."""
    where = tmp_path / "where"

    def tell(program: str, site: Site) -> list[str]:
        code = f"import os; open({str(where)!r}, 'w').write(os.getcwd())"
        return [program, "-c", code]

    teller = Contender(name="teller", binary=sys.executable, prepare=tell, install="")
    Harness(
        PLAN, [Entrant(contender=teller, program=sys.executable)], Cores(), lambda line: None
    ).measure()
    folder = Path(where.read_text())
    assert folder.name == "teller"
    assert not folder.exists()


def test_progress_is_told_round_by_round(measured: Measurement, said: list[str]) -> None:
    """Two silent minutes look like a hang."""
    assert [line for line in said if line.startswith("round")] == ["round 1 of 2", "round 2 of 2"]
