"""What a run came to: rates, percentiles, and who was served how much."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import ceil, inf

from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job


def tokens_per_s(fleet: Fleet, from_s: int, until_s: int) -> float:
    """Prompt and output tokens of all engines, foreign work included."""
    done = sum(replica.work.tokens(from_s, until_s) for replica in fleet.replicas.values())
    return done / (until_s - from_s)


def gpu_s(fleet: Fleet) -> float:
    """Worth of all that was done until now, foreign work included; what was done twice once.

    A measure of throughput that does not depend on which requests were done. It prices a job by the
    replica that has it last.
    """
    return sum(
        fleet.replicas[job.replicas[-1]].gpu_s(job)
        for jobs in (fleet.jobs.values(), fleet.foreign)
        for job in jobs
        if job.replicas
    )


def decoded_per_s(fleet: Fleet, from_s: int, until_s: int) -> float:
    """Output tokens of all engines."""
    works = [replica.work for replica in fleet.replicas.values()]
    return sum(work.decoded[s] for work in works for s in range(from_s, until_s)) / (
        until_s - from_s
    )


def requests_per_s(fleet: Fleet, from_s: int, until_s: int) -> float:
    """Requests that all engines finished."""
    works = [replica.work for replica in fleet.replicas.values()]
    return sum(work.finished[s] for work in works for s in range(from_s, until_s)) / (
        until_s - from_s
    )


def tpot_means_s(fleet: Fleet, from_s: int, until_s: int) -> list[float]:
    """10 s means of every replica."""
    works = [replica.work for replica in fleet.replicas.values()]
    return [mean for work in works for mean in work.tpot_means_s(from_s, until_s)]


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed; infinite where there are none."""
    ranked = sorted(values)
    return ranked[max(0, ceil(share * len(ranked)) - 1)] if ranked else inf


def ttfts_s(
    fleet: Fleet, wanted: Callable[[Job], bool], from_s: float, until_s: float
) -> list[float]:
    """Of those that arrived in that time; one without a first token counts until now."""
    return [
        fleet.now - job.request.arrived_at if job.ttft_s is None else job.ttft_s
        for job in fleet.jobs.values()
        if from_s <= job.request.arrived_at < until_s and wanted(job)
    ]


def waits_s(
    fleet: Fleet, wanted: Callable[[Job], bool], from_s: float, until_s: float
) -> list[float]:
    """Arrival to grant of those that arrived in that time; one that waits counts until now."""
    return [
        fleet.now - job.request.arrived_at if job.wait_s is None else job.wait_s
        for job in fleet.jobs.values()
        if from_s <= job.request.arrived_at < until_s and wanted(job)
    ]


def served_by(fleet: Fleet, key: Callable[[Job], str]) -> dict[str, float]:
    """Cost of what the engines did until now, by user or whatever `key` says."""
    sums: defaultdict[str, float] = defaultdict(float)
    for job in fleet.jobs.values():
        sums[key(job)] += job.served
    return dict(sums)


def served_between(
    fleet: Fleet, key: Callable[[Job], str], from_s: float, until_s: float
) -> dict[str, float]:
    """Let time pass until `until_s`; what was served since `from_s` by `key`."""
    fleet.run(from_s)
    before = served_by(fleet, key)
    fleet.run(until_s)
    return {who: cost - before.get(who, 0.0) for who, cost in served_by(fleet, key).items()}


def user_of(job: Job) -> str:
    """Who sent it."""
    return job.request.user


def tenant_of(job: Job) -> str:
    """Whose user sent it."""
    return job.request.tenant


def tier_of(job: Job) -> str:
    """The rank of its tier, as a word."""
    return str(job.request.tier)
