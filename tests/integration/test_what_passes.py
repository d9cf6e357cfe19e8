"""Headers, fields and routes: what of a client's reaches an engine, and what comes back."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.api.routes import CHAT, COUNT_TOKENS, MESSAGES, TRANSCRIPTIONS, Route
from gateway.emulator.options import EmulatorOptions
from gateway.tenancy.keys import key_hash
from tests.support.asks import EVERY, Ask
from tests.support.gateway import Running, eventually, running_gateway
from tests.support.house import House, house
from tests.support.raw_client import RawAnswer, exchange, request
from tests.support.raw_engine import SSE_HEAD, RawEngine, chunked, running_raw_engine
from tests.support.sending import FORM_TYPE

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENGINE = EmulatorOptions(profile="instant", embeddings=True, api_key="engines-own")
KEYS = [{"tenant": "acme", "user": "alice", "tier": "standard", "max_tier": "high",
         "key_sha256": key_hash(b"fg-alice")}]  # fmt: skip
TRACE = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE",
    "baggage": "userId=alice",
}
OWN = {
    "authorization": "Bearer fg-alice", "x-api-key": "fg-alice", "cookie": "session=1",
    "proxy-authorization": "Basic eA==", "x-vllm-priority": "-1", "x-data-parallel-rank": "3",
    "x-request-id": "mine", "x-correlation-id": "mine", "x-forwarded-for": "10.0.0.1",
    "forwarded": "for=10.0.0.1", "host": "engine.internal", "via": "1.1 x", "te": "trailers",
    "accept-encoding": "gzip, br", "accept": "text/event-stream", "user-agent": "someone/1.0",
    "keep-alive": "timeout=5", "x-fairgate-tier": "high", "x-session-id": "s",
    "anthropic-version": "2023-06-01", "openai-organization": "org", "origin": "http://evil",
    "x-stainless-read-timeout": "600", "content-encoding": "identity", "expect": "200-ok",
    "x-secret": "s3cret", "endpoint-load-metrics-format": "text",
}  # fmt: skip
JSON_ASKS = [ask for ask in EVERY if not ask.route.is_form]
STEERING = {"priority": -1000, "kv_transfer_params": {"do_remote_decode": True}, "request_id": "x"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[House]:
    """A gateway with keys before an engine with a key, for all tests of this file.

    It has nothing to say to the engine itself: what it may say is test_request_rules.py's.
    """
    replica = {"api_key_env": "KEY"}
    environ = {"KEY": "engines-own"}
    options: dict[str, Any] = {"keys": KEYS, "cache_isolation": "none", "environ": environ}
    async with house(ENGINE, replica=replica, **options) as whole:
        yield whole


@pytest.fixture
def alone(built: House) -> House:
    """The same, and nothing was asked of it yet."""
    built.forget()
    return built


@pytest.mark.parametrize("ask", EVERY, ids=str)
async def test_of_a_clients_headers_only_its_trace_reaches_the_engine(
    alone: House, ask: Ask
) -> None:
    """Gateways have handed their users' keys to whatever listened behind them."""
    answer = await alone.post(ask, **OWN, **TRACE)
    assert answer.status_code == 200, answer.text
    (seen,) = alone.seen
    ours = {
        "host": alone.taps[0].url.removeprefix("http://"),
        "user-agent": "fairgate",
        "accept-encoding": "identity",
        "authorization": "Bearer engines-own",
        "content-type": ask.content_type,
        "content-length": str(len(ask.body())),
    }
    ident = seen.header["x-request-id"]
    assert seen.header == {**ours, **TRACE, "x-request-id": ident}
    assert ident.startswith(answer.headers["x-request-id"]), "by which both logs are joined"
    assert "mine" not in ident
    assert seen.body == ask.body()


async def test_every_sending_has_an_id_of_its_own(alone: House) -> None:
    """Engines have broken on an id that they saw twice."""
    alone.engines[0].faults.inject("busy*1")
    await alone.post_and(
        Ask(CHAT), alone.end_rest, when=alone.has_bounced, authorization="Bearer fg-alice"
    )
    await alone.post(Ask(CHAT), authorization="Bearer fg-alice")
    assert len({seen.header["x-request-id"] for seen in alone.seen}) == len(alone.seen) == 3


async def raw(
    house: House, *lines: str, target: str = CHAT.path, method: str = "POST"
) -> RawAnswer:
    """A request by alice with these header lines, whose answer ends with the connection."""
    key = "authorization: Bearer fg-alice"
    return await exchange(house.running.url, request(target, key, *lines, method=method))


async def test_of_a_doubled_header_one_counts_and_one_arrives(alone: House) -> None:
    """Two readers that choose differently are how a check is got round."""
    trace = TRACE["traceparent"]
    other = trace.replace("4bf9", "0000")
    answer = await raw(
        alone, f"traceparent: {trace}", f"traceparent: {other}", "x-fairgate-tier: high",
        "x-fairgate-tier: critical", "authorization: Bearer fg-other",
    )  # fmt: skip
    assert answer.status == 200
    assert b"x-fairgate-tier: high\r\n" in answer.head
    (seen,) = alone.seen
    assert seen.header["traceparent"] == trace


