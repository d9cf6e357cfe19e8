"""What each tenant got, for the tenants that use most; all others together are `other`.

A name keeps its series as long as it is shown. Who is shown is looked at when somebody asks, and
seldom: a place goes to a tenant that used twice as much as the one which has it.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.telemetry.record import SettledRequest

SHOWN_MAX = 20
"""Tenants with series of their own."""
KNOWN_MAX = 1_000
"""Further ones whose use is added up, to see whether they should be shown."""
RANK_EVERY_S = 300.0
"""How often places change hands."""
CLEARLY = 2.0
"""So many times as much must a newcomer have used: two of a size would swap for ever."""
OTHER = "other"


class Account:
    """Sums of one tenant since it is shown."""

    __slots__ = ("cached", "output", "prompt", "recent", "requests", "waited_s")

    def __init__(self) -> None:
        self.requests = 0
        self.waited_s = 0.0
        self.prompt = 0
        self.cached = 0
        self.output = 0
        self.recent = 0.0
        """Tokens lately, by which it is ranked; halved at each look."""


class Tenants:
    """The accounts of all tenants, of which a bounded number is shown."""

    def __init__(self) -> None:
        self._shown: dict[str, Account] = {}
        self._other = Account()
        self._recent: dict[str, float] = {}
        """Of tenants that are not shown."""
        self._ranked_at: float | None = None

    @property
    def shown(self) -> frozenset[str]:
        """Who has series of its own."""
        return frozenset(self._shown)

    def settled(self, record: SettledRequest) -> None:
        """Count one settled request."""
        account = self._shown.get(record.tenant)
        if account is None:
            account = self._account_of(record)
        usage = record.usage
        account.requests += 1
        account.waited_s += record.waited_s
        if usage is not None:
            account.prompt += usage.prompt_tokens
            account.cached += usage.cached_tokens
            account.output += usage.output_tokens
            account.recent += usage.prompt_tokens + usage.output_tokens

    def rank(self, now: float) -> None:
        """Let those who use most be shown, if it is time to look."""
        if self._ranked_at is not None and now < self._ranked_at + RANK_EVERY_S:
            return
        self._ranked_at = now
        newcomers = sorted(self._recent.items(), key=lambda each: (-each[1], each[0]))
        for name, recent in newcomers[:SHOWN_MAX]:
            least = min(self._shown, key=lambda each: (self._shown[each].recent, each))
            if recent <= CLEARLY * self._shown[least].recent:
                break
            del self._shown[least]
            self._shown[name] = Account()
            self._shown[name].recent = recent
        for account in self._shown.values():
            account.recent /= 2
        kept = {name: recent / 2 for name, recent in self._recent.items() if recent >= 1.0}
        self._recent = {name: recent for name, recent in kept.items() if name not in self._shown}

    def families(self) -> Iterator[Metric]:
        """All of it, as of now."""
        requests = CounterMetricFamily(
            "fairgate_tenant_requests",
            f"Requests that ended, by tenant: the {SHOWN_MAX} that use most, and `other`.",
            labels=("tenant",),
        )
        waited = CounterMetricFamily(
            "fairgate_tenant_queue_seconds",
            "Seconds that requests of the tenant waited for a replica, together.",
            labels=("tenant",),
        )
        tokens = CounterMetricFamily(
            "fairgate_tenant_tokens",
            "Tokens of the tenant by kind: prompt, cached (part of prompt) and output.",
            labels=("tenant", "kind"),
        )
        for name, account in (*self._shown.items(), (OTHER, self._other)):
            requests.add_metric((name,), account.requests)
            waited.add_metric((name,), account.waited_s)
            tokens.add_metric((name, "prompt"), account.prompt)
            tokens.add_metric((name, "cached"), account.cached)
            tokens.add_metric((name, "output"), account.output)
        yield from (requests, waited, tokens)

    def _account_of(self, record: SettledRequest) -> Account:
        """Of a tenant that is not shown yet."""
        name, recent = record.tenant, self._recent
        if name == OTHER:
            return self._other
        if len(self._shown) < SHOWN_MAX:
            account = self._shown[name] = Account()
            return account
        if record.usage is not None and (name in recent or len(recent) < KNOWN_MAX):
            used = record.usage.prompt_tokens + record.usage.output_tokens
            recent[name] = recent.get(name, 0.0) + used
        return self._other
