"""Where responses lie: who may know, and how many are remembered."""

import pytest

from gateway.api.stored import Place, Places
from gateway.errors import ResponseNotFoundError


def place(replica: str = "gpu0", user: str = "alice", tenant: str = "acme") -> Place:
    """The place of a response."""
    return Place(replica=replica, tenant=tenant, user=user, alias=None, service_tier=None)


def finds(places: Places, ident: str, user: str = "alice", tenant: str = "acme") -> bool:
    """Whether it exists for this user."""
    try:
        places.of(ident, tenant=tenant, user=user)
    except ResponseNotFoundError:
        return False
    return True


def test_a_response_exists_for_its_user_alone() -> None:
    """The same name in another organisation is another person."""
    places = Places()
    places.note("resp_1", place())
    assert places.of("resp_1", tenant="acme", user="alice") == place()
    for tenant, user in (("acme", "bob"), ("umbrella", "alice"), ("alice", "acme"), ("", "")):
        assert not finds(places, "resp_1", user, tenant)


def test_somebody_elses_response_and_none_at_all_are_told_in_the_same_words() -> None:
    """Who guesses ids must not learn which exist."""
    places = Places()
    places.note("resp_1", place())
    messages = []
    for ident in ("resp_1", "resp_2"):
        with pytest.raises(ResponseNotFoundError) as caught:
            places.of(ident, tenant="acme", user="bob")
        messages.append(caught.value.message.replace(ident, "ID"))
    assert messages[0] == messages[1]


def test_a_long_id_is_not_repeated_to_its_end() -> None:
    """An error must not be as long as its client likes."""
    with pytest.raises(ResponseNotFoundError) as caught:
        Places().of("x" * 10_000, tenant="acme", user="bob")
    assert len(caught.value.message) < 200


def test_the_first_one_to_get_an_id_keeps_it() -> None:
    """An engine that repeats an id must not hand one user's response to another."""
    places = Places()
    places.note("resp_1", place())
    places.note("resp_1", place("gpu1", user="bob"))
    assert places.of("resp_1", tenant="acme", user="alice").replica == "gpu0"
    assert not finds(places, "resp_1", "bob")


def test_the_one_made_longest_ago_is_forgotten_first() -> None:
    """Places are kept for as long as the process lives: without a bound they fill the memory."""
    places = Places(places_max=3)
    for number in range(5):
        places.note(f"resp_{number}", place())
    assert [finds(places, f"resp_{number}") for number in range(5)] == [False] * 2 + [True] * 3
