"""The OpenAPI document: FastAPI's own, and the relayed routes that it never sees.

What a route does is not decided here; that each does what this says is held by a test that asks
all of them with whatever the document allows.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from gateway import __version__
from gateway.api.routes import RESPONSES_PREFIX, ROUTES, Route

TITLE = "fairgate"
DESCRIPTION = "The fair, SLA-tiered front door of a self-hosted LLM fleet."
GENERATION = "generation"
STORED = (
    ("get", f"{RESPONSES_PREFIX}{{response_id}}", "Fetch a stored response"),
    ("post", f"{RESPONSES_PREFIX}{{response_id}}/cancel", "Cancel a response"),
)
"""Method, path and summary of what is asked of a response that an engine keeps."""
TURNS = [{"role": "user", "content": "What is fair?"}]
AUDIO = {"file": {"type": "string", "format": "binary"}}
FIELDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "chat": {"messages": TURNS, "max_tokens": 16},
        "completions": {"prompt": "Fair is", "max_tokens": 16},
        "responses": {"input": "What is fair?", "max_output_tokens": 16},
        "messages": {"messages": TURNS, "max_tokens": 16},
        "count_tokens": {"messages": TURNS},
        "embeddings": {"input": "What is fair?"},
        "rerank": {"query": "fairness", "documents": ["a queue", "a fair queue"]},
        "score": {"text_1": "fair", "text_2": "just"},
        "pooling": {"input": "What is fair?"},
        "classify": {"input": "What is fair?"},
        "tokenize": {"prompt": "What is fair?"},
        "detokenize": {"tokens": [1, 2, 3]},
    }
)
"""What each route needs beside the model, by example."""
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "400": "The request cannot be understood.",
        "401": "No API key, or one that is not known.",
        "403": "The key may not do this.",
        "404": "No such model, response or route.",
        "409": "It does not go with the state that the batch is in.",
        "413": "The body is larger than `bounds.body`.",
        "415": "The engine takes another type of body.",
        "422": "The engine refused the request.",
        "429": "Too much waits, a limit is spent, or no replica became free in time.",
        "502": "The engine, or the way to it, broke.",
        "503": "No replica, or the gateway is overloaded, leaving, or told to end the request.",
        "504": "The engine stopped answering.",
        "507": "There is no room to store the file.",
    }
)
ENGINE = ("400", "401", "403", "404", "413", "415", "422", "429", "502", "503", "504")
HEADERS = (
    ("x-fairgate-tier", "The tier that is asked for, up to the key's highest.", "string"),
    ("x-fairgate-user", "Whose request it is, from a key that may speak for users.", "string"),
    ("x-fairgate-patience-s", "Seconds that it may wait at most.", "number"),
    ("x-session-id", "Requests of one session like to stay on one replica.", "string"),
)
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"key": []}]
SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
ERRORS: Mapping[str, Any] = MappingProxyType(
    {
        "OpenAIError": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                        "code": {"type": "string"},
                    },
                }
            },
            "example": {
                "error": {
                    "message": "The API key is missing or not known.",
                    "type": "authentication_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
            },
        },
        "AnthropicError": {
            "type": "object",
            "required": ["type", "error"],
            "properties": {
                "type": {"const": "error"},
                "error": {
                    "type": "object",
                    "required": ["type", "message"],
                    "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                },
            },
            "example": {
                "type": "error",
                "error": {"type": "not_found_error", "message": "...", "code": "model_not_found"},
            },
        },
    }
)


def described(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of FastAPI's `routes` and of all that is relayed."""
    document = get_openapi(
        title=TITLE, version=__version__, description=DESCRIPTION, routes=list(routes)
    )
    paths = document["paths"]
    for operations in paths.values():
        for operation in operations.values():
            _without_validation(operation)
    for route in ROUTES.values():
        paths[route.path] = {"post": _operation(route)}
    for method, path, summary in STORED:
        paths.setdefault(path, {})[method] = _stored(summary)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.update(ERRORS)
    components["securitySchemes"] = SCHEMES
    return document


def errors(*statuses: str, is_anthropic: bool = False) -> dict[str, Any]:
    """These errors, as OpenAPI has them."""
    name = "AnthropicError" if is_anthropic else "OpenAIError"
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {
        status: {
            "description": MEANINGS[status],
            "content": {"application/json": {"schema": schema}},
        }
        for status in statuses
    }


def _without_validation(operation: dict[str, Any]) -> None:
    """FastAPI's own 422, which is a 400 here; one that a route documents itself stays."""
    content = operation["responses"].get("422", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    if schema.get("$ref", "").endswith("/HTTPValidationError"):
        del operation["responses"]["422"]


def _operation(route: Route) -> dict[str, Any]:
    form = ("507",) if route.is_form else ()
    return {
        "tags": [GENERATION],
        "summary": route.summary,
        "operationId": f"{route.name}{route.path}".replace("/", "_"),
        "security": SECURITY,
        "parameters": [
            {"name": name, "in": "header", "description": text, "schema": {"type": kind}}
            for name, text, kind in HEADERS
        ],
        "requestBody": {"required": True, "content": _body(route)},
        "responses": {
            "200": _answer(route),
            **errors(*ENGINE, *form, is_anthropic=route.is_anthropic),
        },
    }


def _body(route: Route) -> dict[str, Any]:
    """What the gateway itself needs of the body; the rest is the engine's."""
    model = {"model": {"type": "string", "description": "What to ask for, or one of its aliases."}}
    if route.is_form:
        schema = {"type": "object", "required": ["model", "file"], "properties": {**model, **AUDIO}}
        return {"multipart/form-data": {"schema": schema}}
    example = {"model": "llama-3-8b", **FIELDS[route.name]}
    properties: dict[str, Any] = dict(model)
    if route.events is not None:
        properties["stream"] = {"type": "boolean"}
        properties["service_tier"] = {"type": "string"}
        properties["user"] = {"type": "string"}
    schema = {"type": "object", "required": ["model"], "properties": properties}
    return {"application/json": {"schema": schema, "example": example}}


def _answer(route: Route) -> dict[str, Any]:
    """Byte for byte the engine's, so its shape is not ours to tell."""
    content: dict[str, Any] = {"application/json": {"schema": {}}}
    if route.is_form:
        content["text/plain"] = {"schema": {"type": "string"}}
    if route.events is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "The engine's answer, byte for byte.", "content": content}


def _stored(summary: str) -> dict[str, Any]:
    of_id = {
        "name": "response_id", "in": "path", "required": True,
        "schema": {"type": "string", "minLength": 1}, "example": "resp_0123456789abcdef",
    }  # fmt: skip
    answer = {
        "description": "The engine's answer.",
        "content": {"application/json": {"schema": {}}},
    }
    return {
        "tags": [GENERATION],
        "summary": summary,
        "operationId": summary.lower().replace(" ", "_"),
        "security": SECURITY,
        "parameters": [of_id],
        "responses": {"200": answer, **errors(*ENGINE)},
    }
