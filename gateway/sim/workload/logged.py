"""The gateway's own request log as a workload: what was asked of it, to be asked again.

What clients did is taken as given: one that gave up does so after as long again, and one that was
refused does not come back, unless the log holds its second attempt. Where the log cannot know how
long an answer would have been, it is guessed from longer answers of the same tier. A request for
several answers is one of their length together. Knows nothing of policies but the names of tiers.
"""

from array import array
from bisect import bisect
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from random import Random

import msgspec

from gateway.sim.workload.job import Job
from gateway.sim.workload.lines import LINE_BYTES_MAX, line_at, lines_of
from gateway.sim.workload.log_survey import LEFT, Logged, Survey
from gateway.sim.workload.traces import BLOCK_TOKENS

LENGTHS_MAX = 4_096
"""Answers of each tier whose lengths are kept to guess from: the first ones."""
LOGGED_BLOCK_TOKENS = 64
"""Tokens that one number of `prefix` stands for where it is written."""
STRIDE = BLOCK_TOKENS // LOGGED_BLOCK_TOKENS
BYTES_PER_TOKEN = 4.0
"""Of a body, where the log itself does not tell."""
OUTPUT_TOKENS = 256
"""Of an answer, where neither the log nor the client tells."""


class RequestLogFile:
    """A log, open: read through once, then line by line in order of arrival.

    The lines of a log stand in the order in which requests *ended*; an index of a few bytes for
    each brings them in order.
    """

    def __init__(
        self,
        path: Path,
        *,
        tiers: Sequence[str],
        model: str | None = None,
        load: float = 1.0,
        limit: int | None = None,
        tokens_max: int | None = None,
        seed: int = 0,
    ) -> None:
        """Read the log through; `survey` then says what is in it.

        Args:
            path: of the log, one JSON object a line.
            tiers: their names, the first served first; a line of another tier is bad.
            model: only lines of it are played; None: all, as if they were of one model.
            load: arrivals come so many times faster; how long clients wait stays.
            limit: no more requests than that, the earliest ones.
            tokens_max: requests whose prompt and answer together are longer are refused, and
                counted in `refused`.
            seed: of the guessed lengths.

        Raises:
            ValueError: nothing in it can be played; the message says why.
            OSError: it cannot be read.
        """
        if not 0 < load < inf:
            raise ValueError(f"load must be positive, got {load}")
        self.path = path
        self.survey = Survey()
        self.refused = 0
        """Requests refused since `jobs()` was last begun: beyond `tokens_max`."""
        self._ranks = {name: rank for rank, name in enumerate(tiers)}
        self._model = model
        self._load = load
        self._limit = limit
        self._tokens_max = inf if tokens_max is None else tokens_max
        self._seed = seed
        self._decoder = msgspec.json.Decoder(Logged)
        self._lengths: dict[str, list[int]] = {name: [] for name in tiers}
        self._bytes_per_token = BYTES_PER_TOKEN
        self._places = self._surveyed()
        for lengths in self._lengths.values():
            lengths.sort()
        if not self._places:
            raise ValueError("\n".join((f"{path}: nothing to play", *self.survey.told())))

    def jobs(self) -> Iterator[Job]:
        """In order of arrival; those of one instant as they stand in the log."""
        self.refused = number = 0
        with self.path.open("rb") as file:
            for place in self._places:
                if number == self._limit:
                    return
                try:
                    line = self._decoder.decode(line_at(file, place))
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ValueError(f"{self.path} was changed meanwhile: {error}") from error
                job = self._job(number, line, place)
                if job.prompt_tokens + job.output_tokens > self._tokens_max:
                    self.refused += 1
                    continue
                yield job
                number += 1

    def ended(self, job: Job, at: float) -> Job | None:
        """None: the log says when everything came."""
        return None

    def _surveyed(self) -> "array[int]":
        """Places of all lines that are played, in order of arrival."""
        survey, arrivals, places = self.survey, array("d"), array("Q")
        body_bytes = prompt_tokens = 0
        for number, place, text in lines_of(self.path):
            survey.lines += 1
            line = self._read(number, text)
            if line is None:
                continue
            arrivals.append(line.arrived_at)
            places.append(place)
            if line.prompt_tokens is None or line.output_tokens is None:
                survey.guessed += 1
            else:
                body_bytes += line.body_bytes
                prompt_tokens += line.prompt_tokens
                self._remember(line.tier, line.output_tokens)
        if body_bytes and prompt_tokens:
            self._bytes_per_token = body_bytes / prompt_tokens
        order = sorted(range(len(places)), key=arrivals.__getitem__)
        survey.played = len(order)
        if order:
            survey.began_at, survey.ended_at = arrivals[order[0]], arrivals[order[-1]]
        return array("Q", (places[index] for index in order))

    def _read(self, number: int, text: bytes | None) -> Logged | None:
        """The line, or None when it is not to be played, which is counted."""
        survey = self.survey
        if text is None:
            survey.reject(number, f"longer than {LINE_BYTES_MAX} bytes")
            return None
        try:
            line = self._decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            survey.reject(number, str(error))
            return None
        survey.see(line)
        if self._model is not None and line.model != self._model:
            survey.left_out["another model"] += 1
        elif not line.is_work:
            survey.left_out[line.outcome] += 1
        elif line.tier not in self._ranks:
            survey.reject(number, f"there is no tier {line.tier!r}")
        else:
            return line
        return None

    def _remember(self, tier: str, output_tokens: int) -> None:
        lengths = self._lengths[tier]
        if output_tokens and len(lengths) < LENGTHS_MAX:
            lengths.append(output_tokens)

    def _job(self, number: int, line: Logged, place: int) -> Job:
        arrived_at = (line.arrived_at - self.survey.began_at) / self._load
        output_tokens = line.output_tokens
        return Job(
            number=number,
            arrived_at=arrived_at,
            prompt_tokens=line.prompt_tokens
            or max(1, round(line.body_bytes / self._bytes_per_token)),
            output_tokens=self._guess(line, place) if output_tokens is None else output_tokens,
            tier=self._ranks[line.tier],
            tenant=line.tenant,
            user=line.user,
            output_tokens_max=line.output_tokens_max,
            prefix=line.prefix[STRIDE - 1 :: STRIDE],
            session=line.session,
            leaves_at=arrived_at + line.duration_s if line.outcome in LEFT else None,
        )

    def _guess(self, line: Logged, place: int) -> int:
        """One of the tier's answers that are longer than what was produced, within its bound."""
        produced = 0 if line.usage is None else line.usage.output_tokens
        lengths = self._lengths[line.tier]
        shorter = bisect(lengths, produced)
        if shorter < len(lengths):
            dice = Random(f"{self._seed} {place}")
            guess = lengths[shorter + int(dice.random() * (len(lengths) - shorter))]
        else:
            guess = produced or line.output_tokens_max or OUTPUT_TOKENS
        return guess if line.output_tokens_max is None else min(guess, line.output_tokens_max)