@pytest.mark.parametrize("size", [1_024, 1_025])
async def test_a_huge_trace_is_dropped_and_the_request_served(alone: House, size: int) -> None:
    """An engine refuses requests for the size of their headers."""
    answer = await raw(alone, f"baggage: {'x' * size}")
    assert answer.status == 200
    assert ("baggage" in alone.seen[0].header) is (size == 1_024)


@pytest.mark.parametrize(
    "lines",
    [
        ("transfer-encoding: chunked",),
        ("content-length: 5",),
        ("transfer-encoding: identity, chunked",),
        ("traceparent: a\rb",),
        ("traceparent : a",),
        ("trace\x00parent: a",),
    ],
)
async def test_a_request_that_two_readers_would_read_differently_is_refused(
    alone: House, lines: tuple[str, ...]
) -> None:
    """What one takes for a body, the other takes for the next request."""
    answer = await raw(alone, *lines)
    assert answer.status == 400
    assert alone.seen == []


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_fields_that_steer_an_engine_never_arrive(alone: House, ask: Ask) -> None:
    """A client that says priority -1000 would be served first by every engine."""
    key = "Bearer fg-alice"
    answer = await alone.post(ask, ask.body(**STEERING), authorization=key)
    assert answer.status_code == 200
    (seen,) = alone.seen
    assert json.loads(seen.body) == json.loads(ask.body())
    for name in STEERING:
        escaped = f'"\\u{ord(name[0]):04x}{name[1:]}":1,'.encode()
        twice = b'{"%b":1,%b%b' % (name.encode(), escaped, ask.body()[1:])
        assert (await alone.post(ask, twice, authorization=key)).status_code == 200
        assert json.loads(alone.seen[-1].body) == json.loads(ask.body())


@pytest.mark.parametrize("name", STEERING)
async def test_a_form_with_fields_that_steer_an_engine_is_refused(alone: House, name: str) -> None:
    """Of a form nothing is taken out; it passes as it is or not at all."""
    ask = Ask(TRANSCRIPTIONS)
    answer = await alone.post(ask, ask.body(**{name: "x"}), authorization="Bearer fg-alice")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert alone.seen == []


@pytest.mark.parametrize("ask", EVERY, ids=str)
async def test_an_answer_tells_how_it_was_served(alone: House, ask: Ask) -> None:
    """Once each: proxies join doubled headers, and the joined one means nothing."""
    body = ask.raw("authorization: Bearer fg-alice", "connection: close")
    answer = await exchange(alone.running.url, body)
    lines = [line.partition(b": ") for line in answer.head.split(b"\r\n")[1:]]
    headers = {name.decode(): value.decode() for name, _, value in lines}
    assert not [name for name, count in Counter(name for name, _, _ in lines).items() if count > 1]
    framing = {"transfer-encoding", "cache-control", "x-accel-buffering"}
    framing = framing if ask.streams else {"content-length"}
    ours = {"x-fairgate-tier", "x-fairgate-queue-ms", "x-fairgate-replica", "x-request-id"}
    ids = {"request-id"} if ask.route.is_anthropic else set()
    assert headers.keys() == {"date", "content-type", "connection"} | framing | ours | ids
    assert headers["x-fairgate-tier"] == "standard"
    assert headers["x-fairgate-queue-ms"].isdigit()
    assert "http" not in headers["x-fairgate-replica"]
    assert dict(alone.seen[0].answer_headers)["content-type"] == headers["content-type"]
    assert headers.get("request-id", headers["x-request-id"]) == headers["x-request-id"]


@pytest.mark.parametrize("route", [MESSAGES, COUNT_TOKENS], ids=lambda route: route.name)
@pytest.mark.parametrize("wrong", [b"{", b'{"model":"nope","messages":[]}'])
async def test_an_error_on_anthropics_routes_has_its_id_and_shape(
    alone: House, wrong: bytes, route: Route
) -> None:
    """Its SDK raises by `type`, and shows `request-id`."""
    ask = Ask(route)
    answer = await alone.post(ask, wrong, authorization="Bearer fg-alice")
    assert answer.json()["type"] == "error"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    without = await alone.post(ask)
    assert (without.status_code, without.json()["error"]["type"]) == (401, "authentication_error")
    got = await alone.http.get(route.path)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert got.json()["type"] == "error"


