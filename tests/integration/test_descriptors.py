"""Out of connections: the gateway says so, goes on, and does not spin."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from gateway.api.crowd import SURPLUS, SURPLUS_S
from gateway.core.messages import ReplicaLost
from gateway.errors import OverloadedError
from gateway.runtime.descriptors import CLIENTS_MIN, connections_for, open_now, raised_limit
from gateway.upstream.client import EngineClient
from gateway.upstream.connection import UpstreamBrokenError
from gateway.upstream.probe import Probe
from gateway.upstream.replicas import ReplicaAddress
from gateway.upstream.sse import PlainMeter
from tests.support.child import Child, child
from tests.support.gateway import client, eventually, running_gateway
from tests.support.held_engine import running_held_engine
from tests.support.raw_engine import running_raw_engine
from tests.support.sending import FORM_TYPE, form, part

PATH = "/v1/chat/completions"
CHAT = {"model": "raw", "messages": [{"role": "user", "content": "x"}]}
FEW = ("sh", "-c", 'ulimit -n 128; exec "$@"', "sh")


def cpu_s(found: Child) -> float:
    """CPU time that the process has used."""
    fields = Path(f"/proc/{found.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_crowd_of_idle_connections_neither_kills_nor_spins(tmp_path: Path) -> None:
    """One client with a leaking pool must not take the gateway from all others."""
    async with (
        running_held_engine(4) as engine, child(tmp_path, engine.url, before=FEW) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=5) as http,
    ):  # fmt: skip
        port = int(gateway.url.rpartition(":")[2])
        writers = []
        for _ in range(200):
            try:
                writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
            except OSError:
                continue
        before_s = cpu_s(gateway)
        await asyncio.sleep(1.0)
        assert cpu_s(gateway) - before_s < 0.5
        await asyncio.sleep(SURPLUS_S)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=1) as operator:
            for path in ("/healthz", "/readyz", "/metrics"):
                answer = await operator.get(path)
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
            assert "fairgate_connections_turned_away_total" in answer.text
            refused = await operator.post(PATH, json=CHAT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "over_capacity"
            assert refused.headers["retry-after"] == "1"
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.2)
        call = asyncio.create_task(http.post(PATH, json=CHAT))
        await eventually(lambda: engine.here)
        engine.asked[0].answer(b"{}")
        answer = await call
        assert answer.status_code == 200
        assert "connection" not in answer.headers
        assert "Traceback" not in gateway.said


async def test_the_bound_can_be_configured_and_changed() -> None:
    """A proxy in front may need fewer than the system allows."""
    async with (
        running_held_engine(4) as engine,
        running_gateway(engine.url, bounds__connections=2) as running,
        client(running) as http,
    ):
        assert running.gateway.crowd.most == 2
        answers = await asyncio.gather(*(http.get("/healthz") for _ in range(6)))
        assert (
            sorted("connection" in answer.headers for answer in answers) == [False] * 2 + [True] * 4
        )
        port = int(running.url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(SURPLUS + 2)]
        reader, _ = held[-1]
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        for _, writer in held:
            writer.close()


async def test_an_engine_is_not_blamed_for_our_want_of_files() -> None:
    """503 with a Retry-After; other replicas would not be reached either."""
    async with running_raw_engine() as engine:
        found = EngineClient(
            ReplicaAddress("r", engine.url), buffer_bytes_max=1 << 16, clock=lambda: 0.0
        )
        with no_more_files(), pytest.raises(OverloadedError) as raised:
            await found.send(b"/v1/x", b"{}", meter=PlainMeter(lambda: 0.0))
        assert raised.value.retry_after_s == 1.0
        engine.writes = [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]
        answer = await found.send(b"/v1/x", b"{}", meter=PlainMeter(lambda: 0.0))
        assert answer.status == 200
        found.close()


async def test_a_name_that_is_not_found_for_want_of_files_is_no_fault_of_its_engine() -> None:
    """The lookup says that there is no such name, and not why."""
    async with running_raw_engine() as engine:
        address = ReplicaAddress("r", f"http://engine.invalid:{engine.port}")
        found = EngineClient(address, buffer_bytes_max=1 << 16, clock=lambda: 0.0)
        with no_more_files(), pytest.raises(OverloadedError):
            await found.send(b"/v1/x", b"{}", meter=PlainMeter(lambda: 0.0))
        with pytest.raises(UpstreamBrokenError):
            await found.send(b"/v1/x", b"{}", meter=PlainMeter(lambda: 0.0))


async def test_an_engine_is_not_blamed_for_our_want_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its name is looked up in one."""

    def refuses(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    address = ReplicaAddress("r", "http://engine.invalid:1")
    found = EngineClient(address, buffer_bytes_max=1 << 16, clock=lambda: 0.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuses)
    with pytest.raises(OverloadedError) as raised:
        await found.send(b"/v1/x", b"{}", meter=PlainMeter(lambda: 0.0))
    assert raised.value.retry_after_s == 1.0


async def test_an_upload_that_cannot_be_stored_for_want_of_files_is_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no fault in the gateway that somebody would have to look for, and it passes."""
    body = form(part("model", b"raw"), part("file", b"x" * (3 << 20), filename="a.wav"))
    path, headers = "/v1/audio/transcriptions", {"content-type": FORM_TYPE.decode()}
    async with (
        running_raw_engine() as engine,
        running_gateway(engine.url, wait_ready=False, scheduling__scrape_interval_s=60) as running,
        client(running) as http,
    ):
        await eventually(lambda: running.gateway.scheduler.replicas)
        await http.get("/healthz")
        with no_more_files():
            answer = await http.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "over_capacity")
        assert answer.headers["retry-after"] == "1"
        ours = [each for each in caplog.records if each.name == "fairgate.relay"]
        assert [each.levelname for each in ours] == ["WARNING"]
        engine.writes = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
        answer = await http.post(path, content=body, headers=headers)
        assert answer.status_code == 200


async def test_a_replica_is_not_lost_for_our_want_of_files() -> None:
    """All at once they would be, and everybody refused."""
    async with running_raw_engine() as engine:
        told: list[object] = []
        probe = Probe(ReplicaAddress("r", engine.url), tell=told.append, clock=lambda: 0.0)
        assert (await probe.probe_once()).up
        await probe._client.aclose()
        probe = _again(probe, told)
        with no_more_files():
            for _ in range(5):
                assert (await probe.probe_once()).up
        assert probe.status.last_error is not None
        assert not any(isinstance(event, ReplicaLost) for event in told)
        await probe.aclose()


def _again(known: Probe, told: list[object]) -> Probe:
    """The same replica over a connection that is not open yet."""
    fresh = Probe(known.address, tell=told.append, clock=lambda: 0.0)
    fresh.follow(known)
    return fresh


def test_the_limit_is_raised_and_shared_between_clients_and_engines() -> None:
    """The usual soft limit of 1,024 is a twentieth of what a gateway needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        assert raised_limit() >= min(soft, 256)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] in (hard, 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert connections_for(20_000, 20) == 14_949
    assert connections_for(64, 30) == CLIENTS_MIN
    assert open_now() > 3
