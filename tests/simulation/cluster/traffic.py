"""What one request costs between gateways: bytes by message, and the CPU of whoever leads.

`python -m tests.simulation.cluster.traffic` tells it. A leader with a real scheduler is spoken to
as over Redis, each turn of the loop with a payload of so many messages from each of two followers.
"""

import sys
from collections.abc import Sequence
from time import process_time

from gateway.cluster.member import Member
from gateway.cluster.messages import Beat, Decided, Happened, Led, Message, Placed, Synced, Told
from gateway.cluster.ports import Leader, Standing
from gateway.cluster.wire import decoded, encoded
from gateway.core.messages import (
    Arrived,
    Finished,
    FirstToken,
    Granted,
    Outcome,
    Progressed,
    ReplicaFound,
    ReplicaReported,
    Request,
    Usage,
)
from gateway.core.policy import DEFAULT_TIERS, Policy
from gateway.core.report import ReplicaReport
from gateway.core.scheduler import Scheduler

POOL = "llama-3-8b"
LEADER, FOLLOWERS = "gateway-1-0a1b2c", ("gateway-2-3d4e5f", "gateway-3-6a7b8c")
SLOTS, REQUESTS = 256, 20_000
BLOCKS = 8
"""Of a prompt whose beginning counts, each of 64 tokens."""
SIZES = (1, 4, 16, 64)
"""Requests that arrive in one turn of a follower's loop."""


def request(number: int, gateway: str = FOLLOWERS[0], *, blocks: int = 0) -> Request:
    """A chat of a usual size."""
    return Request(
        id=f"{number:024x}",
        model=POOL,
        tier=2,
        tenant="acme",
        user=f"user-{number % 50}",
        arrived_at=0.0,
        prompt_tokens=None,
        output_tokens_max=256,
        sequences=1,
        streams=True,
        body_bytes=2_048,
        patience_s=None,
        route="chat",
        prefix=tuple((0xABCD_EF01 << 32) + number * 7 + block for block in range(blocks)),
    )


def told(number: int, event: Happened, gateway: str = FOLLOWERS[0]) -> Told:
    """One message of a follower."""
    ago_s = 0.000_123 if isinstance(event, Arrived) else None
    return Told(
        gateway, POOL, epoch=1_764_504_000_123, session=7, number=number, event=event, ago_s=ago_s
    )


def messages_of_a_request() -> dict[str, Message]:
    """All that is said about one, by what it is."""
    id = request(1).id
    usage = Usage(prompt_tokens=512, output_tokens=180)
    finished = Finished(id, Outcome.DONE, usage, 0.021)
    granted = Granted(id, "gpu0-8000", 0.004)
    placed = Placed(id, 3, 1.25)

    def decided(ruling: Granted | Placed) -> Decided:
        return Decided(
            LEADER, POOL, epoch=1_764_504_000_123, session=7, number=1_000, decision=ruling
        )

    return {
        "it arrived": told(1_000, Arrived(request(1))),
        "the same with a beginning of 8 blocks": told(1_000, Arrived(request(1, blocks=BLOCKS))),
        "it waits": decided(placed),
        "it was granted": decided(granted),
        "it began": told(1_000, FirstToken(id)),
        "it ended": told(1_000, finished),
    }


def messages_of_a_beat() -> dict[str, Message]:
    """What is said four times a second for each follower."""
    progressed = Progressed("gpu0-8000", {request(n).id: 100 + n for n in range(64)}, None)
    return {
        "a follower's heartbeat": Beat(FOLLOWERS[0], POOL, 1_764_504_000_123, 7, 1_000),
        "a leader's heartbeat": Led(LEADER, POOL, 1_764_504_000_123, 7, 1_000),
        "progress of 64 that run on one replica": told(1_000, progressed),
    }


def bytes_of(message: Message, beside: int = 0) -> float:
    """Bytes of a message in a payload with so many like it."""
    payload = encoded(message.sender, [message] * (beside + 1))
    return len(payload) / (beside + 1)


