"""The same as a process: SIGHUP, as an operator or a config map's sidecar sends it."""

import asyncio
import json
import signal
import time
from pathlib import Path

import httpx

from tests.support.child import child
from tests.support.gateway import eventually
from tests.support.held_engine import running_held_engine

PATH = "/v1/chat/completions"
STREAM = {"model": "raw", "messages": [{"role": "user", "content": "x"}], "stream": True}


async def test_sighup_reads_the_file_again_and_drops_nothing(tmp_path: Path) -> None:
    """The file was changed by hand: right once, wrong once, and once where nothing can follow."""
    async with (
        running_held_engine(4) as engine, running_held_engine(4) as other,
        httpx.AsyncClient(timeout=20) as http, child(tmp_path, engine.url) as gateway,
    ):  # fmt: skip
        call = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
        await eventually(lambda: engine.here)
        gateway.write(replicas=[other.url], bounds={"body": 2048})
        gateway.signal(signal.SIGHUP)
        await gateway.says("changed: bounds, replicas")
        answer = await http.post(gateway.url + PATH, content=b"x" * 4096)
        assert answer.status_code == 413
        async with asyncio.timeout(10):
            while True:
                ready = (await http.get(gateway.url + "/readyz")).json()["replicas"]
                if ready[f"127.0.0.1-{engine.port}"]["is_draining"]:
                    break
                await asyncio.sleep(0.05)
        late = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
        await eventually(lambda: other.here)

        gateway.write(bounds={"body": 0, "nonsense": 1}, tiers=[{"name": "UPPER"}])
        gateway.signal(signal.SIGHUP)
        await gateway.says("nothing was changed: 3 errors in the settings:")
        for told in ("bounds.body:", "bounds.nonsense: unknown key", "tiers[0].name:"):
            assert told in gateway.said
        assert (await http.post(gateway.url + PATH, content=b"x" * 4096)).status_code == 413

        listen = {**gateway.document["listen"], "port": 1}
        gateway.write(bounds={"body": 4096}, tiers=None, listen=listen, log={"level": "warning"})
        for _ in range(5):
            gateway.signal(signal.SIGHUP)
        await gateway.says("listen cannot change while running")
        assert (await http.post(gateway.url + PATH, content=b"x" * 4096)).status_code == 400
        gateway.config.unlink()
        gateway.signal(signal.SIGHUP)
        await gateway.says("nothing was changed: 1 error in the settings:")

        for engine_, task in ((engine, call), (other, late)):
            engine_.asked[0].begin()
            engine_.asked[0].event()
            engine_.asked[0].finish()
            assert (await task).text.endswith("data: [DONE]\n\n")
        gateway.signal(signal.SIGTERM)
        assert await gateway.status() == 0
        assert "Traceback" not in gateway.said


async def test_the_request_log_follows_logrotate(tmp_path: Path) -> None:
    """Moved, then SIGHUP: the way of every daemon; and only figures of a request are in it."""
    path = tmp_path / "requests.jsonl"
    async with (
        running_held_engine(4) as engine, httpx.AsyncClient(timeout=20) as http,
        child(
            tmp_path, engine.url, options=("--request-log", str(path), "--log-level", "warning")
        ) as gateway,
    ):  # fmt: skip

        async def once(number: int) -> None:
            call = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
            await eventually(lambda: len(engine.asked) > number)
            engine.asked[number].begin()
            engine.asked[number].event()
            engine.asked[number].finish()
            assert (await call).status_code == 200

        await once(0)
        await eventually(lambda: path.exists() and path.read_text())
        path.rename(tmp_path / "old")
        gateway.signal(signal.SIGHUP)
        await eventually(path.exists)
        await once(1)
        gateway.signal(signal.SIGTERM)
        assert await gateway.status() == 0
        (old,) = (tmp_path / "old").read_text().splitlines()
        (new,) = path.read_text().splitlines()
        for line in (old, new):
            told = json.loads(line)
            assert (told["outcome"], told["status"], told["attempts"]) == ("done", 200, 1)
            assert abs(told["arrived_at"] - time.time()) < 60
            assert (told["streams"], told["sequences"]) == (True, 1)
            assert "content" not in line
        assert "INFO" not in gateway.said
