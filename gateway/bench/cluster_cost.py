"""What it costs that a gateway is one of several: latency, CPU, and what it has others do.

The same loads go through one gateway alone, through a follower, and through workers on one port,
right after one another, round by round. What each says is not decided here.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from gateway.bench.cluster_redis import Redis, start_redis
from gateway.bench.cluster_site import Engine, Node, Site, leader_of, wait_alone, wait_whole
from gateway.bench.cluster_spec import (
    CLIENTS,
    LIMIT_CORES,
    LIMITED_CLIENTS,
    LIMITED_STREAM_CLIENTS,
    STREAM_CLIENTS,
    STREAM_CLIENTS_BUSY,
    STREAM_EVENTS,
    STREAM_EVENTS_PER_S,
    WORKERS,
    ClusterPlan,
    CostRound,
    CostRun,
    Loads,
    Traffic,
)
from gateway.bench.cpu_limit import limited, why_not
from gateway.bench.launch import StartFailed, run_load
from gateway.bench.load_spec import LoadResult, LoadSpec
from gateway.bench.process import sample_tree, tree_pids
from gateway.bench.quantiles import Quantiles
from gateway.bench.targets import Target, start_engine

USER = "bench"
IDLE_S = 2.0
"""How long it is looked at what everybody does without any request."""
NOTHING_SEEN = Quantiles(count=0, p50=0.0, p99=0.0, highest=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What had been done at one instant, all of it only growing."""

    at_s: float
    requests: float
    leader_cpu_s: float
    redis_cpu_s: float
    commands: float
    redis_bytes: float

    def since(self, before: "Mark") -> "Mark":
        """What was done between the two; `at_s` is the time between them."""
        return Mark(
            at_s=self.at_s - before.at_s,
            requests=self.requests - before.requests,
            leader_cpu_s=self.leader_cpu_s - before.leader_cpu_s,
            redis_cpu_s=self.redis_cpu_s - before.redis_cpu_s,
            commands=self.commands - before.commands,
            redis_bytes=self.redis_bytes - before.redis_bytes,
        )


