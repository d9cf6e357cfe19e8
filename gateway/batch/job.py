"""The lines of one batch in this gateway: handed to the scheduler, answered, and kept.

Lines come from parts that are claimed one after another. Answers are kept in groups, as soon as
the group before is on the disk: a process that is killed runs again what had no answer yet, or
none that was kept, and nothing else. A part that is lost takes its lines along.
"""

import asyncio
import heapq
import logging
from collections import deque
from dataclasses import dataclass
from itertools import count

from gateway.api.errand import Errand
from gateway.batch.files import FilesError
from gateway.batch.inside import AnswerTooLargeError, answered
from gateway.batch.lines import Fault, Line
from gateway.batch.missing import Missing
from gateway.batch.outcome import Answer, again, line_of, request_id
from gateway.batch.part import Part, Result
from gateway.batch.reading import PartReader, Slices
from gateway.batch.record import Batch, BatchStateError, StoredFile, Tokens, broken_off
from gateway.batch.store import Kept, Lease, StaleError
from gateway.batch.tools import Tools
from gateway.core.window import Window
from gateway.tenancy.store.port import StoreError

LOGGER = logging.getLogger("fairgate.batch")

TICK_S = 0.05
"""How often it is looked whether the scheduler took lines that waited."""
IN_FLIGHT_BYTES_MAX = 32 << 20
"""Of the bodies under way of one batch: those of all requests share `bounds.bodies`."""
UNKEPT_BYTES_MAX = 32 << 20
"""Of answers: with more, no line is begun until they are kept."""
FAULT_S = 5.0
"""After a fault of the store or the files: it is tried again then."""
MODEL_S = 1.0
"""A line whose model nobody serves is asked again then."""
CLOSE_S = 10.0
"""For the last answers to be kept, when the gateway ends."""
KEY_GONE = "The API key of this batch is not good any more: it was removed, blocked or expired."


@dataclass(slots=True, eq=False)
class Task:
    """One line on its way."""

    part: Part
    index: int
    line: Line
    attempts: int = 0


