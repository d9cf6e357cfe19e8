"""What is wrong with an engine, by what it answered: each fault with why it matters and the cure.

Pure. The facts are of a vLLM 0.32 that was run, and of the sources of those before it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from gateway.check import Finding
from gateway.doctor.engine_answers import EngineAnswers
from gateway.settings_rules import is_loopback
from gateway.upstream.client import IDLE_S_MAX
from gateway.upstream.dialects.registry import by_name
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

CLOCK_S_MAX: Final = 5.0
"""A clock that differs by more makes logs of two machines tell different stories."""
SLOW_S: Final = 0.5
"""Metrics that take longer are half a scrape old when they come."""
CERTIFICATE_LEFT: Final = timedelta(days=14)
SHUTDOWN_SINCE: Final = (0, 20)
"""vLLM's version with `--shutdown-timeout`."""
ASLEEP: Final = re.compile(
    r'^vllm:engine_sleep_state\{[^}]*sleep_state="(?!awake)\w+"[^}]*\} 1(?:\.0)?$', re.MULTILINE
)
PRIORITY_SINCE: Final = (0, 9)
"""Before it, V1 refused each request that had a priority."""


def of_engine(
    address: ReplicaAddress, status: ReplicaStatus, answers: EngineAnswers, now: datetime
) -> Iterator[Finding]:
    """All that can be said of one engine that answers."""
    yield _version(address, status, answers)
    if status.engine == "vllm" or status.engine is None:
        yield from _of_vllm(address, status, answers)
    yield from _slots(address, status, answers)
    yield from _policy(address, status, answers)
    yield from _connection(address, answers)
    yield from _exposure(address, answers)
    yield from _clock(address, answers)
    yield from _certificate(address, answers, now)


def of_versions(found: Mapping[str, tuple[ReplicaStatus, EngineAnswers]]) -> Iterator[Finding]:
    """Replicas of one model that run different versions."""
    by_model: dict[str, dict[str, list[str]]] = {}
    for name, (status, answers) in found.items():
        for model in status.models if answers.version is not None else ():
            by_model.setdefault(model, {}).setdefault(str(answers.version), []).append(name)
    for model, versions in sorted(by_model.items()):
        if len(versions) > 1:
            told = "; ".join(f"{version}: {', '.join(at)}" for version, at in versions.items())
            yield Finding(
                "warning", model, f"its replicas run different versions ({told})",
                "give all of them the same version",
                "an answer that goes on elsewhere may read differently, and a fault of one version "
                "looks like a fault of one machine",
            )  # fmt: skip


def _version(address: ReplicaAddress, status: ReplicaStatus, answers: EngineAnswers) -> Finding:
    engine = status.engine or "engine"
    told = answers.version or "does not tell its version"
    return Finding("ok", address.name, f"{engine} {told}")


def _of_vllm(
    address: ReplicaAddress, status: ReplicaStatus, answers: EngineAnswers
) -> Iterator[Finding]:
    is_vllm = status.engine == "vllm" or any(
        card.get("owned_by") == "vllm" for card in status.cards.values()
    )
    if not is_vllm:
        return
    if answers.metrics is not None and "vllm:" not in answers.metrics:
        yield Finding(
            "error", address.name, "it has a /metrics page without any figure of the engine",
            "start it without --disable-log-stats",
            "its queue, its memory and the load that others put there stay unseen: the gate has "
            "its own count alone",
        )  # fmt: skip
    if ASLEEP.search(answers.metrics or ""):
        yield Finding(
            "warning", address.name, "it sleeps",
            "wake it (POST /wake_up), unless the gateway put it to sleep",
            "it calls itself well, and requests that are sent there hang without a word",
        )  # fmt: skip
    version = _numbers(answers.version)
    timeout_s = answers.flags.shutdown_timeout_s
    if version is not None and version < SHUTDOWN_SINCE:
        yield Finding(
            "warning", address.name, f"vLLM {answers.version} cannot finish its work when stopped",
            "use vLLM 0.20 or newer with --shutdown-timeout; until then drain it before a stop",
            "told to stop, it leaves what runs there hanging without a word, until it is killed",
        )  # fmt: skip
    elif timeout_s == 0:
        yield Finding(
            "warning", address.name, "it runs with --shutdown-timeout 0",
            "start it with --shutdown-timeout 60, or drain it before each stop",
            "told to stop, it leaves what runs there hanging without a word, until it is killed",
        )  # fmt: skip
    elif timeout_s is None and version is not None:
        yield Finding(
            "note", address.name, "whether it has a --shutdown-timeout cannot be seen",
            "start it with --shutdown-timeout 60 (the default is 0)",
            "without one, what runs there hangs when it is told to stop",
        )  # fmt: skip


