"""Every way around the operators' door that was ever used against a gateway, byte for byte."""

import json
from collections.abc import AsyncIterator

import pytest

from gateway.admin.door import BODY_BYTES_MAX
from gateway.admin.guard import FAILURES_MAX
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.tenancy.keys import key_hash
from tests.support.gateway import Running, running_gateway
from tests.support.raw_client import RawAnswer, exchange, request

FAST = EmulatorOptions(profile="instant")
KEY, ADMIN = "fg-user", "fg-admin"
KEYS = [{"tenant": "acme", "user": "alice", "key_sha256": key_hash(KEY.encode())}]
REPLICAS = "/admin/v1/replicas"
GUARDED = [
    REPLICAS, "/admin/v1/queues", "/admin/v1/requests", "/admin/v1/scale", "/admin/v1/audit",
    "/admin/v1/events", "/admin/v1/overview", "/admin/v1/overview/history",
    "/admin/v1/overview/users", "/metrics", "/docs",
    "/openapi.json",
]  # fmt: skip
TARGETS = [
    REPLICAS, "//admin/v1/replicas", "/admin//v1/replicas", "/admin/v1//replicas",
    "/admin/v1/replicas/", "/admin/v1/replicas/.", "/admin/v1/./replicas", "/ADMIN/v1/replicas",
    "/Admin/V1/Replicas", "/v1/../admin/v1/replicas", "/healthz/../admin/v1/replicas",
    "/v1/chat/completions/../../../admin/v1/replicas", "/%61dmin/v1/replicas",
    "/admin%2fv1%2freplicas", "/admin%2Fv1/replicas", "/%2e%2e/admin/v1/replicas",
    "/v1/%2e%2e/admin/v1/replicas", "/healthz%2f..%2fadmin/v1/replicas", "/admin/v1/replicas%00",
    "/admin/v1/replicas%20", "/admin/v1/replicas;x=1", "/admin/v1/replicas?key=fg-admin",
    "/healthz?/admin/v1/replicas", "/healthz#/admin/v1/replicas", "/\\admin\\v1\\replicas",
    "/healthz;/admin/v1/replicas", "/admin/v1/replicas%23", "/admin/v1/replicas%3f",
    "/v1/models/../../admin/v1/replicas", "/v1/models/%2e%2e%2f%2e%2e%2fadmin/v1/replicas",
    "http://gateway/admin/v1/replicas", "http://localhost/admin/v1/replicas",
    "http://evil.example/admin/v1/replicas", "http://user:fg-admin@gateway/admin/v1/replicas",
    "http://gateway/healthz/../admin/v1/replicas", "//localhost/admin/v1/replicas",
    "/admin", "/admin/", "/admin/v1", "/admin/v1/", "/admin/v1/none", "/admin/v2/replicas",
    "/console/", "/console/index.html", "/console/../admin/v1/replicas",
    "/console/app.js/../../admin/v1/replicas", "/console/chat", "/metrics/", "/metrics%2f",
    "/docs/", "/openapi.json/", "/openapi.yaml", "/redoc",
]  # fmt: skip
HOSTS = [
    "gateway/#@x", "gateway/healthz#@x", "localhost/#@evil.example", "evil.example#@localhost",
    "localhost@evil.example", "evil.example@localhost", "127.0.0.1/healthz?x=", "x/../healthz",
    "gateway:80@evil", "", "[::1]", "localhost", "127.0.0.1", "localhost:99999999", "x" * 5_000,
]  # fmt: skip
IMPOSTORS = [
    ["authorization: Bearer wrong", f"authorization: Bearer {ADMIN}"],
    ["x-api-key: wrong", f"x-api-key: {ADMIN}"],
    ["authorization: Bearer wrong", f"x-api-key: {ADMIN}"],
    [f"authorization: Bearer wrong, Bearer {ADMIN}"],
    [f"authorization: {ADMIN}"],
    [f"authorization: Basic {ADMIN}"],
    [f"authorization: Bearer {KEY}"],
    [f"x-api-key: {KEY}"],
    [f"proxy-authorization: Bearer {ADMIN}"],
    [f"cookie: authorization=Bearer {ADMIN}"],
    ["x-forwarded-for: 127.0.0.1", "x-real-ip: 127.0.0.1", "forwarded: for=127.0.0.1"],
    ["x-forwarded-host: localhost", "x-forwarded-proto: https", "x-forwarded-prefix: /healthz"],
    ["x-original-url: /healthz", "x-rewrite-url: /healthz", "x-http-method-override: OPTIONS"],
    ["x-fairgate-user: admin", "x-fairgate-tier: critical", "x-admin: true"],
]
REBINDERS = [
    ["host: localhost", "host: evil.example"],
    ["host: evil.example", "host: localhost"],
    ["host: evil.example"],
    ["host: localhost.evil.example"],
    ["host: 127.0.0.1.nip.io"],
    ["host: localhost", "origin: http://evil.example"],
    ["host: localhost", "origin: null"],
    ["host: localhost", "origin: http://localhost:3000"],
    ["host: localhost:8080", "origin: http://localhost:8080", "origin: http://evil.example"],
    ["host: localhost", "sec-fetch-site: cross-site"],
    ["host: localhost", "sec-fetch-site: same-site", "sec-fetch-mode: cors"],
    [],
]
REFUSED = (400, 403, 404, 405)


