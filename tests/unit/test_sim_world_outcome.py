"""The results of a simulated run: rows, percentiles, shares of service, and their bytes."""

import json
import subprocess
import sys
from math import inf

import pytest

from gateway.sim.world.outcome import Outcome, Status, percentile

RUN = """
import sys
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.sim.workload.arrivals import Poisson
from gateway.sim.workload.lengths import Zipf
from gateway.sim.workload.mixes import Tiers, crowd, enterprise
from gateway.sim.workload.synthetic import Open
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.plan import Drain, Failure, Plan, Reports
from gateway.sim.world.play import play
source = Open(
    arrivals=Poisson(rate_per_s=400), lengths=Zipf(), tiers=Tiers(enterprise(4)),
    crowd=crowd(users=20, tenants=4, skew=1.0), seed=7, limit=600, patience_s=3.0,
)
plan = Plan(
    reports=Reports(loss=0.3, age_s=0.2), seed=7,
    events=(Failure(replica=1, at=0.6, until=1.4), Drain(replica=2, at=0.5, until=1.0)),
)
sys.stdout.write(play(plan, source, Fairgate(Policy(tiers=DEFAULT_TIERS))).to_json(with_rows=True))
"""


def filled() -> Outcome:
    """Four requests of two tenants: two done, one refused, one that runs on."""
    outcome = Outcome()
    outcome.lasted_s = 10.0
    for number, (tier, tenant, user) in enumerate(
        [(0, "a", "x"), (1, "a", "y"), (1, "b", "x"), (0, "a", "x")]
    ):
        outcome.begin(number, float(number), tier=tier, who=(tenant, user), prompt_tokens=100)
    for row, (first, ended, output) in enumerate([(0.5, 2.5, 11), (3.0, 3.0, 1)]):
        outcome.sent[row] = outcome.first[row] = first
        outcome.ended[row] = ended
        outcome.output[row] = output
        outcome.status[row] = Status.DONE
    outcome.status[2], outcome.ended[2] = Status.REFUSED, 2.0
    outcome.first[3], outcome.output[3] = 5.0, 50
    return outcome


def test_percentiles_count_those_that_were_never_served() -> None:
    """The policy that refuses the slow ones would have the best percentiles."""
    outcome = filled()
    assert [outcome.ttft_s(row) for row in range(4)] == [0.5, 2.0, inf, 2.0]
    assert outcome.percentile(outcome.ttft_s, 0.5) == 2.0
    assert outcome.percentile(outcome.ttft_s, 0.99) == inf
    assert outcome.percentile(outcome.ttft_s, 0.99, outcome.rows(tier=0)) == 2.0
    assert outcome.percentile(outcome.tpot_s, 0.99) == pytest.approx(0.2)
    assert percentile([], 0.5) == 0.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0


def test_rows_are_found_by_who_and_when() -> None:
    """Users of one name in two tenants would be taken for one."""
    outcome = filled()
    assert outcome.rows(user="x") == [0, 2, 3]
    assert outcome.rows(user="x", tenant="a") == [0, 3]
    assert outcome.rows(tier=1, status=Status.DONE) == [1]
    assert outcome.rows(arrived=(1.0, 3.0)) == [1, 2]
    assert outcome.users == [("a", "x"), ("a", "y"), ("b", "x")]


def test_service_is_spread_over_the_time_in_which_it_was_given() -> None:
    """Shares over time would jump at the end of every answer."""
    outcome = filled()
    served = outcome.service(outcome.tenant, every_s=1.0, weights=(1.0, 2.0))
    assert list(served) == [0]
    assert sum(served[0]) == pytest.approx(3 * 100 + 2 * (11 + 1 + 50))
    # 11 tokens over two seconds; then one whole request; then 50 tokens over five seconds.
    assert served[0][:4] == [pytest.approx(value) for value in (105.5, 11.0, 5.5, 102.0)]
    assert served[0][6] == pytest.approx(20.0)


def test_goodput_counts_what_met_both_targets() -> None:
    """A fast first token would make a slow answer good."""
    outcome = filled()
    assert outcome.goodput_per_s(2.0, 0.3) == pytest.approx(0.2)
    assert outcome.goodput_per_s(2.0, 0.1) == pytest.approx(0.1)
    assert outcome.goodput_per_s(1.0, 0.3) == pytest.approx(0.1)


def test_json_has_no_number_that_json_has_not() -> None:
    """Every reader but Python's would refuse the file."""
    told = json.loads(filled().to_json(with_rows=True), parse_constant=pytest.fail)
    assert told["all"]["ended"] == {
        "open": 1, "done": 2, "refused": 1, "left": 0, "failed": 0, "too_long": 0
    }  # fmt: skip
    assert told["all"]["ttft_s"]["p99"] is None
    assert told["rows"]["first"] == [0.5, 3.0, None, 5.0]
    assert set(told["users"]) == {"a/x", "a/y", "b/x"}


def test_the_digest_sees_every_number() -> None:
    """Two runs that differ would be taken for the same."""
    one, other = filled(), filled()
    assert one.digest() == other.digest()
    other.attempts[3] += 1
    assert one.digest() != other.digest()


def test_the_same_seed_gives_the_same_bytes_in_any_process() -> None:
    """No result could be repeated, and no two policies compared."""
    told = {
        subprocess.run(
            [sys.executable, "-c", RUN],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(told) == 1
    ended = json.loads(told.pop())["all"]["ended"]
    assert ended["done"] > 400
