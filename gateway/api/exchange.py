"""One exchange with one engine: send, find out whether it really began, pass the bytes on.

The slot is returned when the *upstream* ends, not when the client has read everything.
"""

import asyncio
from contextlib import nullcontext
from typing import NoReturn

from gateway.api import continuing, outgoing
from gateway.api.continuing import ContinueElsewhereError
from gateway.api.disconnect import ClientLeftError, ClientStalledError
from gateway.api.interruption import Interruption
from gateway.api.life import Life
from gateway.api.openai import EngineError, engine_error
from gateway.api.outlet import Outlet
from gateway.api.passing import beginning_of, error_body_of, first_event_of
from gateway.api.reply import EVENT_STREAM, Reply
from gateway.api.served import describe
from gateway.api.shapes import shape_of
from gateway.api.surroundings import Surroundings
from gateway.api.work import Work, working_on
from gateway.continuation import resume
from gateway.continuation.strand import Strand
from gateway.core.messages import Fault, Outcome, Usage
from gateway.errors import (
    GatewayError,
    ResponseCancelledError,
    UpstreamFailedError,
    UpstreamTimeoutError,
)
from gateway.runtime.gate import Grant, RecalledError
from gateway.upstream.connection import Answer, UpstreamBrokenError
from gateway.upstream.figures import response_id_in
from gateway.upstream.pieces import Sendable
from gateway.upstream.sse import Events, PlainMeter, StreamMeter, meter_of

WHOLE_ANSWER_BYTES_MAX = 1 << 20
"""A plain answer up to this size is passed on when complete, so that it can still be retried."""
REWRITTEN_ANSWER_BYTES_MAX = 64 << 20
"""A plain answer that must be changed is held whole; a larger one is passed on unchanged."""


