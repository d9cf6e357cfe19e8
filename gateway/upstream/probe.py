"""Asks one replica, over a connection of its own, how it is and what it serves, and tells it on.

It decides when a replica counts as found and as lost. It knows nothing of requests, queues or
other replicas and does not judge load. `/health` is not asked: vLLM answers 200 there while its
core is frozen. The sign of life is progress, which is read out of the reports.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import httpx
import orjson

from gateway.core.messages import Event, ReplicaFound, ReplicaLost, ReplicaRefused, ReplicaReported
from gateway.core.report import ReplicaReport
from gateway.upstream.dialects.dialect import Dialect, EngineFacts
from gateway.upstream.dialects.registry import by_name, by_owner, detect
from gateway.upstream.exhausted import is_exhausted
from gateway.upstream.replicas import (
    ModelCard,
    ReplicaAddress,
    ReplicaStatus,
    context_lengths,
    model_cards,
)
from gateway.upstream.unanswered import UNANSWERED

LOGGER = logging.getLogger("fairgate.probe")
METRICS_BYTES_MAX = 4 << 20
"""vLLM writes 50 kB, and 14 kB more for each further data-parallel engine."""
ANSWER_BYTES_MAX = 1 << 20
"""Model cards and server information."""
FAST_FACTOR = 4
"""So many times as often while the caller wants to learn quickly."""
JITTER_SHARE = 0.2
"""The pause varies by this share of itself, so that a fleet's probes do not march in step."""
REFUSALS_TO_LOSE = 2
"""Nobody listens there: no slow answer deserves patience."""
KEEPALIVE_S = 4.0
"""Below the 5 s after which uvicorn closes an idle connection: no race with that."""
REASON_CHARS_MAX = 200
DENIED = (401, 403)
METRICS_PATH = "/metrics"
MODELS_PATH = "/v1/models"


class NoAnswer(Exception):
    """One route gave nothing usable. `status` is set where it answered at all."""

    def __init__(
        self,
        reason: str,
        status: int | None = None,
        *,
        refused: bool = False,
        is_ours: bool = False,
    ) -> None:
        super().__init__(reason)
        self.is_ours = is_ours
        """Whether this process could not even ask."""
        self.reason = reason
        self.status = status
        self.refused = refused


def _never() -> bool:
    return False


def _middle() -> float:
    return 0.5


