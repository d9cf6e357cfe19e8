"""A POST that is sent twice is done once, whatever of it was lost."""

from collections.abc import Mapping

import pytest

from gateway.admin.idempotency import (
    IN_FLIGHT_MAX,
    REMEMBERED_MAX,
    Attempt,
    Idempotency,
    fingerprint_of,
)
from gateway.admin.problems import InFlightError, KeyReusedError
from gateway.errors import BadRequestError, OverloadedError
from gateway.tenancy.store.port import Answer


class Kept:
    """What commits hold."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers = dict(answers or {})

    async def __call__(self, key: str) -> Answer | None:
        return self.answers.get(key)


ANSWER = Answer(fingerprint="f", status=201, body=b"{}")


async def test_what_a_commit_holds_is_answered_again() -> None:
    """The gateway died between the commit and the answer."""
    async with Idempotency(Kept({"k": ANSWER})).once("k", "f") as known:
        assert known is ANSWER


async def test_what_no_commit_holds_is_remembered() -> None:
    """To end a request leaves nothing in the store."""
    once = Idempotency(Kept())
    async with once.once("k", "f") as attempt:
        assert isinstance(attempt, Attempt)
        once.remember(attempt, 200, b"done")
    async with once.once("k", "f") as known:
        assert isinstance(known, Answer)
        assert (known.status, known.body) == (200, b"done")


async def test_a_failure_may_be_tried_again_under_the_same_key() -> None:
    """Else a client whose first try met a busy store could never succeed."""
    once = Idempotency(Kept())
    with pytest.raises(RuntimeError):
        async with once.once("k", "f"):
            raise RuntimeError
    async with once.once("k", "f") as attempt:
        assert isinstance(attempt, Attempt)


@pytest.mark.parametrize("where", ["kept", "in-flight"])
async def test_the_same_key_for_another_request_is_a_mistake(where: str) -> None:
    """Whoever reuses keys would be answered something else than what was asked."""
    once = Idempotency(Kept({"kept": ANSWER}))
    async with once.once("in-flight", "f"):
        with pytest.raises(KeyReusedError):
            async with once.once(where, "other"):
                pytest.fail("it was let in")


async def test_of_two_at_once_the_second_must_come_again() -> None:
    """Nobody knows yet what the first will be answered."""
    once = Idempotency(Kept())
    async with once.once("k", "f"):
        with pytest.raises(InFlightError) as caught:
            async with once.once("k", "f"):
                pytest.fail("it was done twice")
    assert caught.value.retry_after_s


async def test_memory_is_bounded() -> None:
    """Each key of each client is new."""
    once = Idempotency(Kept())
    for number in range(REMEMBERED_MAX + 10):
        async with once.once(f"k{number}", "f") as attempt:
            assert isinstance(attempt, Attempt)
            once.remember(attempt, 200, b"")
    assert len(once._remembered) == REMEMBERED_MAX
    async with once.once("k0", "f") as forgotten:
        assert isinstance(forgotten, Attempt)
    assert not once._in_flight
    once._in_flight = {str(number): "f" for number in range(IN_FLIGHT_MAX)}
    with pytest.raises(OverloadedError):
        async with once.once("one-more", "f"):
            pytest.fail("it was let in")


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "\x7f", "\u00e9"])
async def test_a_key_has_a_shape(key: str) -> None:
    """It goes into the store."""
    with pytest.raises(BadRequestError):
        async with Idempotency(Kept()).once(key, "f"):
            pytest.fail("it was let in")


def test_parts_of_a_request_cannot_run_into_one_another() -> None:
    """Path and body of one would be those of another."""
    assert fingerprint_of(b"a", b"bc") != fingerprint_of(b"ab", b"c")
    assert fingerprint_of(b"1:", b"") != fingerprint_of(b"", b"1:")
