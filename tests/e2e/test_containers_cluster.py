"""Three gateways as one, a balancer, Redis, Prometheus and Alertmanager, as real containers.

Each of them is killed while clients ask, and comes back.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.e2e.containers.engine import Engine, running_engine
from tests.e2e.containers.stack import ENGINES, Stack, chat, running_stack, wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

GATEWAYS = ("gateway-0", "gateway-1", "gateway-2")
SERVING = (*GATEWAYS, *ENGINES, "balancer", "redis")
WATCHING = ("prometheus", "alertmanager", "alerts")
SERVICES = (*SERVING, *WATCHING)
"""All but Grafana, which cannot be had without a registry."""
UP_S_MAX = 120
BACK_S_MAX = 90
FROZEN_S = 8
"""Longer than the balancer and the gateways need to miss one another."""
PATIENCE_S = 5
ALERT_S_MAX = 180
"""Scraped every 15 s, one minute of `for`, ten seconds in which Alertmanager gathers."""
READYZ = """
import sys, urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=4).read().decode())
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A container engine."""
    with running_engine() as running:
        yield running


@pytest.fixture(scope="module")
def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The containers of the profiles cluster and observability, all healthy."""
    with running_stack(
        engine,
        tmp_path_factory.mktemp("compose"),
        profiles=("cluster", "observability"),
        services=SERVICES,
    ) as running:
        yield running


@dataclass
class Asked:
    """What became of requests that came one after another all the while."""

    statuses: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    longest_s: float = 0.0


@contextmanager
def asking(stack: Stack) -> Iterator[Asked]:
    """Ask all the time while the block runs."""
    asked, is_over = Asked(), threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            began = time.monotonic()
            try:
                asked.statuses.append(stack.ask().status_code)
            except httpx.TransportError as error:
                asked.broken.append(repr(error))
            asked.longest_s = max(asked.longest_s, time.monotonic() - began)
            is_over.wait(0.05)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield asked
    finally:
        is_over.set()
        for thread in threads:
            thread.join(timeout=60)


def cluster_of(stack: Stack, gateway: str) -> dict[str, Any]:
    """What one gateway says of all of them; empty while it does not answer."""
    said = stack.inside(gateway, "python", "-c", READYZ)
    try:
        found: dict[str, Any] = json.loads(said)["cluster"]
    except (ValueError, KeyError):
        return {}
    return found


def is_whole(stack: Stack) -> bool:
    """Whether each gateway knows all three, and none is alone."""
    said = [cluster_of(stack, gateway) for gateway in GATEWAYS]
    return all(
        each.get("degraded") is False and len(each["gateways"]) == len(GATEWAYS) for each in said
    )


