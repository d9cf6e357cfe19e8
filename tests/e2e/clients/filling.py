"""Requests that fill the narrow site, so that the next one of the same user is refused."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.e2e.clients.site import KEY, MODEL, Site

TOKENS = 300
"""1.5 seconds on the narrow site."""
FULL_S_MAX = 5.0


@contextmanager
def filled(site: Site) -> Iterator[None]:
    """One request runs and one waits; both end by themselves, 1.5 and 3 seconds later."""
    threads = [threading.Thread(target=_ask, args=(site,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        _await_full(site)
        yield
    finally:
        for thread in threads:
            thread.join()


def _ask(site: Site) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": TOKENS}
    headers = {"authorization": f"Bearer {KEY}"}
    httpx.post(f"{site.url}/v1/completions", json=body, headers=headers, timeout=60.0)


def _await_full(site: Site) -> None:
    deadline = time.monotonic() + FULL_S_MAX
    while time.monotonic() < deadline:
        found = httpx.get(f"{site.url}/readyz").json()
        if (found["granted"], found["waiting"]) == (1, 1):
            return
        time.sleep(0.02)
    raise AssertionError("the site did not fill up")
