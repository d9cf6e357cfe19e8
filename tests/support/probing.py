"""A scripted engine and a watched probe: what a test of probing needs around it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import pytest

from gateway.core.messages import Event
from gateway.upstream.probe import Probe
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

VLLM_METRICS = (
    'vllm:num_requests_running{engine="0",model_name="tiny"} 4.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="tiny"} 8.0\n'
)
TINY = {"id": "tiny", "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": 1024}
SGLANG_CARD = {"id": "q", "object": "model", "owned_by": "sglang", "max_model_len": 4096}
SERVER_INFO = {"internal_states": [{"effective_max_running_requests_per_dp": 52}]}
REFUSED = httpx.ConnectError("All connection attempts failed")
REFUSED.__cause__ = ConnectionRefusedError(111, "Connection refused")
HUNG = httpx.ReadTimeout("no answer")

Answer = httpx.Response | Exception | Callable[[], httpx.Response]


def cards(*items: object) -> Callable[[], httpx.Response]:
    """A `/v1/models` answer of these cards, made anew each time it is asked for."""
    return lambda: httpx.Response(200, json={"object": "list", "data": list(items)})


def text(body: str, status: int = 200) -> Callable[[], httpx.Response]:
    """A plain answer, made anew each time it is asked for."""
    return lambda: httpx.Response(status, text=body)


def json(body: object) -> Callable[[], httpx.Response]:
    """A JSON answer, made anew each time it is asked for."""
    return lambda: httpx.Response(200, json=body)


@dataclass
class Engine(httpx.AsyncBaseTransport):
    """Answers what the script says, 404 to all else, and remembers what it was asked."""

    answers: dict[str, Answer] = field(
        default_factory=lambda: {"/metrics": text(VLLM_METRICS), "/v1/models": cards(TINY)}
    )
    down: Exception | None = None
    asked: list[str] = field(default_factory=list)
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    closed: bool = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One question of the probe."""
        self.asked.append(request.url.path)
        self.headers = request.headers
        answer = self.down or self.answers.get(request.url.path, text("Not Found", 404))
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer()

    async def aclose(self) -> None:
        """The probe lets go."""
        self.closed = True


class Watch:
    """A probe, what it told, and a clock that moves only when a test or a pause moves it."""

    def __init__(self, engine: Engine, speaks: str | None = None, **options: object) -> None:
        self.now = 100.0
        self.told: list[Event] = []
        self.pauses: list[float] = []
        self.rounds_left = 0
        address: dict[str, object] = {"name": "r1", "url": "http://engine:8000", "engine": speaks}
        for key in ("models", "max_num_seqs", "weight", "api_key", "url"):
            if key in options:
                address[key] = options.pop(key)
        self.probe = Probe(
            ReplicaAddress(**address),  # type: ignore[arg-type]  # a test's shorthand
            tell=self.told.append,
            clock=lambda: self.now,
            sleep=self.pause,
            transport=engine,
            **options,  # type: ignore[arg-type]  # a test's shorthand
        )

    async def pause(self, wait_s: float) -> None:
        """Time passes; after the wanted number of rounds the probe is stopped."""
        self.pauses.append(wait_s)
        self.now += wait_s
        self.rounds_left -= 1
        if self.rounds_left == 0:
            raise asyncio.CancelledError

    async def run(self, rounds: int) -> None:
        """`rounds` rounds of `run()`, then a cancellation."""
        self.rounds_left = rounds
        with pytest.raises(asyncio.CancelledError):
            await self.probe.run()

    async def round(self) -> ReplicaStatus:
        """One round, a second after the one before."""
        self.now += 1.0
        return await self.probe.probe_once()

    def news(self) -> list[Event]:
        """What was told since the last call."""
        told, self.told[:] = self.told[:], []
        return told


def kinds(events: list[Event]) -> list[str]:
    """The names of the events."""
    return [type(event).__name__ for event in events]
