"""What became of every request of a run, as columns of numbers, and what follows from them.

A million requests take some sixty-five megabytes. Knows nothing of engines and dispatchers.
"""

import json
from array import array
from collections.abc import Callable, Iterable
from enum import IntEnum
from hashlib import sha256
from math import ceil, inf, isnan, nan
from typing import TypeVar

What = TypeVar("What")

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
INSTANTS = ("arrived", "sent", "first", "ended")
NUMBERS = ("number", "tenant", "user", "prompt", "output")
SMALL = ("tier", "replica", "attempts", "status")


class Status(IntEnum):
    """How a request ended."""

    OPEN = 0
    """It had not when the run was cut."""
    DONE = 1
    REFUSED = 2
    LEFT = 3
    """Its client gave up."""
    FAILED = 4
    """Its answer broke off and did not go on."""
    TOO_LONG = 5
    """No engine of the plan could ever hold it."""


class Outcome:
    """One row for each request, in the order of arrival. Instants are NaN where there was none."""

    def __init__(self) -> None:
        self.number = array("q")
        self.arrived = array("d")
        self.sent = array("d")
        """When it last went to an engine before its first token."""
        self.first = array("d")
        """When its client had the first token."""
        self.ended = array("d")
        """When its client had all, or it ended otherwise."""
        self.tier = array("h")
        self.tenant = array("i")
        """Index into `tenants`."""
        self.user = array("i")
        """Index into `users`."""
        self.prompt = array("i")
        self.output = array("i")
        """Tokens that its client got."""
        self.replica = array("h")
        """The last it went to; -1: none."""
        self.attempts = array("h")
        """How often it went to an engine."""
        self.status = array("h")
        self.tenants: list[str] = []
        self.users: list[tuple[str, str]] = []
        """(tenant, user)."""
        self.counters: list[dict[str, int]] = []
        """Of every engine, all its lives together."""
        self.lasted_s = 0.0
        self._tenant_index: dict[str, int] = {}
        self._user_index: dict[tuple[str, str], int] = {}

    @property
    def n(self) -> int:
        """Requests."""
        return len(self.arrived)

    def begin(
        self, number: int, at: float, *, tier: int, who: tuple[str, str], prompt_tokens: int
    ) -> int:
        """A request arrived from `who` (tenant, user); its row."""
        self.number.append(number)
        self.arrived.append(at)
        for column in (self.sent, self.first, self.ended):
            column.append(nan)
        self.tier.append(tier)
        self.tenant.append(_index(who[0], self.tenants, self._tenant_index))
        self.user.append(_index(who, self.users, self._user_index))
        self.prompt.append(prompt_tokens)
        self.output.append(0)
        self.replica.append(-1)
        self.attempts.append(0)
        self.status.append(Status.OPEN)
        return len(self.arrived) - 1

    # --- reading --------------------------------------------------------------------------------

    def rows(
        self,
        *,
        tier: int | None = None,
        tenant: str | None = None,
        user: str | None = None,
        status: Status | None = None,
        arrived: tuple[float, float] = (-inf, inf),
    ) -> list[int]:
        """Rows for which all of these hold; `arrived` is [from, until)."""
        users = {i for i, who in enumerate(self.users) if user is None or who[1] == user}
        tenants = {i for i, who in enumerate(self.tenants) if tenant is None or who == tenant}
        return [
            row
            for row in range(self.n)
            if (tier is None or self.tier[row] == tier)
            and self.user[row] in users
            and self.tenant[row] in tenants
            and (status is None or self.status[row] == status)
            and arrived[0] <= self.arrived[row] < arrived[1]
        ]

    def ttft_s(self, row: int) -> float:
        """Arrival to first token; infinite where there was none."""
        first = self.first[row]
        return inf if isnan(first) else first - self.arrived[row]

    def e2e_s(self, row: int) -> float:
        """Arrival to last token; infinite where it did not get all."""
        return self.ended[row] - self.arrived[row] if self.status[row] == Status.DONE else inf

    def wait_s(self, row: int) -> float:
        """Arrival to its way to the engine; infinite where it never went."""
        sent = self.sent[row]
        return inf if isnan(sent) else sent - self.arrived[row]

    def tpot_s(self, row: int) -> float:
        """Mean time between two tokens; NaN where it did not get two."""
        tokens = self.output[row]
        if self.status[row] != Status.DONE or tokens < 2:
            return nan
        return (self.ended[row] - self.first[row]) / (tokens - 1)

    def percentile(
        self, what: Callable[[int], float], share: float, rows: Iterable[int] | None = None
    ) -> float:
        """Of `what` over `rows` (all): the smallest that `share` of them do not exceed.

        NaN does not count; 0 where nothing does.
        """
        return percentile(self._values(what, rows), share)

    def mean(self, what: Callable[[int], float], rows: Iterable[int] | None = None) -> float:
        """Of `what` over `rows` (all); 0 where there are none."""
        values = self._values(what, rows)
        return sum(values) / len(values) if values else 0.0

    def counted(self, rows: Iterable[int] | None = None) -> dict[str, int]:
        """Requests by how they ended."""
        counts = dict.fromkeys(Status, 0)
        for row in range(self.n) if rows is None else rows:
            counts[Status(self.status[row])] += 1
        return {status.name.lower(): count for status, count in counts.items()}

    def goodput_per_s(self, ttft_s: float, tpot_s: float) -> float:
        """Requests a second that met both targets."""
        good = sum(
            self.ttft_s(row) <= ttft_s and not self.tpot_s(row) > tpot_s
            for row in range(self.n)
            if self.status[row] == Status.DONE
        )
        return good / self.lasted_s if self.lasted_s else 0.0

    def service(
        self, column: "array[int]", *, every_s: float, weights: tuple[float, float] = (1.0, 2.0)
    ) -> dict[int, list[float]]:
        """Weighted tokens that each value of `column` got in each span of `every_s`.

        `weights`: of a prompt token, due at the first token, and of an output token, spread evenly
        from the first to the last.
        """
        spans = int(self.lasted_s / every_s) + 1
        out: dict[int, list[float]] = {}
        for row in range(self.n):
            first = self.first[row]
            if isnan(first):
                continue
            served = out.setdefault(column[row], [0.0] * spans)
            at = int(first / every_s)
            served[at] += weights[0] * self.prompt[row]
            _spread(
                served,
                first,
                self.lasted_s if isnan(self.ended[row]) else self.ended[row],
                amount=weights[1] * self.output[row],
                every_s=every_s,
            )
        return out

    # --- writing --------------------------------------------------------------------------------

    def summary(self) -> dict[str, object]:
        """Counts and percentiles: of all, and by tier, tenant and user."""
        by_tier = {str(tier): self._figures(rows) for tier, rows in _groups(self.tier).items()}
        by_tenant = {
            self.tenants[index]: self._figures(rows) for index, rows in _groups(self.tenant).items()
        }
        by_user = {
            "/".join(self.users[index]): self._figures(rows)
            for index, rows in _groups(self.user).items()
        }
        return {
            "requests": self.n,
            "lasted_s": self.lasted_s,
            "all": self._figures(range(self.n)),
            "tiers": by_tier,
            "tenants": by_tenant,
            "users": by_user,
            "engines": self.counters,
        }

    def digest(self) -> str:
        """SHA-256 of every number of every row."""
        sums = sha256()
        for name in (*INSTANTS, *NUMBERS, *SMALL):
            sums.update(name.encode())
            sums.update(getattr(self, name).tobytes())
        sums.update(json.dumps([self.tenants, self.users]).encode())
        return sums.hexdigest()

    def to_json(self, *, with_rows: bool = False) -> str:
        """The summary, the digest of all rows and, where wanted, the rows; the same for the same.

        Rows are columns; what is NaN or infinite is null.
        """
        told: dict[str, object] = {**self.summary(), "digest": self.digest()}
        if with_rows:
            columns = {name: list(getattr(self, name)) for name in (*INSTANTS, *NUMBERS, *SMALL)}
            told["rows"] = {**columns, "tenants": self.tenants, "users": self.users}
        return json.dumps(_finite(told), allow_nan=False, separators=(",", ":"))

    def _values(self, what: Callable[[int], float], rows: Iterable[int] | None) -> list[float]:
        values = [what(row) for row in (range(self.n) if rows is None else rows)]
        return [value for value in values if not isnan(value)]

    def _figures(self, rows: Iterable[int]) -> dict[str, object]:
        rows = list(rows)
        metrics = {"ttft_s": self.ttft_s, "e2e_s": self.e2e_s, "tpot_s": self.tpot_s}
        out: dict[str, object] = {"requests": len(rows), "ended": self.counted(rows)}
        for name, what in metrics.items():
            values = sorted(self._values(what, rows))
            figures = {f"p{share * 100:g}": _ranked(values, share) for share in PERCENTILES}
            mean = sum(values) / len(values) if values else 0.0
            out[name] = {"mean": mean, **figures}
        return out


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of `values` that `share` of them do not exceed; 0 where there are none."""
    return _ranked(sorted(values), share)


def _ranked(ordered: list[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _index(what: What, known: list[What], index: dict[What, int]) -> int:
    found = index.get(what)
    if found is None:
        found = index[what] = len(known)
        known.append(what)
    return found


def _groups(column: "array[int]") -> dict[int, list[int]]:
    """Rows by value, in the order of the values."""
    out: dict[int, list[int]] = {}
    for row, value in enumerate(column):
        out.setdefault(value, []).append(row)
    return dict(sorted(out.items()))


def _spread(
    served: list[float], since: float, until: float, *, amount: float, every_s: float
) -> None:
    """Put `amount` evenly on the spans between two instants."""
    length = until - since
    if length <= 0:
        served[int(since / every_s)] += amount
        return
    for span in range(int(since / every_s), min(len(served) - 1, int(until / every_s)) + 1):
        inside = min(until, (span + 1) * every_s) - max(since, span * every_s)
        served[span] += amount * inside / length


def _finite(told: object) -> object:
    if isinstance(told, float):
        return told if -inf < told < inf else None
    if isinstance(told, dict):
        return {key: _finite(value) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [_finite(value) for value in told]
    return told
