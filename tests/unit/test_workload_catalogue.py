"""The catalogue: workloads by name, from text, the same in every process."""

import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from gateway.sim.workload.catalogue import SPAN_S, Workload, workload_named, workloads
from gateway.sim.workload.job import Job
from gateway.sim.workload.knobs import Knobs
from gateway.sim.workload.traces import TRACES

MADE = [entry for entry in workloads() if entry.name != "file"]
SYNTHETIC = ("poisson", "bursts", "closed-loop", "power-user")
DIGEST = """
from hashlib import sha256
from itertools import islice
from gateway.sim.workload.catalogue import workloads
digest = sha256()
for entry in workloads():
    if entry.name != "file":
        wanted = {"tiers": "enterprise-4", "seed": 3, "tokens_max": 9_000, "tier_by": "user"}
        known = {name: value for name, value in wanted.items() if name in entry.knobs}
        for job in islice(entry.source(known).jobs(), 300):
            digest.update(repr(job).encode())
print(digest.hexdigest())
"""


def jobs(name: str, **values: object) -> list[Job]:
    """All jobs of a workload with these knobs; the first of each user in a closed loop."""
    return list(workload_named(name).source(values).jobs())


@pytest.mark.parametrize("entry", MADE, ids=lambda entry: entry.name)
def test_every_workload_can_be_made_as_it_stands(entry: Workload) -> None:
    """Who tries a name from the list gets a run, not a list of what is missing."""
    found = list(islice(entry.source({}).jobs(), 50))
    assert found
    assert [job.number for job in found] == list(range(len(found)))
    assert all(job.prompt_tokens >= 1 and job.output_tokens >= 1 for job in found)


def test_names_are_unique_and_every_workload_says_what_it_is() -> None:
    """The list is what an operator chooses from."""
    names = [entry.name for entry in workloads()]
    assert len(set(names)) == len(names)
    assert {trace.name for trace in TRACES} < set(names)
    assert {"poisson", "bursts", "closed-loop", "power-user", "file"} < set(names)
    for entry in workloads():
        assert entry.about
        assert "\n" not in entry.about
        assert len(set(entry.knobs)) == len(entry.knobs)


def test_every_knob_exists_and_every_one_is_taken_by_something() -> None:
    """A knob that nothing takes is a promise that nothing keeps."""
    taken = {name for entry in workloads() for name in entry.knobs}
    assert taken == set(Knobs.__struct_fields__)
    for entry in workloads():
        assert set(entry.defaults) <= set(Knobs.__struct_fields__)
        for name in entry.knobs:
            entry.default(name)
    assert workload_named("azure-code").default("users") == 50
    assert workload_named("poisson").default("users") == 20


CHANGED: dict[str, object] = {
    "seed": 5,
    "limit": 7,
    "until_s": 2.0,
    "tiers": "uniform-3",
    "users": 9,
    "tenants": 2,
    "skew": 2.0,
    "lengths": "fixed:9,9",
    "output_tokens_max": 12,
    "patience_s": 3.0,
    "rate_per_s": 33.0,
    "size": 7,
    "every_s": 4.0,
    "jitter_s": 3.0,
    "think_s": 0.5,
    "power_rate_per_s": 20.0,
    "power_lengths": "fixed:9,9",
    "on_s": 3.0,
    "off_s": 3.0,
    "regular": True,
    "without_power": True,
    "load": 3.0,
    "laps": 2,
    "tokens_max": 500,
    "tier_by": "user",
}


KNOBS = [
    *((name, knob) for name in SYNTHETIC for knob in workload_named(name).knobs),
    *(("lmsys-clients", knob) for knob in workload_named("lmsys-clients").knobs),
    *(("mooncake-synthetic", knob) for knob in ("users", "tenants", "skew")),
]


@pytest.mark.parametrize(("name", "knob"), KNOBS)
def test_every_knob_of_a_workload_changes_it(name: str, knob: str) -> None:
    """A knob without effect is found by the operator who tuned it for a day."""
    # A recorded trace has no draws but owners and tiers.
    rest = {"tiers": "uniform-2"} if knob in ("seed", "tier_by") else {}
    end = {"until_s": 60.0} if knob not in ("limit", "laps") else {}
    before = jobs(name, **{**rest, **end})
    after = jobs(name, **{**rest, **end, knob: CHANGED[knob]})
    assert before != after


def test_values_may_be_text() -> None:
    """A command line has nothing else."""
    assert jobs(
        "power-user", rate_per_s="2", users="3", tenants="1", regular="true", until_s="9", seed="4"
    ) == jobs("power-user", rate_per_s=2.0, users=3, tenants=1, regular=True, until_s=9, seed=4)


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("poison", {}, "known: poisson, bursts, power-user, closed-loop, azure-code, .*file"),
        ("poisson", {"rate": 1}, "poisson has no rate; it takes seed, .*rate_per_s"),
        ("azure-code", {"lengths": "zipf"}, "azure-code has no lengths"),
        ("poisson", {"rate_per_s": "fast"}, r"poisson: .*float.*rate_per_s"),
        ("poisson", {"rate_per_s": 0}, "> 0"),
        ("poisson", {"users": 1, "tenants": 2}, "a crowd needs"),
        ("poisson", {"lengths": "long"}, "unknown law"),
        ("poisson", {"tiers": "some"}, "unknown tier mix"),
        ("azure-code", {"tier_by": "tenant"}, "tier_by"),
        ("file", {}, "Set path"),
    ],
)
def test_mistakes_are_answered_with_what_there_is(
    name: str, values: dict[str, object], what: str
) -> None:
    """Nobody reads the source to find the name of a knob."""
    with pytest.raises(ValueError, match=what):
        workload_named(name).source(values)


def test_a_synthetic_workload_ends_by_itself() -> None:
    """Nobody who forgets the end should wait for ever; with a limit it decides alone."""
    assert SPAN_S * 0.95 < jobs("poisson")[-1].arrived_at < SPAN_S
    assert len(jobs("poisson", limit=5_000)) == 5_000


def test_light_users_ask_the_same_with_and_without_the_power_user() -> None:
    """It is the comparison that the workload is for."""
    for name, heavy in (("power-user", "power"), ("bursts", "burst")):
        light = [told(job) for job in jobs(name, without_power=True)]
        both = jobs(name)
        assert light == [told(job) for job in both if job.user != heavy]
        assert Counter(job.user for job in both)[heavy] > 500


def told(job: Job) -> tuple[object, ...]:
    """All of a job but its number."""
    return (job.arrived_at, job.user, job.tier, job.prompt_tokens, job.output_tokens)


def test_the_two_parts_of_a_workload_do_not_draw_the_same() -> None:
    """A power user in step with the light ones would be a coincidence in every table."""
    found = jobs("power-user", rate_per_s=50, power_rate_per_s=50, off_s=0, until_s=60)
    light = [job for job in found if job.user != "power"]
    power = [job for job in found if job.user == "power"]
    assert not {job.arrived_at for job in light} & {job.arrived_at for job in power}
    pairs = list(zip(light, power, strict=False))
    assert sum(one.prompt_tokens == other.prompt_tokens for one, other in pairs) < len(pairs) / 2


def test_a_file_is_a_workload_like_any_other(tmp_path: Path) -> None:
    """An operator's own day goes where the recorded ones go."""
    path = tmp_path / "mine.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,7\n4,5,7\n")
    assert [job.arrived_at for job in jobs("file", path=str(path), load=2)] == [0.0, 2.0]


def test_every_workload_is_the_same_in_every_process() -> None:
    """A figure that another machine cannot repeat is an anecdote."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
