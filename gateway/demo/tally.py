"""What the users of one phase have seen: requests, waits for the first token, tokens, failures.

Pure: instants come in as arguments, in seconds of any one clock.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.bench.quantiles import percentile

WAITS_MAX = 4_096
"""An endless demo keeps the latest so many waits of each user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waits for the first token, in seconds."""

    count: int
    mean_s: float
    p95_s: float
    is_at_least: bool
    """Some still wait and were counted with their wait so far."""


def waits_of(answered: Sequence[float], still_waiting: Iterable[float]) -> Waits | None:
    """The figures of these waits; None when there are none.

    Of those that still wait only the ones count that already waited longer than the answered ones
    did on average: a request sent a moment ago says nothing yet.
    """
    threshold_s = sum(answered) / len(answered) if answered else 0.0
    late = [wait_s for wait_s in still_waiting if wait_s > threshold_s]
    counted = sorted((*answered, *late))
    if not counted:
        return None
    return Waits(
        count=len(counted),
        mean_s=sum(counted) / len(counted),
        p95_s=percentile(counted, 0.95),
        is_at_least=bool(late),
    )


class Account:
    """One user's requests."""

    __slots__ = ("_numbers", "_waiting", "answered_s", "failed", "tokens")

    def __init__(self) -> None:
        self._numbers = 0
        self._waiting: dict[int, float] = {}
        self.answered_s: deque[float] = deque(maxlen=WAITS_MAX)
        """Waits of those that got their first token."""
        self.failed = 0
        self.tokens = 0

    @property
    def sent(self) -> int:
        """Requests so far."""
        return self._numbers

    @property
    def waiting(self) -> int:
        """Requests without a first token."""
        return len(self._waiting)

    def send(self, now: float) -> int:
        """A request goes out; returns its number."""
        self._numbers += 1
        self._waiting[self._numbers] = now
        return self._numbers

    def begin(self, number: int, now: float) -> None:
        """Its first token is there; told again, nothing changes."""
        sent_at = self._waiting.pop(number, None)
        if sent_at is not None:
            self.answered_s.append(now - sent_at)

    def fail(self, number: int) -> None:
        """It will get no (further) token; its wait says nothing."""
        self._waiting.pop(number, None)
        self.failed += 1

    def still_waiting_s(self, now: float) -> list[float]:
        """How long each request without a first token has waited."""
        return [now - sent_at for sent_at in self._waiting.values()]


class Tally:
    """All users of one phase."""

    __slots__ = ("_ended_at", "accounts", "complaint")

    def __init__(self, users: Iterable[str]) -> None:
        self.accounts = {user: Account() for user in users}
        self.complaint: str | None = None
        """Why the first failed request failed."""
        self._ended_at: deque[float] = deque(maxlen=WAITS_MAX)

    def end(self, now: float) -> None:
        """An answer is complete, and so its slot is free."""
        self._ended_at.append(now)

    def fail(self, user: str, number: int, reason: str) -> None:
        """A request of `user` failed."""
        self.accounts[user].fail(number)
        self.complaint = self.complaint or reason

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return sum(account.failed for account in self.accounts.values())

    def release_interval_s(self, replicas: int, since: float, until: float) -> float | None:
        """Mean time between two ends on one of `replicas` replicas; None when nothing ended.

        While all slots are busy this is the mean service time over the slots of one replica.
        """
        ended = sum(since <= ended_at <= until for ended_at in self._ended_at)
        return replicas * (until - since) / ended if ended else None

    def waits(self, users: Iterable[str], now: float) -> Waits | None:
        """The waits of these users together."""
        accounts = [self.accounts[user] for user in users]
        return waits_of(
            [wait_s for account in accounts for wait_s in account.answered_s],
            [wait_s for account in accounts for wait_s in account.still_waiting_s(now)],
        )

    def token_share(self, user: str) -> float:
        """The part of all tokens so far that `user` got, 0..1."""
        tokens = sum(account.tokens for account in self.accounts.values())
        return self.accounts[user].tokens / tokens if tokens else 0.0
