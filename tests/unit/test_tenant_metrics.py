"""Who uses the fleet, in a bounded number of series that only grow."""

from gateway.core.messages import Usage
from gateway.telemetry.tenants import KNOWN_MAX, RANK_EVERY_S, SHOWN_MAX, Tenants
from tests.unit.test_metrics import record


def settle(tenants: Tenants, name: str, tokens: int = 10) -> None:
    """One request of that tenant."""
    usage = Usage(prompt_tokens=tokens, output_tokens=0, cached_tokens=0)
    tenants.settled(record(tenant=name, usage=usage, waited_s=0.5))


def requests(tenants: Tenants) -> dict[str, float]:
    """Requests by tenant, as told."""
    family = next(iter(tenants.families()))
    return {sample.labels["tenant"]: sample.value for sample in family.samples}


def full() -> Tenants:
    """All places are taken, each by one small request."""
    tenants = Tenants()
    for n in range(SHOWN_MAX):
        settle(tenants, f"t{n}")
    return tenants


def test_the_first_have_their_own_and_the_rest_share_one() -> None:
    """A series for each of a thousand tenants would kill the monitoring."""
    tenants = full()
    for n in range(5):
        settle(tenants, f"late{n}")
    told = requests(tenants)
    assert told["t0"] == 1.0
    assert told["other"] == 5.0
    assert len(told) == SHOWN_MAX + 1


def test_whoever_uses_most_gets_a_place_when_it_is_time_to_look() -> None:
    """The tenant that matters may be the last that came."""
    tenants = full()
    tenants.rank(0.0)
    settle(tenants, "giant", tokens=10_000)
    tenants.rank(RANK_EVERY_S - 1.0)
    assert "giant" not in tenants.shown
    tenants.rank(RANK_EVERY_S)
    assert "giant" in tenants.shown
    assert len(tenants.shown) == SHOWN_MAX
    assert requests(tenants)["giant"] == 0.0
    settle(tenants, "giant")
    assert requests(tenants) == {**requests(tenants), "giant": 1.0, "other": 1.0}


def test_two_of_a_size_do_not_swap_for_ever() -> None:
    """Each swap ends one series and begins another: a graph of crumbs."""
    tenants = full()
    tenants.rank(0.0)
    before = tenants.shown
    for look in range(1, 20):
        for name in [*sorted(before), "rival"]:
            settle(tenants, name, tokens=11 if name == "rival" else 10)
        tenants.rank(look * RANK_EVERY_S)
    assert tenants.shown == before


def test_what_is_told_never_goes_back_while_a_name_is_shown() -> None:
    """Prometheus takes a counter that falls for a restart, and invents traffic."""
    tenants = full()
    tenants.rank(0.0)
    before: dict[str, float] = {}
    for look in range(1, 30):
        for n in range(40):
            settle(tenants, f"t{n * look % 60}", tokens=n * n)
        now = requests(tenants)
        assert all(now[name] >= value for name, value in before.items() if name in now)
        tenants.rank(look * RANK_EVERY_S)
        before = requests(tenants)


def test_a_tenant_called_other_is_one_of_the_others() -> None:
    """Two series with the same labels make the whole scrape fail."""
    tenants = Tenants()
    settle(tenants, "other")
    assert requests(tenants) == {"other": 1.0}


def test_what_is_remembered_of_those_who_are_not_shown_is_bounded() -> None:
    """Tenants are made by operators, but scripts make them too."""
    tenants = full()
    for n in range(2 * KNOWN_MAX):
        settle(tenants, f"many{n}")
    assert len(tenants._recent) == KNOWN_MAX
    for look in range(8):
        tenants.rank(look * RANK_EVERY_S)
    assert len(tenants._recent) == 0
