"""The chart, rendered by a real helm and held against the schemas of what it makes.

`make chart` fetches helm and the schemas into build/chart; without them these tests are skipped.
"""

import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.runtime.shutdown import END_S
from gateway.server import FLUSH_S, HURRY_S, LIFESPAN_S, TASKS_S
from gateway.settings import load_settings
from gateway.settings_document import ShutdownSection

pytestmark = [pytest.mark.chart, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "fairgate"
TOOLS = ROOT / "build" / "chart"
VALUES = ["cpu", "gpu", "cluster"]
VERSION = "1.34"
"""Of Kubernetes, whose schemas are asked."""
OPERATORS = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
HASH = "a" * 64

Object = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; skips the test where there is none."""
    found = TOOLS / "bin" / "helm"
    program = str(found) if found.exists() else shutil.which("helm")
    if program is None:
        pytest.skip("CHART NOT TESTED, which is no pass: no helm; `make chart` fetches one")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@functools.cache
def rendered(*arguments: str) -> list[Object]:
    """All objects that `helm template` makes with these arguments."""
    said = helm("template", "mine", str(CHART), "--namespace", "llm", *arguments)
    assert said.returncode == 0, said.stderr
    return [each for each in yaml.safe_load_all(said.stdout) if each]


def installation(name: str) -> list[Object]:
    """The objects of one of the values files."""
    return rendered("--values", str(CHART / f"values-{name}.yaml"))


def only(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    (found,) = [
        each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    return found


def pod(deployment: Object) -> Object:
    """The specification of its pods."""
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def pods(objects: list[Object]) -> Iterator[Object]:
    """Those of all deployments."""
    return (pod(each) for each in objects if each["kind"] == "Deployment")


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_no_fault(name: str) -> None:
    """The first thing that a reviewer of the chart types."""
    said = helm("lint", "--strict", str(CHART), "--values", str(CHART / f"values-{name}.yaml"))
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("name", [None, *VALUES])
def test_everything_is_what_kubernetes_takes(name: str | None, tmp_path: Path) -> None:
    """A misspelt field is dropped by the API server, and found on the day it is needed."""
    python = TOOLS / "venv" / "bin" / "python"
    if not python.exists():
        pytest.skip("SCHEMAS NOT TESTED, which is no pass: `make chart` fetches them")
    objects = installation(name) if name else rendered()
    own = [each for each in objects if each["apiVersion"] not in OPERATORS]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(own))
    command = [str(python), "-m", "kubernetes_validate", "--strict", "-k", VERSION, str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert len(own) > 3


@pytest.mark.parametrize("name", ["gpu", "cluster"])
def test_everything_is_what_the_operators_take(name: str) -> None:
    """KEDA and Prometheus pass over what they do not understand, and nothing scales or alerts."""
    modules = TOOLS / "node_modules"
    if not modules.is_dir() or shutil.which("node") is None:
        pytest.skip("SCHEMAS OF OPERATORS NOT TESTED, which is no pass: needs node and npm")
    theirs = [each for each in installation(name) if each["apiVersion"] in OPERATORS]
    command = ["node", str(Path(__file__).with_name("operators.mjs")), str(modules)]
    said = subprocess.run(
        command, input=json.dumps(theirs), capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) == len(theirs) > 0
    assert [line for line in lines if not line.startswith("ok ")] == []


@pytest.mark.parametrize("name", VALUES)
def test_the_gateway_accepts_the_configuration(name: str) -> None:
    """It would refuse to start in every pod, and the old ones would be kept for ever."""
    objects = installation(name)
    text = only(objects, "ConfigMap", "mine-fairgate")["data"]["fairgate.yaml"]
    environ = {
        "FAIRGATE_ADMIN__KEY_SHA256": HASH,
        "VLLM_API_KEY": "x",
        "FAIRGATE_REDIS__URL": "redis://redis:6379/0" if name == "cluster" else "",
        "FAIRGATE_STORE__URL": "redis://redis:6379/0" if name == "cluster" else "",
    }
    settings = load_settings(config=None, environ=environ, overrides=yaml.safe_load(text))
    (lookup,) = settings.lookups()
    engines = only(objects, "Service", "mine-fairgate-engines")
    assert engines["spec"]["clusterIP"] == "None"
    assert str(lookup).find("mine-fairgate-engines") >= 0
    (container,) = pod(only(objects, "Deployment", "mine-fairgate-engines"))["containers"]
    assert "--max-num-seqs=8" in container["args"] or "--max-num-seqs=128" in container["args"]


@pytest.mark.parametrize("name", VALUES)
def test_no_pod_is_root_or_can_write_where_it_should_not(name: str) -> None:
    """The namespace may be `restricted`, as Kubernetes calls it."""
    for spec in pods(installation(name)):
        assert spec["automountServiceAccountToken"] is False
        assert spec["shareProcessNamespace"] is True  # else Python is process 1, and deaf at first
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize(("lag_s", "limit_s"), [(None, None), (0, 0), (30, 1200)])
def test_pods_have_the_time_that_the_gateway_takes_to_leave(
    lag_s: int | None, limit_s: int | None
) -> None:
    """Killed before, it would leave streams in the middle of a word."""
    usual = ShutdownSection()
    sets = (
        []
        if lag_s is None
        else [f"config.shutdown.lag_s={lag_s},config.shutdown.limit_s={limit_s}"]
    )
    objects = rendered(*(word for each in sets for word in ("--set", each)))
    needed_s = (
        (usual.lag_s if lag_s is None else lag_s)
        + (usual.limit_s if limit_s is None else limit_s)
        + (END_S + FLUSH_S + TASKS_S + LIFESPAN_S + HURRY_S)
    )
    spec = pod(only(objects, "Deployment", "mine-fairgate"))
    assert needed_s < spec["terminationGracePeriodSeconds"] < needed_s + 5


def test_engines_have_the_time_to_finish() -> None:
    """vLLM cut short leaves streams hanging without a word."""
    spec = pod(only(installation("gpu"), "Deployment", "mine-fairgate-engines"))
    (container,) = spec["containers"]
    assert "--shutdown-timeout=120" in container["args"]
    assert spec["terminationGracePeriodSeconds"] > 120


@pytest.mark.parametrize("name", VALUES)
def test_only_the_gateway_reaches_engines(name: str) -> None:
    """Engines ask for no key on many routes."""
    objects = installation(name)
    policy = only(objects, "NetworkPolicy", "mine-fairgate-engines")["spec"]
    labels = only(objects, "Deployment", "mine-fairgate")["spec"]["template"]["metadata"]["labels"]
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    engine = only(objects, "Deployment", "mine-fairgate-engines")["spec"]["template"]["metadata"]
    assert policy["podSelector"]["matchLabels"].items() <= engine["labels"].items()
    assert not policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []


def test_selectors_of_gateway_and_engines_never_meet() -> None:
    """A Service that took in an engine would send clients past the queue."""
    objects = installation("cluster")
    selectors = {
        each["metadata"]["name"]: each["spec"]["selector"]
        for each in objects
        if each["kind"] == "Service"
    }
    for name in ("mine-fairgate", "mine-fairgate-engines"):
        labels = only(objects, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        meant = {each for each, wanted in selectors.items() if wanted.items() <= labels.items()}
        assert meant == {name}


def test_engines_follow_the_advice_by_keda() -> None:
    """A trigger that asks the wrong route scales to its fallback, for ever."""
    objects = installation("gpu")
    scaled = only(objects, "ScaledObject", "mine-fairgate-engines")["spec"]
    (trigger,) = scaled["triggers"]
    said = trigger["metadata"]
    assert said["url"] == "http://mine-fairgate.llm:8080/admin/v1/scale"
    assert said["valueLocation"] == 'data.#(models.#(=="Qwen/Qwen2.5-7B-Instruct")).advised'
    assert (said["targetValue"], trigger["metricType"]) == ("1", "AverageValue")
    settings = only(objects, "ConfigMap", "mine-fairgate")["data"]["fairgate.yaml"]
    scaling = yaml.safe_load(settings)["scaling"]
    assert scaling == {"min": scaled["minReplicaCount"], "max": scaled["maxReplicaCount"]}
    auth = only(objects, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    assert auth["spec"]["secretTargetRef"][0]["parameter"] == "token"
    assert "replicas" not in only(objects, "Deployment", "mine-fairgate-engines")["spec"]


def test_engines_follow_the_advice_by_an_hpa() -> None:
    """One replica for each one advised, and no second cool-down on top of the gateway's."""
    scaled = only(installation("cluster"), "HorizontalPodAutoscaler", "mine-fairgate-engines")
    (metric,) = scaled["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "fairgate_scale_advised_replicas"
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert scaled["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 0


def test_from_none_the_first_request_gets_in() -> None:
    """With /readyz nobody could ask for the first engine: it fails while there is none."""
    values = ("--values", str(CHART / "values-gpu.yaml"))
    for least, path in (("0", "/healthz"), ("1", "/readyz")):
        objects = rendered(*values, "--set", f"engines.autoscaling.min={least}")
        (container,) = pod(only(objects, "Deployment", "mine-fairgate"))["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == path


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("gateway.replicas=2", "needs redis"),
        ("gateway.autoscaling.enabled=true", "needs redis"),
        ("redis.url=redis://r:6379,redis.inSecret=true", "one of the two"),
        ("redis.url=redis://r:6379,gateway.replicas=2,gateway.persistence.enabled=true", "for one"),
        ("redis.url=http://r", "redis"),
        ("engines.autoscaling.kind=keda", "set engines.enabled"),
        ("engines.enabled=true,engines.autoscaling.kind=hpa,engines.autoscaling.min=0", "keda"),
        ("engines.autoscaling.min=9", "above max"),
        ("engine.enabled=true", "engine"),
        ("gateway.replcas=2", "replcas"),
        ("engines.kind=tgi", "kind"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_applied(settings: str, said: str) -> None:
    """An installation that fails at once is cheaper than one that is wrong in a month."""
    ended = helm("template", "mine", str(CHART), "--set", settings)
    assert ended.returncode != 0
    assert said in ended.stderr


def test_prometheus_gets_every_rule() -> None:
    """A rule that is lost on the way alerts nobody."""
    rule = only(installation("cluster"), "PrometheusRule", "mine-fairgate")
    written = [
        group
        for path in sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    ]
    assert rule["spec"]["groups"] == written
    monitor = only(installation("cluster"), "ServiceMonitor", "mine-fairgate")["spec"]
    assert monitor["jobLabel"] == "app.kubernetes.io/name"
    labels = only(installation("cluster"), "Service", "mine-fairgate")["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "fairgate"
    assert monitor["selector"]["matchLabels"].items() <= labels.items()


def test_names_stay_within_what_kubernetes_allows() -> None:
    """A long release name is cut, in one place, and everything still meets."""
    said = helm("template", "a" * 53, str(CHART), "--values", str(CHART / "values-cluster.yaml"))
    assert said.returncode == 0, said.stderr
    for each in yaml.safe_load_all(said.stdout):
        if each:
            assert len(each["metadata"]["name"]) <= 63
