"""API keys: known by their hash, found in the same work whatever is presented."""

import hashlib

import pytest

from gateway.tenancy import keys
from gateway.tenancy.keys import KEY_BYTES_MAX, Keyring, Principal, is_key, key_hash

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
