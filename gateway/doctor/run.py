"""`fairgate check --live`: all that is wrong with a set-up that runs, each with why and the cure.

It puts the questions together; who answers what is in the other modules.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Console

from gateway import __version__
from gateway.check import PROBES_AT_ONCE, Finding, check, print_findings, probed
from gateway.doctor.engine_answers import EngineAnswers, answers_of
from gateway.doctor.engines import of_engine, of_versions, summary_of
from gateway.doctor.machine import of_descriptors, of_exposure, of_proxy, of_store
from gateway.doctor.redis import of_redis
from gateway.doctor.running import Gateway, of_running
from gateway.runtime.descriptors import open_now, raised_limit
from gateway.settings import Settings
from gateway.upstream.discovery import Resolve, resolved_by_system
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

AnswersOf = Callable[[ReplicaAddress], Awaitable[EngineAnswers]]
EXIT_OK, EXIT_WARNINGS, EXIT_ERRORS = 0, 1, 2


async def examined(
    settings: Settings,
    *,
    proxy_timeout_s: float | None = None,
    answers: AnswersOf = answers_of,
    resolve: Resolve = resolved_by_system,
    wall: Callable[[], float] = time.time,
) -> list[Finding]:
    """All findings about engines, Redis, the store, this machine and what is in front of it."""
    seen: dict[str, tuple[ReplicaAddress, ReplicaStatus]] = {}

    async def noted(address: ReplicaAddress) -> ReplicaStatus:
        status = await probed(address)
        seen[address.name] = address, status
        return status

    found = await check(settings, probe_once=noted, resolve=resolve)
    up = {name: each for name, each in seen.items() if each[1].up}
    gate = asyncio.Semaphore(PROBES_AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        asked = {
            name: tasks.create_task(_within(gate, answers, address))
            for name, (address, _) in up.items()
        }
    now = datetime.fromtimestamp(wall(), UTC)
    told = {name: (up[name][1], task.result()) for name, task in asked.items()}
    for name, (status, answer) in told.items():
        found.extend(of_engine(up[name][0], status, answer, now))
    found.extend(of_versions(told))
    found.extend(of_descriptors(settings, raised_limit(), open_now()))
    found.extend(of_store(settings))
    found.extend(of_exposure(settings))
    found.extend(of_proxy(settings, proxy_timeout_s))
    return found + await _redises(settings)


async def _within(
    gate: asyncio.Semaphore, answers: AnswersOf, address: ReplicaAddress
) -> EngineAnswers:
    async with gate:
        try:
            return await answers(address)
        except OSError:  # its certificates: told by `check` already
            return EngineAnswers()


async def _redises(settings: Settings) -> list[Finding]:
    found = []
    if settings.redis.url is not None:
        found += await of_redis(settings.redis.url, keeps=False, where="redis")
    store = settings.store.url
    if store is not None and store.startswith("redis"):
        found += await of_redis(store, keeps=True, where="store")
    return found


def report(
    settings: Settings, gateway: Gateway, url: str, *, proxy_timeout_s: float | None,
    is_wanted: bool, as_json: bool,
) -> int:  # fmt: skip
    """Examine, print, and say how it went: 0 fine, 1 warnings, 2 errors."""
    found = asyncio.run(examined(settings, proxy_timeout_s=proxy_timeout_s))
    found += of_running(gateway, url, __version__, is_wanted=is_wanted)
    if as_json:
        sys.stdout.write(json.dumps(as_document(found), indent=2) + "\n")
    else:
        print_findings(found, Console())
    return status_of(found)


def status_of(findings: Iterable[Finding]) -> int:
    """The exit status."""
    levels = {each.level for each in findings}
    if "error" in levels:
        return EXIT_ERRORS
    return EXIT_WARNINGS if "warning" in levels else EXIT_OK


def as_document(findings: list[Finding]) -> dict[str, object]:
    """For programs."""
    names = {"level": "severity", "hint": "mend"}
    return {
        "object": "diagnosis",
        "counts": dict(summary_of(findings)),
        "findings": [
            {names.get(name, name): value for name, value in asdict(each).items()}
            for each in findings
        ],
    }
