"""Made-up runs and programs of a benchmark, so that it is tested without measuring anything."""

from pathlib import Path

from gateway.bench.contenders import Site
from gateway.bench.figures import Run
from gateway.bench.harness import Measurement
from gateway.bench.load_spec import LoadResult, LoadSpec
from gateway.bench.machine import Machine
from gateway.bench.process import Usage
from gateway.bench.quantiles import Quantiles
from gateway.bench.scenarios import Plan, Scenario
from gateway.bench.targets import DIRECT


def quantiles(p50: float, p99: float) -> Quantiles:
    """A thousand values with these quantiles."""
    return Quantiles(count=1_000, p50=p50, p99=p99, highest=p99)


def usage(
    cpu_s: float = 0.0, *, rest_bytes: int = 0, alone_bytes: int = 0, rss_bytes: int = 0
) -> Usage:
    """What one process tree used."""
    return Usage(
        cpu_s=cpu_s,
        rss_at_rest_bytes=rest_bytes,
        rss_alone_bytes=alone_bytes,
        rss_bytes=rss_bytes,
    )


def result(
    *,
    requests: int = 0,
    events: int = 0,
    error_kinds: dict[str, int] | None = None,
    open_connections: int = 0,
    latency_us: Quantiles | None = None,
    ttft_us: Quantiles | None = None,
    chunk_delay_us: Quantiles | None = None,
    own_cpu_s: float = 0.0,
    machine_cpu_s: float = 0.0,
) -> LoadResult:
    """The result of a load whose window was two seconds."""
    kinds = error_kinds or {}
    return LoadResult(
        elapsed_s=2.0,
        requests=requests,
        events=events,
        errors=sum(kinds.values()),
        error_kinds=kinds,
        open_connections=open_connections,
        latency_us=latency_us,
        ttft_us=ttft_us,
        chunk_delay_us=chunk_delay_us,
        own_cpu_s=own_cpu_s,
        machine_cpu_s=machine_cpu_s,
        watched={},
    )


def run(load: LoadResult, *, contender: Usage | None = None, upstream_cpu_s: float = 0.0) -> Run:
    """A load and what the processes used meanwhile."""
    return Run(load=load, upstream=usage(upstream_cpu_s), contender=contender)


def plan(*scenarios: Scenario, rounds: int = 1) -> Plan:
    """A plan of these scenarios."""
    return Plan(name="made up", rounds=rounds, warm_up=LoadSpec(port=0), scenarios=scenarios)


def scenario(
    name: str,
    *,
    stream: bool = False,
    connections: int = 1,
    events_per_s: float = 0.0,
    requests_per_s: float = 0.0,
) -> Scenario:
    """A scenario of two seconds."""
    load = LoadSpec(
        port=0,
        stream=stream,
        connections=connections,
        events_per_s=events_per_s,
        requests_per_s=requests_per_s,
    )
    return Scenario(name=name, load=load, is_paired=False)


def measurement(*rounds: dict[str, Run], target: str = DIRECT) -> Measurement:
    """One target's runs by scenario, round by round."""
    return Measurement(rounds=[{target: runs} for runs in rounds])


def machine(load_average: float = 0.0) -> Machine:
    """Two cores that nobody sells."""
    return Machine(
        processor="Imaginary 1",
        cores=2,
        kernel="6.1",
        load_average=load_average,
        versions={"fairgate": "0.1.0", "python": "3.11.7"},
    )


def bench_site(folder: Path) -> Site:
    """A place for a contender, with ports that nobody listens on."""
    return Site(folder=folder, port=4001, upstream_port=4002, spare_port=4003, key="bench-secret")


def fake_program(folder: Path, name: str, says: str) -> Path:
    """A program that prints a line to stderr, as nginx does with its version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho 'Hello' >&2\necho '{says}' >&2\n")
    path.chmod(0o755)
    return path
