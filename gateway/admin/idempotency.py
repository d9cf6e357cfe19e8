"""A POST that is sent twice is done once: what was answered under its key is answered again.

A deed that is kept has its answer in the same commit; of any other the last few are remembered
here. What is asked for, and who may, is not known here.
"""

import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from gateway.admin.problems import InFlightError, KeyReusedError
from gateway.errors import BadRequestError, OverloadedError
from gateway.tenancy.store.port import Answer

HEADER = b"idempotency-key"
KEY_SHAPE = re.compile(r"[\x21-\x7e]{1,255}")
IN_FLIGHT_MAX = 256
"""Requests with a key that are being answered at once."""
REMEMBERED_MAX = 1_000
"""Answers that no commit holds; the oldest are forgotten first."""
AGAIN_S = 1.0


@dataclass(slots=True)
class Attempt:
    """One request with an idempotency key, while it is answered."""

    key: str
    fingerprint: str
    is_kept: bool = field(default=False)
    """Whether its answer is part of a commit."""

    def answer(self, status: int, body: bytes) -> tuple[str, Answer]:
        """What the commit is told, so that the deed and its answer are one."""
        self.is_kept = True
        told = Answer(
            fingerprint=self.fingerprint, status=status, body=body,
            headers={"content-type": "application/json"},
        )  # fmt: skip
        return self.key, told


def fingerprint_of(*parts: bytes) -> str:
    """Hash of a request by its parts, which cannot run into one another."""
    digest = sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


class Idempotency:
    """Answers by idempotency key."""

    def __init__(self, answered: Callable[[str], Awaitable[Answer | None]]) -> None:
        """`answered` knows what commits hold."""
        self._answered = answered
        self._in_flight: dict[str, str] = {}
        self._remembered: OrderedDict[str, Answer] = OrderedDict()

    @asynccontextmanager
    async def once(self, key: str, fingerprint: str) -> AsyncIterator[Answer | Attempt]:
        """Within: the answer of the time before, or an attempt that is the only one of its key.

        Raises BadRequestError, KeyReusedError, InFlightError, OverloadedError.
        """
        if not KEY_SHAPE.fullmatch(key):
            text = "Idempotency-Key must have 1 to 255 printable characters and no spaces."
            raise BadRequestError(text, param="Idempotency-Key")
        other = self._in_flight.get(key)
        if other is not None:
            if other != fingerprint:
                raise _reused()
            text = "A request with this Idempotency-Key is being answered."
            raise InFlightError(text, retry_after_s=AGAIN_S)
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            text = "Too many requests with an Idempotency-Key at once."
            raise OverloadedError(text, retry_after_s=AGAIN_S)
        self._in_flight[key] = fingerprint
        try:
            known = self._remembered.get(key) or await self._answered(key)
            if known is not None and known.fingerprint != fingerprint:
                raise _reused()
            yield Attempt(key, fingerprint) if known is None else known
        finally:
            del self._in_flight[key]

    def remember(self, attempt: Attempt, status: int, body: bytes) -> None:
        """What was answered to something that no commit holds."""
        key, answer = attempt.answer(status, body)
        self._remembered[key] = answer
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


def _reused() -> KeyReusedError:
    text = "This Idempotency-Key came with another request before."
    return KeyReusedError(text, param="Idempotency-Key")
