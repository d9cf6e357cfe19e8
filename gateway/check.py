"""`fairgate check`: asks every configured replica once and explains what would not work.

It judges what the settings promise against what the engines answer; it starts no gateway, sends
no request that costs an engine anything, and knows nothing of scheduling.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

from gateway.cluster.connect import NoRedisError
from gateway.cluster.joining import looked_at
from gateway.settings import DnsLookup, Settings
from gateway.shown import shown
from gateway.upstream.discovery import DnsWatch, Resolve, resolved_by_system
from gateway.upstream.probe import Probe
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

PROBES_AT_ONCE = 16
TIMEOUT_S = 5.0

STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}

UNSERVED = "nothing is sent there"
UNSEEN = "the gate has its own count alone: it is more careful, and blind to load of others"

# What a failed probe says -> what to do about it; the first that occurs in the text counts.
HINTS = (
    ("connection refused", "nothing listens there: is the engine started, is the port right?"),
    ("no answer within", "a firewall, or an engine that is still loading its model"),
    ("HTTP 401", "the engine wants a key: name its variable in api_key_env"),
    ("HTTP 403", "the engine refuses the key that api_key_env names"),
    ("HTTP 404", "is this the root of an engine's OpenAI-compatible server?"),
    ("lists no model", "the engine is up but has no model loaded"),
    ("Name or service not known", "this machine cannot resolve the name: is the host right?"),
    ("nodename nor servname", "this machine cannot resolve the name: is the host right?"),
    ("certificate", "ca_file names the certificates to trust, where the system's do not do"),
    ("ConnectError", "the name is unknown, the host unreachable, or its certificate not trusted"),
)

ProbeOnce = Callable[[ReplicaAddress], Awaitable[ReplicaStatus]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. An `error` means that the gateway would not serve as configured.

    A `note` is what cannot be known from here, or is meant so by most.
    """

    level: Literal["ok", "note", "warning", "error"]
    where: str
    what: str
    hint: str | None = None
    """How to mend it."""
    why: str | None = None
    """Why it matters."""


async def probed(address: ReplicaAddress) -> ReplicaStatus:
    """What one round of questions says of the replica. OSError where its `ca_file` is no use."""
    probe = Probe(address, tell=lambda _: None, clock=time.monotonic, timeout_s=TIMEOUT_S)
    try:
        return await probe.probe_once()
    finally:
        await probe.aclose()


async def check(
    settings: Settings, *, probe_once: ProbeOnce = probed, resolve: Resolve = resolved_by_system
) -> list[Finding]:
    """All findings: the exposure, Redis, then each replica, then each configured model."""
    findings = _exposure(settings) + await _redis(settings)
    addresses = list(settings.addresses())
    for lookup in settings.lookups():
        found, more = await _looked_up(lookup, resolve)
        findings.append(found)
        addresses.extend(more)
    gate = asyncio.Semaphore(PROBES_AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_asked(one, probe_once, gate)) for one in addresses]
    answers = [task.result() for task in running]
    for address, answer in zip(addresses, answers, strict=True):
        findings.extend(_of_replica(address, answer))
    statuses = [answer for answer in answers if isinstance(answer, ReplicaStatus) and answer.up]
    return findings + _of_models(settings, statuses)


def has_errors(findings: list[Finding]) -> bool:
    """Whether the gateway would not serve as configured."""
    return any(finding.level == "error" for finding in findings)


def print_findings(findings: list[Finding], console: Console) -> None:
    """One line a finding, its hint below it, and a verdict."""
    for finding in findings:
        line = Text(f"{finding.level:>7}  ", style=STYLES[finding.level])
        line.append(shown(f"{finding.where}: {finding.what}"), style="default")
        console.print(line, soft_wrap=True)
        if finding.why:
            console.print(Text(f"{'':>9}{shown(finding.why)}"), soft_wrap=True)
        if finding.hint:
            console.print(Text(f"{'':>9}{shown(finding.hint)}", style="dim"), soft_wrap=True)
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    console.print(f"errors: {errors}, warnings: {warnings}")


def _exposure(settings: Settings) -> list[Finding]:
    where = f"{settings.listen.host}:{settings.listen.port}"
    if not settings.is_open:
        return [Finding("ok", where, f"API keys configured: {len(settings.keys)}")]
    if settings.is_local:
        return [Finding("ok", where, "without keys: open to this machine only")]
    return [
        Finding("warning", where, "without keys: open to everybody who can reach it",
                "configure keys, or listen on 127.0.0.1",
                "anybody uses the engines, under any name and in any tier")
    ]  # fmt: skip


