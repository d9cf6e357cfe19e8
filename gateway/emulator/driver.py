"""The engine model under a real clock: one loop runs its steps and hands tokens to whoever waits.

Knows neither text nor HTTP. A step that the event loop was late for is made up for, so that the
engine keeps its pace on a busy machine.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

from gateway.emulator.faults import FaultKind, Faults
from gateway.emulator.meters import Gauges, Meters, Timings
from gateway.emulator.refusals import Refusal, crashed
from gateway.sim.replica import Engine
from gateway.sim.sequence import Sequence
from gateway.sim.step import StepPlan

CATCH_UP_S_MAX = 0.25
"""Being later than this is not made up for."""


class Sink(Protocol):
    """Takes the tokens of sequences."""

    def put(self, choice: int, n_tokens: int, *, ended: bool) -> None:
        """A step gave `choice` so many tokens."""

    def fail(self, refusal: Refusal) -> None:
        """There will be no more."""


@dataclass(slots=True)
class Track:
    """One sequence in the engine, and who waits for it. Instants are the loop's."""

    sequence: Sequence
    sink: Sink
    choice: int
    finish_reason: str
    arrived_at: float
    started_at: float = 0.0
    admissions: int = 0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    output_tokens: int = 0


class Driver:
    """Owns the engine; everything that happens to it goes through here."""

    def __init__(self, engine: Engine, meters: Meters, faults: Faults) -> None:
        self.engine = engine
        self._meters = meters
        self._faults = faults
        self._tracks: dict[str, Track] = {}
        self._work = asyncio.Event()
        self._faults_changed = asyncio.Event()
        self._step_ends_at = 0.0

    def submit(self, sequence: Sequence, sink: Sink, *, choice: int, finish_reason: str) -> None:
        """Queue a sequence whose tokens go to `sink`. It must fit, see `Engine.fits`."""
        now = asyncio.get_running_loop().time()
        self.engine.add(sequence)
        self._tracks[sequence.id] = Track(sequence, sink, choice, finish_reason, now)
        self._work.set()

    def abort(self, sequence_id: str) -> None:
        """Free what the sequence holds, now; nothing happens when it has ended."""
        if self._tracks.pop(sequence_id, None) is not None:
            self.engine.abort(sequence_id)

    def follow_faults(self) -> None:
        """Look again whether the engine makes steps."""
        if self._faults.is_active(FaultKind.CORE_DEAD):
            self.lose_all(crashed())
        self._faults_changed.set()

    def lose_all(self, refusal: Refusal) -> None:
        """Forget every sequence; who waits for one gets the refusal."""
        tracks, self._tracks = self._tracks, {}
        for sequence_id, track in tracks.items():
            self.engine.abort(sequence_id)
            track.sink.fail(refusal)

    async def run(self) -> None:
        """Step for ever; ends by cancellation only."""
        loop = asyncio.get_running_loop()
        while True:
            plan = self.engine.next_step()
            if plan is None:
                self._work.clear()
                await self._work.wait()
                self._step_ends_at = loop.time()
                continue
            await self._wait_step(plan)
            self._complete(loop.time())

    async def _wait_step(self, plan: StepPlan) -> None:
        now = asyncio.get_running_loop().time()
        for sequence_id in plan.admitted:
            track = self._tracks[sequence_id]
            track.admissions += 1
            track.started_at = track.started_at or now
        begins_at = max(self._step_ends_at, now - CATCH_UP_S_MAX)
        self._step_ends_at = begins_at + plan.duration_s
        await asyncio.sleep(max(0.0, self._step_ends_at - now))
        await self._wait_thaw()

    async def _wait_thaw(self) -> None:
        change_s = self._faults.change_s()
        while self._faults.is_halted:
            self._faults_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(change_s):
                    await self._faults_changed.wait()
            change_s = self._faults.change_s()

    def _complete(self, now: float) -> None:
        meters, tracks, step_tokens = self._meters, self._tracks, 0
        for sequence_id, n_tokens, finished in self.engine.complete_step():
            track = tracks[sequence_id]
            track.output_tokens += n_tokens
            step_tokens += n_tokens
            if track.first_token_at:
                meters.inter_token_s(now - track.last_token_at)
            else:
                track.first_token_at = now
                meters.first_token_s(now - track.arrived_at)
                step_tokens += track.sequence.prompt_tokens
            track.last_token_at = now
            if finished:
                del tracks[sequence_id]
                self._finish(track)
            track.sink.put(track.choice, n_tokens, ended=finished)
        meters.step_tokens(step_tokens)
        engine = self.engine
        meters.gauges = Gauges(engine.running, engine.waiting, engine.kv_use)

    def _finish(self, track: Track) -> None:
        self._meters.finish(
            Timings(
                arrived_at=track.arrived_at,
                started_at=track.started_at,
                first_token_at=track.first_token_at,
                ended_at=track.last_token_at,
                prompt_tokens=track.sequence.prompt_tokens,
                output_tokens=track.output_tokens,
                preemptions=track.admissions - 1,
                finish_reason=track.finish_reason,
            )
        )
