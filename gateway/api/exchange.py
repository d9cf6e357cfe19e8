"""One exchange with one engine: send, find out whether it really began, pass the bytes on.

The slot is returned when the *upstream* ends, not when the client has read everything.
"""

import asyncio
from typing import NoReturn

from gateway.api import continuing, outgoing
from gateway.api.continuing import ContinueElsewhereError
from gateway.api.life import Life
from gateway.api.openai import EngineError, engine_error
from gateway.api.passing import beginning_of, error_body_of, first_event_of
from gateway.api.reply import EVENT_STREAM, JSON_TYPE, Direct, Reply
from gateway.api.shapes import shape_of
from gateway.api.stored import Place
from gateway.api.surroundings import Surroundings
from gateway.continuation import resume
from gateway.continuation.strand import Strand
from gateway.core.messages import Fault, Outcome, Usage
from gateway.errors import GatewayError, UpstreamFailedError, UpstreamTimeoutError
from gateway.runtime.gate import Grant, RecalledError
from gateway.upstream.connection import Answer, UpstreamBrokenError
from gateway.upstream.figures import response_id_in
from gateway.upstream.pieces import Sendable
from gateway.upstream.sse import RESPONSE_TAIL_BYTES, Events, PlainMeter, StreamMeter

WHOLE_ANSWER_BYTES_MAX = 1 << 20
"""A plain answer up to this size is passed on when complete, so that it can still be retried."""
REWRITTEN_ANSWER_BYTES_MAX = 64 << 20
"""A plain answer that must be changed is held whole; a larger one is passed on unchanged."""


class RetryElsewhereError(Exception):
    """The replica failed before anything reached the client."""

    def __init__(self, replica: str, error: GatewayError) -> None:
        super().__init__(error.message)
        self.replica = replica
        self.error = error


class ClientStalledError(Exception):
    """The client keeps its connection and takes nothing of its answer."""


