"""The recorded traces: they are whole, with their licences, and each request has an owner."""

import re
import tracemalloc
from collections import Counter, defaultdict
from importlib.resources import files
from itertools import islice, pairwise
from math import ceil
from pathlib import Path

import pytest

from gateway.sim.workload.job import Job
from gateway.sim.workload.mixes import Tiers, crowd, enterprise
from gateway.sim.workload.traced import Playing, Traced
from gateway.sim.workload.traces import (
    BLOCK_TOKENS,
    LENGTH_LISTS,
    TRACES,
    Trace,
    lengths_of,
    power_of,
    rows,
    trace_named,
)

DATA = files("gateway.sim.workload").joinpath("data")
DATA_BYTES_MAX = 1_500_000


def played(name: str, **playing: object) -> list[Job]:
    """All jobs of a trace."""
    return list(Traced(trace_named(name), Playing(**playing)).jobs())  # type: ignore[arg-type]  # free keywords


def told(job: Job) -> tuple[object, ...]:
    """All of a job but its number."""
    return (job.arrived_at, job.user, job.tenant, job.tier, job.prompt_tokens, job.output_tokens)


@pytest.mark.parametrize("trace", [*TRACES, *LENGTH_LISTS], ids=lambda trace: trace.name)
def test_every_trace_is_whole(trace: Trace) -> None:
    """A file that lost its end would make every load look lighter."""
    found = list(rows(trace))
    assert len(found) == trace.rows
    assert sum(row.prompt_tokens for row in found) == trace.prompt_tokens
    assert sum(row.output_tokens for row in found) == trace.output_tokens
    assert min(min(row.prompt_tokens, row.output_tokens) for row in found) >= 1
    assert found[-1].arrived_at == trace.span_s
    assert all(before.arrived_at <= after.arrived_at for before, after in pairwise(found))
    assert all((row.client is not None) == (trace.column == "client") for row in found)


@pytest.mark.parametrize("name", ["mooncake-conversation", "mooncake-synthetic"])
def test_prefix_blocks_cover_each_prompt(name: str) -> None:
    """A cache model is only as good as the ids it is fed."""
    trace, known = trace_named(name), 0
    for row in rows(trace):
        assert len(row.prefix) == ceil(row.prompt_tokens / BLOCK_TOKENS)
        # Ids are numbered in order of appearance: whatever is new is the next one.
        for block in row.prefix:
            assert 0 <= block <= known
            known = max(known, block + 1)
    assert known == trace.blocks


def test_the_package_holds_the_traces_and_nothing_else_and_stays_small() -> None:
    """Everybody downloads them, with every install."""
    held = {place.name: len(place.read_bytes()) for place in DATA.iterdir()}
    names = {f"{trace.name}.csv.gz" for trace in (*TRACES, *LENGTH_LISTS)}
    assert held.keys() == names | {"LICENCES.md"}
    assert sum(held.values()) < DATA_BYTES_MAX


def test_every_file_has_its_licence_and_origin() -> None:
    """Who redistributes the package must be able to say whose data it holds."""
    text = DATA.joinpath("LICENCES.md").read_text()
    lines = dict(re.findall(r"^\| ([\w-]+)\.csv\.gz \| (.*)$", text, re.MULTILINE))
    assert lines.keys() == {trace.name for trace in (*TRACES, *LENGTH_LISTS)}
    for trace in (*TRACES, *LENGTH_LISTS):
        count, licence, origin = lines[trace.name].split(" | ")
        assert int(count.replace(",", "")) == trace.rows
        assert licence == trace.licence.replace("CC-BY-", "CC BY ")
        assert origin.startswith(("[", "the same", "sampled"))


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_a_played_trace_is_the_recorded_one(trace: Trace) -> None:
    """All of it, in order, at the recorded instants, each request somebody's."""
    jobs = list(Traced(trace).jobs())
    assert [job.number for job in jobs] == list(range(trace.rows))
    recorded = [(row.arrived_at, row.prompt_tokens, row.output_tokens) for row in rows(trace)]
    assert [(job.arrived_at, job.prompt_tokens, job.output_tokens) for job in jobs] == recorded
    assert all(job.tier == 0 for job in jobs)
    assert trace.rule


