"""Limits and rules on requests, from the file to what enforces them."""

from pathlib import Path

import pytest

from gateway.tenancy.keys import id_of
from gateway.tenancy.limits import Allowance, Owner
from tests.support.loading import REPLICA, SHA, Loading


@pytest.fixture
def load(tmp_path: Path) -> Loading:
    """A loader with a file of its own."""
    return Loading(tmp_path)


def test_limits_of_tenants_users_and_keys_reach_whoever_they_are_meant_for(load: Loading) -> None:
    """A limit that ends up with somebody else is worse than none."""
    settings = load(
        REPLICA
        + f"""
tenants:
  - name: acme
    limits: {{budget: {{tokens: 1000}}}}
    users: {{alice: {{limits: {{requests_per_minute: 5, concurrent: 2}}}}, bob: {{weight: 2}}}}
  - {{name: other}}
keys:
  - {{tenant: acme, key_sha256: "{SHA}", limits: {{tokens_per_minute: 7,
     budget: {{tokens: 9, per: day}}}}}}
"""
    )
    assert settings.allowances() == {
        Owner("tenant", "acme"): Allowance(budget_tokens=1000, budget_per="month"),
        Owner("user", "acme", "alice"): Allowance(requests_per_minute=5, concurrent=2),
        Owner("key", id_of(SHA)): Allowance(tokens_per_minute=7, budget_tokens=9, budget_per="day"),
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tenants: [{name: a, limits: {tokens_per_minute: 0}}]",
         "tenants[0].limits.tokens_per_minute: 0 is not allowed: must be greater than or equal to"
         " 1"),
        ("tenants: [{name: a, limits: {budget: {tokens: 5, per: year}}}]",
         "tenants[0].limits.budget.per: 'year' is not allowed: must be 'day' or 'month'"),
        ("tenants: [{name: a, users: {u: {limits: {budget: {per: day}}}}}]",
         "tenants[0].users.u.limits.budget.tokens: is required"),
        ("tenants: [{name: a, limits: {request_per_minute: 5}}]",
         "tenants[0].limits.request_per_minute: unknown key; did you mean requests_per_minute?"),
        ("media_urls: all", "media_urls: 'all' is not allowed: must be a list"),
        ("cache_isolation: key",
         "cache_isolation: 'key' is not allowed: must be 'none', 'tenant' or 'user'"),
        ("media_urls: ['https://a.example.org']",
         "media_urls[0]: 'https://a.example.org' is not allowed: must be a host in small letters,"
         " like images.example.org, *.example.org or images.example.org:8443"),
        ("media_urls: ['*']", "media_urls[0]: '*' is not allowed: must be a host in small letters,"
         " like images.example.org, *.example.org or images.example.org:8443"),
    ],
)  # fmt: skip
def test_a_limit_or_rule_that_means_nothing_is_an_error(
    load: Loading, text: str, error: str
) -> None:
    """A limit that is silently ignored is found out by the bill."""
    assert load.errors(REPLICA + text) == (f"fairgate.yaml:2: {error}",)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("media_urls: data-only", ()),
        ("media_urls: []", ()),
        ("media_urls: [a.example.org, '*.example.com', '10.0.0.5:9000']",
         ("a.example.org", "*.example.com", "10.0.0.5:9000")),
    ],
)  # fmt: skip
def test_media_come_from_nowhere_unless_hosts_are_listed(
    load: Loading, text: str, hosts: tuple[str, ...]
) -> None:
    """The default must be the safe one, and its name must be a way to say it."""
    settings = load(REPLICA + text)
    assert settings.media_urls == hosts
    assert settings.cache_isolation == "tenant"
