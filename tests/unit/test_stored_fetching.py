"""Fetching a stored response from an engine that does not answer."""

import asyncio
from collections.abc import MutableMapping
from typing import Any, cast

import orjson

from gateway.api.auth import Asking
from gateway.api.stored import ANSWER_S_MAX, Place, Places, StoredResponses
from gateway.tenancy.keys import Keyring, Principal
from gateway.tenancy.users import UserNames
from gateway.upstream.fleet import Fleet
from tests.support.jumping import run_jumping

ALICE = Principal(tenant="acme", user="alice", tier=0, max_tier=0)


class Hanging:
    """A fleet of one engine that takes a request and never answers."""

    def names(self) -> frozenset[str]:
        """Its replicas."""
        return frozenset({"gpu0"})

    def client(self, name: str) -> "Hanging":
        """Of its one replica."""
        return self

    async def send(self, *asked: object, **options: object) -> None:
        """For ever."""
        await asyncio.Event().wait()


def test_an_engine_that_hangs_over_a_stored_response_is_left() -> None:
    """It is in its memory: who waits longer than this waits for ever."""
    places = Places()
    places.note(
        "resp_1",
        Place(replica="gpu0", tenant="acme", user="alice", alias=None, service_tier=None),
    )
    asking = Asking(tier_ranks={"all": 0}, service_tiers={}, users=UserNames(1, lambda: 0.0))
    stored = StoredResponses(
        places=places,
        fleet=cast(Fleet, Hanging()),
        keyring=Keyring({}, ALICE),
        asking=asking,
    )
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> float:
        scope = {"path": "/v1/responses/resp_1", "method": "GET", "headers": []}
        await stored(scope, receive, send)
        return asyncio.get_running_loop().time()

    assert run_jumping(main()) == ANSWER_S_MAX
    assert sent[0]["status"] == 504
    assert orjson.loads(sent[1]["body"])["error"]["code"] == "upstream_timeout"