class Exchange:
    """One request on one granted replica."""

    def __init__(self, life: Life, reply: Reply, grant: Grant, surroundings: Surroundings) -> None:
        assert life.call is not None
        assert life.asked is not None
        self._life = life
        self._call = life.call
        self._reply = reply
        self._grant = grant
        self._around = surroundings
        self._rewrite = surroundings.rewrite_for(life)
        self._strand = life.strand
        """What is kept of a stream that may be continued; None for any other."""
        self._resumes = life.strand is not None
        """Whether it goes on with a stream that broke elsewhere."""
        self._is_moving = False
        self._answer: Answer | None = None
        self._sends = 0
        self._sent_at: float | None = None
        self._is_passing = False
        """Whether anything of the answer may have reached the client."""
        self._cancels = 0
        """How often the task that carries it was cancelled from here."""
        self._is_cut_off = False
        self._farewell: GatewayError | None = None
        """What its client is told, where it is ended for no fault of anybody."""
        self._unsent: int | None = None
        """What the client had not taken when it was last looked at."""
        self._meter: StreamMeter | PlainMeter = PlainMeter(surroundings.clock)
        self._outcome: Outcome | None = None
        """Set where the end of the upstream alone does not tell it."""
        self._fault: Fault | None = None
        """Likewise, what of the engine is to blame."""
        self._is_left = False
        """Whether the upstream was ended from here."""
        self.writing_since: float | None = None
        """When the write began that the client has not taken yet; for the watch on stalls."""

    @property
    def request_id(self) -> str:
        """The scheduler's id of this attempt."""
        return self._life.attempt_id

    @property
    def replica(self) -> str:
        """Where it runs."""
        return self._grant.replica

    @property
    def output_tokens(self) -> int:
        """Output so far, in events."""
        return self._meter.events if isinstance(self._meter, StreamMeter) else 0

    @property
    def has_begun(self) -> bool:
        """Whether the engine has answered anything yet."""
        return self._meter.last_at is not None

    @property
    def heard_at(self) -> float | None:
        """When the engine was last heard; pings and comments do not count."""
        return self._meter.last_at

    @property
    def silent_since(self) -> float | None:
        """When it last heard output, or was sent; None while the client holds it up."""
        if self.writing_since is not None:
            return None
        return self._meter.last_at or self._sent_at

    async def run(self) -> None:
        """Carry it out.

        Raises RetryElsewhereError, ContinueElsewhereError, or GatewayError for the client.
        """
        try:
            await self._run()
        except asyncio.CancelledError:
            if not self._is_interrupted():
                raise
            if self._is_cut_off:
                self.abandoned()
                raise ClientStalledError from None
            if self._farewell is not None:
                self.abandoned()
                raise self._farewell from None
            if self._is_moving:
                self._outcome = Outcome.CANCELLED
            else:
                self._fault = Fault.STALLED
            self.close()
            self._grant.finish(Outcome.FAILED, fault=self._fault)
            if self._strand is not None and self._strand.is_finished:
                await self._reply.finish(self._missing_end())
                return
            error = UpstreamTimeoutError("The engine stopped answering.")
            if self._is_passing:
                raise self._broken(error) from None
            raise RetryElsewhereError(self._grant.replica, error) from None

    def look_at_client(self, now: float) -> None:
        """A client that has taken anything since the last look is slow, and no more than that."""
        direct = self._reply.direct
        if self.writing_since is None or direct is None:
            self._unsent = None
            return
        unsent = direct.unsent()
        if self._unsent is not None and unsent < self._unsent:
            self.writing_since = now
        self._unsent = unsent

    def cut_off(self, task: "asyncio.Task[None]") -> None:
        """The client takes nothing any more: leave it, and stop the engine."""
        self._is_cut_off = True
        self._interrupt(task)

    def give_up(self, task: "asyncio.Task[None]") -> None:
        """The engine has stalled: end this, which `task` carries, as a failure of the engine."""
        self._interrupt(task)

    def end(self, task: "asyncio.Task[None]", farewell: GatewayError) -> None:
        """It must not go on here, nor elsewhere: tell its client, and stop the engine."""
        self._farewell = farewell
        self._interrupt(task)

    def move_away(self, task: "asyncio.Task[None]") -> bool:
        """Let another replica go on with the stream that `task` carries.

        False: it cannot be moved, at least not now, and goes on here.
        """
        strand = self._strand
        if (
            not self._is_passing
            or self._cancels
            or self.writing_since is not None  # what is being written would be lost
            or strand is None
            or not strand.can_go_on
        ):
            return False
        self._is_moving = True
        self._interrupt(task)
        return True

    def _interrupt(self, task: "asyncio.Task[None]") -> None:
        self._cancels += 1
        task.cancel()

    async def _run(self) -> None:
        try:
            answer, first = await self._begun()
        except UpstreamBrokenError as broken:
            self._grant.finish(Outcome.FAILED, fault=broken.fault)
            raise RetryElsewhereError(self._grant.replica, _broke_off(broken)) from broken
        answer.when_ended(self._ended)
        self._is_passing = True
        if self._life.route.events is Events.RESPONSE:
            self._note_place(first)
        self._describe(answer)
        try:
            if isinstance(self._meter, StreamMeter):
                await self._pass_stream(answer, first)
            else:
                await self._pass_plain(answer, first)
        except UpstreamBrokenError as broken:
            raise self._broken(_broke_off(broken)) from broken
        except UpstreamFailedError as failed:
            raise self._broken(failed) from None

    def _broken(self, error: GatewayError) -> Exception:
        """What becomes of a stream that broke with `error` after its first byte."""
        strand, obstacle = self._strand, self._life.obstacle
        if strand is not None:
            self.close()
            if strand.can_go_on:
                self._life.strand = strand
                return ContinueElsewhereError(self._grant.replica, error, is_moved=self._is_moving)
            obstacle = strand.standing
        return continuing.explained(error, obstacle)

    def _is_interrupted(self) -> bool:
        """Whether the cancellation under way is ours alone; it is taken back then."""
        task, others = asyncio.current_task(), 1
        assert task is not None
        while self._cancels:
            self._cancels -= 1
            others = task.uncancel()
        return others == 0

    def abandoned(self) -> None:
        """The client left: charge what was produced."""
        self._outcome = Outcome.CANCELLED
        self._ended(is_complete=False)

    def close(self) -> None:
        """Stop the engine if it is still at it."""
        if self._answer is not None:
            self._is_left = True
            self._answer.close()

    async def _begun(self) -> tuple[Answer, bytes]:
        """The answer and its first bytes, once the engine really began.

        Waits out a busy one, and goes to another one where the scheduler says so.
        """
        while True:
            try:
                answer, first, problem = await self._asked()
            except RecalledError:
                await self._hang_up()
                await self._grant.give_back()
                continue
            if problem is None:
                return answer, first
            answer.close()
            if not problem.is_busy:
                self._fail(problem)
            await self._grant.bounce()

    async def _asked(self) -> tuple[Answer, bytes, EngineError | None]:
        """What one engine says to the request. Raises RecalledError until it begins."""
        first, problem = b"", None
        with self._grant.recallable(self._life.task):
            answer = await self._sent()
            if answer.status < 400 and isinstance(self._meter, StreamMeter):
                first, problem = await first_event_of(answer, self._meter)
        if answer.status >= 400:
            problem = engine_error(answer.status, await error_body_of(answer))
        elif isinstance(self._meter, PlainMeter):
            held_max = (
                WHOLE_ANSWER_BYTES_MAX if self._rewrite is None else REWRITTEN_ANSWER_BYTES_MAX
            )
            first = await beginning_of(answer, held_max)
        return answer, first, problem

    async def _hang_up(self) -> None:
        """Leave the engine before the scheduler hears of it: the slot is not free sooner."""
        self.close()
        self._answer, self._meter = None, PlainMeter(self._around.clock)
        self._is_left = False
        await asyncio.sleep(0)  # an aborted socket is closed in the next turn of the loop

    async def _sent(self) -> Answer:
        life, grant = self._life, self._grant
        assert life.asked is not None
        self._sends += 1
        life.replica = grant.replica
        if not self._resumes:
            life.waited_s, life.position = grant.waited_s, grant.position
        self._sent_at = self._around.clock()
        if life.sent_at is None:
            life.sent_at = self._sent_at
        events = life.route.events
        if self._call.streams and events is not None:
            self._meter = StreamMeter(self._around.clock, grant.first_token, events)
        elif events is Events.RESPONSE:
            self._meter = PlainMeter(self._around.clock, tail_bytes=RESPONSE_TAIL_BYTES)
        else:
            self._meter = PlainMeter(self._around.clock)
        path, body = await self._request()
        self._answer = await self._around.fleet.client(grant.replica).send(
            path,
            body,
            headers=outgoing.header_lines(life, self._sends),
            meter=self._meter,
        )
        return self._answer

    async def _request(self) -> tuple[bytes, bytes | Sendable]:
        """Path and body for this replica. Raises UpstreamBrokenError, CannotContinueError."""
        life, replica = self._life, self._grant.replica
        assert life.asked is not None
        if self._resumes:
            return resume.PATH, await continuing.rest_of(life, self._around, replica)
        self._strand = strand = continuing.strand_for(life, self._around, replica)
        priority = self._around.engine_priority(replica, life.asked.tier)
        asks_ids = strand is not None and not strand.shows_ids
        return life.route.engine_path, outgoing.body(life, priority, asks_ids=asks_ids)

    def _fail(self, problem: EngineError) -> NoReturn:
        outcome = Outcome.REJECTED if problem.is_clients else Outcome.FAILED
        self._grant.finish(outcome, fault=problem.fault)
        error = problem.as_error()
        if problem.is_clients and not self._resumes:
            raise error
        raise RetryElsewhereError(self._grant.replica, error)

    def _note_place(self, first: bytes) -> None:
        """Before its client can ask for it: where the response lies that just began."""
        life, meter = self._life, self._meter
        if isinstance(meter, StreamMeter):
            ident = None if meter.ident is None else meter.ident.decode()
        else:
            ident = response_id_in(first)
        if ident is None:
            return
        assert life.asked is not None
        place = Place(
            replica=self._grant.replica,
            tenant=life.asked.tenant,
            user=life.asked.user,
            alias=life.alias,
            service_tier=self._around.service_tier_for(life),
        )
        self._around.places.note(ident, place)

    def _describe(self, answer: Answer) -> None:
        """Headers that tell the client how it was served; a comment, where it goes on."""
        life, reply = self._life, self._reply
        if self._resumes:
            continuing.resumed(life)
            return
        if answer.content_encoding is not None:
            reply.add_header(b"content-encoding", answer.content_encoding)
        reply.add_header(b"x-fairgate-queue-ms", b"%d" % round(life.waited_s * 1000))
        reply.add_header(b"x-fairgate-replica", life.replica.encode("latin-1", "replace"))
        if life.position:
            reply.add_header(b"x-fairgate-position", b"%d" % life.position)
        if life.alias is not None:
            reply.add_header(b"x-fairgate-model", life.model.encode("latin-1", "replace"))

    async def _pass_stream(self, answer: Answer, first: bytes) -> None:
        reply, rewrite, strand, clock = (
            self._reply, self._rewrite, self._strand, self._around.clock
        )  # fmt: skip
        await reply.begin_stream(answer.header(b"content-type") or EVENT_STREAM)
        data = first
        try:
            while data:
                if strand is not None:
                    data = strand.chunk(data)
                if rewrite is not None and data:
                    data = rewrite.chunk(data)
                if data:
                    self.writing_since = clock()
                    await reply.write(data)
                    self.writing_since = None
                if reply.direct is not None and not (strand is not None and strand.is_broken):
                    await self._pour(answer, reply.direct)
                if strand is not None and strand.is_broken:
                    break
                data = await answer.read()
        except UpstreamBrokenError:
            if strand is None or not strand.is_finished:
                raise
        finally:
            # From here on only the client can hold it up.
            self.writing_since = clock()
            # Also of a stream that broke off: what is held back had arrived.
            if rewrite is not None and (rest := rewrite.rest()):
                await reply.write(rest)
        await reply.finish(self._missing_end())

    async def _pour(self, answer: Answer, direct: Direct) -> None:
        """Let what arrives pass without a turn of the loop, while the client keeps up."""
        await answer.pour(self._pushed)
        if self.writing_since is not None:
            await direct.drained()
            self.writing_since = None

    def _pushed(self, data: bytes, framed: bytes) -> bool:
        """Some of the stream arrived; returns whether the client keeps up."""
        strand, arrived = self._strand, data
        if strand is not None:
            data = strand.chunk(data)
        if self._rewrite is not None and data:
            data = self._rewrite.chunk(data)
        if not data or self._reply.push(data, framed if data is arrived else b""):
            return strand is None or not strand.is_broken
        self.writing_since = self._around.clock()
        return False

    def _missing_end(self) -> bytes:
        """What an ended stream lacks. Raises UpstreamFailedError for one that merely ends.

        Clients take that for a success.
        """
        if self._strand is not None:
            self.close()
            end = continuing.end_of(self._strand)
            return end if self._rewrite is None or not end else self._rewrite.chunk(end)
        meter = self._meter
        assert isinstance(meter, StreamMeter)
        if meter.error_event is not None:
            self._life.failed(engine_error(200, meter.error_event).as_error())
            return b"" if meter.is_done else shape_of(self._life.route).end
        if meter.is_done:
            return b""
        raise UpstreamFailedError("The engine ended the stream without finishing it.")

    async def _pass_plain(self, answer: Answer, first: bytes) -> None:
        reply, rewrite = self._reply, self._rewrite
        is_whole = answer.is_complete and not answer.has_data
        if is_whole and rewrite is not None:
            first = rewrite.plain(first)
        headers = [(b"content-type", answer.header(b"content-type") or JSON_TYPE)]
        if is_whole:
            await reply.whole(answer.status, headers, first)
            return
        await reply.begin(answer.status, headers)
        data = first
        while data:
            self.writing_since = self._around.clock()
            await reply.write(data)
            self.writing_since = None
            data = await answer.read()
        await reply.finish()

    def _ended(self, is_complete: bool) -> None:
        """The upstream ended: settle, whatever the client still has to read."""
        meter, life = self._meter, self._life
        usage = meter.usage
        if isinstance(meter, StreamMeter):
            life.tpot_s = meter.tpot_s
            if usage is None:
                usage = Usage(output_tokens=meter.events)
            is_complete = is_complete and meter.is_done and meter.error_event is None
        if self._strand is not None:
            self._part_ended(self._strand, usage, is_complete=is_complete)
            return
        life.first_at, life.usage = meter.first_at, usage
        outcome = self._outcome or (Outcome.DONE if is_complete else Outcome.FAILED)
        fault = None if outcome is not Outcome.FAILED else self._fault_at_end()
        self._grant.finish(outcome, usage, life.tpot_s, fault)

    def _fault_at_end(self) -> Fault | None:
        """What of the engine is to blame for an answer that began and failed."""
        if self._is_left:
            return self._fault
        meter = self._meter
        if isinstance(meter, StreamMeter) and meter.error_event is not None:
            return engine_error(200, meter.error_event).fault
        return Fault.BROKE_OFF

    def _part_ended(self, strand: Strand, usage: Usage | None, *, is_complete: bool) -> None:
        """The same of a stream that may have other parts on other replicas."""
        life = self._life
        life.first_at = self._meter.first_at if life.first_at is None else life.first_at
        usage, life.usage = continuing.usages_of(strand, usage)
        is_complete |= strand.is_finished
        outcome = self._outcome or (Outcome.DONE if is_complete else Outcome.FAILED)
        # What it sent last may not have been read yet.
        goes_on = outcome is Outcome.FAILED and strand.obstacle is None
        fault = None if outcome is not Outcome.FAILED else self._fault_at_end()
        self._grant.finish(outcome, usage, life.tpot_s, fault, goes_on=goes_on)


def _broke_off(broken: UpstreamBrokenError) -> UpstreamFailedError:
    return UpstreamFailedError(f"The engine's answer broke off: {broken}.")