async def _redis(settings: Settings) -> list[Finding]:
    """Whether several gateways could be one over it."""
    url = settings.redis.url
    if url is None:
        return []
    try:
        where, facts = await looked_at(url, prefix=settings.redis.prefix)
    except (NoRedisError, OSError) as error:
        hint = "without it each gateway is on its own, with its part of every limit"
        why = "queues, limits and gates are not those of all gateways together"
        return [Finding("error", "redis", str(error), hint, why)]
    version = ".".join(map(str, facts.version))
    found = [Finding("ok", where, f"Redis {version}, {facts.eviction}")]
    why = "what gateways tell one another would be lost"
    return found + [Finding("warning", where, each, None, why) for each in facts.warnings()]


async def _looked_up(lookup: DnsLookup, resolve: Resolve) -> tuple[Finding, list[ReplicaAddress]]:
    where = f"{lookup.host}:{lookup.port}"
    watch = DnsWatch(
        lookup.host, lookup.port, lookup.every_s, on_change=lambda *_: None, resolve=resolve
    )
    await watch.look_once()
    if watch.last_error:
        return Finding("error", where, watch.last_error, "is the name right?", UNSERVED), []
    found = [lookup.found(url) for url in sorted(watch.urls)]
    return Finding("ok", where, f"{len(found)} addresses"), found


async def _asked(
    address: ReplicaAddress, probe_once: ProbeOnce, gate: asyncio.Semaphore
) -> ReplicaStatus | OSError:
    async with gate:
        try:
            return await probe_once(address)
        except OSError as error:
            return error


def _of_replica(address: ReplicaAddress, answer: ReplicaStatus | OSError) -> list[Finding]:
    if isinstance(answer, OSError):
        hint = "ca_file must be a PEM file with the certificates to trust"
        what = f"its ca_file cannot be used: {answer}"
        return [Finding("error", address.name, what, hint, UNSERVED)]
    if not answer.up:
        reason = answer.last_error or "no answer"
        return [Finding("error", address.name, reason, _hint(reason), UNSERVED)]
    slots = "slots not told, will be learnt" if answer.slots is None else f"{answer.slots} slots"
    models = ", ".join(sorted(answer.models)) or "no model"
    what = f"{answer.engine or 'engine not recognised'}, {models}, {slots}"
    findings = [Finding("ok", address.name, what)]
    if answer.engine is None:
        hint = "say engine: vllm, sglang, tgi or llamacpp"
        findings.append(Finding("warning", address.name, "its load cannot be read", hint, UNSEEN))
    if answer.last_error:
        hinted = _hint(answer.last_error)
        why = "a question of the probe failed, and will again while it runs"
        findings.append(Finding("warning", address.name, answer.last_error, hinted, why))
    if answer.detail:
        findings.append(Finding("warning", address.name, answer.detail, None, UNSEEN))
    if answer.missing:
        what = f"metrics that this engine should have are missing: {', '.join(answer.missing)}"
        hint = "an older or newer engine version; what they would say stays unknown"
        findings.append(Finding("warning", address.name, what, hint, UNSEEN))
    return findings


def _of_models(settings: Settings, statuses: list[ReplicaStatus]) -> list[Finding]:
    """Whether each configured model, and anything at all, would be served."""
    offered = {name for status in statuses for name in status.models}
    listed = {name for status in statuses for name in status.cards}
    findings = []
    for model in settings.models:
        if model.name not in offered:
            what, why = "no replica that answers serves it", "calls for it get 503"
            hint = "mend one of its replicas, or wait until it has loaded"
            findings.append(Finding("error", model.name, what, hint, why))
        elif listed and model.name not in listed:
            hint = "the name must be the engine's own; other names are aliases"
            why = "engines answer 404 to each call for it"
            findings.append(Finding("error", model.name, "no engine lists this model", hint, why))
    hidden = sorted(settings.model_by_alias.keys() & listed)
    findings.extend(
        Finding(
            "warning",
            alias,
            "an alias hides the model of this name that an engine lists",
            "give the alias another name",
            "clients that ask for the model get another one",
        )
        for alias in hidden
    )
    if not offered:
        hint, why = "mend one of the above", "each call gets 503 or 404"
        findings.append(Finding("error", "models", "nothing can be served", hint, why))
    return findings


def _hint(reason: str) -> str | None:
    return next((hint for sign, hint in HINTS if sign in reason), None)
