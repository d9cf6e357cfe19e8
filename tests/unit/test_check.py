"""`fairgate check` as an operator reads it: each failure with its reason and what to do."""

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from gateway.check import Finding, check, has_errors, print_findings
from gateway.settings import Settings, load_settings
from gateway.upstream.replicas import ReplicaAddress, ReplicaStatus

UP = ReplicaStatus(
    up=True, engine="vllm", slots=64, models={"llama": 8192}, cards={"llama": {"id": "llama"}}
)


def settings(**overrides: object) -> Settings:
    """Settings with one model on one replica, and what the test adds."""
    model = {"name": "llama", "replicas": ["http://gpu0:8000"]}
    return load_settings(config=None, environ={}, overrides={"models": [model], **overrides})


class Fleet:
    """Replicas that answer as the test says; it remembers who was asked."""

    def __init__(self, answers: Mapping[str, ReplicaStatus | OSError]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def probe_once(self, address: ReplicaAddress) -> ReplicaStatus:
        self.asked.append(address.url)
        answer = self._answers[address.name]
        if isinstance(answer, OSError):
            raise answer
        return answer


def texts(findings: list[Finding], level: str) -> list[str]:
    """The findings of one level as `where: what`."""
    return [f"{f.where}: {f.what}" for f in findings if f.level == level]


async def test_a_replica_that_works_is_described() -> None:
    """The operator sees at a glance that the gateway understood the engine."""
    findings = await check(settings(), probe_once=Fleet({"gpu0-8000": UP}).probe_once)
    assert texts(findings, "ok") == [
        "127.0.0.1:8080: without keys: open to this machine only",
        "gpu0-8000: vllm, llama, 64 slots",
    ]
    assert not has_errors(findings)


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("GET /metrics: connection refused", "is the engine started"),
        ("GET /metrics: no answer within 5 s", "still loading"),
        ("GET /v1/models: HTTP 401", "api_key_env"),
        ("GET /v1/models: HTTP 404", "is this the root"),
        ("GET /v1/models: lists no model", "no model loaded"),
        ("GET /metrics: ConnectError", "certificate"),
        ("GET /metrics: [Errno -2] Name or service not known", "is the host right"),
        ("GET /metrics: [SSL] certificate verify failed", "ca_file"),
    ],
)
async def test_each_failure_comes_with_what_to_do(reason: str, hint: str) -> None:
    """A bare "connection refused" sends the newcomer to a search engine."""
    fleet = Fleet({"gpu0-8000": ReplicaStatus(last_error=reason)})
    findings = await check(settings(), probe_once=fleet.probe_once)
    failure = next(finding for finding in findings if finding.where == "gpu0-8000")
    assert (failure.level, failure.what) == ("error", reason)
    assert failure.hint is not None
    assert hint in failure.hint
    assert has_errors(findings)


async def test_a_model_that_no_engine_lists_is_an_error() -> None:
    """Every call for it would be answered 404 by an engine that the gateway chose."""
    other = ReplicaStatus(
        up=True, engine="vllm", slots=1, models={"llama": None}, cards={"Llama-3": {}}
    )
    findings = await check(settings(), probe_once=Fleet({"gpu0-8000": other}).probe_once)
    assert texts(findings, "error") == ["llama: no engine lists this model"]


async def test_a_model_whose_replicas_are_all_down_is_an_error() -> None:
    """One dead replica of two is a line; a model without any is what the operator must see."""
    fleet = Fleet({"gpu0-8000": ReplicaStatus(last_error="GET /metrics: connection refused")})
    errors = texts(await check(settings(), probe_once=fleet.probe_once), "error")
    assert errors[1:] == [
        "llama: no replica that answers serves it",
        "models: nothing can be served",
    ]


