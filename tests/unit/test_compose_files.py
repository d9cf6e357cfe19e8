"""The compose file and its configurations, read as files: what they promise without an engine."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.runtime.shutdown import END_S
from gateway.server import FLUSH_S, HURRY_S, LIFESPAN_S, TASKS_S
from gateway.settings import load_settings
from gateway.settings_document import ShutdownSection
from gateway.upstream.client import IDLE_S_MAX
from gateway.upstream.probe import KEEPALIVE_S

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ALONE = ["gateway", "gateway-cpu"]
CLUSTERED = ["gateway-0", "gateway-1", "gateway-2"]
GATEWAYS = ALONE + CLUSTERED
WATCHERS = ["prometheus", "alertmanager", "alerts", "grafana"]
ENGINES_BY_PROFILE = {"gpu": ["vllm-0", "vllm-1"], "cpu": ["emulator-0", "emulator-1"]}
VLLMS = ENGINES_BY_PROFILE["gpu"]
ENGINES = [name for names in ENGINES_BY_PROFILE.values() for name in names]
ROOT_BY_NEED = {"fetch"}
"""A new volume belongs to root; what fills it runs once and serves nobody."""


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `make-env.sh` writes, by name."""
    file = tmp_path_factory.mktemp("compose") / ".env"
    script = str(ROOT / "deploy" / "compose" / "make-env.sh")
    subprocess.run(["sh", script, str(file)], check=True, capture_output=True)
    assert file.stat().st_mode & 0o077 == 0
    lines = (line.partition("=") for line in file.read_text().splitlines() if line[:1].isalpha())
    return {name: value.strip("'") for name, _, value in lines}


def seconds(text: str) -> int:
    """Compose's `150s`."""
    assert text.endswith("s"), text
    return int(text[:-1])


def option(service: str, name: str) -> str:
    """The value of an option of the service's command, `--name value` or `--name=value`."""
    words = [word for item in SERVICES[service]["command"] for word in item.split("=", 1)]
    return str(words[words.index(name) + 1])


@pytest.mark.parametrize("service", SERVICES)
def test_every_container_is_confined(service: str) -> None:
    """A service that somebody adds later must not be the way in."""
    options = SERVICES[service]
    assert options["read_only"] is True
    assert options["cap_drop"] == ["ALL"]
    assert options["security_opt"] == ["no-new-privileges:true"]
    assert service in ROOT_BY_NEED or int(options["user"].partition(":")[0]) > 0
    limits = options["deploy"]["resources"]["limits"]
    assert limits.keys() >= {"memory", "pids"}
    assert options["logging"]["options"]["max-size"]
    assert options["restart"] == ("no" if service in ROOT_BY_NEED else "unless-stopped")


@pytest.mark.parametrize("service", SERVICES)
def test_every_image_has_a_tag_that_does_not_move(service: str) -> None:
    """What runs tomorrow must be what was tried today."""
    default = SERVICES[service]["image"].partition(":-")[2].removesuffix("}")
    tag = default.rpartition(":")[2]
    assert tag == "local" or tag.lstrip("v")[:1].isdigit(), default
    assert "latest" not in tag


def pins(lock: str) -> dict[str, str]:
    """Package -> version in a lock file."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_the_image_has_what_is_tested_and_the_extras_of_those_who_serve() -> None:
    """Nobody can add a package to it later: it has no pip."""
    image = pins("deploy/requirements-image.lock")
    assert pins("requirements.lock").items() <= image.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {re.split(r"[^\w-]", line)[0] for name in ("otel", "s3") for line in extras[name]}
    assert wanted <= image.keys()


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_collector_is_named_in_env_alone(gateway: str) -> None:
    """Without a value here it is passed on only where there is one; an empty one is no URL."""
    assert SERVICES[gateway]["environment"]["FAIRGATE_LOG__TRACES"] is None


@pytest.mark.parametrize("service", ENGINES)
def test_engines_are_alone_with_the_gateway(service: str) -> None:
    """Engines ask for no key on many routes, and models' code must have no way out."""
    assert SERVICES[service]["networks"] == ["engines"]
    assert "ports" not in SERVICES[service]
    assert COMPOSE["networks"]["engines"] == {"internal": True}
    joined = [name for name, options in SERVICES.items() if "engines" in options["networks"]]
    assert sorted(joined) == sorted(GATEWAYS + ENGINES)


@pytest.mark.parametrize("door", [*ALONE, "balancer"])
def test_the_gateway_is_published_on_this_machine_only(door: str) -> None:
    """Who wants it elsewhere says so; Docker opens ports past most firewalls."""
    assert SERVICES[door]["ports"] == ["${GATEWAY_BIND:-127.0.0.1}:${GATEWAY_PORT:-8080}:8080"]


