"""A generation from its call to its last byte: sequences into the engine, tokens out as text.

Refuses to know HTTP routes and the shapes of answers; which faults strike before a request is read
is the application's part, and how an answer breaks in the middle that of the cuts.
"""

import itertools
import time
import uuid
from collections.abc import Sequence as Many

import orjson

from gateway.emulator.archive import Archive, Kept
from gateway.emulator.background import Background
from gateway.emulator.calls import Call, Card
from gateway.emulator.cuts import Cuts
from gateway.emulator.driver import Driver, Sink
from gateway.emulator.envelope import KEEP_ALIVE, Envelope, Said, Writer
from gateway.emulator.exchange import Exchange
from gateway.emulator.faults import Faults
from gateway.emulator.forms import ID_PREFIXES, body_of, writer_of
from gateway.emulator.mailbox import Silence
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.refusals import Refusal
from gateway.emulator.responses_answer import response_of
from gateway.emulator.text import Output, mixed
from gateway.sim.sequence import Sequence

JITTER_MEAN = 1.5
"""With output jitter, answers are around max_tokens over this."""


class Generations:
    """Runs generation requests for one emulator."""

    def __init__(
        self, options: EmulatorOptions, card: Card, *, driver: Driver, faults: Faults
    ) -> None:
        self._options = options
        self._card = card
        self._driver = driver
        self._faults = faults
        self._fingerprint = options.fingerprint()
        self._ordinals = itertools.count(1)
        self.cuts = Cuts(faults, options.sse_keep_alive_s)
        self.archive = Archive()

    def envelope(self, exchange: Exchange, call: Call, prefix: str | None = None) -> Envelope:
        """The answer's frame; its id is the request's own when it brought one."""
        id = exchange.header(b"x-request-id") or uuid.uuid4().hex[:16]
        id = f"{prefix or ID_PREFIXES.get(call.form, '')}{id}"
        if call.form == "response":
            id = call.request["request_id"] or f"resp_{uuid.uuid4().hex[:16]}"
        return Envelope(
            id=id,
            created=int(time.time()),
            fingerprint=self._fingerprint,
            call=call,
            card=self._card,
        )

    async def run(self, exchange: Exchange, call: Call) -> None:
        """Answer the call.

        Raises:
            Refusal: a plain request that a fault fails, or whose engine core died.
            ClientGone: the client left, or the connection was broken off.
        """
        envelope = self.envelope(exchange, call)
        outputs, ids = self._submit(envelope, exchange.mailbox)
        self._free_when_gone(exchange, ids)
        try:
            if call.streams:
                await self._stream(exchange, envelope, outputs)
            else:
                await self._answer(exchange, envelope, outputs)
        finally:
            for id in ids:
                self._driver.abort(id)

    async def run_unwatched(self, exchange: Exchange, call: Call) -> None:
        """Answer at once that the response is queued, and leave its end to the archive.

        Raises:
            Refusal, ClientGone: as `run`.
        """
        envelope = self.envelope(exchange, call)
        output = self._output(call, call.prompts[0], ordinal := next(self._ordinals), 0)
        sink = Background(envelope, output, self.archive)
        id = self._add(envelope, output, sink, f"{ordinal}-0")
        body = response_of(envelope, status="queued")
        self.archive.keep(envelope.id, Kept(body=body, turns=call.turns, sequence_ids=(id,)))
        await self.cuts.answer(exchange, orjson.dumps(body))

    def cancel(self, response_id: str) -> bytes:
        """Stop a response that nobody waits for; returns it as it then stands.

        Raises:
            Refusal: 404 when it is not known, 400 when it is finished.
        """
        for id in self.archive.cancel(response_id):
            self._driver.abort(id)
        return self.archive.body_of(response_id)

    async def compute(self, exchange: Exchange, call: Call) -> None:
        """Run the prompts through the engine for no output.

        Raises:
            ClientGone: the client left.
        """
        ordinal = next(self._ordinals)
        ids = [f"{ordinal}-{choice}" for choice in range(len(call.prompts))]
        for choice, (id, prompt) in enumerate(zip(ids, call.prompts, strict=True)):
            sequence = Sequence(id=id, prompt_tokens=len(prompt), output_tokens=0)
            self._driver.submit(sequence, exchange.mailbox, choice=choice, finish_reason="stop")
        self._free_when_gone(exchange, ids)
        await exchange.mailbox.take_whole(len(ids))

    async def refuse_in_stream(self, exchange: Exchange, call: Call, refusal: Refusal) -> None:
        """The 200 of a stream in which then stands that it was refused."""
        writer = writer_of(self.envelope(exchange, call), 1, self.archive)
        await exchange.open_stream()
        events = writer.at_once()
        for event in events:
            await exchange.write(event)
        await self.cuts.fail_stream(exchange, writer, refusal, len(events))

    def _submit(self, envelope: Envelope, sink: Sink) -> tuple[list[Output], list[str]]:
        """All choices of a call and the ids of their sequences."""
        call, ordinal = envelope.call, next(self._ordinals)
        outputs = [
            self._output(call, prompt, ordinal, index)
            for prompt in call.prompts
            for index in range(call.n)
        ]
        ids = [
            self._add(envelope, output, sink, f"{ordinal}-{choice}")
            for choice, output in enumerate(outputs)
        ]
        return outputs, ids

    def _output(self, call: Call, prompt: Many[int], ordinal: int, index: int) -> Output:
        salt = self._salt(call, ordinal, index)
        return Output(self._card.vocabulary, prompt, salt=salt)

    def _add(self, envelope: Envelope, output: Output, sink: Sink, id: str) -> str:
        choice = int(id.partition("-")[2])
        call, prompt = envelope.call, envelope.prompt_of(choice)
        sequence = Sequence(
            id=id,
            prompt_tokens=len(prompt),
            output_tokens=self._length(call, prompt, output),
            priority=call.priority,
        )
        self._driver.submit(sequence, sink, choice=choice, finish_reason=output.finish_reason)
        return id

    def _free_when_gone(self, exchange: Exchange, ids: Many[str]) -> None:
        def free() -> None:
            exchange.mailbox.close()
            for id in ids:
                self._driver.abort(id)

        exchange.connection.when_lost(free)

    def _length(self, call: Call, prompt: Many[int], output: Output) -> int:
        """How many tokens the answer will have, and with what reason it will end."""
        limit = call.tokens_max(prompt, self._card.context_tokens)
        if call.script is not None:
            output.recite(call.script)
            length = min(len(call.script), limit)
            output.finish_reason = "stop" if length == len(call.script) else "length"
            return length
        natural = self._options.natural_tokens if call.max_tokens is None else None
        jitter = self._options.output_jitter
        if call.ignores_end:
            natural, jitter = None, 0.0
        length = limit
        if call.form != "completion" and natural is not None:
            length = natural
        elif jitter:
            length = round(limit / JITTER_MEAN)
        if jitter:
            draw = mixed(output.state + self._options.seed) / 2**31 - 1
            length = round(length * (1 + jitter * draw))
        length = max(1, min(length, limit))
        if length < limit:
            output.finish_reason = "stop"
        mean_tokens = None if call.ignores_end else self._options.mean_tokens
        if not call.stops and mean_tokens is None:
            return length
        return output.look_ahead(
            length, stops=call.stops, mean_tokens=mean_tokens, min_tokens=call.min_tokens
        )

    def _salt(self, call: Call, ordinal: int, index: int) -> int:
        """0 when tokens follow from tokens alone, else what tells this sample from others."""
        if call.is_greedy:
            return 0
        seed = call.seed
        if seed is None:
            seed = 0 if call.temperature == 0 else mixed(self._options.seed + 1) + ordinal
        return 1 + 2 * mixed((seed << 16) + index + 1)

    async def _answer(self, exchange: Exchange, envelope: Envelope, outputs: Many[Output]) -> None:
        totals = await exchange.mailbox.take_whole(len(outputs))
        said: list[Said] = [
            (output, *output.take(total)) for output, total in zip(outputs, totals, strict=True)
        ]
        await self.cuts.answer(exchange, body_of(envelope, said, self.archive))

    async def _stream(self, exchange: Exchange, envelope: Envelope, outputs: Many[Output]) -> None:
        writer = writer_of(envelope, len(outputs), self.archive)
        await exchange.open_stream()
        events = writer.at_once()
        if events and await self._write(exchange, writer, events, 0):
            return
        sent, left, is_open = len(events), len(outputs), False
        while left:
            if self._faults.cut is not None and await self.cuts.strikes(exchange, writer, sent):
                return
            try:
                shares = await exchange.mailbox.take(self._keep_alive_s(envelope.call))
            except Silence:
                await exchange.write(KEEP_ALIVE)
                continue
            except Refusal as refusal:
                await self.cuts.fail_stream(exchange, writer, refusal, sent)
                return
            events = [] if is_open else writer.opening()
            is_open = True
            for choice, n_tokens, ended in shares:
                output = outputs[choice]
                ids, text = output.take(n_tokens, ended=ended)
                write = writer.last_token if ended else writer.token
                events += write(choice, output, ids, text)
                left -= ended
            if not left:
                events += writer.closing(sum(output.n_tokens for output in outputs))
            if await self._write(exchange, writer, events, sent):
                return
            sent += len(events)
        await exchange.close_stream()

    async def _write(
        self, exchange: Exchange, writer: Writer, events: Many[bytes], sent: int
    ) -> bool:
        """Send events, each by itself, after `sent` others; whether a cut ended the stream."""
        for event in events:
            cut = self._faults.cut
            if cut is not None and await self.cuts.strikes(exchange, writer, sent, event):
                return True
            await exchange.write(event)
            sent += 1
        return False

    def _keep_alive_s(self, call: Call) -> float | None:
        """How long a stream may be silent; the server's option is for chats and completions."""
        if call.form not in ("chat", "completion"):
            return None
        return self._options.sse_keep_alive_s or None
