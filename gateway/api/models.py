"""Which models exist for a caller: names, aliases and the engines' own cards."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import BadRequestError, ModelNotFoundError
from gateway.tenancy.keys import Principal

NAME_CHARS_SHOWN = 128


class ModelTable:
    """Resolves what a client asks for to what an engine serves."""

    def __init__(
        self,
        *,
        configured: frozenset[str],
        aliases: Mapping[str, str],
        cards: Callable[[], Mapping[str, Mapping[str, object]]],
        lists: Callable[[str], bool] | None = None,
    ) -> None:
        """`lists`: whether there is a card of that model, where it need not look at all cards."""
        self._lists = lists or (lambda model: model in cards())
        self._cards = cards
        self.configure(configured, aliases)

    def configure(self, configured: frozenset[str], aliases: Mapping[str, str]) -> None:
        """These models and aliases from now on."""
        self._configured = configured
        self._aliases = dict(aliases)

    def resolve(self, name: str | None, principal: Principal) -> str:
        """The engine's name of the model asked for.

        Raises ModelNotFoundError, the same for an unknown model and for one the key may not use,
        so that nobody learns what others run.
        """
        if name is None:
            name = self._only_model(principal)
        model = self._aliases.get(name, name)
        if not _may_use(principal, name, model) or not self._exists(model):
            shown = name[:NAME_CHARS_SHOWN]
            raise ModelNotFoundError(f"The model `{shown}` does not exist.", param="model")
        return model

    def cards(self, principal: Principal) -> list[dict[str, Any]]:
        """The cards a caller may see, aliases included, each under its own name."""
        cards = self._cards()
        shown = {
            model: {**cards.get(model, _bare_card(model)), "id": model}
            for model in sorted({*self._configured, *cards})
            if _may_use(principal, model, model)
        }
        for alias, model in self._aliases.items():
            if _may_use(principal, alias, model) and self._exists(model):
                shown[alias] = {**cards.get(model, _bare_card(model)), "id": alias, "root": model}
        return list(shown.values())

    def _exists(self, model: str) -> bool:
        return model in self._configured or self._lists(model)

    def _only_model(self, principal: Principal) -> str:
        """Engines serve a request without a model when they have only one."""
        models = {*self._configured, *self._cards()}
        allowed = [model for model in models if _may_use(principal, model, model)]
        if len(allowed) == 1:
            return allowed[0]
        raise BadRequestError("You must name a `model`.", param="model")


def _may_use(principal: Principal, name: str, model: str) -> bool:
    allowed = principal.models
    return allowed is None or name in allowed or model in allowed


def _bare_card(model: str) -> dict[str, Any]:
    """The card of a configured model whose replicas have not answered yet."""
    return {"id": model, "object": "model", "created": 0, "owned_by": "fairgate"}
