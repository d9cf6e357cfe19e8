"""Two sites for clients: a quick one with every route, and one that is soon full."""

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.clients.site import KEY, MODEL, Site, running_site

WARM_REQUESTS = 20


@pytest.fixture(scope="package")
def quick_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four slots, 2 ms a token."""
    folder = tmp_path_factory.mktemp("quick")
    with running_site(folder, "--speed", "10", "--embeddings", slots=4) as running:
        yield running


@pytest.fixture
def site(quick_site: Site) -> Site:
    """The quick site, without the faults of others."""
    quick_site.fault()
    return quick_site


@pytest.fixture(scope="package")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One slot, 5 ms a token; one of a user's requests may wait, the next one is refused."""
    with running_site(
        tmp_path_factory.mktemp("narrow"),
        "--speed",
        "4",
        slots=1,
        bounds={"waiting_per_user": 1},
        tiers=[{"name": "high"}, {"name": "standard", "queue_limit": 0}, {"name": "background"}],
        service_tiers={},
    ) as running:
        warm(running)
        yield running


def warm(site: Site) -> None:
    """Show the gateway how fast its engine is: before that it tells clients to stay away long."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 10}
    with httpx.Client(base_url=site.url, headers={"authorization": f"Bearer {KEY}"}) as client:
        for _ in range(WARM_REQUESTS):
            client.post("/v1/completions", json=body).raise_for_status()
