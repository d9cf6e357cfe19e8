"""A batch beside people: they get their answers as before, and it gets all that they leave."""

import asyncio
import json
import random
import statistics
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.chaos.timed import Stream, offered
from tests.e2e.processes import emulating, serving
from tests.e2e.soak.conftest import Say
from tests.support.ports import free_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

LOADS = (0.3, 0.6, 0.9)
"""Of the engine, by people."""
USED_MIN = 0.95
"""Of the slots that they leave."""
SLOTS, STEP_S, TOKENS = 256, 0.2, 60
LINE_TOKENS = 20, 140
"""Of an answer to a line, as they come: lines of one length would all end in the same step."""
SPEED = "0.1"
"""An `even` engine's 20 ms a step become `STEP_S`: client, gateway and engine share two cores here,
and take 20 ms of each step to hand out its 256 tokens, a tenth of it, as on a GPU's own host."""
LINES = 50_000
PEOPLE, BATCH = "people", "batch"
SETTINGS = {
    "tiers": [
        {"name": PEOPLE, "tpot_limit_ms": 400.0, "queue_limit": 16},
        {"name": BATCH, "tpot_limit_ms": 400.0, "queue_limit": 15, "preemptible": True},
    ],
    "scheduling": {"headroom_max": 0.0},
    "service_tiers": {},
}
MEASURE_S = 100.0
WARM_S = 20.0
"""At the beginning, while the engine fills: not counted."""
LOOK_S = 0.25
FULL_S_MAX, EMPTY_S_MAX = 120.0, 60.0
WORSE_MAX = 1.03
RUNNING = "vllm:num_requests_running{"
TOKENS_MADE = "vllm:generation_tokens_total{"
ENDED = 'fairgate_migrations_total{kind="queued"'
STEPS_MADE = "vllm:iteration_tokens_total_count{"


