"""From headers to who asks, for whom, in which tier and with how much patience."""

import asyncio

import pytest

from gateway.api.auth import (
    SESSION_CHARS_MAX,
    Asked,
    Asking,
    authenticated,
    credential,
    headers_of,
)
from gateway.api.call import Call
from gateway.api.routes import CHAT
from gateway.api.wire import parse
from gateway.errors import BadRequestError, InvalidKeyError
from gateway.tenancy.keys import Keyring, Principal, key_hash
from gateway.tenancy.users import UserNames

RANKS = {"critical": 0, "high": 1, "standard": 2, "background": 3}
WORDS = {"priority": "high", "default": "standard", "flex": "background"}
STANDARD = Principal(tenant="acme", user="app", tier=2, max_tier=1)
SPEAKER = Principal(tenant="acme", user="app", tier=2, max_tier=0, speaks_for_users=True)


def call(body: bytes = b'{"model":"m"}') -> Call:
    """A chat request with this body."""
    return asyncio.run(parse(CHAT, body, 8))


def asked(principal: Principal, body: bytes = b'{"model":"m"}', /, **headers: str) -> Asked:
    """What a request is scheduled as; underscores of header names stand for dashes."""
    asking = Asking(tier_ranks=RANKS, service_tiers=WORDS, users=UserNames(100, clock=lambda: 0.0))
    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return asking.asked(principal, headers_of(pairs), call(body))


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], None),
        ([(b"authorization", b"Bearer abc")], b"abc"),
        ([(b"authorization", b"bearer  abc ")], b"abc"),
        ([(b"authorization", b"BEARER abc")], b"abc"),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"Bearer ")], b""),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"x-api-key", b"abc")], b"abc"),
        ([(b"x-api-key", b"abc"), (b"authorization", b"Bearer def")], b"def"),
        ([(b"x-api-key", b"abc"), (b"authorization", b"Basic def")], b"abc"),
        ([(b"authorization", b"Bearer one"), (b"authorization", b"Bearer two")], b"one"),
    ],
)
def test_the_key_is_read_from_either_header(
    headers: list[tuple[bytes, bytes]], found: bytes | None
) -> None:
    """OpenAI's clients use one, Anthropic's the other; of a doubled one the first counts."""
    assert credential(headers_of(headers)) == found


@pytest.mark.parametrize("key", [None, b"", b"fg-wron", b"fg-rightx", b"x" * 600])
def test_a_missing_or_unknown_key_is_refused_alike(key: bytes | None) -> None:
    """A different answer would tell a guesser that it comes closer."""
    keyring = Keyring({key_hash(b"fg-right"): STANDARD}, None)
    headers = {} if key is None else {b"x-api-key": key}
    with pytest.raises(InvalidKeyError, match="missing or not known"):
        authenticated(keyring, headers)


@pytest.mark.parametrize(
    ("tier", "rank"),
    [("background", 3), ("standard", 2), ("high", 1), ("critical", 1)],
)
@pytest.mark.parametrize("header", ["x_fairgate_tier", "x_llm_d_inference_objective"])
def test_any_tier_up_to_the_keys_best_may_be_asked_for(header: str, tier: str, rank: int) -> None:
    """What is above is clamped: the request is served as well as its key may be."""
    assert asked(STANDARD, **{header: tier}).tier == rank


@pytest.mark.parametrize(
    ("word", "rank"),
    [("flex", 3), ("default", 2), ("priority", 1), ("auto", 2), ("scale", 2), ("critical", 2)],
)
def test_a_service_tier_means_a_tier_and_an_unknown_word_the_keys_own(word: str, rank: int) -> None:
    """OpenAI's clients send `auto`, and may send words that nobody knows yet."""
    assert asked(STANDARD, b'{"service_tier":"%b"}' % word.encode()).tier == rank


def test_a_service_tier_is_clamped_too() -> None:
    """A body field must not reach what a header may not."""
    low = Principal(tenant="acme", user="app", tier=3, max_tier=3)
    assert asked(low, b'{"service_tier":"priority"}').tier == 3


def test_the_header_beats_the_body_and_ours_beats_the_alias() -> None:
    """A proxy sets the header; what the client's library puts into the body is older."""
    body = b'{"service_tier":"priority"}'
    assert asked(STANDARD, body, x_fairgate_tier="background").tier == 3
    aliased = {"x_llm_d_inference_objective": "high", "x_fairgate_tier": "background"}
    assert asked(STANDARD, body, **aliased).tier == 3
    assert asked(STANDARD, body, x_fairgate_tier="").tier == 1


@pytest.mark.parametrize("tier", ["Critical", "0", "priority", "crit\xefcal", "x" * 10_000])
def test_an_unknown_tier_is_refused_by_name(tier: str) -> None:
    """A misspelt tier served as another would be noticed weeks later."""
    with pytest.raises(BadRequestError, match="tiers are: critical, high") as refused:
        asked(STANDARD, x_fairgate_tier=tier)
    assert len(refused.value.message) < 300


def test_without_any_wish_the_key_decides() -> None:
    """The usual case."""
    assert asked(STANDARD) == Asked("acme", "app", 2, None)


@pytest.mark.parametrize("header", ["x_fairgate_user", "x_llm_d_inference_fairness_id"])
def test_a_user_may_be_named_only_by_a_key_that_speaks_for_users(header: str) -> None:
    """Anybody could otherwise escape the own share under a fresh name for each request."""
    assert asked(STANDARD, b'{"user":"body"}', **{header: "eve"}).user == "app"
    assert asked(SPEAKER, **{header: "eve"}).user == "eve"


