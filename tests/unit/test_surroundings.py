"""What follows for one request from what all share: whether its answer must be changed at all."""

import asyncio
import json
from typing import cast

import pytest

from gateway.api.auth import Asked, Asking
from gateway.api.life import Life
from gateway.api.routes import CHAT, MESSAGES, RESPONSES, Route
from gateway.api.stored import Places
from gateway.api.surroundings import Surroundings
from gateway.api.wire import parse
from gateway.tenancy.users import UserNames
from gateway.upstream.fleet import Fleet

ASKING = Asking(
    tier_ranks={"high": 0, "low": 1, "odd": 2},
    service_tiers={"priority": "high", "flex": "low"},
    users=UserNames(1, clock=lambda: 0.0),
)


class PriorityFleet:
    """Engines that schedule by priority, with the tier times ten."""

    def engine_priority(self, name: str, tier: int, tiers: int) -> int:
        """As `Fleet.engine_priority`."""
        assert (name, tiers) == ("gpu0", 3)
        return tier * 10


def around() -> Surroundings:
    """What all requests share."""
    return Surroundings(cast(Fleet, PriorityFleet()), ASKING, 3, lambda: 0.0, Places())


def life(fields: bytes, route: Route = CHAT, *, tier: int = 0) -> Life:
    """A request with these fields, for an engine that calls its model `m`."""
    made = Life(request_id="abc", route=route, began_at=0.0)
    made.call = asyncio.run(parse(route, b"{%b}" % fields, 8))
    made.model = "m"
    made.asked = Asked("acme", "alice", tier, None)
    return made


@pytest.mark.parametrize(
    ("fields", "route"),
    [
        (b'"model":"m"', CHAT),
        (b'"messages":[]', CHAT),
        (b'"model":"m","stream":true,"stream_options":{"include_usage":true}', CHAT),
        (b'"model":"m","stream":true', MESSAGES),
        (b'"model":"m","stream":true', RESPONSES),
    ],
)
def test_an_answer_in_which_nothing_differs_is_not_looked_into(fields: bytes, route: Route) -> None:
    """The usual case must cost nothing a chunk."""
    assert around().rewrite_for(life(fields, route)) is None


def test_what_differs_is_changed_in_plain_answers_and_in_streams() -> None:
    """Alias, tier and the usage that nobody but the gateway asked for."""
    plain = around().rewrite_for(life(b'"model":"alias","service_tier":"auto"', tier=1))
    assert plain is not None
    changed = json.loads(plain.plain(b'{"model":"m"}'))
    assert changed == {"model": "alias", "service_tier": "flex"}
    stream = around().rewrite_for(life(b'"model":"m","stream":true'))
    assert stream is not None
    usage = b'data: {"model":"m","choices":[],"usage":{"prompt_tokens":1}}\n\n'
    assert stream.chunk(usage) + stream.rest() == b""


def test_the_tier_is_told_in_the_clients_words_and_only_to_who_asked() -> None:
    """Where OpenAI has no word for a tier, its own name is told."""
    told = [around().service_tier_for(life(b'"service_tier":"x"', tier=tier)) for tier in range(3)]
    assert told == ["priority", "flex", "odd"]
    assert around().service_tier_for(life(b'"model":"m"')) is None


def test_an_engine_that_schedules_by_priority_is_told_the_tier() -> None:
    """Inside the engine the order must be the gateway's as well."""
    assert around().engine_priority("gpu0", 2) == 20
