"""The other workers of this machine: asked for their part of an answer that is about all of them.

They are asked over sockets in a folder that nobody else can look into, with the credentials of
whoever asks here, and not for long: one that is silent costs its part, never the answer.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

from gateway.admin.fellows import OWN, PART, PASSED_ON
from gateway.runtime.berth import Berth
from gateway.telemetry.last_words import LastWords
from gateway.telemetry.merging import merged
from gateway.upstream.unanswered import UNANSWERED

LOGGER = logging.getLogger("fairgate.workers")
ASK_S = 1.0
"""So long a sibling may take."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
METRICS_BYTES_MAX = 64 << 20
"""Of one sibling; beyond it, it counts as silent."""
OWN_FAMILIES = """\
# HELP fairgate_workers Workers of this machine that metrics are told of.
# TYPE fairgate_workers gauge
fairgate_workers {workers}
# HELP fairgate_workers_silent Those of them that did not answer: their last sums are told.
# TYPE fairgate_workers_silent gauge
fairgate_workers_silent {silent}
"""

Headers = Iterable[tuple[bytes, bytes]]
Exposed = tuple[bytes, str]
"""Metrics, and the media type of the format that they are in."""


class Siblings:
    """Those whose sockets are in `folder`; `own` is ours."""

    def __init__(self, told: Callable[[str], Exposed], folder: Path, own: Path) -> None:
        """`told` has the metrics of this process, for an Accept header."""
        self._told = told
        self._folder = folder
        self._own = own
        self._words = LastWords(folder)
        self._lock = asyncio.Lock()

    async def metrics(self, headers: Headers) -> Exposed:
        """The metrics of all workers, for whoever asks with these headers; always as text."""
        headers = list(headers)
        if is_part(headers):
            return await self._kept(), TEXT
        known = await asyncio.to_thread(self._words.known)
        sockets = self.sockets()
        answers = await asyncio.gather(*(_metrics_at(path, headers) for path in sockets))
        found = {_pid(path): text for path, text in zip(sockets, answers, strict=True) if text}
        own = OWN_FAMILIES.format(workers=1 + len(sockets), silent=len(sockets) - len(found))
        gone = known.without(found.keys())
        texts = [(await self._kept()).decode(), *found.values(), own]
        return (await asyncio.to_thread(merged, texts, gone=gone)).encode(), TEXT

    def sockets(self) -> list[Path]:
        """Where the others listen."""
        found = self._folder.glob("*.sock")
        return [path for path in found if path != self._own and path.stem.isdigit()]

    def close(self) -> None:
        """Write down what was counted, at the end."""
        self._keep(self._told("")[0])

    async def _kept(self) -> bytes:
        """Written down before it is told: whoever is gone next moment must not take it back."""
        async with self._lock:
            told = self._told("")[0]
            await asyncio.to_thread(self._keep, told)
        return told

    def _keep(self, told: bytes) -> None:
        try:
            self._words.keep(told.decode())
        except OSError as error:
            LOGGER.error("what was counted cannot be written down: %s", error)


class Alone:
    """A gateway that has no siblings."""

    def __init__(self, told: Callable[[str], Exposed]) -> None:
        self._told = told

    async def metrics(self, headers: Headers) -> Exposed:
        """See `Siblings.metrics`, in the format that is asked for."""
        accept = b",".join(value for name, value in headers if name == b"accept")
        return self._told(accept.decode("latin-1"))

    def close(self) -> None:
        """See `Siblings.close`."""


def siblings_of(berth: Berth | None, told: Callable[[str], Exposed]) -> Siblings | Alone:
    """The siblings of a worker at `berth`; `told` has the metrics of this process."""
    return Alone(told) if berth is None else Siblings(told, berth.folder, berth.socket)


def is_part(headers: Headers) -> bool:
    """Whether a sibling asks, and only for what this process knows itself."""
    return any(name == PART.encode() for name, _ in headers)


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    """What is told to another gateway of whoever asks here: who it is, no more."""
    kept = [(name, value) for name, value in headers if name.decode("latin-1") in PASSED_ON]
    return [*kept, (PART.encode(), OWN.encode())]


async def _metrics_at(path: Path, headers: Headers) -> str | None:
    transport = httpx.AsyncHTTPTransport(uds=str(path), verify=False)
    try:
        async with (
            asyncio.timeout(ASK_S),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        ):
            return await _read(http, headers)
    except UNANSWERED:
        return None


async def _read(http: httpx.AsyncClient, headers: Headers) -> str | None:
    body = bytearray()
    async with http.stream("GET", "/metrics", headers=passed_on(headers)) as answer:
        if answer.status_code != 200:
            return None
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > METRICS_BYTES_MAX:
                return None
    return body.decode()


def _pid(path: Path) -> int:
    return int(path.stem)
