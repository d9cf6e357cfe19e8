"""One request through a real gateway to an emulated engine, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.core.replica import Replica
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.support.gateway import Running, client, eventually, running_gateway

FAST = EmulatorOptions(profile="instant", max_num_seqs=4)


def chat(**fields: object) -> dict[str, object]:
    """A chat request with small defaults."""
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "emulated", "messages": messages, "max_tokens": 8, **fields}


async def events_of(response: httpx.Response) -> list[str]:
    """The data of all events, in order."""
    return [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """One quick engine."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway before it."""
    async with running_gateway(engine.url) as gateway:
        yield gateway


async def test_a_stream_is_passed_on_byte_for_byte(engine: Emulator, running: Running) -> None:
    """A client that hashes or signs what it reads would notice any change."""
    body = chat(stream=True, stream_options={"include_usage": True}, temperature=0)
    async with client(running) as through, httpx.AsyncClient(base_url=engine.url) as direct:
        ours = (await through.post("/v1/chat/completions", json=body)).text
        theirs = (await direct.post("/v1/chat/completions", json=body)).text
    assert _without_ids(ours) == _without_ids(theirs)
    assert ours.endswith("data: [DONE]\n\n")


async def test_a_plain_answer_is_passed_on_with_its_length(running: Running) -> None:
    """Clients without chunked decoding rely on the length."""
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["x-fairgate-tier"] == "standard"
    assert answer.json()["usage"]["completion_tokens"] == 8


async def test_completions_and_prompt_lists_are_served(running: Running) -> None:
    """Batch prompts are one request of several sequences."""
    body = {"model": "emulated", "prompt": ["a", "b"], "max_tokens": 4, "n": 2}
    async with client(running) as http:
        answer = await http.post("/v1/completions", json=body)
    assert len(answer.json()["choices"]) == 4
    await eventually(lambda: running.in_flight == 0)


async def test_embeddings_are_served() -> None:
    """A retrieval pipeline talks to the same gateway."""
    options = EmulatorOptions(profile="instant", embeddings=True)
    async with (
        running_emulator(options) as engine,
        running_gateway(engine.url) as running,
        client(running) as http,
    ):
        answer = await http.post("/v1/embeddings", json={"model": "emulated", "input": ["a", "b"]})
    assert len(answer.json()["data"]) == 2


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_request"),
        (b"{", 400, "invalid_request"),
        (b"[1]", 400, "invalid_request"),
        (b'"text"', 400, "invalid_request"),
        (b"[" * 100_000, 400, "invalid_request"),
        (b'{"a":' * 100_000, 400, "invalid_request"),
        (b'{"model": 7}', 400, "invalid_request"),
        (b'{"model": "emulated", "stream": "yes"}', 400, "invalid_request"),
        (b'{"model": "emulated", "n": "two"}', 400, "invalid_request"),
        (b'{"model": "emulated", "n": 0}', 400, "invalid_request"),
        (b'{"model": "emulated", "n": 1000}', 400, "invalid_request"),
        (b'{"model": "emulated", "max_tokens": "lots"}', 400, "invalid_request"),
        (b'{"model": "emulated", "max_tokens": true}', 400, "invalid_request"),
        (b'{"model": "emulated", "user": 5}', 400, "invalid_request"),
        (b'{"model": "emulated"}', 400, "invalid_request"),
        (b'{"model": "nope"}', 404, "model_not_found"),
        (b"\xff\xfe", 400, "invalid_request"),
        (b" " * (33 << 20), 413, "request_too_large"),
    ],
)
async def test_a_bad_body_is_a_clear_error_in_openai_shape(
    running: Running, content: bytes, status: int, code: str
) -> None:
    """A 500 makes every SDK retry what can never work."""
    async with client(running, **{"content-type": "application/json"}) as http:
        answer = await http.post("/v1/chat/completions", content=content)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}