def test_clients_of_a_cloud_are_tenants_and_those_of_a_site_are_users() -> None:
    """The rule that the trace states is the one that is played."""
    cloud = {(job.tenant, job.user) for job in played("servegen-large")}
    assert len(cloud) == 38
    assert all(tenant == user for tenant, user in cloud)
    site = {(job.tenant, job.user) for job in played("lmsys-clients")}
    assert len(site) == 27
    assert {tenant for tenant, _ in site} == {"lmsys"}


def test_a_trace_without_clients_is_shared_by_a_seeded_crowd() -> None:
    """Fairness needs users; what the trace does not tell must be the same for everybody."""
    jobs = played("azure-code")
    counts = Counter((job.tenant, job.user) for job in jobs)
    assert len(counts) == 50
    assert len({tenant for tenant, _ in counts}) == 5
    assert counts["tenant-0", "user-0"] / len(jobs) == pytest.approx(0.222, abs=0.02)
    others = played("azure-code", seed=1)
    assert [job.user for job in jobs] != [job.user for job in others]
    assert {job.user for job in played("azure-code", crowd=crowd(users=2))} == {"user-0", "user-1"}


def test_a_conversation_stays_with_its_user() -> None:
    """Prompts that share their beginning are one user's: caches must not cross users."""
    users = defaultdict(set)
    sizes: Counter[str] = Counter()
    for job in played("mooncake-conversation"):
        if job.session is not None:
            users[job.session].add((job.tenant, job.user))
            sizes[job.session] += 1
    assert {len(owners) for owners in users.values()} == {1}
    assert len(users) == 7_373
    assert max(sizes.values()) == 43


def test_load_makes_time_run_faster_and_changes_nothing_else() -> None:
    """A load sweep asks the same, sooner."""
    for once, twice in zip(played("lmsys-clients"), played("lmsys-clients", load=2.0), strict=True):
        assert twice.arrived_at == once.arrived_at / 2
        assert (twice.user, twice.prompt_tokens) == (once.user, once.prompt_tokens)


def test_laps_follow_one_another_and_share_no_prompts() -> None:
    """The second lap of a trace must not be served from the cache of the first."""
    trace = trace_named("mooncake-synthetic")
    jobs = played(trace.name, laps=2)
    assert len(jobs) == 2 * trace.rows
    first, second = jobs[: trace.rows], jobs[trace.rows :]
    assert trace.span_s < second[0].arrived_at < trace.span_s * 1.01
    assert not {block for job in first for block in job.prefix} & {
        block for job in second for block in job.prefix
    }
    assert not {job.session for job in first} & {job.session for job in second}
    assert [job.prompt_tokens for job in first] == [job.prompt_tokens for job in second]


def test_a_trace_ends_at_its_limit_or_instant() -> None:
    """Short runs are what one tunes with."""
    assert len(played("azure-conv", limit=100)) == 100
    jobs = played("azure-conv", load=10.0, until_s=60.0)
    assert jobs[-1].arrived_at < 60.0
    assert len(jobs) == sum(row.arrived_at < 600.0 for row in rows(trace_named("azure-conv")))


def test_what_no_engine_could_hold_is_refused_and_counted() -> None:
    """Left in, it stops the run; left out silently, the trace is another one."""
    source = Traced(trace_named("mooncake-conversation"), Playing(tokens_max=30_000))
    jobs = list(source.jobs())
    assert source.refused == 12_031 - len(jobs) > 0
    assert max(job.prompt_tokens + job.output_tokens for job in jobs) <= 30_000
    tokens = sum(job.prompt_tokens + job.output_tokens for job in jobs)
    assert source.refused_tokens == 144_793_823 + 4_122_048 - tokens
    assert [job.number for job in jobs] == list(range(len(jobs)))
    again = source.refused
    assert len(list(source.jobs())) == len(jobs)
    assert source.refused == again


