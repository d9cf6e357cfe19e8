"""What must hold of an answer, whatever went wrong; and what the right answer would be."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.chaos.clients import Seen, body_of, path_of
from tests.chaos.schedule import Client
from tests.support.sse_reference import payloads_of

REFUSALS = frozenset({429, 500, 502, 503, 504})
"""Statuses that a request may be answered with while engines fail."""
NEVER_KEPT = httpx.Limits(max_keepalive_connections=0)
"""An engine closes what was idle for five seconds, perhaps as it is used again."""
FREE = frozenset({"id", "created", "system_fingerprint"})


@dataclass(frozen=True, slots=True)
class Told:
    """What a stream says."""

    text: str
    reasons: tuple[str, ...]
    errors: int
    dones: int
    ids: frozenset[str]
    usages: tuple[Any, ...]
    halves: int
    """Events that nobody can read."""
    after_end: int
    """Events with text after the first that ended it."""


def told_by(body: bytes) -> Told:
    """Read a stream."""
    text, errors, dones, halves, after_end = "", 0, 0, 0, 0
    reasons: list[str] = []
    ids, usages = set(), []
    for payload in payloads_of(body):
        if payload == b"[DONE]":
            dones += 1
            continue
        try:
            event = json.loads(payload)
        except ValueError:
            halves += 1
            continue
        if "error" in event:
            errors += 1
            continue
        ids.add(event["id"])
        if event.get("usage"):
            usages.append(event["usage"])
        for choice in event["choices"]:
            piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
            after_end += bool(piece and (reasons or errors or dones))
            text += piece
            if choice.get("finish_reason"):
                reasons.append(choice["finish_reason"])
    return Told(
        text, tuple(reasons), errors, dones, frozenset(ids), tuple(usages), halves, after_end
    )


class Oracle:
    """Knows the answer that an engine alone gives."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=20.0, limits=NEVER_KEPT)
        self._known: dict[str, bytes] = {}

    async def learn(self, clients: Sequence[Client]) -> None:
        """Ask for all that these will ask for."""
        for client in clients:
            asked = json.dumps((path_of(client), body_of(client)))
            if asked not in self._known:
                answer = await self._http.post(path_of(client), json=body_of(client))
                assert answer.status_code == 200, answer.text
                self._known[asked] = answer.content

    def answer_to(self, client: Client) -> bytes:
        """What an engine alone says."""
        return self._known[json.dumps((path_of(client), body_of(client)))]

    async def aclose(self) -> None:
        """Close the connection."""
        await self._http.aclose()


def faults_of(seen: Seen, oracle: Oracle) -> list[str]:
    """What is wrong with what a client saw; empty: it was served right, or told why not."""
    if seen.end == "cut":
        return [f"the connection was cut after {len(seen.raw)} bytes: {seen.raw[-200:]!r}"]
    if seen.end == "left":
        return []
    if seen.status != 200:
        return _of_refusal(seen)
    right = oracle.answer_to(seen.client)
    return _of_stream(seen, told_by(right)) if seen.client.streams else _of_plain(seen, right)


def is_served(seen: Seen) -> bool:
    """Whether it got its whole answer."""
    if seen.end != "whole" or seen.status != 200:
        return False
    return not seen.client.streams or not told_by(seen.body).errors


def _of_refusal(seen: Seen) -> list[str]:
    if seen.status not in REFUSALS:
        return [f"status {seen.status}: {seen.body[:200]!r}"]
    try:
        error = json.loads(seen.body)["error"]
    except (ValueError, KeyError, TypeError):
        return [f"a {seen.status} without an error: {seen.body[:200]!r}"]
    return [] if error.get("message") else [f"an error without a message: {error}"]


def _of_plain(seen: Seen, right: bytes) -> list[str]:
    try:
        answer = json.loads(seen.body)
    except ValueError:
        return [f"no JSON: {seen.body[:200]!r}"]
    found = {key: value for key, value in answer.items() if key not in FREE}
    wanted = {key: value for key, value in json.loads(right).items() if key not in FREE}
    return [] if found == wanted else [f"another answer: {found} instead of {wanted}"]


def _ends_with_error(body: bytes) -> bool:
    """Whether an error, and then `[DONE]`, is all that stands at the end."""
    *_, error, done = [b"", *payloads_of(body)]
    return done == b"[DONE]" and b'"error"' in error


def _of_stream(seen: Seen, right: Told) -> list[str]:
    told, faults = told_by(seen.body), []
    if told.halves:
        faults.append(f"events that nobody can read: {seen.body[-300:]!r}")
    if not seen.body.endswith(b"\n\n"):
        faults.append(f"it ends within an event: {seen.body[-300:]!r}")
    if told.errors and not _ends_with_error(seen.body):
        faults.append(f"something follows the error: {seen.body[-300:]!r}")
    if told.after_end:
        faults.append(f"{told.after_end} events with text after the end")
    if len(told.ids) > 1:
        faults.append(f"one stream with {len(told.ids)} ids")
    if told.dones > 1:
        faults.append(f"{told.dones} times [DONE]")
    if told.errors:
        if told.errors > 1:
            faults.append(f"{told.errors} error events")
        if told.reasons and told.text != right.text:
            faults.append("an error event after the end of half an answer")
        if not right.text.startswith(told.text):
            faults.append(f"before the error other text: {told.text!r} of {right.text!r}")
        return faults
    if told.text != right.text:
        faults.append(f"other text: {told.text!r} instead of {right.text!r}")
    if (told.reasons, told.dones) != (right.reasons, right.dones):
        faults.append(f"ended {told.reasons}, {told.dones} times [DONE], not {right.reasons}")
    if told.usages != right.usages:
        faults.append(f"usage {told.usages} instead of {right.usages}")
    return faults