def test_everything_comes_up_healthy(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """`docker compose up --wait` is the first thing that an operator types."""
    with capsys.disabled():
        print(f"\n  up after {stack.up_s:.1f} s")  # noqa: T201 - a figure
    states = {name: stack.health(name) for name in SERVICES}
    assert states == dict.fromkeys(SERVICES, "healthy")
    assert stack.up_s < UP_S_MAX
    wait_until(lambda: is_whole(stack), "three gateways are one", timeout_s=30)


def test_a_stream_arrives_token_by_token_through_the_balancer(stack: Stack) -> None:
    """A balancer that collects a stream first would make a chat feel dead."""
    arrivals: list[float] = []
    with httpx.stream(
        "POST",
        f"{stack.url}/v1/chat/completions",
        headers=stack.headers(),
        json=chat(50, streams=True),
        timeout=20,
    ) as answer:
        arrivals.extend(time.monotonic() for part in answer.iter_raw() if part)
    assert len(arrivals) > 20
    assert arrivals[-1] - arrivals[0] > 0.5
    assert max(later - sooner for sooner, later in itertools.pairwise(arrivals)) < 0.5


@pytest.mark.parametrize("service", [*GATEWAYS, "balancer", "redis", *WATCHING])
def test_no_process_is_root_or_can_write_but_scratch(stack: Stack, service: str) -> None:
    """A hole in one of them must not be a hole in the machine."""
    status = stack.inside(service, "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
    assert fields["NoNewPrivs"].strip() == "1"
    tried = "touch /tmp/a && echo scratch; for d in / /etc /usr/local/bin; do touch $d/a; done"
    said = stack.inside(service, "sh", "-c", tried)
    assert "scratch" in said
    assert said.count("Read-only file system") == 3


def test_the_store_keeps_what_it_is_given_and_evicts_nothing(stack: Stack) -> None:
    """Keys and budgets that vanish by themselves would be noticed by an auditor first."""
    ask = ("redis", "redis-cli")
    assert "noeviction" in stack.inside(*ask, "config", "get", "maxmemory-policy")
    assert "yes" in stack.inside(*ask, "config", "get", "appendonly").split()
    stack.inside(*ask, "set", "kept", "1")
    stack.compose("restart", "redis")
    wait_until(lambda: stack.inside(*ask, "get", "kept").strip() == "1", "the value", timeout_s=10)
    wait_until(lambda: is_whole(stack), "three gateways are one again", timeout_s=30)


def test_prometheus_sees_each_gateway_by_itself(stack: Stack) -> None:
    """Through the balancer counters of three would jump in one series."""

    def up() -> dict[str, str]:
        query = {"query": 'up{job="fairgate"}'}
        answer = httpx.get(f"{stack.prometheus_url}/api/v1/query", params=query, timeout=5)
        found = answer.json()["data"]["result"]
        return {each["metric"]["instance"]: each["value"][1] for each in found}

    wanted = {f"{gateway}:8080": "1" for gateway in GATEWAYS}
    wait_until(lambda: up() == wanted, "three targets up", timeout_s=60)


def test_a_gateway_that_is_stopped_loses_nobody_a_request(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """An update in working hours: /readyz tells the balancer in time."""
    with asking(stack) as asked:
        stack.compose("stop", "gateway-1", timeout_s=90)
        stack.compose("start", "gateway-1")
        wait_until(lambda: is_whole(stack), "three gateways are one again", timeout_s=BACK_S_MAX)
    with capsys.disabled():
        print(f"\n  {len(asked.statuses)} requests, longest {asked.longest_s:.2f} s")  # noqa: T201 - figures
    assert len(asked.statuses) > 20
    assert (set(asked.statuses), asked.broken) == ({200}, [])


@pytest.mark.parametrize("service", SERVICES)
def test_each_may_be_killed_and_comes_back(
    stack: Stack, service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever machine or process fails, what is not on it goes on."""
    wait_until(lambda: all(stack.up_by_replica().values()), "both engines up", timeout_s=60)
    with asking(stack) as asked:
        stack.compose("kill", service)
        time.sleep(6)
        stack.compose("start", service)
        back_s = wait_until(
            lambda: stack.health(service) == "healthy",
            f"{service} is healthy again",
            timeout_s=BACK_S_MAX,
        )
        wait_until(lambda: is_whole(stack), "three gateways are one again", timeout_s=BACK_S_MAX)
    served = asked.statuses.count(200)
    failed = len(asked.statuses) - served + len(asked.broken)
    with capsys.disabled():
        print(  # noqa: T201 - figures
            f"\n  {service}: {served} served, {failed} not, longest {asked.longest_s:.1f} s,"
            f" healthy after {back_s:.1f} s"
        )
    after = [stack.ask().status_code for _ in range(5)]
    assert after == [200] * 5
    if service in {*WATCHING, "redis", *ENGINES}:
        assert failed == 0, (asked.statuses, asked.broken)
    elif service in GATEWAYS:
        # Two at a time: what ran through it, and what reached it before it was missed.
        assert failed <= 8, (asked.statuses, asked.broken)
        assert served > 10


@pytest.mark.parametrize("service", SERVICES)
def test_each_may_freeze_and_thaw(
    stack: Stack, service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands still keeps its connections open: nobody is told that it is not there."""
    wait_until(lambda: all(stack.up_by_replica().values()), "both engines up", timeout_s=60)
    with asking(stack) as asked:
        stack.compose("pause", service)
        time.sleep(FROZEN_S)
        stack.compose("unpause", service)
        wait_until(lambda: is_whole(stack), "three gateways are one again", timeout_s=BACK_S_MAX)
        wait_until(
            lambda: stack.health(service) == "healthy", "it is well again", timeout_s=BACK_S_MAX
        )
    failed = len(asked.statuses) - asked.statuses.count(200) + len(asked.broken)
    with capsys.disabled():
        print(  # noqa: T201 - figures
            f"\n  {service} frozen: {len(asked.statuses) - failed} served, {failed} not,"
            f" longest {asked.longest_s:.1f} s"
        )
    assert failed == 0, (asked.statuses, asked.broken)
    assert asked.longest_s < FROZEN_S + PATIENCE_S


def test_a_dead_gateway_is_told_to_whoever_listens(stack: Stack) -> None:
    """From the scrape to the webhook: an alert that stops on its way is none."""

    def told() -> int:
        log = stack.compose("logs", "--no-log-prefix", "alerts")
        return log.count("firing page FairgateDown: Gateway gateway-2")

    before = told()
    stack.compose("kill", "gateway-2")
    try:
        wait_until(lambda: told() > before, "the alert in the log", timeout_s=ALERT_S_MAX)
    finally:
        stack.compose("start", "gateway-2")
    # Told to stop while it starts it ends by the signal, with 143.
    wait_until(lambda: stack.health("gateway-2") == "healthy", "it is back", timeout_s=BACK_S_MAX)


def test_everything_stops_by_itself(stack: Stack) -> None:
    """What has to be killed loses something one day."""
    stack.compose("stop", timeout_s=120)
    stopped = {name: stack.inspected(name, "{{.State.ExitCode}}") for name in SERVING}
    assert stopped == dict.fromkeys(SERVING, "0")