class Job:
    """Runs lines of one batch until there are none left to claim here."""

    def __init__(
        self,
        tools: Tools,
        batch: Batch,
        file: StoredFile,
        *,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        """`file`: its input. `headers` say the tier and the user of each line."""
        self._tools = tools
        self._batch = batch
        self._input = file
        self._headers = headers
        self._window = Window(lines_max=tools.limits.in_flight, bytes_max=IN_FLIGHT_BYTES_MAX)
        self._parts: dict[int, Part] = {}
        self._reading: Part | None = None
        self._ready: deque[Task] = deque()
        self._later: list[tuple[float, int, Task]] = []
        self._order = count()
        self._under_way: dict[asyncio.Task[Answer], tuple[Task, Errand]] = {}
        self._ended: deque[asyncio.Task[Answer]] = deque()
        self._keeping: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._renew_at = 0.0
        self._rest_until = 0.0
        self._keep_from = 0.0
        self._missing = Missing()
        self._broken: Fault | None = None
        """Why no line of it can run."""
        self._size = 0
        self._is_over = False
        """Whether nothing is left to be claimed, or the batch runs no more lines."""
        self.fault: str | None = None
        """Why nothing goes on now."""

    @property
    def under_way(self) -> int:
        """Lines that the scheduler or an engine has."""
        return len(self._under_way)

    def look(self) -> None:
        """Somebody changed the batch: see at once whether its parts are still ours."""
        self._renew_at = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Return once no line is left here."""
        self._renew_at = self._time() + self._tools.limits.lease_s / 3
        try:
            while not self._is_over or self._has_any():
                await self._step()
                self._wake.clear()
                if not self._ended:
                    await self._wait()
        finally:
            await self._close()

    async def _step(self) -> None:
        """Everything that can be done now."""
        now = self._time()
        self._reap(now)
        self._keep_soon(now)
        try:
            if now >= self._renew_at:
                await self._renew()
            if self._broken is not None:
                await self._break_off(self._broken)
                self._broken = None
                await self._renew()
            if now >= self._rest_until:
                await self._begin(now)
        except (StoreError, FilesError) as error:
            self._say(str(error))
            self._rest_until = now + FAULT_S

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        except TimeoutError:
            return

    def _has_any(self) -> bool:
        return bool(self._under_way or self._ready or self._later or self._parts)

    async def _begin(self, now: float) -> None:
        """Hand over as many lines as there is room for."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        unkept = sum(part.fresh_bytes for part in self._parts.values())
        if self._tools.is_leaving() or unkept > UNKEPT_BYTES_MAX:
            return
        waiting = sum(errand.is_waiting for _, errand in self._under_way.values())
        running = len(self._under_way) - waiting
        room = self._window.room(running=running, waiting=waiting, size=self._size)
        for _ in range(room):
            if not self._ready and len(self._later) < self._tools.limits.in_flight:
                await self._read()
            if not self._ready or self._size >= IN_FLIGHT_BYTES_MAX:
                return
            self._start(self._ready.popleft())

    async def _read(self) -> None:
        """Some more lines, of a new part if need be. Raises StoreError, FilesError."""
        while not self._ready:
            part = self._reading
            if part is None or part.reader.is_over:
                part = self._reading = await self._claim()
                if part is None:
                    return
            for index, line in await part.reader.next():
                self._ready.append(Task(part, index, line))

    async def _claim(self) -> Part | None:
        tools = self._tools
        if self._is_over:
            return None
        now = tools.wall()
        lease = await tools.store.claim(
            self._batch.id,
            holder=tools.holder,
            until=now + tools.limits.lease_s,
            now=now,
            runs_lines=True,
        )
        if lease is None:
            self._is_over = True
            return None
        slices = Slices(tools.files, self._input, start=lease.start)
        part = Part(lease, tools.files, PartReader(slices, done=lease.done))
        self._parts[lease.part] = part
        return part

    def _start(self, task: Task) -> None:
        errand = Errand(self._batch.key_id)
        call = answered(
            self._tools.serve,
            self._batch.endpoint,
            task.line.body,
            headers=self._headers,
            errand=errand,
        )
        running = asyncio.get_running_loop().create_task(call)
        self._under_way[running] = task, errand
        self._size += len(task.line.body)
        running.add_done_callback(self._has_ended)

    def _has_ended(self, running: asyncio.Task[Answer]) -> None:
        self._ended.append(running)
        self._wake.set()

    def _reap(self, now: float) -> None:
        """Take the answers that came."""
        while self._ended:
            running = self._ended.popleft()
            task, errand = self._under_way.pop(running)
            self._size -= len(task.line.body)
            answer = _answer_of(running)
            if self._parts.get(task.part.lease.part) is not task.part or answer is None:
                continue
            if answer.status == 401:
                self._broken = Fault(code=answer.code or "invalid_api_key", message=KEY_GONE)
                continue
            self._take(task, answer, errand, now)

    def _take(self, task: Task, answer: Answer, errand: Errand, now: float) -> None:
        """Keep an answer, or have its line run again."""
        if answer.code == "model_not_found" and self._missing.waits(task.line.body, now):
            heapq.heappush(self._later, (now + MODEL_S, next(self._order), task))
            return
        if answer.status == 200:
            self._missing.served(task.line.body)
        left_s = self._batch.expires_at - self._tools.wall()
        task.attempts += 1
        retry = again(
            answer,
            attempts=task.attempts,
            attempts_max=self._tools.limits.attempts,
            left_s=left_s,
        )
        if retry is not None:
            if retry.is_refusal:
                task.attempts -= 1
                self._rest_until = max(self._rest_until, now + retry.after_s)
            heapq.heappush(self._later, (now + retry.after_s, next(self._order), task))
            return
        ident = request_id(self._batch.id, task.part.lease.part + task.index)
        text = line_of(ident, task.line.custom_id, answer)
        is_error = not 200 <= answer.status < 300
        tokens = _tokens_of(errand)
        task.part.add(Result(index=task.index, text=text, is_error=is_error, tokens=tokens))

    def _keep_soon(self, now: float) -> None:
        """Keep what came, unless the group before it is being kept."""
        if self._keeping is None and now >= self._keep_from:
            parts = [part for part in self._parts.values() if part.has_news]
            if parts:
                self._keeping = asyncio.get_running_loop().create_task(self._keep(parts))
                self._keeping.add_done_callback(self._has_kept)

    def _has_kept(self, _: asyncio.Task[None]) -> None:
        self._keeping = None
        self._wake.set()

    async def _keep(self, parts: list[Part]) -> None:
        """First the bytes, then the word of the store that they count."""
        try:
            gains = [await part.written() for part in parts]
            lost = await self._tools.store.commit(gains, self._tools.wall())
        except (StoreError, FilesError) as error:
            self._say(str(error))
            self._keep_from = self._time() + FAULT_S
            return
        self._say(None)
        for part in parts:
            if part.lease in lost:
                await self._drop(part)
                continue
            part.kept()
            if part.is_over:
                self._parts.pop(part.lease.part, None)
                await _closed(part)

    async def _renew(self) -> None:
        """Raises StoreError."""
        lease_s = self._tools.limits.lease_s
        self._renew_at = self._time() + lease_s / 3
        leases = [part.lease for part in self._parts.values()]
        if leases:
            held = await self._tools.store.renew(leases, self._tools.wall() + lease_s)
            for lease in leases:
                part = self._parts.get(lease.part)
                if lease not in held and part is not None and part.lease is lease:
                    await self._drop(part)

    async def _drop(self, part: Part) -> None:
        """It is somebody else's, or nobody's: its lines do not run on."""
        if self._parts.get(part.lease.part) is part:
            del self._parts[part.lease.part]
        if self._reading is part:
            self._reading = None
        self._ready = deque(task for task in self._ready if task.part is not part)
        self._later = [each for each in self._later if each[2].part is not part]
        heapq.heapify(self._later)
        for running, (task, _) in self._under_way.items():
            if task.part is part:
                running.cancel()
        await _closed(part)

    async def _break_off(self, fault: Fault) -> None:
        """Nothing of it can run any more: say so, and stop. Raises StoreError."""
        while True:
            kept = await self._tools.store.batch(self._batch.id)
            if kept is None:
                return
            try:
                batch = broken_off(kept.batch, self._tools.wall(), fault)
                await self._tools.store.put(Kept(batch=batch, version=kept.version))
            except StaleError:
                continue
            except BatchStateError:
                return
            return

    async def _close(self) -> None:
        """Stop what runs, keep what came, and let others go on."""
        for running in list(self._under_way):
            running.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._keeping is not None:
                    await self._keeping
                self._reap(self._time())
                await self._keep([part for part in self._parts.values() if part.has_news])
                leases: list[Lease] = [part.lease for part in self._parts.values()]
                await self._tools.store.release(leases)
        except (StoreError, TimeoutError) as error:
            LOGGER.warning("%s: the last answers were not kept: %s", self._batch.id, error)
        for part in self._parts.values():
            await _closed(part)

    def _say(self, fault: str | None) -> None:
        """What keeps the batch from going on, in the log once."""
        if fault != self.fault and fault is not None:
            LOGGER.error("%s waits: %s", self._batch.id, fault)
        self.fault = fault

    def _time(self) -> float:
        return asyncio.get_running_loop().time()


async def _closed(part: Part) -> None:
    try:
        await part.close()
    except FilesError as error:
        LOGGER.warning("%s: %s", part.lease.batch_id, error)


def _answer_of(running: asyncio.Task[Answer]) -> Answer | None:
    """None: it was stopped."""
    try:
        return running.result()
    except asyncio.CancelledError:
        return None
    except AnswerTooLargeError:
        body = b'{"error":{"message":"The answer is too large to be kept.",'
        body += b'"type":"server_error","param":null,"code":"answer_too_large"}}'
        return Answer(status=502, request_id="", body=body, should_retry=False)


def _tokens_of(errand: Errand) -> Tokens:
    usage = None if errand.life is None else errand.life.usage
    if usage is None:
        return Tokens()
    return Tokens(input=usage.prompt_tokens, cached=usage.cached_tokens, output=usage.output_tokens)
