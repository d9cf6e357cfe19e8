"""Where Redis is, as operators write it: what is understood, what is refused, what is repeated."""

import pytest

from gateway.cluster.address import SPOTS_MAX, WANTED_OPTIONS, Address, address_of

SPOTS = ",".join(f"h{index}" for index in range(SPOTS_MAX + 1))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", Address(kind="server", spots=(("host", 6379),))),
        ("redis://host:1/", Address(kind="server", spots=(("host", 1),))),
        ("redis://[::1]:7/3", Address(kind="server", spots=(("::1", 7),), database=3)),
        (
            "rediss://ann:a%40b@host:1/2?ca_file=/etc/ca.pem",
            Address(
                kind="server", spots=(("host", 1),), is_tls=True, database=2, user="ann",
                password="a@b", ca_file="/etc/ca.pem",
            ),
        ),
        ("redis://:pw@host", Address(kind="server", spots=(("host", 6379),), password="pw")),
        (
            "unix:///run/redis.sock",
            Address(kind="server", spots=(("/run/redis.sock", 0),), is_socket=True),
        ),
        (
            "unix://ann:pw@/run/redis.sock",
            Address(
                kind="server", spots=(("/run/redis.sock", 0),), is_socket=True, user="ann",
                password="pw",
            ),
        ),
        (
            "redis+sentinel://:pw@a:1,b/main/4?sentinel_user=s&sentinel_password=t",
            Address(
                kind="sentinel", spots=(("a", 1), ("b", 26379)), master="main", database=4,
                password="pw", sentinel_user="s", sentinel_password="t",
            ),
        ),
        (
            "rediss+cluster://a,b:2",
            Address(kind="cluster", spots=(("a", 6379), ("b", 2)), is_tls=True),
        ),
    ],
)  # fmt: skip
def test_each_way_to_redis_is_understood(url: str, address: Address) -> None:
    """Operators of a lone server, a socket, sentinels and a cluster."""
    assert address_of(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "http://secret", "redis://", "redis://secret:0", "redis://secret:x", "redis://secret:70000",
        "redis://a,secret", "redis://a/secret", "redis://a/123456", "redis://secret#f",
        "redis+sentinel://secret", "redis+sentinel://a/b c", "redis+cluster://secret/1",
        "unix://secret", "unix:///", "redis://a\nb:secret", f"redis+cluster://{SPOTS}",
        "redis+sentinel://a,,secret/m", "",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_and_not_repeated(url: str) -> None:
    """A password in a mistyped address must not go into a log."""
    with pytest.raises(ValueError, match="must be like") as caught:
        address_of(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://a?ca_file=/x", "rediss://a?cafile=/x", "redis://a?sentinel_user=u", "redis://a?b",
        "rediss://a?ca_file=/x&ca_file=/y",
    ],
)  # fmt: skip
def test_options_that_would_do_nothing_are_refused(url: str) -> None:
    """Who asks for an own authority without TLS believes that the line is safe."""
    with pytest.raises(ValueError, match=r"."):
        address_of(url)


def test_an_address_is_shown_without_its_credentials() -> None:
    """Logs are read by more people than passwords are meant for."""
    address = address_of("redis+sentinel://ann:pw1@a:1,[::1]:2/main?sentinel_password=pw2")
    assert str(address) == "redis+sentinel://a:1,[::1]:2/main"
    assert "pw" not in repr(address)
    assert str(address_of("unix://ann:pw@/run/r.sock")) == "unix:///run/r.sock"


def test_the_options_that_there_are_are_named() -> None:
    """Who guessed one finds the right one in the message."""
    with pytest.raises(ValueError, match=r"."):
        address_of("redis://a?password=x")
    assert "ca_file" in WANTED_OPTIONS
