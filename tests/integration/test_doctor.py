"""`fairgate check --live` before emulated engines, a real gateway and a real Redis."""

import asyncio
import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from gateway.cli import app
from gateway.doctor.engine_answers import answers_of
from gateway.doctor.redis import of_redis
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from gateway.upstream.replicas import ReplicaAddress
from tests.support.gateway import running_gateway
from tests.support.redis_server import running_redis

ENGINE = EmulatorOptions(profile="instant")


async def examined(*words: str, status: int) -> dict[str, Any]:
    """What the command finds, as a document."""
    command = ["check", "--live", "--json", *words]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert done.exit_code == status, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def of(told: dict[str, Any], severity: str) -> str:
    """All findings of one severity."""
    found = [each for each in told["findings"] if each["severity"] == severity]
    assert severity == "ok" or all(each["why"] for each in found), found
    return "\n".join(f"{each['where']}: {each['what']}" for each in found)


async def test_a_set_up_that_runs_is_examined_as_a_whole() -> None:
    """One command instead of a page of things to look at."""
    async with running_emulator(ENGINE) as engine, running_gateway(engine.url) as running:
        words = ("--replica", engine.url, "--gateway", running.url)
        told = await examined(*words, status=1)
        assert "vllm 0.32.0" in of(told, "ok")
        assert "fairgate" in of(told, "ok")
        assert "neither told nor set" in of(told, "warning")
        assert "--shutdown-timeout" in of(told, "note")
        assert told["counts"]["error"] == 0


async def test_an_engine_without_figures_is_an_error() -> None:
    """`--disable-log-stats` looks like an idle engine to whoever does not know."""
    async with running_emulator(ENGINE) as engine:
        engine.faults.inject("no-metrics")
        told = await examined("--replica", engine.url, status=1)
        assert "HTTP 500" in of(told, "warning")
        assert "gateway" in of(told, "note")
    told = await examined("--replica", engine.url, "--proxy-timeout-s", "3", status=2)
    assert "connection refused" in of(told, "error")
    assert "proxy: it gives up after 3 s" in of(told, "error")


async def test_options_of_the_doctor_need_it() -> None:
    """An option that does nothing is believed to have done something."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["check", "--json"])
    assert done.exit_code == 2


class HangingUp:
    """An engine that ends an idle connection after a while."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            while True:
                async with asyncio.timeout(self._after_s):
                    await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n")
                writer.write(b'{"version": "0.32.0"}')
        writer.close()


async def test_an_engine_that_hangs_up_early_is_found_by_waiting_for_it() -> None:
    """No header tells it, and each of its closings can meet a request on its way."""
    for after_s, is_told in ((0.1, True), (5.0, False)):
        server = await asyncio.start_server(HangingUp(after_s), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            told = await answers_of(ReplicaAddress("a", f"http://127.0.0.1:{port}"), idle_s=0.5)
        assert told.version == "0.32.0"
        assert (told.hangs_up_after_s is not None) is is_told


async def test_a_file_of_certificates_that_is_none_is_said_by_the_first_check(
    tmp_path: Path,
) -> None:
    """One fault is one finding, and ends nothing."""
    broken = tmp_path / "ca.pem"
    broken.write_text("none")
    config = tmp_path / "fairgate.yaml"
    config.write_text(
        f"replicas: [{{url: 'https://127.0.0.1:1', ca_file: '{broken}'}}]\n"
        "store: {url: 'memory:'}\n"
    )
    told = await examined("--config", str(config), status=2)
    assert "its ca_file cannot be used" in of(told, "error")
    assert issubclass(ssl.SSLError, OSError)


async def test_a_real_redis_is_asked(tmp_path: Path) -> None:
    """The words of INFO differ by version; a real one has to be understood."""
    with running_redis(tmp_path, ("--save", "", "--maxmemory-policy", "allkeys-lru")) as redis:
        found = await of_redis(redis.url, keeps=True, where="store")
        whats = [(each.level, each.what) for each in found]
        assert whats[0][0] == "ok"
        assert ("warning", "maxmemory-policy is allkeys-lru") in whats
        assert ("warning", "it has no append-only file") in whats
        redis.kill()
        (gone,) = await of_redis(redis.url, keeps=True, where="store")
        assert gone.level == "error"
