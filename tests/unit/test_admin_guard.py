"""Who operates a gateway: keys, Host, Origin, and how often one may guess."""

import hmac
from typing import Any

import pytest

from gateway.admin.guard import (
    FAILURES_MAX,
    LOCKED_S,
    PEERS_MAX,
    AdminKey,
    ForeignPageError,
    Guard,
    Guesses,
    LockedOutError,
    peer_of,
)
from gateway.errors import ForbiddenError, GatewayError
from gateway.tenancy.keys import KEY_BYTES_MAX, key_hash


def key(name: str, text: str) -> AdminKey:
    """A key that is known."""
    return AdminKey(name, key_hash(text.encode()))


def scope(*headers: tuple[str, str], peer: str = "10.0.0.1", method: str = "GET") -> dict[str, Any]:
    """A request with these headers."""
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    return {"headers": pairs, "client": (peer, 4711), "method": method}


class Clock:
    """An instant that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """At some instant."""
    return Clock()


@pytest.fixture
def locked(clock: Clock) -> Guard:
    """Of a gateway that others can reach."""
    return Guard([key("ops", "right"), key("ci", "other")], is_open=False, clock=clock)


@pytest.fixture
def opened(clock: Clock) -> Guard:
    """Of a gateway that only this machine can reach, without a key."""
    return Guard([key("admin", "made")], is_open=True, clock=clock)


def test_each_key_says_whose_it_is(locked: Guard) -> None:
    """The audit tells who did it."""
    assert locked.admit(scope(("authorization", "Bearer right"))) == "ops"
    assert locked.admit(scope(("x-api-key", "other"))) == "ci"


@pytest.mark.parametrize(
    "headers",
    [(), (("x-api-key", ""),), (("x-api-key", "righ"),), (("x-api-key", "right "),),
     (("authorization", "right"),), (("authorization", "Basic right"),),
     (("x-api-key", "wrong"), ("x-api-key", "right")),
     (("x-api-key", "x" * (KEY_BYTES_MAX + 1)),)],
)  # fmt: skip
def test_no_other_credential_opens(locked: Guard, headers: tuple[tuple[str, str], ...]) -> None:
    """Of a doubled header the first counts, as the first proxy set it."""
    with pytest.raises(ForbiddenError):
        locked.admit(scope(*headers))


def test_all_hashes_are_compared_whichever_fits(
    locked: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a look-up must say neither how much of a key was right nor whose it is."""
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def noted(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    for presented in (b"right", b"other", b"rigth", b"wrong"):
        compared.clear()
        locked.holder(presented)
        assert len(compared) == 2
        assert all(len(one) == len(other) == 64 for one, other in compared), "hashes, never keys"
        assert {one for one, _ in compared} == {key_hash(presented)}


@pytest.mark.parametrize(
    ("origin", "host", "is_ours"),
    [("http://gw:8080", "gw:8080", True), ("https://gw", "gw", True),
     ("https://gw:443", "gw", True), ("http://GW", "gw:80", True),
     ("http://gw:8080", "gw:8081", False), ("http://evil", "gw", False),
     ("null", "gw", False), ("", "gw", False), ("http://gw.evil", "gw", False),
     ("file://gw", "gw", False), ("http://evil@gw", "gw", False), ("http://[", "gw", False)],
)  # fmt: skip
def test_a_page_of_another_origin_may_not_ask(
    locked: Guard, origin: str, host: str, is_ours: bool
) -> None:
    """Whoever operates a gateway also reads other pages."""
    asked = scope(("origin", origin), ("host", host), ("x-api-key", "right"))
    if is_ours:
        assert locked.admit(asked) == "ops"
    else:
        with pytest.raises(ForeignPageError):
            locked.admit(asked)


def test_an_origin_without_a_host_is_nobodys(locked: Guard) -> None:
    """There is nothing that it could be the same as."""
    with pytest.raises(ForeignPageError):
        locked.admit(scope(("origin", "http://gw"), ("x-api-key", "right")))


@pytest.mark.parametrize("name", ["host", "origin"])
def test_a_header_that_is_given_twice_is_believed_in_neither_form(locked: Guard, name: str) -> None:
    """One of them is for the guard and the other for whoever stands behind it."""
    doubled = [(name, "http://gw" if name == "origin" else "gw")] * 2
    with pytest.raises(ForeignPageError):
        locked.admit(scope(*doubled, ("x-api-key", "right")))


@pytest.mark.parametrize(
    ("site", "mode", "method", "may"),
    [("same-origin", "cors", "POST", True), ("none", "navigate", "GET", True),
     ("cross-site", "navigate", "GET", True), ("cross-site", "no-cors", "GET", False),
     ("same-site", "cors", "GET", False), ("cross-site", "navigate", "POST", False)],
)  # fmt: skip
def test_what_a_browser_says_of_the_page_counts(
    opened: Guard, site: str, mode: str, method: str, may: bool
) -> None:
    """An image of another page sends no Origin; a link to our page is no deed."""
    headers = (("host", "localhost"), ("sec-fetch-site", site), ("sec-fetch-mode", mode))
    asked = scope(*headers, method=method)
    if may:
        assert opened.admit(asked) == "local"
    else:
        with pytest.raises(ForeignPageError):
            opened.admit(asked)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.8.0.9", "[::1]:80"]
)
def test_this_machine_needs_no_key_under_its_own_names(opened: Guard, host: str) -> None:
    """Whoever tries the gateway at home should see everything at once."""
    assert opened.admit(scope(("host", host))) == "local"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost#@evil",
     "localhost/@evil", "", "[::1]evil", "localhost:80:80", "127.0.0.1\t.evil", "::1", "10.0.0.1"],
)  # fmt: skip
def test_no_other_name_stands_for_this_machine(opened: Guard, host: str) -> None:
    """A page whose name was bound to 127.0.0.1 after it was loaded would drive the gateway."""
    with pytest.raises(ForeignPageError):
        opened.admit(scope(("host", host)))


