"""A generation from its call to its last byte: sequences into the engine, tokens out as text.

Refuses to know HTTP routes; which faults strike before a request is read is the application's part,
those that strike in the middle of an answer are here.
"""

import itertools
import time
import uuid
from collections.abc import Sequence as Many

from gateway.emulator.bodies import Said, answer_body
from gateway.emulator.calls import Call, Card
from gateway.emulator.chunks import KEEP_ALIVE, Chunks, Envelope
from gateway.emulator.driver import Driver
from gateway.emulator.exchange import Exchange
from gateway.emulator.faults import Fault, FaultKind, Faults
from gateway.emulator.mailbox import ClientGone, Silence
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.refusals import Refusal, crashed
from gateway.emulator.text import Output, mixed
from gateway.sim.sequence import Sequence

STALL_KEEP_ALIVE_S = 1.0
"""Between the comments of a stalled stream, when the options do not say."""
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
        self._ordinals = itertools.count(1)

    def envelope(self, exchange: Exchange, call: Call, prefix: str) -> Envelope:
        """The answer's id, from the request's own when it brought one."""
        id = exchange.header(b"x-request-id") or uuid.uuid4().hex[:16]
        return Envelope(
            id=f"{prefix}-{id}",
            created=int(time.time()),
            fingerprint=self._options.fingerprint(),
            call=call,
        )

    async def run(self, exchange: Exchange, call: Call) -> None:
        """Answer the call.

        Raises:
            Refusal: a plain request that a fault fails.
            ClientGone: the client left, or the connection was broken off.
        """
        prefix = "chatcmpl" if call.form == "chat" else "cmpl"
        envelope = self.envelope(exchange, call, prefix)
        ordinal = next(self._ordinals)
        outputs = [
            Output(self._card.vocabulary, prompt, salt=self._salt(call, ordinal, index))
            for prompt in call.prompts
            for index in range(call.n)
        ]
        ids = self._submit(exchange, envelope, outputs, ordinal)
        try:
            if call.streams:
                await self._stream(exchange, envelope, outputs)
            else:
                await self._answer(exchange, envelope, outputs)
        finally:
            for id in ids:
                self._driver.abort(id)

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
        left = len(ids)
        while left:
            left -= sum(ended for _, _, ended in await exchange.mailbox.take())

    async def refuse_in_stream(self, exchange: Exchange, refusal: Refusal) -> None:
        """The 200 of a stream whose first event says that it was refused."""
        await exchange.open_stream()
        await exchange.write(refusal.as_event)
        await exchange.write(b"data: [DONE]\n\n")
        await exchange.close_stream()

    def _submit(
        self, exchange: Exchange, envelope: Envelope, outputs: Many[Output], ordinal: int
    ) -> list[str]:
        call, ids = envelope.call, []
        for choice, output in enumerate(outputs):
            prompt = envelope.prompt_of(choice)
            length = self._length(call, prompt, output)
            ids.append(f"{ordinal}-{choice}")
            sequence = Sequence(
                id=ids[-1],
                prompt_tokens=len(prompt),
                output_tokens=length,
                priority=call.priority,
            )
            self._driver.submit(
                sequence, exchange.mailbox, choice=choice, finish_reason=output.finish_reason
            )
        self._free_when_gone(exchange, ids)
        return ids

    def _free_when_gone(self, exchange: Exchange, ids: Many[str]) -> None:
        def free() -> None:
            exchange.mailbox.close()
            for id in ids:
                self._driver.abort(id)

        exchange.connection.when_lost(free)

    def _length(self, call: Call, prompt: Many[int], output: Output) -> int:
        """How many tokens the answer will have, and with what reason it will end."""
        limit = call.tokens_max(prompt, self._card.context_tokens)
        natural = self._options.natural_tokens if call.max_tokens is None else None
        jitter = self._options.output_jitter
        length = limit
        if call.form == "chat" and natural is not None:
            length = natural
        elif jitter:
            length = round(limit / JITTER_MEAN)
        if jitter:
            draw = mixed(output.state + self._options.seed) / 2**31 - 1
            length = round(length * (1 + jitter * draw))
        length = max(1, min(length, limit))
        if length < limit:
            output.finish_reason = "stop"
        return output.stop_at(call.stops, length) if call.stops else length

    def _salt(self, call: Call, ordinal: int, index: int) -> int:
        """0 when tokens follow from tokens alone, else what tells this sample from others."""
        if call.is_greedy:
            return 0
        seed = call.seed
        if seed is None:
            seed = 0 if call.temperature == 0 else mixed(self._options.seed + 1) + ordinal
        return 1 + 2 * mixed((seed << 16) + index + 1)

    async def _answer(self, exchange: Exchange, envelope: Envelope, outputs: Many[Output]) -> None:
        totals = [0] * len(outputs)
        left = len(outputs)
        while left:
            for choice, n_tokens, ended in await exchange.mailbox.take():
                totals[choice] += n_tokens
                left -= ended
        said: list[Said] = [
            (output, *output.take(total)) for output, total in zip(outputs, totals, strict=True)
        ]
        body = answer_body(envelope, said)
        cut = self._faults.cut
        if cut is not None:
            await self._break_answer(exchange, cut, body)
        await exchange.answer(200, body)

    async def _break_answer(self, exchange: Exchange, cut: Fault, body: bytes) -> None:
        self._faults.strike(cut.kind)
        match cut.kind:
            case FaultKind.ERROR_MIDSTREAM:
                raise crashed()
            case FaultKind.DIE_MIDSTREAM:
                await exchange.answer_half(body)
                await exchange.reset()
            case FaultKind.CLOSE_MIDSTREAM:
                await exchange.answer_half(body)
                await exchange.hang_up()
            case _:
                await exchange.mailbox.wait_gone()

    async def _stream(self, exchange: Exchange, envelope: Envelope, outputs: Many[Output]) -> None:
        await exchange.open_stream()
        chunks = Chunks(envelope, len(outputs))
        keep_alive_s = self._options.sse_keep_alive_s or None
        faults, sent, left = self._faults, 0, len(outputs)
        events = None
        while left:
            if faults.cut is not None and await self._cuts(exchange, faults.cut, sent):
                return
            try:
                shares = await exchange.mailbox.take(keep_alive_s)
            except Silence:
                await exchange.write(KEEP_ALIVE)
                continue
            events = chunks.opening() if events is None else []
            for choice, n_tokens, ended in shares:
                output = outputs[choice]
                ids, text = output.take(n_tokens)
                write = chunks.last_token if ended else chunks.token
                events.append(write(choice, output, ids, text))
                left -= ended
            if not left:
                events += chunks.closing(sum(output.n_tokens for output in outputs))
            for event in events:
                if faults.cut is not None and await self._cuts(exchange, faults.cut, sent):
                    return
                await exchange.write(event)
                sent += 1
        await exchange.close_stream()

    async def _cuts(self, exchange: Exchange, cut: Fault, sent: int) -> bool:
        """Whether the stream ends here, by `cut`; True when it was ended with an error event."""
        if sent < cut.value:
            return False
        self._faults.strike(cut.kind)
        match cut.kind:
            case FaultKind.ERROR_MIDSTREAM:
                await exchange.write(crashed().as_event)
                await exchange.write(b"data: [DONE]\n\n")
                await exchange.close_stream()
                return True
            case FaultKind.DIE_MIDSTREAM:
                await exchange.reset()
            case FaultKind.CLOSE_MIDSTREAM:
                await exchange.hang_up()
            case FaultKind.STALL_KEEPALIVE:
                while True:
                    await exchange.mailbox.wait_gone(
                        self._options.sse_keep_alive_s or STALL_KEEP_ALIVE_S
                    )
                    await exchange.write(KEEP_ALIVE)
            case _:
                await exchange.mailbox.wait_gone()
        raise ClientGone