@pytest.mark.parametrize(
    ("body", "headers", "user"),
    [
        (b"{}", {}, "app"),
        (b'{"user":"bob"}', {}, "bob"),
        (b'{"safety_identifier":"bob"}', {}, "bob"),
        (b'{"user":"bob","safety_identifier":"old"}', {}, "bob"),
        (b'{"user":"bob"}', {"x_fairgate_user": "alice"}, "alice"),
        (b'{"user":"bob"}', {"x_fairgate_user": ""}, "bob"),
        (b'{"user":""}', {}, "app"),
        (b'{"user":"bob"}', {"x_llm_d_inference_fairness_id": "z", "x_fairgate_user": "a"}, "a"),
        ('{"user":"josé"}'.encode(), {}, "josé"),
        (b"{}", {"x_fairgate_user": "josé"}, "josé"),
        (b"{}", {"x_fairgate_user": "北京"}, "北京"),
    ],
)
def test_the_user_spoken_for_is_the_same_wherever_it_is_named(
    body: bytes, headers: dict[str, str], user: str
) -> None:
    """One person with two names would have two shares, and lose a configured weight."""
    assert asked(SPEAKER, body, **headers).user == user


def test_a_name_that_is_no_utf8_is_a_name_too() -> None:
    """Header bytes are whatever a client sends: no 500 for them."""
    asking = Asking(tier_ranks=RANKS, service_tiers=WORDS, users=UserNames(9, clock=lambda: 0.0))
    assert asking.asked(SPEAKER, {b"x-fairgate-user": b"jos\xe9"}, call()).user == "josé"


@pytest.mark.parametrize("body", [b"{}", b'{"stream":true}'])
@pytest.mark.parametrize(
    ("headers", "patience_s"),
    [
        ({}, None),
        ({"x_fairgate_patience_s": "12.5"}, 12.5),
        ({"x_llm_d_inference_ttl": "30"}, 30.0),
        ({"x_llm_d_inference_ttl": "30", "x_fairgate_patience_s": "20"}, 20.0),
        ({"x_stainless_read_timeout": "5", "x_fairgate_patience_s": "20"}, 20.0),
    ],
)
def test_patience_is_what_is_asked_for(
    body: bytes, headers: dict[str, str], patience_s: float | None
) -> None:
    """A wait that was asked for is no shorter for being announced otherwise, too."""
    assert asked(STANDARD, body, **headers).patience_s == patience_s


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        ("600", 600.0),
        ("0.5", 0.5),
        ("not a number", None),
        ("nan", None),
        ("-1", None),
        ("0", None),
        ("inf", None),
        ("", None),
        ("\xff", None),
    ],
)
def test_when_a_plain_client_gives_up_is_known_from_its_sdk(
    text: str, timeout_s: float | None
) -> None:
    """A plain request that outlives its client's timeout is generated for nobody."""
    assert asked(STANDARD, b"{}", x_stainless_read_timeout=text).read_timeout_s == timeout_s
    assert asked(STANDARD).read_timeout_s is None


def test_a_stream_outlives_its_clients_read_timeout() -> None:
    """Each comment that it hears while it waits starts that clock anew."""
    streamed = asked(STANDARD, b'{"stream":true}', x_stainless_read_timeout="5")
    assert streamed.read_timeout_s is None


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{}", {"x_session_id": "s1"}),
        (b'{"prompt_cache_key":"s1"}', {}),
        (b'{"prompt_cache_key":"s2"}', {"x_session_id": "s1"}),
        (b'{"prompt_cache_key":"s1"}', {"x_session_id": ""}),
    ],
)
def test_a_session_is_named_by_the_header_or_else_by_the_body(
    body: bytes, headers: dict[str, str]
) -> None:
    """Agents send the one, OpenAI's clients the other; a proxy's header is newer than both."""
    assert asked(STANDARD, body, **headers).session == asked(STANDARD, x_session_id="s1").session
    assert asked(STANDARD).session is None
    assert asked(STANDARD, b'{"prompt_cache_key":""}').session is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "u", "s"), ("b", "u", "s")),
        (("a", "u", "s"), ("a", "v", "s")),
        (("a", "u", "s"), ("a", "u", "t")),
        (("a", "u s", "t"), ("a", "u", "s t")),
        (("a b", "c", "s"), ("a", "b c", "s")),
        (("a", "1,1 a u", "s"), ("a", "1", "1 a u s")),
    ],
)
def test_sessions_of_two_users_are_never_one(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    """By naming another's session anybody could follow it to its replica."""

    def session(tenant: str, user: str, named: str) -> str | None:
        speaker = Principal(tenant=tenant, user="x", tier=2, max_tier=0, speaks_for_users=True)
        return asked(speaker, x_fairgate_user=user, x_session_id=named).session

    assert session(*one) == session(*one)
    assert session(*one) != session(*other)


def test_a_long_session_id_is_kept_short_and_apart() -> None:
    """Thousands of sessions are remembered: a client must not choose how much memory they take."""
    one, other = ("s" * 10_000 + end for end in "ab")
    sessions = {asked(STANDARD, x_session_id=each).session for each in (one, other)}
    assert len(sessions) == 2
    assert all(session and len(session) < SESSION_CHARS_MAX + 20 for session in sessions)


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "soon", "1e999", "5s"])
def test_a_patience_that_makes_no_sense_is_refused(text: str) -> None:
    """Taken for the default it would be found out by waiting."""
    with pytest.raises(BadRequestError, match="positive number of seconds"):
        asked(STANDARD, x_fairgate_patience_s=text)


def test_the_tier_used_is_told_in_openais_words() -> None:
    """Clients read the tier back from `service_tier`."""
    asking = Asking(tier_ranks=RANKS, service_tiers=WORDS, users=UserNames(9, clock=lambda: 0.0))
    assert [asking.service_tier_of(rank) for rank in range(4)] == [
        "critical", "priority", "default", "flex",
    ]  # fmt: skip
