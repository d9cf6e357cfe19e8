"""A batch that is cancelled, or expires, in each of its stages, as the `openai` client sees it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.integration.test_batches import KEYS, asked, ended, kept_in, lines_of, sdk, submitted
from tests.support.batches import Wall, reached
from tests.support.gateway import Running, running_gateway

Stage = Literal["validating", "in_progress", "finalizing"]
COUNT = 60
WINDOW_S = 86_400.0
SLOW = EmulatorOptions(profile="demo", max_num_seqs=2, models=("m",))
FAST = EmulatorOptions(profile="instant", max_num_seqs=16, models=("m",))


@dataclass(slots=True)
class Place:
    """A gateway whose batches stay in one stage until they are let go."""

    running: Running
    client: AsyncOpenAI
    wall: Wall
    goes_on: asyncio.Event

    async def come_to(self, stage: Stage) -> Batch:
        """A batch in that stage; one that runs has some answers."""
        batch = await submitted(self.client, asked(COUNT))

        async def is_there() -> bool:
            seen = await self.client.batches.retrieve(batch.id)
            assert seen.request_counts is not None
            return seen.status == stage and (
                stage != "in_progress" or seen.request_counts.completed > 0
            )

        await reached(is_there)
        return batch

    async def whole(self, batch: Batch) -> dict[str, Any]:
        """All lines that were put out, by custom id; none is there twice."""
        found: dict[str, Any] = {}
        for file_id in (batch.output_file_id, batch.error_file_id):
            lines = {} if file_id is None else await lines_of(self.client, file_id)
            assert not found.keys() & lines.keys()
            found |= lines
        return found


@asynccontextmanager
async def placed(folder: Path, stage: Stage) -> AsyncIterator[Place]:
    """Batches are held in the middle of the stage, or run slowly."""
    wall, goes_on = Wall(), asyncio.Event()
    async with (
        running_emulator(SLOW if stage == "in_progress" else FAST) as engine,
        running_gateway(engine.url, keys=KEYS, wall=wall, **kept_in(folder)) as running,
        sdk(running) as client,
    ):
        assert running.gateway._batching is not None
        tools = running.gateway._batching.tools
        where: Any = tools.files if stage == "validating" else tools.store
        name = "slice" if stage == "validating" else "pieces"
        goes = getattr(where, name)

        async def held(*args: Any) -> Any:
            await goes_on.wait()
            return await goes(*args)

        if stage != "in_progress":
            setattr(where, name, held)
        yield Place(running, client, wall, goes_on)


@pytest.mark.parametrize("stage", ["validating", "in_progress", "finalizing"])
async def test_a_batch_is_cancelled_in_each_stage(tmp_path: Path, stage: Stage) -> None:
    """What is done is kept, what is not is told of, and it ends as its user was told."""
    async with placed(tmp_path, stage) as place:
        batch = await place.come_to(stage)
        stopping = await place.client.batches.cancel(batch.id)
        assert (stopping.status, stopping.cancelling_at) == ("cancelling", int(place.wall.now))
        assert (await place.client.batches.cancel(batch.id)).status == "cancelling"
        place.goes_on.set()
        done = await ended(place.client, stopping)
        assert (done.status, done.cancelled_at) == ("cancelled", int(place.wall.now))
        found = await place.whole(done)
        assert set(found) == {f"c{number}" for number in range(COUNT)}
        unrun = [each for each in found.values() if each["error"] is not None]
        assert {each["error"]["code"] for each in unrun} <= {"batch_cancelled"}
        assert _fits(stage, len(unrun))
        assert place.running.in_flight == 0
        with pytest.raises(openai.ConflictError):
            await place.client.batches.cancel(batch.id)


@pytest.mark.parametrize("stage", ["validating", "in_progress"])
async def test_a_batch_expires_before_all_of_it_ran(tmp_path: Path, stage: Stage) -> None:
    """Its window is a promise: nothing of it runs afterwards, and what was done is kept."""
    async with placed(tmp_path, stage) as place:
        batch = await place.come_to(stage)
        place.wall.now += WINDOW_S
        expired = await ended(place.client, batch)
        place.goes_on.set()
        assert (expired.status, expired.expired_at) == ("expired", int(place.wall.now))
        found = await place.whole(expired)
        if stage == "validating":
            assert found == {}
        else:
            assert set(found) == {f"c{number}" for number in range(COUNT)}
            unrun = [each for each in found.values() if each["error"] is not None]
            assert {each["error"]["code"] for each in unrun} == {"batch_expired"}
            assert _fits(stage, len(unrun))
        assert place.running.in_flight == 0
        with pytest.raises(openai.ConflictError):
            await place.client.batches.cancel(batch.id)


async def test_a_batch_of_which_all_ran_does_not_expire(tmp_path: Path) -> None:
    """Its answers are there in time: that they are put together later takes none away."""
    async with placed(tmp_path, "finalizing") as place:
        batch = await place.come_to("finalizing")
        place.wall.now += WINDOW_S
        await asyncio.sleep(1.5)  # the runner looks for what is late once a second
        assert (await place.client.batches.retrieve(batch.id)).status == "finalizing"
        place.goes_on.set()
        done = await ended(place.client, batch)
        assert (done.status, done.expired_at) == ("completed", None)
        assert len(await place.whole(done)) == COUNT


def _fits(stage: Stage, unrun: int) -> bool:
    """Whether so many lines may be left of a batch that ended there."""
    match stage:
        case "validating":
            return unrun == COUNT
        case "in_progress":
            return 0 < unrun < COUNT
        case "finalizing":
            return unrun == 0
