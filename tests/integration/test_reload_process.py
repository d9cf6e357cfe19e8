"""The same as a process: SIGHUP, as an operator or a config map's sidecar sends it."""

import asyncio
import signal
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
        late = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
        await eventually(lambda: other.here, 5)

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