async def test_what_stays_unknown_is_a_warning() -> None:
    """A replica whose load cannot be read works, but not as well as its owner believes."""
    vague = ReplicaStatus(
        up=True,
        models={"llama": None},
        detail="no metrics: load that others put there is not seen",
        missing=("vllm:num_requests_waiting",),
        last_error="GET /metrics: HTTP 404",
    )
    findings = await check(settings(), probe_once=Fleet({"gpu0-8000": vague}).probe_once)
    assert texts(findings, "warning") == [
        "gpu0-8000: its load cannot be read",
        "gpu0-8000: GET /metrics: HTTP 404",
        "gpu0-8000: no metrics: load that others put there is not seen",
        "gpu0-8000: metrics that this engine should have are missing: vllm:num_requests_waiting",
    ]
    assert "will be learnt" in texts(findings, "ok")[1]


async def test_an_alias_that_hides_a_real_model_is_a_warning() -> None:
    """Clients would get another model than the one that an engine lists under that name."""
    one = {"name": "llama", "aliases": ["qwen"], "replicas": ["http://gpu0:8000"]}
    both = ReplicaStatus(
        up=True, engine="vllm", slots=1, models={"llama": None}, cards={"llama": {}, "qwen": {}}
    )
    fleet = Fleet({"gpu0-8000": both})
    findings = await check(settings(models=[one]), probe_once=fleet.probe_once)
    assert texts(findings, "warning")[0].startswith("qwen: an alias hides")


async def test_every_address_of_a_name_is_asked() -> None:
    """One sick pod behind a headless service must not hide behind its healthy siblings."""

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("vllm", 8000)
        return ["10.0.0.7", "fd00::7"]

    fleet = Fleet({"10.0.0.7-8000": UP, "fd00__7-8000": UP})
    lookup = settings(models=[{"name": "llama", "replicas": [{"dns": "vllm:8000"}]}])
    findings = await check(lookup, probe_once=fleet.probe_once, resolve=resolve)
    assert fleet.asked == ["http://10.0.0.7:8000", "http://[fd00::7]:8000"]
    assert "vllm:8000: 2 addresses" in texts(findings, "ok")


async def test_a_name_without_addresses_is_an_error() -> None:
    """A misspelt service name looks like an idle fleet otherwise."""

    async def resolve(host: str, port: int) -> list[str]:
        raise OSError(f"no record, port {port}")

    lookup = settings(models=[{"name": "llama", "replicas": [{"dns": "vlm:8000"}]}])
    findings = await check(lookup, probe_once=Fleet({}).probe_once, resolve=resolve)
    assert texts(findings, "error")[0] == "vlm:8000: vlm: no record, port 8000"


async def test_a_broken_certificate_file_is_named() -> None:
    """An OSError from deep inside TLS says nothing about which of forty replicas it means."""
    fleet = Fleet({"gpu0-8000": OSError("no certificate found")})
    errors = texts(await check(settings(), probe_once=fleet.probe_once), "error")
    assert errors[0] == "gpu0-8000: its ca_file cannot be used: no certificate found"


async def test_an_open_gateway_on_the_network_is_a_warning() -> None:
    """Who said --insecure-no-auth once should be told each time."""
    exposed = settings(**{"listen.host": "0.0.0.0", "insecure_no_auth": True})  # noqa: S104  # the case itself
    findings = await check(exposed, probe_once=Fleet({"gpu0-8000": UP}).probe_once)
    assert "open to everybody" in texts(findings, "warning")[0]


async def test_a_real_closed_port_is_reported_as_refused() -> None:
    """The fakes above are worth nothing if the real probe speaks otherwise."""
    closed = {"name": "llama", "replicas": ["http://127.0.0.1:1"]}
    errors = texts(await check(settings(models=[closed])), "error")
    assert errors[0] == "127.0.0.1-1: GET /metrics: connection refused"


def test_the_report_is_one_line_a_finding_with_hint_and_verdict() -> None:
    """The report is read in a terminal, and by grep."""
    out = io.StringIO()
    findings = [Finding("ok", "a", "fine"), Finding("error", "b", "[bad]", "do this")]
    print_findings(findings, Console(file=out, width=40))
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "ok  a: fine",
        "error  b: [bad]",
        "do this",
        "errors: 1, warnings: 0",
    ]
