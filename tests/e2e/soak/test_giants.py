"""Enormous prompts and enormous errors: whoever asks for little meanwhile must not notice."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.soak import giant_engine
from tests.e2e.soak.conftest import Say
from tests.e2e.soak.giant_engine import ERROR_CHUNKED, ERROR_EVENT, ERROR_PLAIN, FAILURE, GIANT
from tests.e2e.soak.site import Held, Watched, watched
from tests.e2e.soak.small import Connections, steady

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

TOKENS = 1_500_000
ROUNDS = 3
WINDOW_S = 3.0
GIANTS_A_WINDOW = 3
DELAY_MS_MAX = 20.0
GROWTH_MB_MAX = 100.0
"""Some bodies of ten megabytes at a time, but not an engine's hundred and fourteen."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CODE = "def main(argv):\n\treturn \"x\\n\" if argv else 'y'\n"


def chat_of(text: str, *, is_ascii: bool = True, stream: bool = False) -> bytes:
    """A chat with a giant message."""
    asked = {
        "model": GIANT, "stream": stream, "max_tokens": 1,
        "messages": [{"role": "user", "content": text}],
    }  # fmt: skip
    return json.dumps(asked, ensure_ascii=is_ascii).encode()


def history_of(turns: int) -> bytes:
    """A chat of very many messages, as a careless agent sends it."""
    words = "word " * (TOKENS // turns)
    messages = [{"role": "user" if n % 2 else "assistant", "content": words} for n in range(turns)]
    return json.dumps({"model": GIANT, "max_tokens": 1, "messages": messages}).encode()


def ids(separators: tuple[str, str], *, model: str = GIANT) -> bytes:
    """A completion of a giant list of token ids."""
    prompt = [(7_919 * number) % 128_256 for number in range(TOKENS)]
    asked = {"model": model, "max_tokens": 1, "prompt": prompt}
    return json.dumps(asked, separators=separators).encode()


def small(model: str, *, stream: bool = False) -> bytes:
    """A small request for a giant answer."""
    asked = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "x"}]}
    return json.dumps(asked).encode()


PROMPTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "text": (CHAT, lambda: chat_of("word " * TOKENS)),
    "text, streamed": (CHAT, lambda: chat_of("word " * TOKENS, stream=True)),
    "text that is not ASCII": (CHAT, lambda: chat_of("北京🙂 " * (TOKENS // 3), is_ascii=False)),
    "text of escapes": (CHAT, lambda: chat_of("北京🙂 " * (TOKENS // 12))),
    "code": (CHAT, lambda: chat_of(CODE * (TOKENS // 12))),
    "a history of 20,000 messages": (CHAT, lambda: history_of(20_000)),
    "a history of 300,000 messages": (CHAT, lambda: history_of(300_000)),
    "ids": (COMPLETIONS, lambda: ids((",", ":"))),
    "ids with spaces": (COMPLETIONS, lambda: ids((", ", ": "))),
    "ids under an alias": (COMPLETIONS, lambda: ids((",", ":"), model="alias")),
    "ids streamed": (
        COMPLETIONS, lambda: ids((",", ":")).replace(b"{", b'{"stream":true,', 1),
    ),
}  # fmt: skip
ERRORS: dict[str, tuple[set[int], bytes]] = {
    "with a length": ({400}, small(ERROR_PLAIN)),
    "in chunks": ({400}, small(ERROR_CHUNKED)),
    "a failure": ({502}, small(FAILURE)),
    "to a stream": ({400}, small(ERROR_PLAIN, stream=True)),
    # Whether it is passed on or not, it must not be held.
    "as one event": ({200, 502}, small(ERROR_EVENT, stream=True)),
}


@dataclass(frozen=True, slots=True)
class Round:
    """One window without giants and one with them, in ms."""

    quiet_ms: float
    """Slowest small request without giants."""
    giant_ms: float
    quiet: Held
    giant: Held
    statuses: frozenset[int]
    growth_mb: float
    """How much more memory than before the gateway took at its peak."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A gateway before a quick engine for the small, and one that swallows the giants."""
    folder = tmp_path_factory.mktemp("giants")
    with watched(
        folder,
        ("-m", "gateway.bench.upstream"),
        ("-m", giant_engine.__name__),
        alias=("alias", GIANT),
    ) as running:
        yield running


@pytest.mark.parametrize("kind", PROMPTS)
async def test_a_giant_prompt_delays_nobody(site: Watched, kind: str, say: Say) -> None:
    """A prompt of a million tokens once held a gateway's loop for 150 ms, for everybody."""
    path, make = PROMPTS[kind]
    body = make()
    rounds = [await one_round(site, path, body) for _ in range(ROUNDS)]
    say(report(f"{kind}, {len(body) / 1e6:.1f} MB", rounds))
    assert {status for each in rounds for status in each.statuses} == {200}
    judge(rounds)


@pytest.mark.parametrize("kind", ERRORS)
async def test_a_giant_error_delays_nobody(site: Watched, kind: str, say: Say) -> None:
    """An engine's traceback may hold the prompt a hundred times: nobody reads that."""
    statuses, body = ERRORS[kind]
    rounds = [await one_round(site, CHAT, body) for _ in range(ROUNDS)]
    say(report(f"error of 114 MB, {kind}", rounds))
    assert {status for each in rounds for status in each.statuses} <= statuses
    judge(rounds)


async def one_round(site: Watched, path: str, body: bytes) -> Round:
    """Both windows."""
    connections = Connections(site.port)
    try:
        await steady(connections, 0.5)
        site.held()
        rss_mb = site.rss_mb()
        site.forget_peak()
        quiet_s = await steady(connections, WINDOW_S)
        quiet = site.held()
        giants = asyncio.ensure_future(_giants(site, path, body))
        giant_s = await steady(connections, WINDOW_S)
        statuses = await giants
        giant = site.held()
    finally:
        connections.close()
    return Round(
        quiet_ms=max(quiet_s) * 1000,
        giant_ms=max(giant_s) * 1000,
        quiet=quiet,
        giant=giant,
        statuses=frozenset(statuses),
        growth_mb=site.peak_mb() - rss_mb,
    )


async def _giants(site: Watched, path: str, body: bytes) -> list[int]:
    statuses = []
    for _ in range(GIANTS_A_WINDOW):
        # In a thread: to send so much would hold this loop, too.
        statuses.append(await asyncio.to_thread(sent, site.port, path, body))
        await asyncio.sleep(WINDOW_S / GIANTS_A_WINDOW / 2)
    return statuses


def sent(port: int, path: str, body: bytes) -> int:
    """Send one request on a connection of its own; the status of its answer, read to the end."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as client:
        client.sendall(head.encode())
        client.sendall(body)
        beginning = client.recv(1 << 16)
        while client.recv(1 << 16):
            pass
    return int(beginning.split(b" ")[1])


def report(what: str, rounds: list[Round]) -> str:
    """The figures of one kind."""
    lines = [
        f"    slowest small request {each.quiet_ms:.1f} ms alone, {each.giant_ms:.1f} beside;"
        f" loop held {each.quiet.wall_ms:.1f} / {each.giant.wall_ms:.1f} ms,"
        f" by itself {each.quiet.cpu_ms:.1f} / {each.giant.cpu_ms:.1f};"
        f" at most {each.growth_mb:+.0f} MB"
        for each in rounds
    ]
    return "\n".join([what, *lines])


def judge(rounds: list[Round]) -> None:
    """What the gateway does to others it does in each round; what the machine does, in some."""
    assert min(each.giant.cpu_ms for each in rounds) < DELAY_MS_MAX
    added_ms = min(each.giant_ms for each in rounds) - min(each.quiet_ms for each in rounds)
    assert added_ms < DELAY_MS_MAX
    assert min(each.growth_mb for each in rounds) < GROWTH_MB_MAX