def test_the_power_user_is_told_from_the_light_ones() -> None:
    """The question of the trace is what it does to the others."""
    power = power_of(trace_named("servegen-large"))
    assert power.share == pytest.approx(0.774, abs=0.001)
    assert power.user == "client-1"
    assert len(power.light_users) == 37
    assert power.user not in power.light_users
    assert power_of(trace_named("servegen-small")).share == pytest.approx(0.223, abs=0.001)
    with pytest.raises(ValueError, match="no clients"):
        power_of(trace_named("azure-code"))


def test_without_the_power_user_all_others_come_as_they_did() -> None:
    """Their latency with it is compared, request by request, with that without it."""
    tiers = Tiers(enterprise(4))
    everybody = played("servegen-large", tiers=tiers)
    light = played("servegen-large", tiers=tiers, without_power=True)
    power = power_of(trace_named("servegen-large"))

    assert [told(job) for job in light] == [
        told(job) for job in everybody if job.user != power.user
    ]
    with pytest.raises(ValueError, match="no clients"):
        played("azure-code", without_power=True)


def test_tiers_are_drawn_for_each_request_or_for_each_user() -> None:
    """A mix by requests keeps its shares exactly; one by users is how tiers are sold."""
    tiers = Tiers(enterprise(4))
    jobs = played("azure-conv", tiers=tiers)
    shares = Counter(job.tier for job in jobs)
    for tier, share in enumerate(enterprise(4)):
        assert shares[tier] / len(jobs) == pytest.approx(share, abs=0.012)
    owned = defaultdict(set)
    for job in played("azure-conv", tiers=tiers, tier_by="user"):
        owned[job.user].add(job.tier)
    assert {len(found) for found in owned.values()} == {1}
    assert len(set.union(*owned.values())) > 1


def test_a_refused_request_moves_nobody_else_s_tier() -> None:
    """Two engines of different size are compared on the same requests."""
    tiers = Tiers(enterprise(4))
    small = played("lmsys-clients", tokens_max=500, tiers=tiers)
    whole = played("lmsys-clients", tiers=tiers)
    fitting = [job for job in whole if job.prompt_tokens + job.output_tokens <= 500]
    assert 100 < len(small) < len(whole)
    assert [told(job) for job in small] == [told(job) for job in fitting]


def test_a_trace_is_read_as_it_is_asked_for() -> None:
    """A million requests of a trace in laps must not lie in memory."""
    jobs = Traced(trace_named("lmsys-clients"), Playing(laps=10**9)).jobs()
    list(islice(jobs, 100))
    tracemalloc.start()
    try:
        number = [job.number for job in islice(jobs, 4_000)][-1]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert number == 4_099
    assert held < 200_000


def test_lengths_are_those_of_the_rows() -> None:
    """A law drawn from a trace is that trace's."""
    assert lengths_of("lmsys-clients")[0] == (13, 199)
    assert len(lengths_of("arxiv")) == 28_257


def test_an_unknown_trace_is_refused_with_those_there_are() -> None:
    """A typing error deserves the list."""
    with pytest.raises(ValueError, match=r"known: azure-code, azure-conv, .*arxiv"):
        trace_named("azure")
    with pytest.raises(ValueError, match="lengths only"):
        Traced(trace_named("arxiv"))


@pytest.mark.parametrize(
    "playing", [{"load": 0.0}, {"load": float("nan")}, {"laps": 0}, {"limit": -1}]
)
def test_a_trace_cannot_be_played_backwards(playing: dict[str, float]) -> None:
    """A load of zero would never come to its second request."""
    with pytest.raises(ValueError, match="must be"):
        Playing(**playing)  # type: ignore[arg-type]  # free keywords


def test_the_page_states_whose_each_request_is() -> None:
    """A figure by user means nothing to who does not know how users came about."""
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    for trace in TRACES:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{trace.name}` |")]
        prompt, output = trace.prompt_tokens / trace.rows, trace.output_tokens / trace.rows
        assert row == (
            f"| `{trace.name}` | {trace.rows:,} | {prompt:,.0f} / {output:,.0f} "
            f"| {trace.licence} | {trace.rule} |"
        )