class Line:
    """A leader, and the time that it spends."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Policy(tiers=DEFAULT_TIERS, headroom_max=0.0, warm_up_s=0.0))
        self.posted: dict[str, list[Message]] = {}
        self.payloads = 0
        self.member = Member(LEADER, self.scheduler, self._post)
        self.now = 0.0
        found = ReplicaFound(replica="gpu0-8000", models=frozenset({POOL}), slots=SLOTS)
        self.member.handle(found, self.now)
        self._lives(0)
        self._report()
        for name in FOLLOWERS:
            self.member.heard([Synced(name, POOL, 1, 1, ())], self.now)
        self.member.beat(self.now)
        assert self.member.led
        assert not self.member.led[POOL].is_gathering
        self.posted.clear()

    def _post(self, to: str, message: Message) -> None:
        self.posted.setdefault(to, []).append(message)

    def _lives(self, at: int) -> None:
        names = dict.fromkeys((LEADER, *FOLLOWERS), "")
        standing = Standing(gateways=names, leaders={POOL: Leader(LEADER, 1)})
        self.member.stands(standing, self.now, asked_at=self.now)

    def _report(self) -> None:
        report = ReplicaReport(running=len(self.scheduler.granted), waiting=0, slots=SLOTS)
        event = ReplicaReported(
            replica="gpu0-8000", sent_at=self.now, report=report, round_trip_s=0.001
        )
        self.member.handle(event, self.now)

    def turn(self, payloads: list[bytes]) -> list[bytes]:
        """What comes in, what goes out."""
        for payload in payloads:
            self.member.heard(decoded(payload), self.now)
        out = [encoded(LEADER, messages) for messages in self.posted.values()]
        self.posted.clear()
        self.payloads += len(out)
        return out

    def run(self, size: int, requests: int) -> float:
        """Seconds of CPU a request, `size` of each follower at a time."""
        spent, numbers = 0.0, dict.fromkeys(FOLLOWERS, 0)
        for first in range(0, requests, size * len(FOLLOWERS)):
            self.now += 0.01
            self._lives(first)
            self._report()
            came, ended = [], []
            for at, gateway in enumerate(FOLLOWERS):
                ids = [first + at * size + n for n in range(size)]
                came.append(self._payload(gateway, numbers, [Arrived(request(n)) for n in ids]))
                over = [
                    event
                    for n in ids
                    for event in (
                        FirstToken(request(n).id),
                        Finished(
                            request(n).id,
                            Outcome.DONE,
                            Usage(prompt_tokens=512, output_tokens=180),
                            0.02,
                        ),
                    )
                ]
                ended.append(self._payload(gateway, numbers, over))
            began = process_time()
            granted = self.turn(came)
            self.turn(ended)
            spent += process_time() - began
            assert len(granted) == len(FOLLOWERS)
        assert not self.scheduler.waiting
        assert not self.scheduler.granted
        return spent / requests

    def _payload(self, gateway: str, numbers: dict[str, int], events: Sequence[Happened]) -> bytes:
        said = []
        for event in events:
            numbers[gateway] += 1
            told_at = 0.0 if isinstance(event, Arrived) else None
            said.append(
                Told(
                    gateway,
                    POOL,
                    epoch=1,
                    session=1,
                    number=numbers[gateway],
                    event=event,
                    ago_s=told_at,
                )
            )
        return encoded(gateway, said)


def main() -> None:
    """Print it."""
    for name, message in {**messages_of_a_request(), **messages_of_a_beat()}.items():
        alone, among = bytes_of(message), bytes_of(message, 15)
        sys.stdout.write(f"{name}: {alone:.0f} bytes alone, {among:.0f} among 16\n")
    for size in SIZES:
        best = min(Line().run(size, REQUESTS // 4) for _ in range(3))
        sys.stdout.write(
            f"{size} at a time: {best * 1e6:.0f} us a request, {1 / best:.0f} requests/s\n"
        )


if __name__ == "__main__":
    main()