def traffic_of(done: Mark, idle: Mark, window_rate: float) -> Traffic:
    """For each request, without what `idle` shows to be done anyway.

    `window_rate`: requests/s. Raises ValueError where there were no requests.
    """
    if done.requests <= 0:
        raise ValueError("no request went through the follower")
    share = done.at_s / idle.at_s

    def each(whole: float, anyway: float) -> float:
        return max(0.0, whole - anyway * share) / done.requests

    return Traffic(
        requests_per_s=window_rate,
        leader_cpu_us=1e6 * each(done.leader_cpu_s, idle.leader_cpu_s),
        redis_cpu_us=1e6 * each(done.redis_cpu_s, idle.redis_cpu_s),
        commands=each(done.commands, idle.commands),
        redis_bytes=each(done.redis_bytes, idle.redis_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A load for one process."""

    load: LoadSpec
    events: int = 0
    """Of each request, where its streams count by their events."""
    is_limited: bool = False
    """Whether each process gets no more than `LIMIT_CORES`, and as much to do as one alone."""

    def of(self, processes: int) -> LoadSpec:
        """For so many."""
        load, times = self.load, processes if self.is_limited else 1
        return replace(
            load, connections=load.connections * times, events_per_s=load.events_per_s * times
        )


class CostSite:
    """Everything that takes part, until `stack` ends."""

    def __init__(self, stack: ExitStack, folder: Path, site: Site, plan: ClusterPlan) -> None:
        """Raises StartFailed or OSError."""
        self._plan = plan
        self._engine: Target = start_engine(stack, folder, core=None)
        self._redis: Redis = start_redis(stack, folder)
        site.know([USER])
        engines = [Engine(port=self._engine.port)]
        self._local = site.gateway("local", engines)
        url = self._redis.url
        members = [site.gateway(name, engines, redis=url) for name in ("first", "second")]
        # Workers have one machine, and their Redis may be on it.
        beside = self._redis.local_url
        self._workers = site.gateway("workers", engines, redis=beside, workers=WORKERS)
        wait_whole(self._workers, WORKERS)
        self._apart = _apart(folder, site, engines)
        self._leader = leader_of(members)
        self._follower = next(each for each in members if each is not self._leader)
        self.redis_version = self._redis.info().get("redis_version", "unknown")
        for node in (self._local, self._follower, self._workers, self._apart):
            self._send(node, replace(self._plain(), window_s=plan.warm_s))
            self._send(node, replace(self._streams(), window_s=plan.warm_s))
        self._idle = self._look_at_idle()
        capacity = self._send(self._local, self._plain())
        self.requests_per_s = plan.load_share * capacity.requests / capacity.elapsed_s
        """Of the loads that are compared."""
        self.unlimited_because = why_not()

    def rounds(self, say: Callable[[str], None]) -> list[CostRound]:
        """All rounds. Raises StartFailed, and OSError where somebody is gone."""
        found = []
        for number in range(self._plan.rounds):
            say(f"cost of several gateways, round {number + 1} of {self._plan.rounds}")
            found.append(self._round(number))
        return found

    def _round(self, number: int) -> CostRound:
        plain = replace(self._plain(), requests_per_s=self.requests_per_s)
        asked = self._asked(plain)
        runs: dict[str, CostRun] = {}
        traffic: dict[str, Traffic] = {}

        def follower() -> None:
            runs["follower"], traffic["traffic"] = self._through_follower(plain)

        def full() -> None:
            _, traffic["full"] = self._through_follower(self._plain())

        def through(way: str, what: str) -> None:
            node, processes = nodes[way]
            before = node.losses()
            runs[f"{way} {what}"] = self._through(node, asked[what], processes)
            if node is self._workers and node.losses() != before:
                raise StartFailed("the workers were not one all the time")

        nodes = {
            "local": (self._local, 1),
            "workers": (self._workers, WORKERS),
            "apart": (self._apart, WORKERS),
        }
        ways: list[Callable[[], None]] = [follower]
        ways += [partial(through, way, what) for what, way in product(asked, nodes)]
        ways.append(full)
        # Each goes first in turn, so that none always meets the warmer machine.
        first = number % len(ways)
        for go in ways[first:] + ways[:first]:
            go()

        def loads(name: str) -> Loads:
            return Loads(**{what: runs[f"{name} {what}"] for what in asked})

        return CostRound(
            follower=runs["follower"],
            local=loads("local"),
            workers=loads("workers"),
            apart=loads("apart"),
            traffic=traffic["traffic"],
            full=traffic["full"],
        )

    def _asked(self, plain: LoadSpec) -> dict[str, Asked]:
        """By their names in `Loads`."""
        busy = self._streams(STREAM_CLIENTS_BUSY)
        found = {
            "plain": Asked(load=plain),
            "streams": Asked(load=self._streams(), events=STREAM_EVENTS),
            "plain_busy": Asked(load=self._plain()),
            "streams_busy": Asked(load=busy, events=STREAM_EVENTS),
        }
        if not self.unlimited_because:
            many = replace(self._plain(), connections=LIMITED_CLIENTS)
            found["plain_limited"] = Asked(load=many, is_limited=True)
            streams = self._streams(LIMITED_STREAM_CLIENTS)
            found["streams_limited"] = Asked(load=streams, events=STREAM_EVENTS, is_limited=True)
        return found

    def _through(self, node: Node, asked: Asked, processes: int) -> CostRun:
        pids = tree_pids(node.pid)
        with limited(pids, LIMIT_CORES) if asked.is_limited else nullcontext():
            return cost_of(self._send(node, asked.of(processes)), node.pid, asked.events)

    def _through_follower(self, load: LoadSpec) -> tuple[CostRun, Traffic]:
        if self._leader.phases() != {"leading"}:
            raise StartFailed("another gateway leads than before: nothing said of it would be true")
        before = self._mark()
        result = self._send(self._follower, load)
        done = self._mark().since(before)
        rate = result.requests / result.elapsed_s
        return cost_of(result, self._follower.pid), traffic_of(done, self._idle, rate)

    def _look_at_idle(self) -> Mark:
        before = self._mark()
        time.sleep(IDLE_S)
        return self._mark().since(before)

    def _mark(self) -> Mark:
        info: Mapping[str, str] = self._redis.info()
        return Mark(
            at_s=time.monotonic(),
            requests=self._follower.requests(),
            leader_cpu_s=sample_tree(self._leader.pid).cpu_s,
            redis_cpu_s=sample_tree(self._redis.pid).cpu_s,
            commands=float(info["total_commands_processed"]),
            redis_bytes=float(info["total_net_input_bytes"])
            + float(info["total_net_output_bytes"]),
        )

    def _plain(self) -> LoadSpec:
        plan = self._plan
        return LoadSpec(port=0, connections=CLIENTS, warm_s=plan.warm_s, window_s=plan.window_s)

    def _streams(self, clients: int = STREAM_CLIENTS) -> LoadSpec:
        return LoadSpec(
            port=0,
            stream=True,
            connections=clients,
            events=STREAM_EVENTS,
            events_per_s=clients * STREAM_EVENTS_PER_S,
            ramp_s=1.0,
            warm_s=self._plan.warm_s,
            window_s=self._plan.window_s,
        )

    def _send(self, node: Node, load: LoadSpec) -> LoadResult:
        spec = replace(
            load,
            port=node.port,
            upstream_port=self._engine.port,
            key=node.keys[USER],
            watch=str(node.pid),
        )
        return run_load(spec, core=None)


def _apart(folder: Path, site: Site, engines: list[Engine]) -> Node:
    """Workers whose Redis is gone. Raises StartFailed or OSError."""
    own = folder / "lost"
    own.mkdir()
    with ExitStack() as until_lost:
        redis = start_redis(until_lost, own)
        found = site.gateway("apart", engines, redis=redis.local_url, workers=WORKERS)
        wait_whole(found, WORKERS)
    wait_alone(found)
    return found


def cost_of(result: LoadResult, pid: int, events: int = 0) -> CostRun:
    """Of one window. `events`: of each request, where its streams count by their events."""
    requests = result.events / events if events else float(result.requests)
    latency = result.latency_us or NOTHING_SEEN
    return CostRun(
        requests=round(requests),
        errors=result.errors,
        elapsed_s=result.elapsed_s,
        cpu_us=1e6 * result.watched[str(pid)].cpu_s / requests if requests else 0.0,
        p50_us=latency.p50,
        p99_us=latency.p99,
    )
