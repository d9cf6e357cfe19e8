"""The benchmark of several gateways once from end to end: so short that its figures say nothing."""

import shutil

import pytest

from gateway.bench.cluster import measure_cluster
from gateway.bench.cluster_report import is_sound
from gateway.bench.cluster_spec import GATEWAYS, ClusterPlan
from gateway.bench.options import Options

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SHORT = ClusterPlan(rounds=1, power_s=6.0, power_rounds=1, window_s=1.0)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here")
def test_several_gateways_are_measured_beside_one() -> None:
    """Whoever sizes a cluster by a page's figures wants to see those of their own machine."""
    said: list[str] = []
    gateway = Options().gateway(said.append)
    found = measure_cluster(gateway, SHORT, said.append, log_level="warning")
    assert is_sound(found), found
    assert [run.gateways for run in found.power] == [GATEWAYS, 1]
    assert all(run.looks for run in found.power)