UNREACHABLE = (
    "/sleep", "/wake_up", "/is_sleeping", "/load_lora_adapter", "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter", "/invocations", "/abort_requests", "/inference/v1/generate",
    "/inference/v1/abort_requests", "/collective_rpc", "/reset_prefix_cache", "/server_info",
    "/scale_elastic_ep", "/fault_tolerance/apply", "/tokenizer_info", "/v1/realtime", "/_fault",
    "/v1/chat/completions/batch", "/v1/chat/completions/render", "/health", "/version", "/load",
    "/ping", "/v2/rerank", "/v1", "/v1/", "/", "//v1/chat/completions", "/v1//chat/completions",
    "/v1/chat/completions/", "/V1/chat/completions", "/v1/Chat/Completions", "/v1/chat",
    "/v1/chat/completions/../../../sleep", "/v1/responses/../../sleep", "/v1/./chat/completions",
    "/v1/responses/..%2f..%2fsleep", "/v1/responses/%2e%2e/%2e%2e/sleep", "/%2fsleep", "%2fsleep",
    "/v1/chat/completions%00", "/v1/chat/completions%20", "/v1/chat/completions%2f",
    "/v1/chat/completions;x", "/v1/chat%5ccompletions", "/v1\\chat\\completions", "/sleep?level=1",
    "/v1/models/../../sleep", "/v1/responses/resp_1/cancel/../../../../sleep", "*", "sleep",
    "http://engine/sleep", "/v1/messages/count_tokens/", "/v1/messages/batches", "/metrics/",
)  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("target", UNREACHABLE)
async def test_an_engines_other_routes_are_not_reachable(
    alone: House, target: str, method: str
) -> None:
    """Any user could stop the engine, or run what nobody accounts for."""
    answer = await raw(alone, target=target, method=method)
    # 400: what is no target at all; 405: the gateway's own routes that take another method
    assert answer.status in (400, 404, 405), answer.head
    if method == "GET" and answer.status == 405:
        assert target.startswith("/v1/models/")
    assert alone.seen == []


@pytest.mark.parametrize(
    "target", ["http://evil/v1/chat/completions", "/v1/chat/completions?x=/sleep"]
)
async def test_a_route_is_its_path_whatever_stands_around_it(alone: House, target: str) -> None:
    """An absolute target and a query are legal; neither chooses an engine or its route."""
    answer = await raw(alone, target=target)
    assert answer.status == 200
    assert [seen.target for seen in alone.seen] == ["/v1/chat/completions"]


@pytest_asyncio.fixture(loop_scope="module")
async def engine() -> AsyncIterator[RawEngine]:
    """An engine whose every header is the test's."""
    async with running_raw_engine() as each:
        yield each


@pytest_asyncio.fixture(loop_scope="module")
async def before_raw(engine: RawEngine) -> AsyncIterator[Running]:
    """A gateway before it."""
    async with running_gateway(engine.url, wait_ready=False) as running:
        await eventually(lambda: running.gateway.scheduler.replicas)
        yield running


NOISE = (
    b"server: uvicorn\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nset-cookie: a=b\r\n"
    b"connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nx-internal: host-7\r\n"
    b"x-request-id: engines\r\nx-fairgate-tier: critical\r\naccess-control-allow-origin: *\r\n"
    b"endpoint-load-metrics: TEXT\r\nwww-authenticate: Bearer\r\nalt-svc: h3\r\n"
)


@pytest.mark.parametrize("streams", [True, False])
async def test_an_engines_headers_stay_with_it_but_for_the_type(
    engine: RawEngine, before_raw: Running, streams: bool
) -> None:
    """Names of machines, cookies and CORS of an engine are no business of clients."""
    event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
    if streams:
        head = SSE_HEAD.replace(b"text/event-stream; charset=utf-8", b"text/event-stream")
        engine.writes = [head[:-2] + NOISE + b"\r\n", chunked(event), b"0\r\n\r\n"]
    else:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; x=y\r\ncontent-length: 2\r\n"
        engine.writes = [head + NOISE + b"\r\n{}"]
    ask = Ask(CHAT, streams=streams)
    answer = await exchange(
        before_raw.url, ask.raw("connection: close", body=ask.body(model="raw"))
    )
    kind = b"text/event-stream" if streams else b"text/plain; x=y"
    assert b"\r\ncontent-type: %b\r\n" % kind in answer.head + b"\r\n"
    assert answer.head.count(b"\r\ndate: ") == 1
    assert b"1970" not in answer.head
    noise = {line.partition(b":")[0] for line in NOISE.split(b"\r\n") if line}
    for name in noise - {b"date", b"connection", b"x-request-id", b"x-fairgate-tier"}:
        assert b"\r\n%b:" % name not in answer.head
    assert (
        answer.head.count(b"\r\nx-request-id: ") == answer.head.count(b"\r\nx-fairgate-tier: ") == 1
    )
    assert b"engines" not in answer.head


async def test_a_coding_that_could_not_be_undone_is_passed_on_with_its_name(
    engine: RawEngine, before_raw: Running
) -> None:
    """The bytes without the name would be garbage to the client."""
    body = b"\x0b\x02\x80{}\x03"
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: %d\r\n\r\n" % len(body)
    engine.writes = [head + body]
    ask = Ask(CHAT)
    answer = await exchange(
        before_raw.url, ask.raw("connection: close", body=ask.body(model="raw"))
    )
    assert b"\r\ncontent-encoding: br\r\n" in answer.head
    assert answer.body == body


async def test_a_form_keeps_its_boundary(alone: House) -> None:
    """Without it the engine cannot take the form apart."""
    await alone.post(Ask(TRANSCRIPTIONS), authorization="Bearer fg-alice")
    assert alone.seen[0].header["content-type"] == FORM_TYPE.decode()