def test_nothing_else_is_published_beyond_this_machine() -> None:
    """Prometheus and Alertmanager ask nobody for a key."""
    for name in SERVICES.keys() - {*ALONE, "balancer"}:
        for port in SERVICES[name].get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_no_file_that_is_mounted_is_missing() -> None:
    """Docker would make a folder in its place, and the service would not start for it."""
    found = [
        mount["source"]
        for options in SERVICES.values()
        for mount in options.get("volumes", [])
        if isinstance(mount, dict) and mount["type"] == "bind"
    ]
    paths = {source.partition(":-")[2].removesuffix("}") or source for source in found}
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("service", VLLMS)
def test_vllm_keeps_idle_connections_longer_than_the_gateway(service: str) -> None:
    """Otherwise now and then a request meets a connection that is just being closed."""
    kept_s = float(SERVICES[service]["environment"]["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"])
    assert kept_s > 2 * max(IDLE_S_MAX, KEEPALIVE_S)


@pytest.mark.parametrize("service", VLLMS)
def test_vllm_is_given_the_time_to_finish(service: str) -> None:
    """Killed before its own deadline it would leave streams hanging without a word."""
    assert seconds(SERVICES[service]["stop_grace_period"]) > int(
        option(service, "--shutdown-timeout")
    )


@pytest.mark.parametrize("service", [*GATEWAYS, *ENGINES, "alerts"])
def test_an_order_to_stop_is_heard_while_it_starts(service: str) -> None:
    """Python as process 1 ignores SIGTERM until it has a handler: ten minutes for nothing."""
    assert SERVICES[service]["init"] is True


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_the_gateway_stops_first_and_has_its_time(gateway: str) -> None:
    """Compose stops what depends on others before those others."""
    shutdown = ShutdownSection()
    needed_s = shutdown.lag_s + shutdown.limit_s + END_S + FLUSH_S + TASKS_S + LIFESPAN_S + HURRY_S
    assert seconds(SERVICES[gateway]["stop_grace_period"]) > needed_s
    if gateway in ALONE:
        (profile,) = SERVICES[gateway]["profiles"]
        assert SERVICES[gateway]["depends_on"] == ENGINES_BY_PROFILE[profile]
    else:
        assert set(SERVICES[gateway]["depends_on"]) == {"redis", *ENGINES}


def test_the_balancer_stops_before_the_gateways_and_waits_for_their_streams() -> None:
    """Otherwise `down` in working hours cuts off whoever came through it."""
    balancer, shutdown = SERVICES["balancer"], ShutdownSection()
    assert balancer["depends_on"] == CLUSTERED
    assert balancer["stop_signal"] == "SIGUSR1"
    config = (ROOT / "deploy" / "compose" / "haproxy.cfg").read_text()
    (hard_stop,) = re.findall(r"hard-stop-after (\w+)", config)
    assert shutdown.lag_s + shutdown.limit_s < seconds(hard_stop)
    assert seconds(hard_stop) < seconds(balancer["stop_grace_period"])
    for gateway in CLUSTERED:
        assert config.count(f"server {gateway} {gateway}:8080") == 2


def test_the_balancer_learns_in_time_that_a_gateway_leaves() -> None:
    """What it sends after the lag is refused."""
    config = (ROOT / "deploy" / "compose" / "haproxy.cfg").read_text()
    assert config.count("check inter 1s fastinter 500ms fall 2") == 2
    assert ShutdownSection().lag_s > 2 * (1.0 + 0.5)


def test_gateways_of_the_cluster_are_one() -> None:
    """Two of the same name, or with stores of their own, would be none."""
    environments = [SERVICES[name]["environment"] for name in CLUSTERED]
    assert [each["FAIRGATE_REDIS__NAME"] for each in environments] == CLUSTERED
    for each in environments:
        assert each["FAIRGATE_REDIS__URL"] == "redis://redis:6379/0"
        assert each["FAIRGATE_STORE__URL"].startswith("redis://redis:6379/")
    words = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in words
    assert "--maxmemory-policy noeviction" in words
    assert SERVICES["redis"]["networks"] == ["store"]
    joined = {name for name, options in SERVICES.items() if "store" in options["networks"]}
    assert joined == {"redis", *GATEWAYS}


@pytest.mark.parametrize("service", WATCHERS)
def test_who_watches_is_far_from_engines_and_store(service: str) -> None:
    """Grafana is a large program that people log into."""
    assert set(SERVICES[service]["networks"]) <= {"front", "watch"}
    assert SERVICES[service]["profiles"] == ["observability"]


