"""The one connection to Redis, over a wire that the test holds in its hands."""

import asyncio
from typing import Any

import pytest

from gateway.cluster.line import (
    CALM_S,
    LOOK_S,
    LOOKS,
    UNSENT_BYTES_MAX,
    Line,
    LineLostError,
    RedisSaidError,
    packed,
)
from tests.support.jumping import JumpingLoop, run_jumping


class Wire(asyncio.Transport):
    """What was written, and whether somebody hung up."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_aborted = False
        self.is_shut = False
        self.high = 0

    def write(self, data: Any) -> None:
        assert not self.is_shut, "uvloop raises there"
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_shut

    def abort(self) -> None:
        self.is_aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0


class Desk:
    """A line, and what came of it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.reasons: list[str] = []
        self.answers: list[object] = []
        self.wire = Wire()
        self.line = Line(asyncio.get_running_loop(), self.heard.append, self.reasons.append)
        self.line.connection_made(self.wire)

    def ask(self, *words: str) -> None:
        """A command."""
        self.line.tell(packed(words), self.answers.append)


async def turn() -> None:
    """One turn of the loop, and what it leaves for the next."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_what_one_turn_says_is_one_write_and_answers_come_in_its_order() -> None:
    """A write for each command costs more than the command."""
    desk = Desk()
    for word in ("A", "B", "C"):
        desk.ask(word)
    assert desk.wire.writes == []
    await turn()
    assert desk.wire.writes == [b"".join(packed((word,)) for word in "ABC")]
    desk.line.data_received(b"+one\r\n:2\r")
    desk.line.data_received(b"\n-ERR three\r\n")
    one, two, three = desk.answers
    assert (one, two) == (b"one", 2)
    assert isinstance(three, RedisSaidError)
    assert desk.reasons == []
    desk.line.end("over")


async def test_a_connection_that_was_given_up_is_written_nothing() -> None:
    """Its end is told in the next turn of the loop; until then what is said is said to nobody."""
    desk = Desk()
    desk.ask("HELLO")
    desk.wire.is_shut = True
    await turn()
    assert desk.wire.writes == []
    desk.line.connection_lost(None)
    assert isinstance(desk.answers[0], LineLostError)


async def test_what_is_published_comes_between_answers_and_is_none() -> None:
    """A message taken for an answer shifts every answer after it."""
    desk = Desk()
    desk.ask("A")
    desk.line.data_received(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n")
    desk.line.data_received(b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$2\r\nho\r\n+one\r\n")
    assert desk.heard == [b"hi", b"ho"]
    assert desk.answers == [b"one"]
    desk.line.end("over")


async def test_what_is_not_answered_shifts_no_answer() -> None:
    """Messages are published without an answer, between commands that have one."""
    desk = Desk()
    desk.line.say(b"quiet")
    desk.ask("A")
    await turn()
    assert desk.wire.writes == [b"quiet" + packed(("A",))]
    desk.line.data_received(b"+one\r\n")
    assert desk.answers == [b"one"]
    desk.line.end("over")


@pytest.mark.parametrize(
    "answer",
    [b"-MOVED 1 a:1\r\n", b"-READONLY x\r\n", b"-LOADING x\r\n", b"-NOSCRIPT x\r\n", b"\x00?\r\n"],
)
async def test_a_redis_that_is_the_wrong_one_ends_the_line(answer: bytes) -> None:
    """After a failover the old master goes on answering, for nobody."""
    desk = Desk()
    desk.ask("A")
    desk.ask("B")
    desk.line.data_received(answer)
    assert len(desk.reasons) == 1
    assert desk.wire.is_aborted
    assert all(isinstance(each, RedisSaidError | LineLostError) for each in desk.answers)
    assert len(desk.answers) == 2


async def test_an_answer_that_nobody_asked_for_ends_the_line() -> None:
    """Answers that are off by one would give each request another's grant."""
    desk = Desk()
    desk.line.data_received(b"+surprise\r\n")
    assert desk.reasons == ["Redis answers what it was not asked"]


async def test_a_subscription_that_is_taken_back_ends_the_line() -> None:
    """A gateway that hears nothing any more must know it."""
    desk = Desk()
    desk.line.data_received(b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n")
    assert desk.reasons == ["Redis took the subscription back"]


async def test_whatever_is_asked_of_a_lost_line_hears_that_it_is_lost() -> None:
    """A request that waits for an answer that cannot come holds a client for ever."""
    desk = Desk()
    desk.ask("A")
    desk.line.connection_lost(None)
    desk.ask("B")
    desk.line.say(b"quiet")
    await turn()
    assert [type(each) for each in desk.answers] == [LineLostError] * 2
    assert desk.wire.writes == []
    assert desk.reasons == ["Redis closed the connection"]
    with pytest.raises(LineLostError):
        await desk.line.ask("C")


async def test_a_redis_that_takes_nothing_any_more_is_given_up() -> None:
    """Memory of the gateway is not where messages wait for it."""
    desk = Desk()
    assert desk.wire.high == UNSENT_BYTES_MAX
    desk.line.pause_writing()
    assert desk.wire.is_aborted


def test_silence_is_noticed_in_time() -> None:
    """Requests wait for a leader's word just as long."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        desk.line.data_received(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n")
        began = loop.time()
        while not desk.reasons:  # noqa: ASYNC110 - the clock jumps from one look to the next
            await asyncio.sleep(LOOK_S / 5)
        assert desk.wire.writes == [packed(("PING",))]
        assert CALM_S + LOOKS * LOOK_S <= loop.time() - began <= 0.2
        assert "said nothing" in desk.reasons[0]

    run_jumping(main())


def test_a_redis_that_answers_is_never_silent() -> None:
    """A fleet without requests for an hour is no fleet without a Redis."""

    async def main() -> None:
        desk = Desk()
        asked = 0
        for _ in range(1000):
            await asyncio.sleep(LOOK_S)
            for _ in desk.wire.writes:
                desk.line.data_received(b"+PONG\r\n")
            asked += len(desk.wire.writes)
            desk.wire.writes.clear()
        assert desk.reasons == []
        assert 0 < asked <= 1000 * LOOK_S / CALM_S, "each costs two turns of the loop"
        desk.line.end("over")

    run_jumping(main())


def test_a_line_on_which_something_comes_is_not_asked() -> None:
    """Under load its messages are the sign of life."""

    async def main() -> None:
        desk = Desk()
        for _ in range(1000):
            await asyncio.sleep(0.9 * CALM_S)
            desk.line.data_received(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n")
        assert desk.wire.writes == []
        assert desk.reasons == []
        desk.line.end("over")

    run_jumping(main())


def test_an_answer_that_is_due_is_sign_enough() -> None:
    """A command that Redis does not answer is not followed by another one."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        desk.ask("A")
        while not desk.reasons:  # noqa: ASYNC110 - the clock jumps from one look to the next
            await asyncio.sleep(LOOK_S / 5)
        assert desk.wire.writes == [packed(("A",))]
        assert loop.time() <= 0.2

    run_jumping(main())


def test_a_loop_that_was_late_does_not_take_redis_for_silent() -> None:
    """A process that was stopped for 20 s has looked once in all that time."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        desk = Desk()
        for _ in range(10):
            await asyncio.sleep(LOOK_S)
            loop.jump(20.0)
            await asyncio.sleep(0)
            await turn()
            # What had come meanwhile is read only now.
            for _ in desk.wire.writes:
                desk.line.data_received(b"+PONG\r\n")
            desk.wire.writes.clear()
            assert desk.reasons == []
        desk.line.end("over")

    run_jumping(main())
