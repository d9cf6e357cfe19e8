"""API keys: known by their hash, found in the same work whatever is presented."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from gateway.tenancy import keys
from gateway.tenancy.keys import KEY_BYTES_MAX, Key, Keyring, Principal, is_key, key_hash

ALICE = Principal(tenant="acme", user="alice", tier=2, max_tier=1)
OPEN = Principal(tenant="default", user="anonymous", tier=2, max_tier=0, speaks_for_users=True)


def test_a_hash_is_the_hex_sha256_of_the_whole_key() -> None:
    """Operators make it with `sha256sum`."""
    assert key_hash(b"fg-x") == hashlib.sha256(b"fg-x").hexdigest()


def test_a_known_key_is_its_principal_and_any_other_is_nobody() -> None:
    """Nothing but the whole key opens."""
    keyring = Keyring({key_hash(b"fg-right"): ALICE}, None)
    assert not keyring.is_open
    assert keyring.find(b"fg-right") is ALICE
    for wrong in (None, b"", b"fg-righ", b"fg-right ", b"FG-RIGHT", key_hash(b"fg-right").encode()):
        assert keyring.find(wrong) is None


@pytest.mark.sources
def test_every_key_costs_one_hash_and_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up whose time depends on how much was right can be guessed letter by letter."""
    hashed: list[bytes] = []

    def counting(api_key: bytes) -> str:
        hashed.append(api_key)
        return hashlib.sha256(api_key).hexdigest()

    keyring = Keyring({key_hash(b"fg-%d" % n): ALICE for n in range(50)}, None)
    monkeypatch.setattr(keys, "key_hash", counting)
    presented = [b"fg-1", b"fg-", b"fg-999", b"x" * KEY_BYTES_MAX]
    for key in presented:
        keyring.find(key)
    assert hashed == presented


def test_an_endless_credential_is_not_even_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes in a header would be hashed for each attempt."""
    monkeypatch.setattr(keys, "key_hash", lambda _: pytest.fail("it was hashed"))
    long = b"x" * (KEY_BYTES_MAX + 1)
    assert Keyring({}, None).find(long) is None
    assert not is_key(long, "0" * 64)


def test_in_open_mode_everybody_is_the_same_principal() -> None:
    """Whoever tries the gateway at home sends some made-up key or none."""
    keyring = Keyring({}, OPEN)
    assert keyring.is_open
    assert keyring.find(None) is OPEN
    assert keyring.find(b"sk-anything") is OPEN


def test_a_keyring_without_keys_that_is_not_open_lets_nobody_in() -> None:
    """The state that must never be taken for open mode."""
    assert Keyring({}, None).find(b"sk-anything") is None
    assert Keyring({}, None).find(None) is None


@pytest.mark.parametrize(("presented", "fits"), [(b"adm", True), (b"ad", False), (None, False)])
def test_the_admin_key_is_compared_whole(presented: bytes | None, fits: bool) -> None:
    """It opens the metrics of everybody."""
    assert is_key(presented, key_hash(b"adm")) is fits


class Wall:
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        self.now, self.reads = 1_000.0, 0

    def __call__(self) -> float:
        """Seconds since 1970."""
        self.reads += 1
        return self.now


def key(*forms: tuple[bytes, float | None], id: str = "one", **options: Any) -> Key:
    """A key that is good in these forms."""
    hashes = tuple((key_hash(form), until) for form, until in forms)
    return Key(principal=replace(ALICE, key_id=id), hashes=hashes, **options)


def test_a_key_comes_changes_and_goes_without_the_others() -> None:
    """One key that is revoked must cost the other fifty thousand nothing."""
    keyring = Keyring({key_hash(b"fg-file"): ALICE}, None)
    generations = [keyring.generation]
    for change in (key((b"fg-a", None)), key((b"fg-b", None)), "one", "none"):
        if isinstance(change, Key):
            keyring.put(change)
        else:
            keyring.drop(change)
        generations.append(keyring.generation)
        found = [keyring.find(each) is not None for each in (b"fg-file", b"fg-a", b"fg-b")]
        assert found[0]
    assert found == [True, False, False]
    assert generations == sorted(set(generations))
    keyring.put(key((b"fg-a", None)))
    keyring.put(key((b"fg-b", None)))
    assert keyring.find(b"fg-a") is None
    assert keyring.find(b"fg-b") == replace(ALICE, key_id="one")


def test_a_stored_key_never_takes_one_of_the_configuration_away() -> None:
    """Who imports a key that the file has, and revokes it, must not lock out the file's."""
    keyring = Keyring({key_hash(b"fg-file"): ALICE}, None)
    keyring.put(key((b"fg-file", None)))
    assert keyring.find(b"fg-file") is ALICE
    keyring.drop("one")
    assert keyring.find(b"fg-file") is ALICE


