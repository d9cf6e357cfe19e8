"""Who gets in: keys at the edge of a gateway that others can reach, and every way around them."""

from collections.abc import AsyncIterator
from itertools import product

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.tenancy.keys import key_hash
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.raw_client import exchange, request

FAST = EmulatorOptions(profile="instant")
KEY, ADMIN = "fg-user", "fg-admin"
KEYS = [{"tenant": "acme", "user": "alice", "key_sha256": key_hash(KEY.encode())}]
CHAT = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
GENERATE = "/v1/chat/completions"
ROUTES = [GENERATE, "/v1/completions", "/v1/embeddings"]
OPERATORS = ["/metrics", "/docs", "/openapi.json"]
TARGETS = [
    GENERATE,
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/../v1/chat/completions",
    "/healthz/../v1/chat/completions",
    "/v1/../admin",
    "/v1/chat/completions/",
    "/v1/chat/completions/.",
    "/V1/chat/completions",
    "/v1/%63hat/completions",
    "/v1/chat%2fcompletions",
    "/v1/chat%2Fcompletions",
    "/v1/%2e%2e/v1/chat/completions",
    "/healthz%2f..%2fv1/chat/completions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%20",
    "/v1/chat/completions;jsessionid=1",
    "/v1/chat/completions?api_key=fg-user",
    "/healthz?/v1/chat/completions",
    "/healthz#/v1/chat/completions",
    "/\\v1\\chat\\completions",
    "http://gateway/v1/chat/completions",
    "http://evil.example/v1/chat/completions",
    "http://gateway/healthz/../v1/chat/completions",
    "http://user:fg-user@gateway/v1/chat/completions",
    "//evil.example/v1/chat/completions",
]
HOSTS = [
    "gateway/#@x",
    "gateway/healthz#@x",
    "127.0.0.1/healthz?x=",
    "x/../healthz",
    "gateway:80@evil",
    "",
    "[::1]",
    "localhost",
    "x" * 5_000,
]
IMPOSTORS = [
    ["authorization: Bearer wrong", f"authorization: Bearer {KEY}"],
    ["x-api-key: wrong", f"x-api-key: {KEY}"],
    ["authorization: Bearer wrong", f"x-api-key: {KEY}"],
    ["authorization: Bearer wrong, Bearer " + KEY],
    [f"authorization: {KEY}"],
    [f"authorization: Basic {KEY}"],
    [f"authorization: Bearer {KEY}\x0b"],
    [f"proxy-authorization: Bearer {KEY}"],
    [f"cookie: authorization=Bearer {KEY}"],
    ["x-forwarded-for: 127.0.0.1", "x-real-ip: 127.0.0.1", "forwarded: for=127.0.0.1"],
    ["x-forwarded-host: localhost", "x-forwarded-proto: https"],
    ["x-original-url: /healthz", "x-rewrite-url: /healthz"],
    ["x-http-method-override: GET"],
    ["x-fairgate-user: admin", "x-fairgate-tier: critical"],
    ["authorization: Bearer " + "x" * 20_000],
]
SMUGGLERS = [
    b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
    b"content-length: 0\r\ncontent-length: 5\r\n",
    b"transfer-encoding: xchunked\r\n",
    b"transfer-encoding : chunked\r\n",
]
HEALTHY = b'{"status":"ok"}'


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """An engine that must not be reached."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway as on a network: with keys, and told to listen everywhere."""
    async with running_gateway(
        engine.url,
        keys=KEYS,
        admin={"key_sha256": key_hash(ADMIN.encode())},
        listen__host="0.0.0.0",  # noqa: S104 - the test's socket is on loopback all the same
    ) as gateway:
        yield gateway


async def test_the_key_opens_and_only_the_key(running: Running, engine: Emulator) -> None:
    """In either of the two usual headers."""
    for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        async with client(running, **headers) as http:
            assert (await http.post(GENERATE, json=CHAT)).status_code == 200
    assert len(engine.received) == 2


