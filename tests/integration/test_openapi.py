"""The OpenAPI document held against the gateway: everything that it allows is asked for.

No answer may be a 500, have a status that is not documented, or have another shape than is said.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import BaseModel
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.admin import scale
from gateway.admin.audit import AuditView
from gateway.admin.explanations import WORDS, ExplanationView, FlowView, VerdictView
from gateway.admin.overview import HistoryView, Overview
from gateway.admin.queues import QueueView
from gateway.admin.replica_views import ReplicaView
from gateway.admin.replicas import NewReplica
from gateway.admin.requests import Ended, RequestView
from gateway.admin.scale import AdviceView
from gateway.admin.user_lines import UsersOverview
from gateway.api.described import FIELDS, GENERATION
from gateway.api.routes import ROUTES
from gateway.core.explain import Explanation, FlowTags, ReplicaVerdict
from gateway.core.gate import Closed
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine

FAST = EmulatorOptions(profile="instant")
EXAMPLES = 4
"""Of valid requests for each operation, and as many that are wrong somewhere."""
ENDLESS = "/admin/v1/events"
PAGES = ("/metrics", "/docs", "/openapi.json")
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)
ASKED = {"model": "raw", "messages": [{"role": "user", "content": "hi"}]}
TIERS = ["critical", "high", "standard", "nope"]
KEPT: dict[str, dict[str, list[Any]]] = {
    "tiers": {"name": TIERS, "moved_to": TIERS},
    "tenants": {"name": ["acme", "nope"]},
    "users": {"tenant": ["acme"], "name": ["alice", "nope"]},
    "policy": {"revision": [1, 2]},
}
"""What the store holds, by the resource and the name of the parameter."""
NOBODY = "http://127.0.0.1:9"
"""A replica that may be added, and never answers."""
LOWEST = {"x-fairgate-tier": "background"}

pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


@dataclass(slots=True)
class Place:
    """A gateway with something of everything that can be asked for."""

    running: Running
    held: HeldEngine
    document: dict[str, Any]

    def named(self) -> dict[str, Any]:
        """The document, with names that exist among those that it allows."""
        lives = self.running.gateway.relay.lives
        values = {
            "name": [f"127.0.0.1-{self.held.port}", "nope"],
            "request_id": [*sorted(life.request_id for life in lives), "nope"],
            "model": ["emulated", "nope"],
        }
        told = deepcopy(self.document)
        for path, _, operation in operations(told):
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                kept = KEPT.get(path.removeprefix("/admin/v1/").partition("/")[0], {})
                known = kept.get(name, values.get(name))
                if known is not None and (parameter["in"] == "path" or name == "moved_to"):
                    parameter["schema"] = {"enum": known}
            route = ROUTES.get(path)
            if route is not None:
                _name_fields(operation, FIELDS.get(route.name, {}))
        new = told["components"]["schemas"]["NewReplica"]
        new["properties"]["url"], new["required"] = {"const": NOBODY}, ["url"]
        for other in ("dns", "api_key_env", "ca_file", "model"):
            del new["properties"][other]
        return told


def _name_fields(operation: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Most requests are for a model that exists, and have what its route needs."""
    for content in operation["requestBody"]["content"].values():
        properties = content["schema"]["properties"]
        properties["model"] = {"enum": ["emulated", "emulated", "nope"]}
        for name, value in fields.items():
            properties[name] = {"anyOf": [{"const": value}, {"const": value}, {}]}
            content["schema"]["required"].append(name)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Two engines; on one of them a request runs, and others wait for it."""
    async with (
        running_emulator(FAST) as engine,
        running_held_engine(1) as held,
        running_gateway(engine.url, {"url": held.url, "max_num_seqs": 1}) as running,
        client(running) as http,
    ):
        loop, path = asyncio.get_running_loop(), "/v1/chat/completions"
        asked = [
            loop.create_task(http.post(path, json=ASKED, headers=LOWEST, timeout=None))
            for _ in range(4)
        ]
        await eventually(lambda: len(running.gateway.scheduler.waiting) == 3)
        await http.post("/admin/v1/tenants", json={"name": "acme"})
        await http.post("/admin/v1/users", json={"tenant": "acme", "name": "alice"})
        yield Place(running, held, (await http.get("/openapi.json")).json())
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(path, method, operation) of each."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def ask_everything(document: dict[str, Any], url: str, *paths: str) -> Counter[int]:
    """Ask for all that the document allows, and for some that it does not: statuses by number.

    `paths`: for these only. To be run in a thread.
    """
    statuses: Counter[int] = Counter()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = cast(Any, found).ok()
        if operation.path == ENDLESS or (paths and operation.path not in paths):
            continue
        for mode in GenerationMode:
            _ask(operation, mode, url, statuses)
    return statuses


def _ask(operation: Any, mode: GenerationMode, url: str, statuses: Counter[int]) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        phases=(Phase.generate,), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(mode))
    def ask(case: "schemathesis.Case[Any]") -> None:
        answer = case.call(base_url=url, timeout=20)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=list(CHECKS))

    # There may be nothing that a request without body and parameters could have wrong.
    with suppress(Unsatisfiable):
        ask()


@pytest.mark.timeout(300)
async def test_no_500_and_no_status_that_is_not_documented(place: Place) -> None:
    """Whoever writes a client reads the document, and nothing else."""
    statuses = await asyncio.to_thread(ask_everything, place.named(), place.running.url)
    assert {200, 201, 204, 400, 404} <= statuses.keys(), statuses
    # Half of what is asked is wrong on purpose, and half of the rest is for what there is not.
    done = sum(count for status, count in statuses.items() if status < 300)
    assert done > sum(statuses.values()) / 6, statuses


async def test_the_judge_sees_a_status_that_is_not_documented(place: Place) -> None:
    """A judge that passes everything would protect nobody."""
    document, path = place.named(), "/admin/v1/replicas/{name}"
    del document["paths"][path]["get"]["responses"]["404"]
    with pytest.raises(FailureGroup, match=r"[Uu]ndocumented"):
        await asyncio.to_thread(ask_everything, document, place.running.url, path)


async def test_the_judge_sees_a_500(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is told of a fault of ours has the shape of every other error."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(scale, "fleet_signal", broken)
    with pytest.raises(FailureGroup, match=r"[Ss]erver error"):
        await asyncio.to_thread(ask_everything, place.named(), place.running.url, "/admin/v1/scale")
    async with client(place.running) as http:
        answer = await http.get("/admin/v1/scale")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")


async def test_everything_is_described(place: Place) -> None:
    """What is not in the document is found by accident, and used wrongly."""
    document = place.document
    for path, method, operation in operations(document):
        where, is_relayed = f"{method} {path}", operation["tags"] == [GENERATION]
        assert operation["summary"], where
        assert len(operation["tags"]) == 1, where
        if path.startswith("/admin/v1") or path in PAGES:
            assert operation["security"], where
            assert {"400", "403", "413", "429"} <= operation["responses"].keys(), where
        for content in operation.get("requestBody", {}).get("content", {}).values():
            is_form = "file" in content["schema"].get("properties", {})
            assert is_form or _has_example(document, content), f"{where} needs an example"
        for status, answer in operation["responses"].items():
            assert answer["description"], f"{where} {status}"
            assert status != "422" or "idempotency" in answer["description"] or is_relayed, where
    assert ROUTES.keys() <= document["paths"].keys()
    assert "HTTPValidationError" not in str(document)


async def test_every_answer_of_operators_routes_has_an_example(place: Place) -> None:
    """A page of field names tells less than one that is filled in."""
    document = place.document
    for path, method, operation in operations(document):
        if not path.startswith("/admin/v1") or path == ENDLESS or method == "delete":
            continue
        answer = next(operation["responses"][code] for code in ("200", "201")
                      if code in operation["responses"])  # fmt: skip
        (content,) = answer["content"].values()
        schema = _resolved(document, content["schema"])
        if "data" in schema["properties"]:
            schema = _resolved(document, schema["properties"]["data"]["items"])
        assert "example" in schema, f"{method} {path}"


@pytest.mark.parametrize(
    "model", [ReplicaView, QueueView, ExplanationView, RequestView, Ended, AdviceView, AuditView,
              NewReplica, Overview, HistoryView, UsersOverview],
)  # fmt: skip
def test_examples_are_what_they_are_examples_of(model: type[BaseModel]) -> None:
    """One that was not kept up with its fields misleads whoever copies it."""
    example = model.model_json_schema()["example"]
    told = model.model_validate(example).model_dump(mode="json", exclude_unset=True)
    assert told == example
    if model is not NewReplica:
        assert told.keys() == model.model_fields.keys()


def test_every_figure_of_an_explanation_is_told() -> None:
    """What the scheduler knows and nobody can see is found by guessing."""
    for core, view, more in (
        (Explanation, ExplanationView, {"object", "summary"}),
        (ReplicaVerdict, VerdictView, {"reason"}),
        (FlowTags, FlowView, set()),
    ):
        assert {field.name for field in fields(core)} | more == view.model_fields.keys()


def test_every_closed_gate_has_words() -> None:
    """`closed_by: kv` tells an operator of the first day nothing."""
    assert WORDS.keys() == set(Closed)


def _has_example(document: dict[str, Any], content: dict[str, Any]) -> bool:
    schema = _resolved(document, content["schema"])
    fields = schema.get("properties", {})
    told = [name for name, field in fields.items() if "examples" in field]
    return (
        "example" in content
        or "example" in schema
        or bool(schema.get("examples"))
        or (bool(told) and set(schema.get("required", ())) <= set(told))
    )


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:  # what is answered where nothing is merely tried out stands first
        return _resolved(document, schema["anyOf"][0])
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(document["components"]["schemas"][name]) if name else schema