async def test_a_body_without_a_length_is_bounded_too(running: Running) -> None:
    """A chunked upload could otherwise fill the memory."""

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 20)

    async with client(running) as http:
        try:
            answer = await http.post("/v1/chat/completions", content=upload())
        except httpx.WriteError:
            return  # cut off while still sending, before the answer could be read
    assert answer.status_code == 413


async def test_a_get_on_a_generation_route_is_405(running: Running) -> None:
    """And names what is allowed."""
    async with client(running) as http:
        answer = await http.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path",
    ["/v1/load_lora_adapter", "/sleep", "/invocations", "//v1/chat/completions", "/V1/models"],
)
async def test_what_is_no_route_is_not_reachable(running: Running, path: str) -> None:
    """An engine's own admin routes would let any user stop it."""
    async with client(running) as http:
        answer = await http.post(path, json=chat())
    assert answer.status_code in (404, 405)
    assert answer.json()["error"]["code"] in ("not_found", "method_not_allowed")


async def test_an_engine_error_is_passed_on_with_its_message(running: Running) -> None:
    """The engine knows best why a request is wrong."""
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=chat(max_tokens=10**6))
    assert answer.status_code == 400
    assert "max_tokens" in answer.json()["error"]["message"]
    await eventually(lambda: running.in_flight == 0)


async def test_fields_by_which_a_client_could_jump_the_queue_are_removed(
    engine: Emulator, running: Running
) -> None:
    """A client that sends priority -1000 would be served first by every engine."""
    async with client(running) as http:
        await http.post("/v1/chat/completions", json=chat(priority=-1000, request_id="x"))
    assert "priority" not in json.loads(engine.received[-1].body)


async def test_the_tier_goes_to_an_engine_that_schedules_by_priority() -> None:
    """Inside the engine the order must be ours as well."""
    options = EmulatorOptions(profile="instant", scheduling_policy="priority")
    async with running_emulator(options) as engine:
        replica = {"url": engine.url, "scheduling_policy": "priority"}
        async with running_gateway(replica, wait_ready=True) as running, client(running) as http:
            for tier in ("critical", "background"):
                headers = {"x-fairgate-tier": tier}
                answer = await http.post("/v1/chat/completions", json=chat(), headers=headers)
                assert answer.status_code == 200
        first, last = (json.loads(received.body)["priority"] for received in engine.received)
    assert first < last


async def test_an_alias_is_kept_in_the_answer_and_resolved_in_a_header(engine: Emulator) -> None:
    """Half of the users want one, half the other."""
    models = [{"name": "emulated", "aliases": ["gpt-4o-mini"], "replicas": [engine.url]}]
    async with running_gateway(models=models, wait_ready=False) as running, client(running) as http:
        await eventually(lambda: running.gateway.scheduler.replicas)
        plain = await http.post("/v1/chat/completions", json=chat(model="gpt-4o-mini"))
        body = chat(model="gpt-4o-mini", stream=True)
        async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
            events = await events_of(stream)
    assert plain.json()["model"] == "gpt-4o-mini"
    assert plain.headers["x-fairgate-model"] == "emulated"
    assert {json.loads(event)["model"] for event in events[:-1]} == {"gpt-4o-mini"}


async def test_the_service_tier_asked_for_becomes_a_tier_and_is_reported(running: Running) -> None:
    """OpenAI's clients know no other way to ask, and read back what they got."""
    async with client(running) as http:
        plain = await http.post("/v1/chat/completions", json=chat(service_tier="flex"))
        body = chat(service_tier="priority", stream=True)
        async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
            events = await events_of(stream)
    assert plain.headers["x-fairgate-tier"] == "background"
    assert plain.json()["service_tier"] == "flex"
    assert json.loads(events[0])["service_tier"] == "priority"