async def test_without_a_key_the_answer_is_401_in_openais_shape(running: Running) -> None:
    """Before anything else is looked at: a stranger learns nothing of bodies or models."""
    async with client(running) as http:
        for route, body in product(ROUTES, [b"{}", b"{", b""]):
            answer = await http.post(route, content=body)
            assert answer.status_code == 401
            assert answer.json() == {
                "error": {
                    "message": "The API key is missing or not known.",
                    "type": "authentication_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
            }
            assert answer.headers["x-request-id"]


async def test_models_need_a_key_too(running: Running) -> None:
    """Which models run is nobody's business; and a name must not be guessable by its status."""
    async with client(running) as http:
        for path in ("/v1/models", "/v1/models/emulated", "/v1/models/nope"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_operators_pages_need_the_admin_key_beyond_this_machine(running: Running) -> None:
    """Metrics tell who uses what; a user's own key is not enough."""
    strangers: list[dict[str, str]] = [
        {},
        {"authorization": f"Bearer {KEY}"},
        {"x-api-key": "fg-adm"},
    ]
    operators = ({"authorization": f"Bearer {ADMIN}"}, {"x-api-key": ADMIN})
    async with client(running) as http:
        for path in OPERATORS:
            for headers in strangers:
                answer = await http.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
                assert answer.json()["error"]["type"] == "permission_error"
            for headers in operators:
                assert (await http.get(path, headers=headers)).status_code == 200


async def test_the_admin_key_opens_no_engine(running: Running, engine: Emulator) -> None:
    """It stands in a monitoring system's configuration."""
    async with client(running, authorization=f"Bearer {ADMIN}") as http:
        assert (await http.post(GENERATE, json=CHAT)).status_code == 401
    assert engine.received == ()


async def test_health_needs_no_key(running: Running) -> None:
    """Load balancers have none."""
    async with client(running) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200


async def test_without_a_configured_admin_key_one_is_made(engine: Emulator) -> None:
    """Without keys but told so, the gateway serves everybody, and its metrics nobody."""
    async with (
        running_gateway(engine.url, insecure_no_auth=True, listen__host="0.0.0.0") as running,  # noqa: S104 - as above
        client(running) as http,
    ):
        assert (await http.post(GENERATE, json=CHAT)).status_code == 200
        assert (await http.get("/metrics")).status_code == 403
        made = running.gateway.operators.made_key
        assert made is not None
        assert (await http.get("/metrics", headers={"x-api-key": made})).status_code == 200


async def test_on_this_machine_operators_pages_are_open(engine: Emulator) -> None:
    """Whoever tries the gateway at home should see everything at once."""
    async with running_gateway(engine.url) as running, client(running) as http:
        for path in OPERATORS:
            assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_no_form_of_a_url_leads_to_an_engine_without_a_key(
    running: Running, engine: Emulator, method: str
) -> None:
    """Authorisation hangs on the route that was matched, never on a URL built anew."""
    for target in TARGETS:
        answer = await exchange(running.url, request(target, method=method))
        is_health = "/healthz" in target and method == "GET" and answer.body == HEALTHY
        assert answer.status in (400, 401, 403, 404, 405) or is_health, target
        assert b"location:" not in answer.head.lower(), "a redirect built from Host leads anywhere"
    assert engine.received == ()


async def test_a_slash_at_the_end_is_another_path(running: Running) -> None:
    """A redirect would be built from the Host header: it leads wherever a caller likes."""
    for path in ("/metrics/", "/docs/", "/healthz/", "/readyz/", "/v1/models/"):
        answer = await exchange(running.url, request(path, method="GET", host="evil.example"))
        assert answer.status in (401, 404), path
        assert b"evil" not in answer.head


@pytest.mark.parametrize("path", [GENERATE, "/metrics", "/v1/models"])
async def test_no_host_header_opens_anything(running: Running, engine: Emulator, path: str) -> None:
    """A crafted Host made another gateway take a guarded route for an open one."""
    method = "POST" if path == GENERATE else "GET"
    for host in HOSTS:
        answer = await exchange(running.url, request(path, host=host, method=method))
        assert answer.status in (400, 401, 403), host
    assert engine.received == ()


async def test_no_other_header_stands_in_for_the_key(running: Running, engine: Emulator) -> None:
    """Of a doubled header the first counts: what a proxy set cannot be overruled behind it."""
    for lines in IMPOSTORS:
        answer = await exchange(running.url, request(GENERATE, *lines))
        assert answer.status in (400, 401, 431), lines
    assert engine.received == ()


async def test_no_other_method_reaches_an_engine(running: Running, engine: Emulator) -> None:
    """Not even with the key."""
    preflight = ["origin: http://evil.example", "access-control-request-method: POST"]
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"):
        for lines in ([], [f"authorization: Bearer {KEY}"], preflight):
            answer = await exchange(running.url, request(GENERATE, *lines, method=method))
            assert answer.status in (404, 405), method
            assert b"access-control-allow-origin" not in answer.head.lower()
    assert engine.received == ()


async def test_a_request_hidden_in_another_is_judged_by_itself(
    running: Running, engine: Emulator
) -> None:
    """Two readings of one length are how requests are smuggled past a front door."""
    for lines in SMUGGLERS:
        head = b"POST /healthz HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n"
        answer = await exchange(running.url, head + request(GENERATE))
        assert answer.status in (400, 401, 405), lines
    assert engine.received == ()


async def test_a_stranger_who_uploads_is_not_read_to_the_end(running: Running) -> None:
    """A refusal that first takes in 32 MiB is a way to fill a machine."""
    body = b'{"model":"emulated"}'
    head = request(GENERATE, "expect: 100-continue", body=body)[: -len(body)]
    answer = await exchange(running.url, head)
    assert answer.status == 401


async def test_refused_callers_leave_no_trace_in_queues_or_metrics(running: Running) -> None:
    """A guesser must not be able to fill the books."""
    async with client(running) as http:
        for n in range(20):
            await http.post(GENERATE, json=CHAT, headers={"x-api-key": f"guess-{n}"})
        text = (await http.get("/metrics", headers={"x-api-key": ADMIN})).text
    assert "fairgate_flow_control_requests_total{" not in text
    await eventually(lambda: running.in_flight == 0)
