"""How a replica is called, and how its model cards are read."""

import pytest

from gateway.upstream.replicas import context_lengths, model_cards, replica_name
from tests.support.probing import TINY


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://gpu0:8000", "gpu0-8000"),
        ("http://GPU0:8000/", "gpu0-8000"),
        ("http://10.0.0.7:8000", "10.0.0.7-8000"),
        ("https://models.example.org", "models.example.org-443"),
        ("http://models.example.org/", "models.example.org-80"),
        ("http://gpu0:8000/engines/a", "gpu0-8000-engines-a"),
        ("http://[2001:db8::7]:8000", "2001_db8__7-8000"),
        ("http://bob:secret@gpu0:8000?token=x", "gpu0-8000"),
    ],
)
def test_a_replica_is_called_by_host_and_port(url: str, name: str) -> None:
    """The name goes to clients in a header: no scheme, and above all no credentials."""
    assert replica_name(url) == name


@pytest.mark.parametrize("url", ["", "gpu0:8000", "http://", "http://gpu0:99999", "ftp://gpu0"])
def test_an_address_without_host_or_port_has_no_name(url: str) -> None:
    """Two broken addresses under one name would be one replica."""
    with pytest.raises(ValueError, match=r"(?i)port"):
        replica_name(url)


def test_what_is_no_card_is_passed_over() -> None:
    """One odd entry must not hide the models beside it."""
    data = [None, {"id": 7}, {"name": "x"}, TINY, {"id": "b"}]
    assert list(model_cards({"data": data})) == ["tiny", "b"]
    others: tuple[object, ...] = (None, [], {"data": None}, {"data": {"id": "m"}}, "x")
    for other in others:
        assert model_cards(other) == {}


def test_an_adapter_may_be_as_long_as_its_parent() -> None:
    """Adapters carry no length of their own: clients would see none on /v1/models."""
    adapter = {"id": "tiny-de", "parent": "tiny"}
    orphan = {"id": "b", "parent": "gone", "max_model_len": "1024"}
    lengths = context_lengths(model_cards({"data": [adapter, TINY, orphan]}))
    assert lengths == {"tiny-de": 1024, "tiny": 1024, "b": None}
