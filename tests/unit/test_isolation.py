"""Salts: who shares an engine's cache with whom, whatever clients send."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.api.fields import Fields
from gateway.api.isolation import SALTS_MAX, By, Isolation
from gateway.api.routes import CHAT
from gateway.api.wire import parse
from gateway.errors import BadRequestError
from gateway.tenancy.keys import Keyring, Principal

EVERYBODY = Principal(tenant="default", user="anonymous", tier=2, max_tier=0)


def fields(**body: Any) -> Fields:
    """What is read of a body."""
    return asyncio.run(parse(CHAT, orjson.dumps({"model": "m", **body}), 128)).fields


def salt(by: By, tenant: str, user: str, **body: Any) -> str:
    """The salt that an engine gets."""
    made = Isolation(by, lambda _: True).salt_of(fields(**body), tenant=tenant, user=user)
    assert made is not None
    text = made.at("r")
    assert text is not None
    return text


def test_a_tenant_shares_with_itself_and_with_nobody_else() -> None:
    """By the time to the first token one tenant could read what the other asked."""
    assert salt("tenant", "a", "x") == salt("tenant", "a", "y")
    assert salt("tenant", "a", "x") != salt("tenant", "b", "x")
    assert salt("user", "a", "x") != salt("user", "a", "y")
    assert salt("user", "ab", "c") != salt("user", "a", "bc")


def test_a_clients_own_salt_divides_further_and_opens_nothing() -> None:
    """Whoever guesses another tenant's salt, or writes the one an engine sees, gains nothing."""
    plain = salt("tenant", "a", "x")
    assert salt("tenant", "a", "x", cache_salt="s") != plain
    assert salt("tenant", "a", "x", cache_salt="s") == salt("tenant", "a", "y", cache_salt="s")
    assert salt("tenant", "b", "x", cache_salt="s") != salt("tenant", "a", "x", cache_salt="s")
    assert salt("tenant", "b", "x", cache_salt=plain) != plain
    assert salt("tenant", "a", "x", cache_salt=None) == plain
    assert salt("user", "a", "x", cache_salt="s") != salt("user", "a", "y", cache_salt="s")


def test_where_a_prompt_is_looked_for_is_where_it_may_be_found() -> None:
    """A request would be sent where a colleague's prompt lies, and find nothing there."""
    by_tenant, by_user = Isolation("tenant"), Isolation("user")
    assert by_tenant.sharers("a", "x") == by_tenant.sharers("a", "y") == "a"
    assert by_user.sharers("a", "bc") != by_user.sharers("ab", "c")


@pytest.mark.parametrize("own", ["", 5, [], {"a": 1}, True])
def test_a_salt_that_is_none_is_refused(own: Any) -> None:
    """An engine would refuse it; replaced by ours it would seem to be honoured."""
    with pytest.raises(BadRequestError) as caught:
        salt("tenant", "a", "x", cache_salt=own)
    assert caught.value.param == "cache_salt"


def test_a_salt_is_one_that_engines_take() -> None:
    """vLLM: at most 128 characters, and none of a path."""
    text = salt("user", "a/@\\" * 60, "\u4e2d" * 60, cache_salt="@/" * 100)
    assert len(text) <= 128
    assert text.isalnum()


def test_nothing_is_salted_where_all_share_or_all_are_one_tenant() -> None:
    """Bodies of a gateway at home stay byte for byte as they were written."""
    assert Isolation("none").salt_of(fields(), tenant="a", user="x") is None
    opened = Isolation("tenant", lambda _: True, Keyring({}, EVERYBODY))
    assert opened.salt_of(fields(), tenant="default", user="x") is None
    opened.configure("user")
    assert opened.salt_of(fields(), tenant="default", user="x") is not None


def test_an_engine_that_knows_no_salts_gets_none() -> None:
    """Strict ones refuse what they do not know."""
    made = Isolation("tenant", lambda name: name == "vllm").salt_of(fields(), tenant="a", user="x")
    assert made is not None
    assert made.at("tgi") is None
    assert made.at("vllm") is not None


def test_salts_are_remembered_up_to_a_bound() -> None:
    """Names of users come from clients."""
    isolation = Isolation("user", lambda _: True)
    none = fields()
    for number in range(SALTS_MAX + 5):
        isolation.salt_of(none, tenant="a", user=f"u{number}")
    assert len(isolation._salts) <= SALTS_MAX
    first = isolation.salt_of(none, tenant="a", user="u0")
    assert first is isolation.salt_of(none, tenant="a", user="u0")