class Probe:
    """The watch over ONE replica: `run()` loops until cancelled, `probe_once()` is one round.

    A round asks for the metrics; and for the models on first contact, when they are due, and
    whenever the metrics gave nothing. A replica is lost after `misses_to_lose` rounds in a row
    that got neither, or after `REFUSALS_TO_LOSE` in a row whose connection was refused.
    """

    def __init__(
        self,
        address: ReplicaAddress,
        *,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        interval_s: float = 1.0,
        timeout_s: float = 2.0,
        misses_to_lose: int = 3,
        models_every_s: float = 10.0,
        jitter: Callable[[], float] = _middle,
        wants_fast: Callable[[], bool] = _never,
        is_heard: Callable[[], bool] = _never,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout_s` bounds each single question; `jitter` draws from 0..1.

        `is_heard()` tells whether the replica's answers to clients arrive: one that is merely too
        busy for a question in time does not miss it.

        ValueError where the address names an engine without a dialect; OSError where its
        `ca_file` cannot be read.
        """
        self.address = address
        self._tell = tell
        self._clock = clock
        self.interval_s = interval_s
        self._timeout_s = timeout_s
        self._misses_to_lose = misses_to_lose
        self._models_every_s = models_every_s
        self._jitter = jitter
        self._wants_fast = wants_fast
        self._is_heard = is_heard
        self._sleep = sleep
        self._client = _client_for(address, timeout_s, transport)
        self._dialect = by_name(address.engine) if address.engine else None
        self._facts: EngineFacts | None = None
        self._models_due_at = clock()
        self._unlisted: NoAnswer | None = None
        self._refusals = 0
        self.status = ReplicaStatus(engine=address.engine)

    async def run(self) -> None:
        """Probes until cancelled, and closes the connection on the way out."""
        try:
            while True:
                began_at = self._clock()
                try:
                    await self.probe_once()
                except Exception:
                    # One replica's answer that nobody thought of must not end the gateway.
                    LOGGER.exception("%s: asking it how it is failed", self.address.name)
                await self._sleep(self._pause_s(self._clock() - began_at))
        finally:
            await self.aclose()

    def follow(self, other: "Probe") -> None:
        """Go on from what `other` knew of the same replica, which has other options now."""
        self._dialect = self._dialect or other._dialect
        self._facts = other._facts if self._dialect is other._dialect else None
        before = other.status
        self.status = replace(before, engine=self._dialect.name if self._dialect else None)
        self.status = replace(self.status, models=self._models(), slots=self._slots(before.engines))
        if self.status.up:
            self._tell_found()

    async def aclose(self) -> None:
        """Closes the connection; for callers that use `probe_once` without `run`."""
        await self._client.aclose()

    async def probe_once(self) -> ReplicaStatus:
        """One round: asks, tells what came of it and returns the new status."""
        asked_at = self._clock()
        report, failure = await self._metrics()
        round_trip_s = self._clock() - asked_at
        if failure is not None and failure.refused:
            self._missed(failure)
            return self.status
        is_due = self._clock() >= self._models_due_at
        listed = False
        if report is None or not self.status.up or is_due:
            listed = await self._list_models()
        if report is None and not listed:
            self._missed(self._unlisted or failure)
            return self.status
        self._answered(report, failure or self._unlisted, listed=listed, is_due=is_due)
        if report is not None and self.status.up:
            self._report(report, sent_at=asked_at, round_trip_s=round_trip_s)
        return self.status

    # --- the questions --------------------------------------------------------------------------

    async def _metrics(self) -> tuple[ReplicaReport | None, NoAnswer | None]:
        """A report, or why there is none: not reachable, no such route, or not an engine's text."""
        path = self._dialect.metrics_path if self._dialect else METRICS_PATH
        try:
            text = await self._get(path, METRICS_BYTES_MAX)
        except NoAnswer as failure:
            return None, failure
        found = detect(text)
        if self.address.engine is None:
            self._recognise(found)
        report = self._dialect.parse(text) if self._dialect else ReplicaReport()
        if report == ReplicaReport(missing=report.missing):
            whose = found.name if found else "no known engine"
            return None, NoAnswer(f"GET {path}: metrics of {whose}", 200)
        return report, None

    async def _list_models(self) -> bool:
        """Brings cards and facts up to date; False where the engine lists no model."""
        self._models_due_at = self._clock() + self._models_every_s
        try:
            cards = await self._cards()
        except NoAnswer as failure:
            self._unlisted = failure
            return False
        self._unlisted = None
        if self._dialect is None:
            owners = (by_owner(card.get("owned_by")) for card in cards.values())
            self._recognise(next((owner for owner in owners if owner is not None), None))
        await self._ask_facts()
        self.status = replace(self.status, cards=cards)
        return True

    async def _cards(self) -> Mapping[str, ModelCard]:
        try:
            cards = model_cards(await self._get_json(MODELS_PATH))
        except NoAnswer as failure:
            # Older TGI servers name their one model on the information route only.
            if failure.status == 404:
                await self._ask_facts()
            if failure.status != 404 or self._facts is None or self._facts.model is None:
                raise
            cards = {self._facts.model: {"id": self._facts.model, "object": "model"}}
        if not cards:
            raise NoAnswer(f"GET {MODELS_PATH}: lists no model", 200)
        return cards

    async def _ask_facts(self) -> None:
        """Asks the engine's information route, once per coming up; a failure is asked again."""
        if self._facts is not None or self._dialect is None:
            return
        for path in self._dialect.info_paths:
            try:
                answer = await self._get_json(path)
            except NoAnswer:
                continue
            self._facts = self._dialect.read_info(answer)
            return

    async def _get_json(self, path: str) -> Mapping[str, object]:
        body = await self._get(path, ANSWER_BYTES_MAX)
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise NoAnswer(f"GET {path}: not a JSON object", 200)
        return answer

    async def _get(self, path: str, bytes_max: int) -> bytes:
        """The body of a 200 answer of at most `bytes_max`, within `timeout_s`; else NoAnswer."""
        try:
            async with asyncio.timeout(self._timeout_s), self._client.stream("GET", path) as answer:
                if answer.status_code != 200:
                    raise NoAnswer(f"GET {path}: HTTP {answer.status_code}", answer.status_code)
                # It was not asked for, and one chunk of it could unfold beyond any bound.
                if answer.headers.get("content-encoding", "identity") != "identity":
                    raise NoAnswer(f"GET {path}: compressed against our wish", 200)
                body = bytearray()
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > bytes_max:
                        raise NoAnswer(f"GET {path}: more than {bytes_max} bytes", 200)
                return bytes(body)
        except (TimeoutError, httpx.TimeoutException):
            raise NoAnswer(f"GET {path}: no answer within {self._timeout_s:g} s") from None
        except UNANSWERED as error:
            raise NoAnswer(
                f"GET {path}: {_reason(error)}",
                refused=_is_refused(error),
                is_ours=is_exhausted(error),
            ) from None

    # --- what follows from the answers ----------------------------------------------------------

    def _recognise(self, dialect: Dialect | None) -> None:
        if dialect is not None and dialect is not self._dialect:
            self._dialect = dialect
            self._facts = None

    def _answered(
        self, report: ReplicaReport | None, failure: NoAnswer | None, *, listed: bool, is_due: bool
    ) -> None:
        """The replica is alive: found, if what it serves is known and it lets us in."""
        self._refusals = 0
        before = self.status
        denied = self._unlisted is not None and self._unlisted.status in DENIED
        up = before.up or listed or (self.address.models is not None and not denied)
        engines = before.engines if report is None else report.engines
        self.status = replace(
            before,
            up=up,
            engine=self._dialect.name if self._dialect else None,
            engines=engines,
            slots=self._slots(engines),
            models=self._models(),
            last_success_at=self._clock(),
            last_error=None if failure is None else failure.reason,
            detail=self._detail(report),
            missing=() if report is None else report.missing,
            misses=0,
        )
        news = (not before.up, self.status.models != before.models, engines != before.engines)
        if up and (any(news) or (listed and is_due)):
            self._tell_found()

    def _tell_found(self) -> None:
        self._tell(
            ReplicaFound(
                replica=self.address.name,
                models=frozenset(self.status.models),
                slots=self.status.slots,
                weight=self.address.weight,
                context_tokens=self._context_tokens(),
                orders_by_tier=self.address.scheduling_policy == "priority",
            )
        )

    def _missed(self, failure: NoAnswer | None) -> None:
        assert failure is not None, "a round without answers has a reason"
        if failure.is_ours or (self.status.up and not failure.refused and self._is_heard()):
            self.status = replace(self.status, last_error=failure.reason)
            return
        self._refusals = self._refusals + 1 if failure.refused else 0
        # What comes back may have been started anew, with other models.
        self._models_due_at = self._clock()
        misses = self.status.misses + 1
        is_lost = misses >= self._misses_to_lose or self._refusals >= REFUSALS_TO_LOSE
        was_up = self.status.up
        self.status = replace(
            self.status,
            up=was_up and not is_lost,
            misses=misses,
            last_error=failure.reason,
            away_at=self._clock() if failure.refused or is_lost else self.status.away_at,
        )
        if failure.refused or is_lost:
            self._facts = None
        if was_up and failure.refused:
            self._tell(ReplicaRefused(self.address.name))
        if was_up and is_lost:
            if self.address.engine is None:
                self._dialect = None
            self._tell(ReplicaLost(self.address.name))

    def _report(self, report: ReplicaReport, *, sent_at: float, round_trip_s: float) -> None:
        if self._facts is not None:
            report = replace(report, slots=self._facts.slots)
        self._tell(
            ReplicaReported(
                replica=self.address.name,
                sent_at=sent_at,
                report=report,
                round_trip_s=round_trip_s,
            )
        )

    def _slots(self, engines: int) -> int | None:
        """Slots of the whole replica: the configuration speaks of one engine, the facts of all."""
        if self.address.max_num_seqs is not None:
            return self.address.max_num_seqs * engines
        return self._facts.slots if self._facts else None

    def _models(self) -> dict[str, int | None]:
        """The names offered, the configured ones if any, with the tokens one request may have."""
        listed = context_lengths(self.status.cards)
        otherwise = self._facts.max_model_len if self._facts else None
        names = listed if self.address.models is None else sorted(self.address.models)
        return {name: listed.get(name) or otherwise for name in names}

    def _context_tokens(self) -> int | None:
        """The longest context of all models here; None while one of them does not say."""
        told = [tokens for tokens in self.status.models.values() if tokens is not None]
        return max(told) if told and len(told) == len(self.status.models) else None

    def _detail(self, report: ReplicaReport | None) -> str | None:
        notes = []
        if report is None:
            flag = self._dialect.metrics_flag if self._dialect else None
            hint = f" (start the engine with {flag})" if flag else ""
            notes.append(f"no metrics{hint}: load that others put there is not seen")
        cards: Mapping[str, ModelCard] = self.status.cards
        absent = sorted((self.address.models or frozenset()) - cards.keys()) if cards else []
        if absent:
            notes.append(f"the engine does not list {', '.join(absent)}")
        return "; ".join(notes) or None

    def _pause_s(self, took_s: float) -> float:
        """Seconds to the next round: the interval less what this one took, never much less."""
        shortest_s = self.interval_s / FAST_FACTOR
        # Once refused, the next round decides: streams on an engine that left hang until then.
        hurries = self._wants_fast() or (self.status.up and self._refusals > 0)
        wanted_s = shortest_s if hurries else self.interval_s
        varied_s = wanted_s * (1.0 + JITTER_SHARE * (self._jitter() - 0.5))
        return max(varied_s - took_s, min(varied_s, shortest_s))


def _client_for(
    address: ReplicaAddress, timeout_s: float, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    """A client with one connection of its own, deaf to proxy variables in the environment."""
    headers = {"accept-encoding": "identity", "user-agent": "fairgate-probe"}
    if address.api_key is not None:
        headers["authorization"] = f"Bearer {address.api_key}"
    if transport is None:
        limits = httpx.Limits(
            max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_S
        )
        transport = httpx.AsyncHTTPTransport(verify=_tls(address), limits=limits, trust_env=False)
    return httpx.AsyncClient(
        base_url=address.url,
        headers=headers,
        timeout=timeout_s,
        trust_env=False,
        transport=transport,
    )


def _tls(address: ReplicaAddress) -> ssl.SSLContext:
    if address.url.startswith("https:"):
        return ssl.create_default_context(cafile=address.ca_file)
    # Never used, and much cheaper than reading the system's certificates for each replica.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _reason(error: Exception) -> str:
    """What to show of a transport error. Only that of connecting is quoted: it holds no secret."""
    if _is_refused(error):
        return "connection refused"
    quoted = str(error)[:REASON_CHARS_MAX] if isinstance(error, httpx.ConnectError) else ""
    return quoted or type(error).__name__


def _is_refused(error: BaseException | None) -> bool:
    """Whether "connection refused" is among the causes; other connection errors may pass."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_refused(one) for one in error.exceptions)
    if error is None or isinstance(error, ConnectionRefusedError):
        return error is not None
    return _is_refused(error.__cause__ or error.__context__)
