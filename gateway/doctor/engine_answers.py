"""What one engine answers to a doctor: its version, its flags where it tells them, how it hangs up.

It asks and notes; what is wrong with it is judged elsewhere. Nothing that is asked costs an engine
any work.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from gateway.upstream.client import IDLE_S_MAX
from gateway.upstream.replicas import ReplicaAddress
from gateway.upstream.unanswered import UNANSWERED

TIMEOUT_S: Final = 5.0
FLAGS_S: Final = 30.0
"""vLLM looks at its whole machine for the first answer, which took one ten seconds."""
TEXT_MAX: Final = 4 << 20
IDLE_SLACK_S: Final = 0.5
"""So much longer than the gateway keeps an idle connection is looked whether the engine does."""
HEAD_MAX: Final = 64 << 10
FLAGS_PATH: Final = "/server_info?config_format=json"
"""As text, which is the default, vLLM 0.32 tells none of the flags below."""
CERT_DATE: Final = "%b %d %H:%M:%S %Y %Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """How an engine was started, as far as it says; None: it does not."""

    max_num_seqs: int | None = None
    policy: str | None = None
    shutdown_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswers:
    """All that one engine said. None: it did not."""

    version: str | None = None
    metrics: str | None = None
    flags: Flags = Flags()
    needs_key: bool | None = None
    """Whether its models are told to nobody who has no key."""
    clock_ahead_s: float | None = None
    """Its clock less ours, by its Date header; as coarse as that, a second."""
    took_s: float | None = None
    """For its metrics, from asking to the last byte."""
    hangs_up_after_s: float | None = None
    """Seconds after which it closes an idle connection; None: not while it was looked at."""
    certificate_until: datetime | None = None


async def answers_of(
    address: ReplicaAddress,
    *,
    wall: Callable[[], float] = time.time,
    idle_s: float = IDLE_S_MAX + IDLE_SLACK_S,
    transport: httpx.AsyncBaseTransport | None = None,
) -> EngineAnswers:
    """Ask one engine, for `idle_s` at most beside what it takes to answer.

    What fails is None. Raises OSError where its `ca_file` cannot be read.
    """
    is_tls = address.url.startswith("https:")
    trusted = ssl.create_default_context(cafile=address.ca_file) if is_tls else None
    key = {"authorization": f"Bearer {address.api_key}"} if address.api_key else {}
    async with httpx.AsyncClient(
        base_url=address.url, timeout=TIMEOUT_S, trust_env=False, transport=transport,
        verify=trusted or False,
    ) as http:  # fmt: skip
        version = await _text(http, "/version", key)
        began_at = time.monotonic()
        metrics = await _text(http, "/metrics", key)
        took_s = None if metrics is None else time.monotonic() - began_at
        info = await _text(http, FLAGS_PATH, key, within_s=FLAGS_S)
        keyless = await _got(http, "/v1/models", {})
        ahead_s = None if keyless is None else _ahead_s(keyless, wall())
    hangs_up_s, until = None, None
    if transport is None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            hangs_up_s, until = await _idled(address.url, trusted, idle_s)
    return EngineAnswers(
        version=_version_in(version),
        metrics=metrics,
        flags=flags_in(info or ""),
        needs_key=None if keyless is None else keyless.status_code in (401, 403),
        clock_ahead_s=ahead_s,
        took_s=took_s,
        hangs_up_after_s=hangs_up_s,
        certificate_until=until,
    )


def flags_in(info: str) -> Flags:
    """The flags in vLLM's `/server_info`, which is one text, or JSON, by its version."""
    seqs = _value(r"max_num_seqs", r"(\d+)", info)
    timeout = _value(r"shutdown_timeout", r"(\d+(?:\.\d+)?)", info)
    return Flags(
        max_num_seqs=None if seqs is None else int(seqs),
        policy=_value(r"(?:scheduling_)?policy", r"['\"]?(fcfs|priority)\b", info),
        shutdown_timeout_s=None if timeout is None else float(timeout),
    )


def _value(name: str, form: str, info: str) -> str | None:
    found = re.search(rf"\b{name}\\?[\"']?\s*[=:]\s*{form}", info)
    return None if found is None else found[1]


async def _got(
    http: httpx.AsyncClient, path: str, headers: dict[str, str], *, within_s: float = TIMEOUT_S
) -> httpx.Response | None:
    """The answer, without its body where that is long; None: there was none in time."""
    try:
        async with (
            asyncio.timeout(within_s),
            http.stream("GET", path, headers=headers, timeout=within_s) as answer,
        ):
            body = bytearray()
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > TEXT_MAX:
                    return None
            return httpx.Response(
                answer.status_code,
                headers={"date": answer.headers.get("date", "")},
                content=bytes(body),
            )
    except UNANSWERED:
        return None


async def _text(
    http: httpx.AsyncClient, path: str, headers: dict[str, str], *, within_s: float = TIMEOUT_S
) -> str | None:
    answer = await _got(http, path, headers, within_s=within_s)
    return answer.text if answer is not None and answer.status_code == 200 else None


def _version_in(text: str | None) -> str | None:
    found = re.search(r'"version"\s*:\s*"([^"\s]{1,64})"', text or "")
    return None if found is None else found[1]


def _ahead_s(answer: httpx.Response, now: float) -> float | None:
    try:
        told = parsedate_to_datetime(answer.headers["date"])
    except (ValueError, TypeError, KeyError):
        return None
    # The header is cut to the second: on average its instant is half of one later.
    return told.timestamp() + 0.5 - now


async def _idled(
    url: str, trusted: ssl.SSLContext | None, idle_s: float
) -> tuple[float | None, datetime | None]:
    """(after how long it hung up on an idle connection, to when its certificate is good)."""
    parts = urlsplit(url)
    port = parts.port or (443 if trusted else 80)
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=trusted)
    try:
        until = _until(writer.get_extra_info("peercert"))
        path = f"{parts.path.rstrip('/')}/version"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc.split('@')[-1]}\r\n\r\n".encode())
        async with asyncio.timeout(TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d{1,6})\r\n", head)
            if length is None:
                return None, until
            await reader.readexactly(int(length[1]))
        began_at = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(idle_s):
                await reader.read(1)
                return time.monotonic() - began_at, until
        return None, until
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _until(certificate: dict[str, object] | None) -> datetime | None:
    told = (certificate or {}).get("notAfter")
    if not isinstance(told, str):
        return None
    return datetime.strptime(told, CERT_DATE).replace(tzinfo=UTC)