class RetryElsewhereError(Exception):
    """The replica failed before anything reached the client."""

    def __init__(self, replica: str, error: GatewayError, fault: Fault | None) -> None:
        super().__init__(error.message)
        self.replica, self.error, self.fault = replica, error, fault


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
        rewrite = surroundings.rewrite_for(life)
        self._outlet = Outlet(reply, rewrite, life.strand, surroundings.clock)
        self._strand = life.strand
        """What is kept of a stream that may be continued; None for any other."""
        self._resumes = life.strand is not None
        """Whether it goes on with a stream that broke elsewhere."""
        self._answer: Answer | None = None
        self._sends = 0
        self._sent_at: float | None = None
        self._work: Work | None = None
        """What the engine finishes whoever waits for it."""
        self._is_passing = False
        """Whether anything of the answer may have reached the client."""
        self._interruption: Interruption | None = None
        self._meter: StreamMeter | PlainMeter = PlainMeter(surroundings.clock)
        self._outcome: Outcome | None = None
        """Set where the end of the upstream alone does not tell it."""
        self._fault: Fault | None = None
        """Likewise, what of the engine is to blame."""
        self._is_left = False
        """Whether the upstream was ended from here."""

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
        since = self._meter.last_at or self._sent_at
        if since is None or self._interruption is not None or self.is_unwatched:
            return None
        if self._outlet.writing_since is not None:
            return None
        return max(since, self._outlet.held_at)  # what came meanwhile may just be on its way

    async def run(self) -> None:
        """Carry it out.

        Raises RetryElsewhereError, ContinueElsewhereError, GatewayError for the client,
        ClientStalledError and ClientLeftError.
        """
        try:
            interruption = await self._interrupted_by()
            if interruption is not None:
                if self._work is not None and self._leaves_work(interruption):
                    await self._work.wait_ended()
                await self._end_for(interruption)
        finally:
            if self._work is not None:
                self._work.close()

    async def _interrupted_by(self) -> Interruption | None:
        """What ended it before its own end; None: nothing. Raises as `run`."""
        try:
            await self._run()
        except asyncio.CancelledError:
            interruption = self._interruption
            if interruption is None or not interruption.is_alone():
                raise
            return interruption
        return None

    async def _end_for(self, interruption: Interruption) -> None:
        """What follows for the client; as `run`."""
        if interruption.is_cut_off:
            self.abandoned()
            raise ClientStalledError from None
        if interruption.is_departure:
            self.abandoned()
            raise ClientLeftError from None
        if interruption.farewell is not None:
            self.abandoned()
            raise interruption.farewell from None
        if interruption.is_move:
            self._outcome = Outcome.CANCELLED
        self.close()
        self._grant.finish(Outcome.FAILED, fault=self._fault)
        if self._strand is not None and self._strand.is_finished:
            await self._reply.finish(self._missing_end())
            return
        error = UpstreamTimeoutError("The engine stopped answering.")
        if self._is_passing:
            raise self._broken(error) from None
        raise RetryElsewhereError(self._grant.replica, error, self._fault) from None

    @property
    def is_unwatched(self) -> bool:
        """Whether its client has all it waits for, and the engine works on."""
        return self._work is not None and self._work.is_unwatched

    @property
    def writing_since(self) -> float | None:
        """When the write began that the client has not taken yet; for the watch on stalls."""
        return self._outlet.writing_since

    def look_at_client(self, now: float) -> None:
        """See `Outlet.look_at_client`."""
        self._outlet.look_at_client(now)

    def cut_off(self, task: "asyncio.Task[None]") -> None:
        """The client takes nothing any more: leave it, and stop the engine."""
        self._interrupted(task).is_cut_off = True

    def give_up(self, task: "asyncio.Task[None]", fault: Fault = Fault.STALLED) -> None:
        """The engine has stalled: end this, which `task` carries, as a failure of the engine."""
        self._fault = fault
        self._interrupted(task)

    def end(self, task: "asyncio.Task[None]", farewell: GatewayError) -> None:
        """It must not go on here, nor elsewhere: tell its client, and stop the engine."""
        self._interrupted(task).farewell = farewell

    def move_away(self, task: "asyncio.Task[None]") -> bool:
        """Let another replica go on with the stream that `task` carries.

        False: it cannot be moved, at least not now, and goes on here.
        """
        strand = self._strand
        if (
            not self._is_passing
            or self._interruption is not None
            or self._outlet.writing_since is not None  # what is being written would be lost
            or strand is None
            or not strand.can_go_on
        ):
            return False
        self._interrupted(task).is_move = True
        return True

    def _interrupted(self, task: "asyncio.Task[None]") -> Interruption:
        found = self._interruption
        if found is None:
            found = self._interruption = Interruption()
        found.strike(task)
        return found

    async def _run(self) -> None:
        try:
            answer, first = await self._begun()
        except UpstreamBrokenError as broken:
            self._grant.finish(Outcome.FAILED, fault=broken.fault)
            error = _broke_off(broken)
            raise RetryElsewhereError(self._grant.replica, error, broken.fault) from broken
        if self._call.is_background and not self._around.is_leaving():
            self._begin_work(first)
        answer.when_ended(self._ended)
        self._is_passing = True
        if self._life.route.events is Events.RESPONSE:
            self._note_place(first)
        if self._resumes:
            continuing.resumed(self._life)
        else:
            describe(self._life, self._reply, answer)
        try:
            if isinstance(self._meter, StreamMeter):
                await self._pass_stream(answer, first)
            else:
                await self._outlet.carry_plain(answer, first)
                if self._work is not None:
                    await self._work.wait_ended()
        except UpstreamBrokenError as broken:
            raise self._broken(_broke_off(broken)) from broken
        except UpstreamFailedError as failed:
            raise self._broken(failed) from None

    def _begin_work(self, first: bytes) -> None:
        """The engine was asked to go on whoever waits: see whether it does."""
        response_id = working_on(self._meter, first)
        if response_id is not None:
            self._work = Work(
                response_id, self._life, self._grant, self._around, streams=self._call.streams
            )
            self._work.begins(self._left, self._cancelled)

    def _left(self) -> None:
        """The client left events that go on."""
        assert self._life.task is not None
        self._interrupted(self._life.task).is_departure = True

    def _cancelled(self) -> None:
        """The response was cancelled by another request; vLLM 0.32 then never ends its events."""
        assert self._life.task is not None
        self.end(self._life.task, ResponseCancelledError("The response was cancelled."))

    def _leaves_work(self, interruption: Interruption) -> bool:
        """Whether its client is gone, and the engine goes on all the same."""
        work, is_gone = self._work, interruption.is_cut_off or interruption.is_departure
        if work is None or work.is_unwatched or not is_gone:
            return False
        work.is_unwatched = True
        self._reply.cut()
        self._outlet.writing_since = None
        self.close()
        return True

    def _broken(self, error: GatewayError) -> Exception:
        """What becomes of a stream that broke with `error` after its first byte."""
        strand, obstacle = self._strand, self._life.obstacle
        if strand is not None:
            self.close()
            if strand.can_go_on:
                self._life.strand = strand
                is_moved = self._interruption is not None and self._interruption.is_move
                return ContinueElsewhereError(self._grant.replica, error, is_moved=is_moved)
            obstacle = strand.standing
        return continuing.explained(error, obstacle)

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
            said = await self._said()
            if said is None:
                await self._hang_up()
                self._waits_again()
                await self._grant.give_back()
                continue
            answer, first, problem = said
            if problem is None:
                return answer, first
            answer.close()
            if not problem.is_busy:
                self._fail(problem)
            self._waits_again()
            await self._grant.bounce()

    def _waits_again(self) -> None:
        trace = self._life.trace
        if trace is not None:
            trace.waits(self._around.clock())

    async def _said(self) -> tuple[Answer, bytes, EngineError | None] | None:
        """What one engine says to the request; None: it was recalled before the engine began."""
        try:
            return await self._asked()
        except RecalledError:
            return None

    async def _asked(self) -> tuple[Answer, bytes, EngineError | None]:
        """What one engine says to the request. Raises RecalledError until it begins."""
        first, problem = b"", None
        is_kept = self._call.is_background
        # What an engine does in the background it goes on with when it is hung up on.
        with nullcontext() if is_kept else self._grant.recallable(self._life.task):
            answer = await self._sent()
            if answer.status < 400 and isinstance(self._meter, StreamMeter):
                first, problem = await first_event_of(answer, self._meter, is_kept=is_kept)
        if answer.status >= 400:
            problem = engine_error(answer.status, await error_body_of(answer))
        elif isinstance(self._meter, PlainMeter):
            held_max = (
                WHOLE_ANSWER_BYTES_MAX
                if self._outlet.rewrite is None
                else REWRITTEN_ANSWER_BYTES_MAX
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
        if life.trace is not None:
            life.trace.sends(self._sent_at, grant.replica, life.attempt_id)
        streams, events = self._call.streams, life.route.events
        self._meter = meter_of(events, self._around.clock, grant.first_token if streams else None)
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
        strand = continuing.strand_for(life, self._around, replica)
        self._strand = self._outlet.strand = strand
        priority = self._around.engine_priority(replica, life.asked.tier)
        asks_ids = strand is not None and not strand.shows_ids
        return life.route.engine_path, outgoing.body(life, priority, asks_ids=asks_ids)

    def _fail(self, problem: EngineError) -> NoReturn:
        outcome = Outcome.REJECTED if problem.is_clients else Outcome.FAILED
        self._grant.finish(outcome, fault=problem.fault)
        error = problem.as_error()
        if problem.is_clients and not self._resumes:
            raise error
        raise RetryElsewhereError(self._grant.replica, error, problem.fault)

    def _note_place(self, first: bytes) -> None:
        """Before its client can ask for it: where the response lies that just began."""
        meter = self._meter
        if isinstance(meter, StreamMeter):
            ident = None if meter.ident is None else meter.ident.decode()
        else:
            ident = response_id_in(first)
        if ident is not None:
            self._around.note_place(ident, self._life, self._grant.replica)

    async def _pass_stream(self, answer: Answer, first: bytes) -> None:
        around, replica = self._around, self._grant.replica
        await self._reply.begin_stream(answer.header(b"content-type") or EVENT_STREAM)
        stripping = self._outlet.rewrite if self._call.asks_usage else None
        if stripping is not None:
            stripping.fingerprint = around.fingerprints.get(replica)
        try:
            await self._outlet.carry(answer, first)
        except UpstreamBrokenError:
            if not self._has_all():
                raise
        if stripping is not None:
            around.note_fingerprint(replica, stripping.fingerprint)
        await self._reply.finish(self._missing_end())

    def _has_all(self) -> bool:
        """Whether the engine said all that there is to say."""
        if self._strand is not None:
            return self._strand.is_finished
        return isinstance(self._meter, StreamMeter) and self._meter.is_done

    def _missing_end(self) -> bytes:
        """What an ended stream lacks. Raises UpstreamFailedError for one that merely ends.

        Clients take that for a success.
        """
        if self._strand is not None:
            self.close()
            end = continuing.end_of(self._strand)
            rewrite = self._outlet.rewrite
            return end if rewrite is None or not end else rewrite.chunk(end)
        meter = self._meter
        assert isinstance(meter, StreamMeter)
        if meter.error_event is not None:
            self._life.failed(engine_error(200, meter.error_event).as_error())
            return self._outlet.rest() if meter.is_done else shape_of(self._life.route).end
        if meter.is_done:
            return self._outlet.rest()
        raise UpstreamFailedError("The engine ended the stream without finishing it.")

    def _ended(self, is_complete: bool) -> None:
        """The upstream ended: settle, whatever the client still has to read."""
        if self.is_unwatched:
            return
        meter, life = self._meter, self._life
        if life.trace is not None:
            life.trace.leaves(self._around.clock())
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
