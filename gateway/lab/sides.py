"""What each request of a workload got in one telling: from the log, or from a simulated run.

Columns by the number of the request, so that several tellings of the same requests can be compared.
Knows nothing of groups and percentiles.
"""

from array import array
from math import isnan, nan
from pathlib import Path

import msgspec

from gateway.sim.workload.lines import lines_of
from gateway.sim.workload.log_survey import LEFT, Logged
from gateway.sim.world.outcome import Outcome, Status

REFUSED = frozenset({429, 503})
"""Statuses of whoever was not served and may come back."""


class Got(Logged, frozen=True):
    """What a line says that its request got, beside what it asked for."""

    waited_s: float | None = None
    ttft_s: float | None = None
    streams: bool = True
    replica: str = ""

    @property
    def ending(self) -> Status:
        """How it ended, in the words of a simulated run."""
        if self.outcome == "done":
            return Status.DONE
        if self.outcome in LEFT:
            return Status.LEFT
        return Status.REFUSED if self.status in REFUSED else Status.FAILED


class Side:
    """One telling. Seconds are NaN where there are none: no token, not to the end, never sent."""

    def __init__(self, weights: tuple[float, float]) -> None:
        """`weights`: what a prompt token and an output token count as service."""
        self.weights = weights
        self.ttft_s = array("d")
        self.e2e_s = array("d")
        self.wait_s = array("d")
        self.service = array("d")
        self.status = array("b")

    def __len__(self) -> int:
        return len(self.status)

    def add(
        self,
        status: Status,
        *,
        ttft_s: float,
        e2e_s: float,
        wait_s: float,
        tokens: tuple[int, int],
    ) -> None:
        """The next request; `tokens` are those of its prompt and of what it got."""
        self.status.append(status)
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s if status is Status.DONE else nan)
        self.wait_s.append(wait_s)
        prompt, output = tokens
        has_begun = output > 0 or status is Status.DONE
        self.service.append(self.weights[0] * prompt * has_begun + self.weights[1] * output)


def side_of(outcome: Outcome, weights: tuple[float, float]) -> Side:
    """What a run gave, by number; the numbers are 0, 1, 2 ..."""
    side = Side(weights)
    for row in sorted(range(outcome.n), key=outcome.number.__getitem__):
        assert outcome.number[row] == len(side)
        first, sent, arrived = outcome.first[row], outcome.sent[row], outcome.arrived[row]
        side.add(
            Status(outcome.status[row]),
            ttft_s=first - arrived,
            e2e_s=outcome.ended[row] - arrived,
            wait_s=sent - arrived,
            tokens=(0 if isnan(first) else outcome.prompt[row], outcome.output[row]),
        )
    return side


class Log:
    """What the log says that its requests got, and where: read once, in the order of arrival."""

    def __init__(
        self,
        path: Path,
        *,
        tiers: tuple[str, ...],
        model: str | None,
        weights: tuple[float, float],
    ) -> None:
        """The lines that `RequestLogFile` plays, numbered as it numbers them."""
        self.replicas: set[str] = set()
        decoder = msgspec.json.Decoder(Got)
        lines = list[tuple[float, Got]]()
        for _, _, text in lines_of(path):
            try:
                line = decoder.decode(text or b"")
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if line.is_work and line.tier in tiers and model in (None, line.model):
                lines.append((line.arrived_at, line))
        # Stable, as the numbering is.
        lines.sort(key=lambda pair: pair[0])
        self.side = Side(weights)
        for _, line in lines:
            self._add(line)

    def _add(self, line: Got) -> None:
        if line.replica:
            self.replicas.add(line.replica)
        usage = line.usage
        begun = line.ttft_s if line.streams and line.ttft_s is not None else nan
        prompt = 0 if usage is None else usage.prompt_tokens
        self.side.add(
            line.ending,
            ttft_s=begun,
            e2e_s=line.duration_s,
            wait_s=line.waited_s if line.replica and line.waited_s is not None else nan,
            tokens=(prompt, 0 if usage is None else usage.output_tokens),
        )