def raw(target: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    """A request with these header lines and no others, but for what ends it."""
    head = [f"{method} {target} HTTP/1.1", "connection: close", f"content-length: {len(body)}"]
    return "\r\n".join([*head, *lines]).encode("latin-1") + b"\r\n\r\n" + body


def is_health(answer: RawAnswer) -> bool:
    """Whether it is what everybody may know."""
    return answer.status == 200 and answer.body == b'{"status":"ok"}'


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """An engine that must not be reached."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway as on a network."""
    async with running_gateway(
        engine.url,
        keys=KEYS,
        admin={"keys": [{"name": "ops", "key_sha256": key_hash(ADMIN.encode())}]},
        listen__host="0.0.0.0",  # noqa: S104 - the test's socket is on loopback all the same
    ) as gateway:
        yield gateway


@pytest.fixture
async def at_home(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway on somebody's own machine, without any key."""
    async with running_gateway(engine.url) as gateway:
        yield gateway


async def test_the_key_opens_every_route_and_its_name_goes_to_the_audit(running: Running) -> None:
    """The control of all tests below: the door opens to whoever has the key."""
    key = f"authorization: Bearer {ADMIN}"
    for path in GUARDED:
        if path != "/admin/v1/events":
            answer = await exchange(running.url, raw(path, "host: gw", key))
            assert answer.status == 200, path
            assert b"cache-control: no-store" in answer.head.lower()
    name = next(iter(running.gateway.scheduler.replicas))
    drain = raw(f"{REPLICAS}/{name}/drain", "host: gw", key, method="POST")
    assert (await exchange(running.url, drain)).status == 200
    audit = await exchange(running.url, raw("/admin/v1/audit", "host: gw", key))
    assert [entry["who"] for entry in audit.json["data"]] == ["ops"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_no_form_of_a_url_leads_past_the_door(running: Running, method: str) -> None:
    """Authorisation hangs on the route that was matched, never on a URL built anew."""
    for target in TARGETS:
        for lines in ([], [f"x-api-key: {KEY}"], [f"host: {running.url[7:]}"]):
            host = [] if lines and lines[0].startswith("host") else ["host: gateway"]
            answer = await exchange(running.url, raw(target, *host, *lines, method=method))
            assert answer.status in (*REFUSED, 401, 429) or is_health(answer), (target, lines)
            assert b"location:" not in answer.head.lower(), target
            assert b"http://127.0.0.1" not in answer.body, "no URL of an engine is shown"


async def test_with_the_key_only_the_path_itself_is_a_route(running: Running) -> None:
    """Two forms of one path are two chances to guard only one of them."""
    for target in TARGETS:
        lines = ["host: gateway", f"x-api-key: {ADMIN}"]
        answer = await exchange(running.url, raw(target, *lines))
        if answer.status == 200 and not is_health(answer):
            assert target.endswith(REPLICAS) or "%" in target, target
            assert answer.json["object"] == "list"


@pytest.mark.parametrize("path", GUARDED)
async def test_no_host_and_no_other_header_stands_in_for_the_key(
    running: Running, path: str
) -> None:
    """CVE-2026-49468: a Host with a `#` made a guarded route look like an open one."""
    asked = [raw(path, f"host: {host}") for host in HOSTS]
    asked += [raw(path, "host: gateway", *lines) for lines in IMPOSTORS]
    for each in asked:
        answer = await exchange(running.url, each)
        assert answer.status in (400, 403, 429, 431), each[:200]
        if answer.status != 400:
            assert answer.json["error"]["code"] in ("forbidden", "too_many_attempts")


async def test_the_admin_key_opens_nothing_of_users_and_theirs_nothing_of_operators(
    running: Running, engine: Emulator
) -> None:
    """One stands in a monitor's configuration, the other in an application's."""
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = await exchange(running.url, request(path, f"x-api-key: {ADMIN}"))
        assert answer.status == 401
    answer = await exchange(running.url, raw(REPLICAS, "host: gw", f"x-api-key: {KEY}"))
    assert answer.status == 403
    assert engine.received == ()


async def test_without_the_key_nothing_of_a_body_is_read_or_judged(running: Running) -> None:
    """A stranger learns nothing of fields, and fills no memory."""
    for body in (b"{", b"{}", b'{"url":"http://169.254.169.254"}', b"\xff\x00"):
        asked = raw(REPLICAS, "host: gw", method="POST", body=body)
        answer = await exchange(running.url, asked)
        assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden")
    head = f"POST {REPLICAS} HTTP/1.1\r\nhost: gw\r\nconnection: close\r\n"
    huge = f"{head}content-length: {1 << 40}\r\n\r\n".encode()
    assert (await exchange(running.url, huge)).status == 403


async def test_guesses_from_one_address_come_to_an_end(running: Running) -> None:
    """And with the right key too, for a while; the main routes are not touched by that."""
    for number in range(FAILURES_MAX):
        asked = raw("/metrics", "host: gw", f"x-api-key: guess-{number}")
        assert (await exchange(running.url, asked)).status == 403
    answer = await exchange(running.url, raw(REPLICAS, "host: gw", f"x-api-key: {ADMIN}"))
    assert (answer.status, answer.json["error"]["code"]) == (429, "too_many_attempts")
    assert b"retry-after: " in answer.head.lower()
    served = await exchange(running.url, request("/v1/chat/completions", f"x-api-key: {KEY}"))
    assert served.status == 200


@pytest.mark.parametrize("path", GUARDED)
async def test_a_web_page_cannot_drive_a_gateway_at_home(at_home: Running, path: str) -> None:
    """DNS rebinding, an image of another page, a page on another port: all of them are pages."""
    for lines in REBINDERS:
        answer = await exchange(at_home.url, raw(path, *lines))
        assert answer.status in (400, 403), lines
        if answer.status == 403:
            assert answer.json["error"]["code"] == "foreign_origin"


async def test_at_home_ones_own_tools_and_page_may_ask(at_home: Running) -> None:
    """curl sends no Origin, and our own page sends ours."""
    port = at_home.url.rpartition(":")[2]
    for lines in (
        [f"host: 127.0.0.1:{port}"],
        [f"host: localhost:{port}", f"origin: http://localhost:{port}"],
        [f"host: [::1]:{port}", "sec-fetch-site: same-origin"],
        ["host: localhost", "sec-fetch-site: cross-site", "sec-fetch-mode: navigate"],
    ):
        assert (await exchange(at_home.url, raw(REPLICAS, *lines))).status == 200, lines


async def test_cors_origins_are_for_users_and_not_for_operators(engine: Emulator) -> None:
    """A chat page that may ask models must not be able to drain machines."""
    page = "https://chat.example.org"
    async with running_gateway(engine.url, listen__cors_origins=[page]) as running:
        lines = ["host: localhost", f"origin: {page}"]
        assert (await exchange(running.url, raw("/v1/models", *lines))).status == 200
        assert (await exchange(running.url, raw(REPLICAS, *lines))).status == 403
        drain = raw(f"{REPLICAS}/x/drain", *lines, method="POST")
        assert (await exchange(running.url, drain)).status == 403


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_has_a_bound_with_a_name(at_home: Running, is_announced: bool) -> None:
    """Announced or in chunks."""
    body = b"x" * (BODY_BYTES_MAX + 1)
    head = f"POST {REPLICAS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    if is_announced:
        asked = f"{head}content-length: {len(body)}\r\n\r\n".encode()  # none of it is waited for
    else:
        head += "transfer-encoding: chunked\r\n\r\n"
        asked = head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    answer = await exchange(at_home.url, asked)
    assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")
    assert str(BODY_BYTES_MAX) in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", REPLICAS, "GET, POST"), ("DELETE", REPLICAS, "GET, POST"),
     ("HEAD", "/metrics", "GET"), ("OPTIONS", "/admin/v1/requests/x", "DELETE, GET"),
     ("GET", "/admin/v1/requests/x/cancel", "POST"), ("TRACE", "/admin/v1/audit", "GET")],
)  # fmt: skip
async def test_another_method_is_told_which_there_are(
    at_home: Running, method: str, path: str, allowed: str
) -> None:
    """All of them, on whichever of our routes they stand."""
    answer = await exchange(at_home.url, raw(path, "host: localhost", method=method))
    assert answer.status == 405
    assert f"allow: {allowed}\r\n" in answer.head.decode().lower().replace(allowed.lower(), allowed)


@pytest.mark.parametrize(
    ("query", "param"),
    [("dryrun=true", "dryrun"), ("limit=1&limit=2", "limit"), ("%00=1", "\x00"), ("=", ""),
     ("limit=x", "limit"), ("limit=0", "limit"), ("limit=1001", "limit"), ("after=x", "after"),
     ("&".join(f"a{n}=1" for n in range(99)), None)],
)  # fmt: skip
async def test_an_unknown_parameter_is_not_passed_over(
    at_home: Running, query: str, param: str | None
) -> None:
    """It may be the one that keeps a change from being made."""
    answer = await exchange(at_home.url, raw(f"{REPLICAS}?{query}", "host: localhost"))
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff", b'"x"', b'{"url":1}', b'{"url":"http://a","nope":1}',
     b'{"url":"http://a","url":"http://169.254.169.254"}', json.dumps({"url": "x" * 9999}).encode(),
     b'{"weight":1e999,"url":"http://127.0.0.1:1"}', b"[" * 5000],
)  # fmt: skip
async def test_a_body_that_makes_no_sense_is_400_in_our_shape(
    at_home: Running, body: bytes
) -> None:
    """The framework's own 422 has a shape that no client of ours reads."""
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        lines = ["host: localhost", f"content-type: {kind}"]
        asked = raw(REPLICAS, *lines, method="POST", body=body)
        answer = await exchange(at_home.url, asked)
        assert answer.status == 400, (kind, answer.body)
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert await at_home.gateway.operators.desk.registry.audit() == ()