async def test_models_are_discovered_and_listed(running: Running) -> None:
    """`client.models.list()` is the first call of many tools."""
    async with client(running) as http:
        listed = (await http.get("/v1/models")).json()
        one = await http.get("/v1/models/emulated")
        none = await http.get("/v1/models/nope")
    assert [card["id"] for card in listed["data"]] == ["emulated"]
    assert one.json()["max_model_len"] > 0
    assert none.status_code == 404


async def test_health_readiness_metrics_and_docs_answer(running: Running) -> None:
    """A load balancer, Prometheus and a person look at the gateway."""
    async with client(running) as http:
        await http.post("/v1/chat/completions", json=chat())
        health, ready = await http.get("/healthz"), await http.get("/readyz")
        metrics, docs = await http.get("/metrics"), await http.get("/docs")
        schema = (await http.get("/openapi.json")).json()
    assert health.status_code == ready.status_code == docs.status_code == 200
    assert (
        'fairgate_flow_control_requests_total{outcome="done",tier="standard"} 1.0' in metrics.text
    )
    assert "/v1/chat/completions" in schema["paths"]


async def test_without_any_replica_the_answer_is_503_and_says_so() -> None:
    """429 would blame the client for an outage."""
    async with (
        running_emulator(FAST) as engine,
        running_gateway(engine.url) as running,
        client(running) as http,
    ):
        engine.faults.inject("refuse")
        await eventually(lambda: not any(r.is_usable for r in _replicas(running)))
        answer = await http.post("/v1/chat/completions", json=chat())
        ready = await http.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
    assert int(answer.headers["retry-after"]) >= 1
    assert ready.status_code == 503


async def test_bytes_that_dribble_are_passed_on_unchanged(
    engine: Emulator, running: Running
) -> None:
    """A character cut by a packet must not be lost or replaced."""
    body = chat(stream=True, temperature=0)
    async with client(running) as http:
        whole = (await http.post("/v1/chat/completions", json=body)).text
        engine.faults.inject("dribble")
        dribbled = (await http.post("/v1/chat/completions", json=body)).text
    assert _content(dribbled) == _content(whole)
    assert dribbled.endswith("data: [DONE]\n\n")
    assert running.gateway.scheduler.granted == {}


async def test_an_engine_that_compresses_unasked_is_read(
    engine: Emulator, running: Running
) -> None:
    """Compressed event streams arrive in bursts and cannot be metered."""
    engine.faults.inject("gzip")
    async with client(running, **{"accept-encoding": "identity"}) as http:
        plain = await http.post("/v1/chat/completions", json=chat())
        stream = await http.post("/v1/chat/completions", json=chat(stream=True))
    assert plain.json()["usage"]["completion_tokens"] == 8
    assert stream.text.endswith("data: [DONE]\n\n")


async def test_a_waiting_stream_hears_its_position_as_comments(engine: Emulator) -> None:
    """Clients and proxies give up on silence."""
    async with (
        running_emulator(EmulatorOptions(profile="demo", max_num_seqs=1)) as slow,
        running_gateway(slow.url, keepalive_after_s=0.05) as running,
        client(running) as http,
    ):
        blockers = [
            asyncio.create_task(http.post("/v1/chat/completions", json=chat(max_tokens=20)))
            for _ in range(3)
        ]
        await eventually(lambda: running.in_flight == 3)
        body = chat(stream=True, max_tokens=1)
        async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
            lines = [line async for line in stream.aiter_lines()]
        await asyncio.gather(*blockers)
    assert lines[0].startswith(": queued position=")
    assert lines[-2] == "data: [DONE]"


def _replicas(running: Running) -> list[Replica]:
    return list(running.gateway.scheduler.replicas.values())


def _content(text: str) -> str:
    """What the model said, all chunks joined."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def _without_ids(text: str) -> list[object]:
    """All events, less what differs between two runs of the same request."""
    events: list[object] = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            events.append({k: v for k, v in event.items() if k not in ("id", "created")})
        else:
            events.append(line)
    return events