@dataclass(frozen=True, slots=True)
class Seen:
    """The 95th percentiles of what people got, and how full the engine was meanwhile."""

    ttft_ms: float
    tpot_ms: float
    made: float
    """Tokens of each step, on average."""
    running: float
    """Sequences in each step, those included that were ended in the middle of it.

    Where people have all slots, lines are ended that only waited there: no more than all count.
    """


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway before one engine, and a file of lines in it."""

    port: int
    engine: str
    http: httpx.AsyncClient
    file_id: str

    async def figure(self, name: str, *, of: str | None = None) -> float:
        """A figure of the engine's metrics now, or of the gateway's."""
        metrics = (await self.http.get(of or f"{self.engine}/metrics")).text
        return sum(float(each.split()[-1]) for each in metrics.splitlines() if name in each)

    async def running(self) -> float:
        """Sequences in the engine now, but for those that the step that comes will take in."""
        return await self.figure(RUNNING)

    async def work(self) -> tuple[float, float, float]:
        """(tokens, steps, lines that were ended to make way) so far.

        Each sequence in a step makes one token; that of a line that is ended meanwhile is lost.
        """
        ended = await self.figure(ENDED, of="/metrics")
        return await self.figure(TOKENS_MADE), await self.figure(STEPS_MADE), ended

    async def until(self, is_so: Callable[[float], bool], within_s: float) -> None:
        """Wait until so many sequences run. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not is_so(await self.running()):  # noqa: ASYNC110 - in another process
                await asyncio.sleep(LOOK_S)

    async def begin(self) -> str:
        """A batch of all lines; returns its id once it fills the engine."""
        wanted = {
            "input_file_id": self.file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        made = (await self.http.post("/v1/batches", json=wanted)).raise_for_status().json()
        await self.until(lambda running: running >= 0.99 * SLOTS, FULL_S_MAX)
        return str(made["id"])

    async def end(self, batch_id: str) -> int:
        """Stop it; returns how many lines were answered."""
        (await self.http.post(f"/v1/batches/{batch_id}/cancel")).raise_for_status()
        await self.until(lambda running: not running, EMPTY_S_MAX)
        told = (await self.http.get(f"/v1/batches/{batch_id}")).json()
        assert not told["request_counts"]["failed"]
        return int(told["request_counts"]["completed"])


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """As many slots as a GPU has, and a step that takes as long with few in use as with all.

    What an engine's longer step costs people is the engine's affair: `batch-beside-people` tells.
    """
    options = (
        "--profile",
        "even",
        "--scheduling-policy",
        "priority",
        "--speed",
        SPEED,
        "--max-num-seqs",
        str(SLOTS),
        "--kv-blocks",
        "26000",
    )
    with emulating(*options) as url:
        yield url


@pytest.fixture
async def site(engine: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A gateway, compiled where the interpreter finds it so."""
    port = free_port()
    batches = {"files": str(tmp_path / "files"), "store": f"sqlite:///{tmp_path}/batches.db"}
    replicas = [{"url": engine, "max_num_seqs": SLOTS, "scheduling_policy": "priority"}]
    with serving(tmp_path, port, replicas, batches=batches, **SETTINGS) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
            upload = {"file": ("lines.jsonl", lines(), "application/jsonl")}
            sent = await http.post("/v1/files", files=upload, data={"purpose": "batch"})
            yield Site(port, engine, http, sent.raise_for_status().json()["id"])


def lines() -> bytes:
    """The batch."""
    texts, chance = [], random.Random(3)
    for number in range(LINES):
        body = {
            "model": "emulated",
            "messages": [{"role": "user", "content": f"Say {number}."}],
            "max_tokens": chance.randint(*LINE_TOKENS),
        }
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions"}
        texts.append(json.dumps({**line, "body": body}))
    return "\n".join(texts).encode()


async def measured(site: Site, load: float) -> Seen:
    """What people get, who come at random and use that share of the engine."""
    rate = load * SLOTS / (TOKENS * STEP_S)
    people = Stream(tier=PEOPLE, per_s=rate, users=50, tokens=TOKENS)
    looking = asyncio.ensure_future(_steps(site))
    timings = await offered(site.port, [people], WARM_S + MEASURE_S, seed=7)
    counted = timings[int(len(timings) * WARM_S / (WARM_S + MEASURE_S)) :]
    assert all(each.is_complete for each in timings)
    made, ended = await looking
    return Seen(
        ttft_ms=p95([each.ttft_s for each in counted]),
        tpot_ms=p95([each.tpot_s for each in counted]),
        made=made,
        running=min(made + ended, float(SLOTS)),
    )


async def _steps(site: Site) -> tuple[float, float]:
    """(tokens, lines ended) of each step of the time that counts, on average."""
    await asyncio.sleep(WARM_S)
    before = await site.work()
    await asyncio.sleep(MEASURE_S)
    tokens, steps, ended = (x - y for x, y in zip(await site.work(), before, strict=True))
    return tokens / steps, ended / steps


def p95(values_s: list[float | None]) -> float:
    """The 95th percentile, in ms."""
    return statistics.quantiles([each or 0.0 for each in values_s], n=20)[-1] * 1e3


@pytest.mark.parametrize("load", LOADS)
async def test_people_do_not_notice_a_batch_that_takes_all_they_leave(
    site: Site, load: float, say: Say
) -> None:
    """Whoever must choose between people and the batch turns the batch off."""
    alone = await measured(site, load)
    await site.until(lambda running: not running, EMPTY_S_MAX)
    batch_id = await site.begin()
    beside = await measured(site, load)
    answered = await site.end(batch_id)
    idle = SLOTS - alone.running
    used = (beside.running - alone.running) / idle
    made = (beside.made - alone.made) / idle
    say(
        f"load {load:g}: TTFT p95 {alone.ttft_ms:.1f} -> {beside.ttft_ms:.1f} ms,"
        f" TPOT p95 {alone.tpot_ms:.2f} -> {beside.tpot_ms:.2f} ms;"
        f" running {alone.running:.1f} -> {beside.running:.1f} of {SLOTS},"
        f" {used:.1%} of what was idle ({made:.1%} not ended in its step); {answered} lines"
    )
    assert beside.ttft_ms <= WORSE_MAX * alone.ttft_ms
    assert beside.tpot_ms <= WORSE_MAX * alone.tpot_ms
    assert used >= USED_MIN
