"""Which models exist for a caller: names, aliases, and nothing of what others run."""

import pytest

from gateway.api.models import ModelTable
from gateway.errors import BadRequestError, ModelNotFoundError
from gateway.tenancy.keys import Principal

CARDS: dict[str, dict[str, object]] = {
    "llama": {"id": "llama", "object": "model", "max_model_len": 8192, "root": "/models/llama"},
    "lora": {"id": "lora", "object": "model", "parent": "llama"},
}


def principal(*models: str) -> Principal:
    """A key that may use these models; without any: all."""
    allowed = frozenset(models) or None
    return Principal(tenant="t", user="u", tier=0, max_tier=0, models=allowed)


def table() -> ModelTable:
    """A table over two configured models, one of them without an answer yet."""
    aliases = {"gpt-4o": "llama", "ghost": "gone"}
    configured = frozenset({"llama", "cold"})
    return ModelTable(configured=configured, aliases=aliases, cards=lambda: CARDS)


ALL = principal()


@pytest.mark.parametrize(
    ("asked", "served"),
    [("llama", "llama"), ("lora", "lora"), ("gpt-4o", "llama"), ("cold", "cold")],
)
def test_names_adapters_and_aliases_are_resolved(asked: str, served: str) -> None:
    """A configured model exists before its replicas answer: its requests wait or are refused."""
    assert table().resolve(asked, ALL) == served


@pytest.mark.parametrize("name", ["nope", "", "ghost", "gone", "LLAMA", "llama ", "x" * 10**6])
def test_an_unknown_model_is_not_found(name: str) -> None:
    """Sent on it would make a queue of its own, one for each misspelling."""
    with pytest.raises(ModelNotFoundError) as refused:
        table().resolve(name, ALL)
    assert refused.value.param == "model"
    assert len(refused.value.message) < 200


def test_a_forbidden_model_is_answered_exactly_as_one_that_does_not_exist() -> None:
    """Nobody learns from the gateway what other tenants run."""
    with pytest.raises(ModelNotFoundError) as forbidden:
        table().resolve("llama", principal("lora"))
    with pytest.raises(ModelNotFoundError) as unknown:
        table().resolve("llamb", principal("lora"))
    assert forbidden.value.message.replace("llama", "*") == unknown.value.message.replace(
        "llamb", "*"
    )
    assert vars(forbidden.value).keys() == vars(unknown.value).keys()
    assert forbidden.value.code == unknown.value.code


@pytest.mark.parametrize(
    ("allowed", "shown"),
    [
        ((), ["cold", "gpt-4o", "llama", "lora"]),
        (("llama",), ["gpt-4o", "llama"]),
        (("lora",), ["lora"]),
        (("gpt-4o",), ["gpt-4o"]),
        (("nope",), []),
    ],
)
def test_a_key_sees_what_it_may_use_and_may_use_what_it_sees(
    allowed: tuple[str, ...], shown: list[str]
) -> None:
    """Tools list the models first and then ask for what they found."""
    key = principal(*allowed)
    cards = table().cards(key)
    assert sorted(card["id"] for card in cards) == shown
    for card in cards:
        assert table().resolve(card["id"], key)
    for hidden in {"cold", "gpt-4o", "llama", "lora"} - set(shown):
        with pytest.raises(ModelNotFoundError):
            table().resolve(hidden, key)


def test_cards_are_the_engines_own_under_our_names() -> None:
    """Clients read the context length there; an alias tells what is behind it."""
    cards = {card["id"]: card for card in table().cards(ALL)}
    assert cards["llama"] == CARDS["llama"]
    assert cards["gpt-4o"] == {**CARDS["llama"], "id": "gpt-4o", "root": "llama"}
    assert cards["cold"]["object"] == "model"
    assert "ghost" not in cards, "an alias of nothing"


def test_without_a_name_the_only_model_is_meant() -> None:
    """Engines do so too when they have one."""
    only = ModelTable(configured=frozenset({"one"}), aliases={}, cards=dict)
    assert only.resolve(None, ALL) == "one"
    with pytest.raises(BadRequestError, match="must name"):
        table().resolve(None, ALL)


def test_without_a_name_a_key_has_the_only_model_that_it_may_use() -> None:
    """And does not learn the name of one that it may not."""
    assert table().resolve(None, principal("lora")) == "lora"
    secret = ModelTable(configured=frozenset({"secret"}), aliases={}, cards=dict)
    with pytest.raises(BadRequestError) as refused:
        secret.resolve(None, principal("other"))
    assert "secret" not in refused.value.message


def test_models_come_and_go_with_their_engines() -> None:
    """An adapter loaded at run time can be asked for at once."""
    cards: dict[str, dict[str, object]] = {}
    live = ModelTable(configured=frozenset(), aliases={"a": "late"}, cards=lambda: cards)
    with pytest.raises(ModelNotFoundError):
        live.resolve("a", ALL)
    cards["late"] = {"id": "late"}
    assert live.resolve("a", ALL) == "late"
    cards.clear()
    assert live.cards(ALL) == []
