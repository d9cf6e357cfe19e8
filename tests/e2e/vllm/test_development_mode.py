"""What a vLLM tells and lets itself be told in its development mode: its flags, and to sleep.

On a CPU `--enable-sleep-mode` is refused: it pauses and wakes, and gives no memory back.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pip
import pytest

from gateway.admin.engine_sleep import EngineSleep
from gateway.doctor.engine_answers import Flags, answers_of
from gateway.doctor.engines import of_engine
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus
from tests.e2e.vllm.engines import MODEL, SLOTS, running_vllm
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

UP = ReplicaStatus(up=True, engine="vllm", slots=SLOTS, models={MODEL: None})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaAddress]:
    """One in development mode, which looks for pip before it tells its flags, or answers 500."""
    folder = tmp_path_factory.mktemp("pip")
    (folder / "pip").symlink_to(Path(pip.__file__).parent)
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("VLLM_SERVER_DEV_MODE", "1")
        environ.setenv("PYTHONPATH", str(folder))
        with running_vllm(free_port(), flags=("--shutdown-timeout", "30"), model="tiny") as (url,):
            yield ReplicaAddress("a", url, max_num_seqs=SLOTS, scheduling_policy="priority")


async def test_the_doctor_reads_its_flags(engine: ReplicaAddress) -> None:
    """As text, vLLM's default, none of the three is told."""
    answers = await answers_of(engine)
    assert answers.flags == Flags(max_num_seqs=SLOTS, policy="priority", shutdown_timeout_s=30.0)
    assert answers.clock_ahead_s is not None
    assert abs(answers.clock_ahead_s) < 3
    findings = of_engine(engine, UP, answers, datetime.now(UTC))
    assert [each.what for each in findings if each.level in {"warning", "error"}] == []


async def test_it_sleeps_is_told_of_and_wakes(engine: ReplicaAddress) -> None:
    """Asleep it calls itself well, and whoever asks it for anything hears nothing."""
    sleep = EngineSleep()
    ask = {"model": MODEL, "prompt": "a", "max_tokens": 2}
    assert await sleep.is_asleep(engine) is False
    assert await sleep.put_to_sleep(engine) is True
    assert await sleep.is_asleep(engine) is True
    async with httpx.AsyncClient(base_url=engine.url, timeout=3) as http:
        assert (await http.get("/health")).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/v1/completions", json=ask)
        told = of_engine(engine, UP, await answers_of(engine), datetime.now(UTC))
        assert "it sleeps" in [each.what for each in told]
        assert await sleep.wake(engine) is True
        assert await sleep.is_asleep(engine) is False
        assert (await http.post("/v1/completions", json=ask, timeout=60)).status_code == 200