def test_without_a_host_this_machine_is_not_known(opened: Guard) -> None:
    """HTTP/1.0 has none, and neither has a browser."""
    with pytest.raises(ForeignPageError):
        opened.admit(scope())


def guesses_of(guard: Guard, peer: str, times: int) -> list[type[GatewayError]]:
    """What wrong keys of `peer` are told."""
    told: list[type[GatewayError]] = []
    for number in range(times):
        try:
            guard.admit(scope(("x-api-key", f"guess-{number}"), peer=peer))
        except GatewayError as error:
            told.append(type(error))
    return told


def test_who_guesses_too_often_is_not_listened_to_for_a_while(locked: Guard, clock: Clock) -> None:
    """Not even with the right key, or the lock would stop no guesser; others get in all along."""
    told = guesses_of(locked, "10.6.6.6", FAILURES_MAX + 3)
    assert told == [ForbiddenError] * FAILURES_MAX + [LockedOutError] * 3
    with pytest.raises(LockedOutError) as caught:
        locked.admit(scope(("x-api-key", "right"), peer="10.6.6.6"))
    assert caught.value.retry_after_s == pytest.approx(LOCKED_S)
    assert locked.admit(scope(("x-api-key", "right"), peer="10.0.0.1")) == "ops"
    clock.now += LOCKED_S
    assert locked.admit(scope(("x-api-key", "right"), peer="10.6.6.6")) == "ops"


def test_no_key_at_all_is_no_guess(locked: Guard) -> None:
    """A monitor that was never given one must not lock its host out."""
    for _ in range(3 * FAILURES_MAX):
        with pytest.raises(ForbiddenError):
            locked.admit(scope())
    assert locked.admit(scope(("x-api-key", "right"))) == "ops"


def test_wrong_keys_are_forgotten_with_time(locked: Guard, clock: Clock) -> None:
    """A typo a day is nobody's attack."""
    for _ in range(3 * FAILURES_MAX):
        assert guesses_of(locked, "10.0.0.1", 1) == [ForbiddenError]
        clock.now += LOCKED_S
    assert locked.admit(scope(("x-api-key", "right"))) == "ops"


def test_any_number_of_addresses_take_bounded_memory(clock: Clock) -> None:
    """One machine may have as many addresses as it likes."""
    guesses = Guesses(clock)
    for number in range(3 * PEERS_MAX):
        guesses.failed(f"peer-{number}")
    assert len(guesses) == PEERS_MAX


@pytest.mark.parametrize(
    ("address", "peer"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"),
     ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
     ("fe80::1%eth0", "fe80::/64"), ("testclient", "testclient")],
)  # fmt: skip
def test_an_address_stands_for_its_owner(address: str, peer: str) -> None:
    """Whoever has one IPv6 address has 2^64."""
    assert peer_of({"client": (address, 1)}) == peer


def test_a_connection_without_an_address_is_somebody_too() -> None:
    """A unix socket has none."""
    assert peer_of({"client": None}) == "unknown"


def test_other_keys_count_at_once(locked: Guard) -> None:
    """A key that left the file opens nothing any more."""
    locked.configure([key("new", "fresh")], is_open=False)
    assert locked.admit(scope(("x-api-key", "fresh"))) == "new"
    with pytest.raises(ForbiddenError):
        locked.admit(scope(("x-api-key", "right")))
