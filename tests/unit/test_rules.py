"""Templates that an engine would run: refused unless the key allows them."""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.api.call import Call
from gateway.api.routes import CHAT, EMBEDDINGS, ROUTES, Route
from gateway.api.rules import Rules
from gateway.api.wire import parse
from gateway.errors import BadRequestError
from gateway.tenancy.keys import Principal

ANYBODY = Principal(tenant="acme", user="app", tier=0, max_tier=0)
TRUSTED = replace(ANYBODY, allows_chat_template=True)
LOOP = "{% for a in range(10**9) %}{% endfor %}"


def call_of(body: dict[str, Any] | bytes, route: Route = CHAT) -> Call:
    """The call in a body."""
    raw = body if isinstance(body, bytes) else orjson.dumps({"model": "m", **body})
    return asyncio.run(parse(route, raw, 128))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"chat_template": LOOP}, "chat_template"),
        ({"chat_template": ""}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": LOOP}}, "chat_template_kwargs.chat_template"),
        (b'{"ch\\u0061t_template":"x"}', "chat_template"),
        (b'{"chat_template_kwargs": {"chat\\u005ftemplate":"x"}}',
         "chat_template_kwargs.chat_template"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", [CHAT, EMBEDDINGS, ROUTES["/tokenize"], ROUTES["/score"]])
def test_a_template_of_the_clients_is_refused_unless_its_key_allows_it(
    route: Route, body: dict[str, Any] | bytes, param: str
) -> None:
    """A template is a program: one line of it keeps an engine's front end busy for ever."""
    call = call_of(body, route)
    with pytest.raises(BadRequestError) as caught:
        Rules().check(call, ANYBODY)
    assert caught.value.param == param
    Rules().check(call, TRUSTED)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"chat_template": None},
        {"chat_template_kwargs": None},
        {"chat_template_kwargs": {"enable_thinking": False, "chat_template": None}},
        {"chat_template_kwargs": "nonsense"},
        {"add_generation_prompt": False, "messages": [{"content": "chat_template"}]},
    ],
)
def test_arguments_of_the_models_own_template_pass(body: dict[str, Any]) -> None:
    """Switching a model's thinking off is what they are for."""
    Rules().check(call_of(body), ANYBODY)
