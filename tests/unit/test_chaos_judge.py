"""The judge of failure tests finds what it is there to find: else its silence would say nothing."""

import json

import pytest

from gateway.core.messages import (
    Arrived,
    Decision,
    Event,
    Finished,
    Granted,
    Outcome,
    Reason,
    Refused,
    Request,
)
from gateway.core.scheduler import Scheduler
from tests.chaos.books import Books
from tests.chaos.clients import Seen, parsed
from tests.chaos.judge import Oracle, faults_of, is_served
from tests.chaos.schedule import Client

CLIENT = Client(
    at_s=0.0,
    manner="reads",
    streams=True,
    tells_usage=False,
    is_chat=True,
    tier="standard",
    user="u",
    words="Why?",
    max_tokens=3,
    leaves_after_s=0.0,
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: r1\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
ERROR = b'data: {"error":{"message":"broke","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: str, reason: str | None = None, id: str = "a") -> bytes:
    """One chunk of a chat."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return b"data: %s\n\n" % json.dumps({"id": id, "choices": [choice]}).encode()


ONE, TWO, LAST = event("one"), event(" two"), event(" three", "length")
RIGHT = ONE + TWO + LAST + DONE


class Knowing(Oracle):
    """Knows one answer."""

    def __init__(self) -> None:
        pass

    def answer_to(self, client: Client) -> bytes:
        """That one."""
        return RIGHT


def seen_of(body: bytes, *, end: bytes = b"0\r\n\r\n") -> Seen:
    """What a client sees of such a stream."""
    seen = Seen(CLIENT, raw=HEAD + b"%x\r\n%s\r\n" % (len(body), body) + end)
    seen.end = "whole" if parsed(seen) else "cut"
    return seen


@pytest.mark.parametrize("body", [RIGHT, ONE + TWO + ERROR + DONE, ERROR + DONE])
def test_what_is_right_or_broke_cleanly_is_not_found_wrong(body: bytes) -> None:
    """A judge that cries at everything is switched off."""
    assert not faults_of(seen_of(body), Knowing())
    assert is_served(seen_of(body)) == (body == RIGHT)


@pytest.mark.parametrize(
    "body",
    [
        ONE + ONE + TWO + LAST + DONE,
        ONE + LAST + DONE,
        ONE + TWO + LAST,
        RIGHT + DONE,
        RIGHT + ONE,
        ONE + TWO + DONE,
        ONE + event(" two", id="b") + LAST + DONE,
        ONE + ERROR + ERROR + DONE,
        ONE + ERROR + TWO + LAST + DONE,
        TWO + ERROR + DONE,
        ONE + LAST + ERROR + DONE,
        b'data: {"id"\n\n' + RIGHT,
        b'data: {"id"\n\n' + ERROR + DONE,
        ONE + b'data: {"id"\n\n' + ERROR + DONE,
        ONE + TWO[:9] + ERROR + DONE,
        ONE + ERROR,
        ONE + ERROR + DONE + TWO[:9],
        ONE + ERROR + b": and\n" + DONE + b"\n" + ONE,
        RIGHT + b": keep",
    ],
)
def test_what_is_said_twice_lost_or_ended_twice_is_found(body: bytes) -> None:
    """These are the faults that the whole suite is for."""
    assert faults_of(seen_of(body), Knowing())


def test_an_answer_without_its_last_chunk_is_found() -> None:
    """A connection that is cut looks like an end to who reads to the end."""
    assert faults_of(seen_of(RIGHT, end=b""), Knowing())


@pytest.mark.parametrize(
    ("status", "body", "is_fault"),
    [
        (503, b'{"error":{"message":"no"}}', False),
        (503, b'{"error":{}}', True),
        (503, b"oops", True),
        (400, b'{"error":{"message":"no"}}', True),
    ],
)
def test_a_refusal_says_why(status: int, body: bytes, is_fault: bool) -> None:
    """Bare errors tell nobody whether to try again."""
    head = b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    seen = Seen(CLIENT, raw=head + body)
    assert parsed(seen)
    seen.end = "whole"
    assert bool(faults_of(seen, Knowing())) == is_fault


class Scripted:
    """A scheduler that decides what the test says."""

    def __init__(self) -> None:
        self.waiting: dict[str, object] = {}
        self.granted: dict[str, object] = {}
        self.next: list[Decision] = []

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Decides it."""
        return self.next


def books_after(*events: Event, decide: tuple[Decision, ...] = ()) -> Books:
    """What was booked."""
    scheduler = Scripted()
    books = Books(scheduler)  # type: ignore[arg-type]  # all that is used of one
    for each in events:
        scheduler.next = list(decide) if each is events[0] else []
        books.handle(each, 0.0)
        scheduler.granted = {one.request_id: 1 for one in decide if isinstance(one, Granted)}
    return books


ARRIVED = Arrived(Request(id="q", model="m", tier=0, tenant="t", user="u", arrived_at=0.0))
GRANT = Granted("q", "r", 0.0)
DONE_TOLD = Finished("q", Outcome.DONE)


def test_books_that_balance_are_not_found_wrong() -> None:
    """One end for each arrival."""
    books = books_after(ARRIVED, DONE_TOLD, decide=(GRANT,))
    assert not books.balance()
    assert books.ways == {"done": 1}
    assert not books_after(ARRIVED, decide=(Refused("q", Reason.SHED, None),)).balance()


def test_an_id_may_come_again_only_if_no_engine_has_seen_it() -> None:
    """Engines have broken on ids that they saw twice."""
    refused = books_after(ARRIVED, decide=(Refused("q", Reason.SHED, None),))
    refused.handle(ARRIVED, 0.0)
    assert not refused.wrong
    again = books_after(ARRIVED, DONE_TOLD, decide=(GRANT,))
    again.handle(ARRIVED, 0.0)
    assert again.wrong
    twice = books_after(ARRIVED)
    twice.handle(ARRIVED, 0.0)
    assert twice.wrong


def test_books_that_do_not_are() -> None:
    """Requests that vanish, end twice or run twice are what leaks are made of."""
    assert books_after(ARRIVED, decide=(GRANT,)).balance()
    assert books_after(ARRIVED, decide=(GRANT, GRANT)).wrong
    assert books_after(ARRIVED, DONE_TOLD, DONE_TOLD, decide=(GRANT,)).balance()
    assert books_after(DONE_TOLD, decide=(GRANT, Refused("q", Reason.SHED, None))).balance()


def test_books_stand_before_a_real_scheduler_unseen() -> None:
    """Whoever asks the scheduler for more than decisions must be answered by it."""
    from gateway.settings import load_settings

    settings = load_settings(config=None, environ={}, overrides={"replicas": ("http://x",)})
    scheduler = Scheduler(settings.policy())
    assert Books(scheduler).replicas is scheduler.replicas