def test_expiry_blocking_and_rotation_are_told_to_who_has_the_whole_key() -> None:
    """A user whose key expired should read so; who guesses should read nothing."""
    wall = Wall()
    keyring = Keyring({}, None, wall)
    keyring.put(key((b"fg-new", None), (b"fg-old", 1_010.0), expires_at=1_020.0))
    for now, new, old in (
        (1_000.0, None, None), (1_010.0, None, "expired"), (1_020.0, "expired", "expired"),
    ):  # fmt: skip
        wall.now = now
        for form, fault in ((b"fg-new", new), (b"fg-old", old)):
            assert (keyring.find(form) is None) == (fault is not None)
            assert fault is None or keyring.refusal(form) == fault
    keyring.put(key((b"fg-new", None), is_blocked=True))
    assert keyring.find(b"fg-new") is None
    assert keyring.refusal(b"fg-new") == "blocked"
    for wrong in (None, b"", b"fg-ne", b"fg-old", b"x" * (KEY_BYTES_MAX + 1)):
        assert keyring.refusal(wrong) == "unknown"


def test_keys_that_last_cost_no_look_at_the_clock() -> None:
    """A clock read for each request would be paid by all for the few keys that expire."""
    wall = Wall()
    keyring = Keyring({key_hash(b"fg-file"): ALICE}, None, wall)
    keyring.put(key((b"fg-a", None), id="a"))
    keyring.put(key((b"fg-b", None), id="b", expires_at=2_000.0))
    for form in (b"fg-file", b"fg-a", b"fg-unknown"):
        keyring.find(form)
    assert wall.reads == 0
    assert keyring.find(b"fg-b") is not None
    assert wall.reads == 1


def test_the_first_key_closes_for_good() -> None:
    """The gateway that was open must not be so again because its only key was revoked."""
    keyring = Keyring({}, OPEN)
    keyring.put(key((b"fg-a", None)))
    assert not keyring.is_open
    keyring.drop("one")
    assert not keyring.is_open
    assert keyring.find(None) is None
    other = Keyring({}, OPEN)
    other.close()
    assert other.find(None) is None


def test_becoming_another_keyring_takes_all_of_it() -> None:
    """A reload that kept half of the old keys would be no revocation."""
    keyring, other = Keyring({}, None), Keyring({key_hash(b"fg-x"): ALICE}, None)
    keyring.put(key((b"fg-a", 5.0)))
    other.put(key((b"fg-b", None), id="b"))
    keyring.become(other)
    assert [keyring.find(each) is not None for each in (b"fg-x", b"fg-a", b"fg-b")] == [
        True, False, True,
    ]  # fmt: skip
    keyring.drop("b")
    assert keyring.find(b"fg-b") is None


def test_a_key_is_named_by_its_id_as_long_as_it_is_good() -> None:
    """A batch runs for hours in the name of a key: it must end when the key does."""
    now = [0.0]
    configured = replace(ALICE, key_id="configured")
    keyring = Keyring({key_hash(b"fg-a"): configured}, None, lambda: now[0])
    assert keyring.named("configured") is configured
    assert keyring.named("made") is None
    made = replace(ALICE, user="bob", key_id="made")
    keyring.put(Key(principal=made, hashes=((key_hash(b"fg-b"), None),), expires_at=10.0))
    assert keyring.named("made") is made
    now[0] = 10.0
    assert keyring.named("made") is None, "it has expired"
    keyring.put(Key(principal=made, hashes=((key_hash(b"fg-c"), None),)))
    assert keyring.named("made") is made
    keyring.put(Key(principal=made, hashes=((key_hash(b"fg-c"), None),), is_blocked=True))
    assert keyring.named("made") is None
    keyring.drop("made")
    assert keyring.named("made") is None
    keyring.become(Keyring({}, None))
    assert keyring.named("configured") is None, "the configuration has it no more"
    assert Keyring({}, OPEN).named("") is OPEN