def _slots(
    address: ReplicaAddress, status: ReplicaStatus, answers: EngineAnswers
) -> Iterator[Finding]:
    told = answers.flags.max_num_seqs
    if address.max_num_seqs is not None and told is not None and address.max_num_seqs != told:
        yield Finding(
            "error", address.name,
            f"it runs {told} sequences at a time, and {address.max_num_seqs} are configured",
            f"configure max_num_seqs: {told}, or leave it out",
            "too many wait inside the engine, out of every order; too few leave it idle",
        )  # fmt: skip
    elif status.slots is None and told is None:
        yield Finding(
            "warning", address.name, "how many sequences it runs at a time is neither told nor set",
            "configure max_num_seqs as the engine has it (--max-num-seqs)",
            "it is learnt under load, and until then the gate is more careful than it has to be",
        )  # fmt: skip


def _policy(
    address: ReplicaAddress, status: ReplicaStatus, answers: EngineAnswers
) -> Iterator[Finding]:
    told, wanted = answers.flags.policy, address.scheduling_policy
    if told is not None and told != wanted:
        yield Finding(
            "warning", address.name, f"its scheduling policy is {told}, and {wanted} is configured",
            f"configure scheduling_policy: {told}, or start it with --scheduling-policy {wanted}",
            "with fcfs a priority is ignored without a word; with priority and none sent, all are "
            "equal",
        )  # fmt: skip
    if wanted != "priority":
        return
    dialect = by_name(status.engine) if status.engine else None
    if dialect is not None and not dialect.accepts_priority:
        yield Finding(
            "warning", address.name, f"{status.engine} has no priorities",
            "configure scheduling_policy: fcfs", "tiers are told apart by the gateway alone there",
        )  # fmt: skip
    version = _numbers(answers.version)
    if status.engine == "vllm" and version is not None and version < PRIORITY_SINCE:
        yield Finding(
            "error", address.name, f"vLLM {answers.version} refuses requests with a priority",
            "configure scheduling_policy: fcfs, or use a newer vLLM",
            "each request that goes there would fail",
        )  # fmt: skip


def _connection(address: ReplicaAddress, answers: EngineAnswers) -> Iterator[Finding]:
    idle_s = answers.hangs_up_after_s
    if idle_s is not None and idle_s < IDLE_S_MAX:
        yield Finding(
            "warning", address.name,
            f"it closes a connection after {idle_s:.1f} s of idling, sooner than the gateway does",
            f"raise its keep-alive above {IDLE_S_MAX:g} s (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE)",
            "now and then a request meets a connection that is just being closed, and has to be "
            "sent again",
        )  # fmt: skip
    if answers.took_s is not None and answers.took_s > SLOW_S:
        yield Finding(
            "warning", address.name, f"its metrics take {answers.took_s:.1f} s",
            "look for a busy API server, or a long way to it",
            "what the gate knows of it is as old as that",
        )  # fmt: skip


def _exposure(address: ReplicaAddress, answers: EngineAnswers) -> Iterator[Finding]:
    host = urlsplit(address.url).hostname or ""
    if is_loopback(host):
        return
    if answers.needs_key is False:
        yield Finding(
            "note", address.name, "it serves everybody who reaches it: it asks for no key",
            "give it an --api-key and name its variable in api_key_env, or let only the gateway "
            "reach it",
            "who goes past the gateway goes past every queue, limit and price",
        )  # fmt: skip
    if address.api_key is not None and address.url.startswith("http:"):
        yield Finding(
            "warning", address.name, "its key is sent in clear, over http to another machine",
            "use https for it, or a network of its own", "whoever listens on the way has the key",
        )  # fmt: skip


def _clock(address: ReplicaAddress, answers: EngineAnswers) -> Iterator[Finding]:
    ahead_s = answers.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > CLOCK_S_MAX:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield Finding(
            "warning", address.name, f"its clock is {abs(ahead_s):.0f} s {way} this machine's",
            "let NTP keep both", "logs and traces of one request do not fit together",
        )  # fmt: skip


def _certificate(
    address: ReplicaAddress, answers: EngineAnswers, now: datetime
) -> Iterator[Finding]:
    until = answers.certificate_until
    if until is not None and until - now < CERTIFICATE_LEFT:
        days = max(0, (until - now).days)
        yield Finding(
            "warning", address.name, f"its certificate is good for {days} more days",
            "renew it", "from then on nothing is sent there any more",
        )  # fmt: skip


def _numbers(version: str | None) -> tuple[int, ...] | None:
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", version or "")
    return None if found is None else (int(found[1]), int(found[2]))


def summary_of(findings: Sequence[Finding]) -> Mapping[str, int]:
    """How many there are of each level."""
    levels = ("error", "warning", "note", "ok")
    return {level: sum(each.level == level for each in findings) for level in levels}