def test_prometheus_of_the_cluster_differs_only_in_whom_it_asks() -> None:
    """Two files of which one is forgotten would alert on different things."""
    one, three = (
        yaml.safe_load((ROOT / path).read_text())
        for path in ("deploy/prometheus/prometheus.yml", "deploy/compose/prometheus.cluster.yml")
    )
    (job,), (job_of_three,) = one["scrape_configs"], three["scrape_configs"]
    assert job_of_three.pop("static_configs") == [{"targets": [f"{n}:8080" for n in CLUSTERED]}]
    assert job.pop("static_configs") == [{"targets": ["gateway:8080"]}]
    assert three == one
    entrypoint = " ".join(SERVICES["prometheus"]["entrypoint"])
    assert f"> {job['authorization']['credentials_file']};" in entrypoint


def test_alerts_reach_somebody_from_the_start() -> None:
    """An Alertmanager that tells nobody looks just like one with nothing to tell."""
    config = yaml.safe_load((ROOT / "deploy" / "compose" / "alertmanager.yml").read_text())
    (receiver,) = config["receivers"]
    (webhook,) = receiver["webhook_configs"]
    assert config["route"]["receiver"] == receiver["name"]
    (command,) = SERVICES["alertmanager"]["command"]
    assert f"s|{webhook['url']}|" in command
    url = SERVICES["alertmanager"]["environment"]["WEBHOOK_URL"]
    assert url == "${ALERT_WEBHOOK_URL:-http://alerts:8080/}"
    assert SERVICES["alerts"]["command"] == ["8080"]


def test_each_vllm_has_a_gpu_of_its_own() -> None:
    """Two engines that share a GPU unasked run out of its memory at start."""
    devices = [
        SERVICES[name]["deploy"]["resources"]["reservations"]["devices"][0] for name in VLLMS
    ]
    assert [device["device_ids"] for device in devices] == [
        ["${VLLM_GPU_0:-0}"],
        ["${VLLM_GPU_1:-1}"],
    ]


@pytest.mark.parametrize(
    ("profile", "file"), [("gpu", "fairgate.yaml"), ("cpu", "fairgate.cpu.yaml")]
)
def test_the_configuration_fits_the_containers(
    profile: str, file: str, secrets: dict[str, str]
) -> None:
    """Two files tell of the same engines: what one says of them the other must not contradict."""
    environ = {
        "FAIRGATE_LISTEN__HOST": "0.0.0.0",  # noqa: S104 - the container's own network
        "FAIRGATE_KEYS": secrets["GATEWAY_KEYS"],
        "FAIRGATE_ADMIN__KEY_SHA256": secrets["GATEWAY_ADMIN_KEY_SHA256"],
        "FAIRGATE_ADMIN__KEYS": "[{name: prometheus, key_sha256: "
        f"{secrets['PROMETHEUS_KEY_SHA256']}}}]",
        "VLLM_API_KEY": secrets["VLLM_API_KEY"],
    }
    path = ROOT / "deploy" / "compose" / file
    settings = load_settings(config=path, environ=environ, overrides={})
    addresses = settings.addresses()
    names = ENGINES_BY_PROFILE[profile]
    assert [address.url for address in addresses] == [f"http://{name}:8000" for name in names]
    for address, name in zip(addresses, names, strict=True):
        assert str(address.max_num_seqs) == option(name, "--max-num-seqs")
        wants_key = "VLLM_API_KEY" in SERVICES[name].get("environment", {})
        assert (address.api_key is not None) == wants_key


def test_fresh_keys_open_the_gateway(secrets: dict[str, str]) -> None:
    """A hash of anything but the key, a line end included, would lock its owner out."""
    environ = {
        "FAIRGATE_KEYS": secrets["GATEWAY_KEYS"],
        "FAIRGATE_REPLICAS": "[http://gpu:8000]",
    }
    settings = load_settings(config=None, environ=environ, overrides={})
    api_key = secrets["GATEWAY_API_KEY"]
    assert len(api_key) > 40
    assert settings.keyring().find(api_key.encode()) is not None
    assert settings.keyring().find(secrets["GATEWAY_ADMIN_KEY"].encode()) is None


def test_keys_that_exist_are_not_overwritten(tmp_path: Path) -> None:
    """Run a second time by mistake, it would lock out everybody who has the old key."""
    file = tmp_path / ".env"
    file.write_text("GATEWAY_API_KEY=mine\n")
    script = str(ROOT / "deploy" / "compose" / "make-env.sh")
    ended = subprocess.run(["sh", script, str(file)], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "left as it is" in ended.stderr
    assert file.read_text() == "GATEWAY_API_KEY=mine\n"


def test_neither_secrets_nor_tests_go_into_the_image() -> None:
    """What is in an image is in every registry it is pushed to."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert not [rule for rule in rules if rule.startswith("!") and "env" in rule]
