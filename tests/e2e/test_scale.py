"""Two thousand open streams: the gateway stays responsive and forgets them when they vanish."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.e2e.processes import ended, serving
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STREAMS = 2_000
SPEED = "0.04"
"""The demo engine's 20 ms step becomes half a second: at most two chunks a second each."""
HEALTH_S_MAX = 0.1
GONE_S_MAX = 2.0
OBSERVE_S = 10.0


@contextmanager
def emulators(count: int) -> Iterator[list[str]]:
    """Emulated engines that hold half of the streams each."""
    ports = [free_port() for _ in range(count)]
    with ExitStack() as stack:
        for port in ports:
            command = [
                sys.executable, "-m", "gateway", "emulate", "--port", str(port), "--speed", SPEED,
                "--max-num-seqs", str(STREAMS), "--kv-blocks", "200000",
            ]  # fmt: skip
            stack.enter_context(ended(subprocess.Popen(command)))
        yield [f"http://127.0.0.1:{port}" for port in ports]


async def open_stream(port: int) -> asyncio.StreamWriter:
    """One stream whose bytes are thrown away as they come."""
    body = json.dumps(
        {
            "model": "emulated",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4_000,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    asyncio.get_running_loop().create_task(_drained(reader))
    return writer


async def _drained(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        return


async def test_two_thousand_streams_leave_the_gateway_responsive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A router of this kind restarted at a thousand users: its health probe no longer answered."""
    port = free_port()
    bounds = {"waiting_per_user": STREAMS}
    # Half a second a token is what this test wants; the gate would rightly refuse more of it.
    tiers = [{"name": "standard", "tpot_limit_ms": 10_000.0, "prefill_limit_s": 60.0}]
    with (
        emulators(2) as urls,
        serving(
            tmp_path,
            port,
            [{"url": url, "max_num_seqs": STREAMS} for url in urls],
            bounds=bounds,
            tiers=tiers,
        ) as url,
    ):
        writers = await asyncio.gather(*(open_stream(port) for _ in range(STREAMS)))
        async with httpx.AsyncClient(timeout=10.0) as http:
            slowest_s = await _slowest_health(http, url)
            held = (await http.get(f"{url}/readyz")).json()["granted"]
            for writer in writers:
                writer.transport.abort()
            gone_s = await _until_nothing_runs(http, url, urls)
    with capsys.disabled():
        sys.stdout.write(
            f"\n  {held} streams: slowest /healthz {slowest_s * 1000:.0f} ms; "
            f"all gone {gone_s:.2f} s after the clients\n"
        )
    assert held == STREAMS
    assert slowest_s < HEALTH_S_MAX
    assert gone_s < GONE_S_MAX


async def _slowest_health(http: httpx.AsyncClient, url: str) -> float:
    slowest_s, until = 0.0, monotonic() + OBSERVE_S
    while monotonic() < until:
        began_at = monotonic()
        assert (await http.get(f"{url}/healthz")).status_code == 200
        slowest_s = max(slowest_s, monotonic() - began_at)
        await asyncio.sleep(0.1)
    return slowest_s


async def _until_nothing_runs(http: httpx.AsyncClient, url: str, urls: list[str]) -> float:
    began_at = monotonic()
    while monotonic() < began_at + 10 * GONE_S_MAX:
        granted = (await http.get(f"{url}/readyz")).json()["granted"]
        loads = [(await http.get(f"{each}/load")).json()["server_load"] for each in urls]
        if granted == 0 and not any(loads):
            return monotonic() - began_at
        await asyncio.sleep(0.02)
    raise AssertionError(f"left over: {granted} in the gateway, {loads} in the engines")
