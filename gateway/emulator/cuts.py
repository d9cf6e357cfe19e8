"""Answers that break in the middle, whole ones and streams alike.

Decides when a cut strikes and how the connection ends; the shape of an error event is the writer's.
"""

from gateway.emulator.envelope import Writer
from gateway.emulator.exchange import Exchange
from gateway.emulator.faults import Fault, FaultKind, Faults
from gateway.emulator.mailbox import ClientGone
from gateway.emulator.refusals import Refusal, crashed

STALL_KEEP_ALIVE_S = 1.0
"""Between the keep-alives of a stalled stream, when the options do not say."""


class Cuts:
    """Applies the active cut, if there is one."""

    def __init__(self, faults: Faults, keep_alive_s: float) -> None:
        self._faults = faults
        self._keep_alive_s = keep_alive_s or STALL_KEEP_ALIVE_S

    async def answer(self, exchange: Exchange, body: bytes) -> None:
        """Answer 200, whole unless a cut strikes.

        Raises:
            Refusal: the cut is an error.
            ClientGone: the connection was broken off.
        """
        cut = self._faults.cut
        if cut is not None:
            await self._break_answer(exchange, cut, body)
        await exchange.answer(200, body)

    async def strikes(
        self, exchange: Exchange, writer: Writer, sent: int, event: bytes = b""
    ) -> bool:
        """Whether the stream ends here, after so many events; True when it said so itself.

        `event` is the next one; empty: there is none yet, which cannot be cut in half.

        Raises:
            ClientGone: the connection was broken off.
        """
        cut = self._faults.cut
        if cut is None or sent < cut.value:
            return False
        if cut.kind is FaultKind.HALF_CHUNK and not event:
            return False
        self._faults.strike(cut.kind)
        match cut.kind:
            case FaultKind.ERROR_MIDSTREAM:
                await self.fail_stream(exchange, writer, crashed(), sent)
                return True
            case FaultKind.DIE_MIDSTREAM:
                await exchange.reset()
            case FaultKind.HALF_CHUNK:
                await exchange.write_half(event)
                await exchange.reset()
            case FaultKind.CLOSE_MIDSTREAM:
                await exchange.hang_up()
            case FaultKind.STALL_KEEPALIVE:
                while True:
                    await exchange.mailbox.wait_gone(self._keep_alive_s)
                    await exchange.write(writer.keep_alive)
            case _:
                await exchange.mailbox.wait_gone()
        raise ClientGone

    async def fail_stream(
        self, exchange: Exchange, writer: Writer, refusal: Refusal, sent: int
    ) -> None:
        """End a stream with an error, after so many events."""
        for event in writer.failure(refusal, sent):
            await exchange.write(event)
        await exchange.close_stream()

    async def _break_answer(self, exchange: Exchange, cut: Fault, body: bytes) -> None:
        self._faults.strike(cut.kind)
        match cut.kind:
            case FaultKind.ERROR_MIDSTREAM:
                raise crashed()
            case FaultKind.DIE_MIDSTREAM | FaultKind.HALF_CHUNK:
                await exchange.answer_half(body)
                await exchange.reset()
            case FaultKind.CLOSE_MIDSTREAM:
                await exchange.answer_half(body)
                await exchange.hang_up()
            case _:
                await exchange.mailbox.wait_gone()
