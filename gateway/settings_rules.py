"""What settings must mean together: names that repeat, names that nothing has, order, exposure.

Each rule looks at the parts that are valid in themselves and yields what is wrong; where a value
came from, and the outside world (files, variables), are not known here.
"""

import ipaddress
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

from gateway.core.policy import DEFAULT_TIERS, Scaling
from gateway.settings_document import (
    SERVICE_TIERS,
    AdminSection,
    AutoscaleSection,
    BatchesSection,
    KeySection,
    ListenSection,
    ModelSection,
    ReplicaSection,
    ScalingSection,
    SchedulingSection,
    TenantSection,
    TierSection,
)
from gateway.settings_problems import Parts
from gateway.settings_sources import Place, Problem
from gateway.upstream.replicas import replica_name

T = TypeVar("T")

AUTO_TIER = "auto"
ANY_MODEL = "*"


def violations(values: Mapping[str, object], parts: Parts) -> Iterator[Problem]:
    """All that is wrong with `parts`; `values` is the whole tree, faulty parts included."""
    tiers = tier_names(values)
    yield from _repeated_names(parts)
    yield from _replicas(values, parts)
    yield from _tiers(parts)
    yield from _service_tiers(parts, tiers)
    yield from _moves(parts, tiers)
    yield from _batches(parts, tiers)
    yield from _keys(parts, tiers)
    yield from _key_models(values, parts)
    yield from _prices(values, parts)
    yield from _scaling(parts)
    yield from _autoscale(parts)
    yield from _exposure(values)
    yield from _admin(parts)


def placed_replicas(parts: Parts) -> list[tuple[Place, ReplicaSection]]:
    """All valid replicas with their places: those of the models, then those without a model."""
    of_models = [
        ((*place, "replicas", index), replica)
        for place, model in _sections(parts, ModelSection)
        for index, replica in enumerate(model.replicas)
    ]
    return of_models + _sections(parts, ReplicaSection)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tier_names(values: Mapping[str, object]) -> tuple[str, ...]:
    """The tiers' names by rank, those of otherwise faulty tiers included."""
    tiers = values.get("tiers")
    if not isinstance(tiers, list) or not tiers:
        return tuple(tier.name for tier in DEFAULT_TIERS)
    names = (tier.get("name") for tier in tiers if isinstance(tier, Mapping))
    return tuple(name for name in names if isinstance(name, str))


def default_tier(tiers: tuple[str, ...], service_tiers: Mapping[str, str] | None) -> str:
    """The tier of whoever has none of its own: what `default` stands for, else the last."""
    wanted = (SERVICE_TIERS if service_tiers is None else service_tiers).get("default")
    return wanted if wanted in tiers else tiers[-1]


def scaling_thresholds(scaling: ScalingSection) -> tuple[float, float]:
    """(below, above) with the defaults filled in."""
    below = Scaling().below if scaling.below is None else scaling.below
    return below, Scaling().above if scaling.above is None else scaling.above


def _sections(parts: Parts, kind: type[T]) -> list[tuple[Place, T]]:
    """The valid sections of one kind with their places."""
    return [(place, part) for place, part in parts.items() if isinstance(part, kind)]


def _repeated(found: Iterable[tuple[Place, Hashable]], message: str) -> Iterator[Problem]:
    """A problem for each value that an earlier place has already."""
    seen: set[Hashable] = set()
    for place, value in found:
        if value in seen:
            yield Problem(place, message)
        seen.add(value)


def _repeated_names(parts: Parts) -> Iterator[Problem]:
    models = _sections(parts, ModelSection)
    names = [((*place, "name"), model.name) for place, model in models]
    aliases = [
        ((*place, "aliases", index), alias)
        for place, model in models
        for index, alias in enumerate(model.aliases)
    ]
    yield from _repeated(names + aliases, "another model has this name or alias")
    yield from _repeated(
        [((*place, "name"), tier.name) for place, tier in _sections(parts, TierSection)],
        "another tier has this name",
    )
    yield from _repeated(
        [((*place, "name"), tenant.name) for place, tenant in _sections(parts, TenantSection)],
        "another tenant has this name",
    )
    yield from _repeated(
        [((*place, "key_sha256"), key.key_sha256) for place, key in _sections(parts, KeySection)],
        "another key has this hash",
    )


def _replicas(values: Mapping[str, object], parts: Parts) -> Iterator[Problem]:
    """Where replicas come from, once each; the same engine under two models is one replica."""
    if not values.get("models") and not values.get("replicas"):
        yield Problem((), "no replica: give --replica URL, or replicas or models in the file")
    first: dict[str, ReplicaSection] = {}
    names: dict[str, str] = {}
    within: set[tuple[Place, str]] = set()
    for place, replica in placed_replicas(parts):
        if (replica.url is None) == (replica.dns is None):
            yield Problem(place, "a replica has a url or a dns name, and not both")
            continue
        address = replica.url or f"dns:{replica.dns}"
        if (place[:-1], address) in within:
            yield Problem(place, "the same replica is listed twice")
        elif first.setdefault(address, replica) != replica:
            yield Problem(place, "the same replica is given other options elsewhere")
        name = replica_name(replica.url) if replica.url else address
        if names.setdefault(name, address) != address:
            yield Problem(place, f"two replicas would be called {name!r}")
        within.add((place[:-1], address))


def _tiers(parts: Parts) -> Iterator[Problem]:
    tiers = _sections(parts, TierSection)
    given = [(place, tier.queue_limit) for place, tier in tiers if tier.queue_limit is not None]
    for (_, above), (place, limit) in pairwise(given):
        if limit >= above:
            yield Problem(
                (*place, "queue_limit"),
                f"{limit} is not allowed: must be less than {above}, the limit of the tier above",
            )
    floors = sum(tier.min_share or 0.0 for _, tier in tiers)
    if floors >= 1:
        yield Problem(
            ("tiers",), f"the min_share of all tiers add up to {floors:g}: must be below 1"
        )


def _service_tiers(parts: Parts, tiers: tuple[str, ...]) -> Iterator[Problem]:
    mapping = parts.get(("service_tiers",))
    if not isinstance(mapping, Mapping):
        return
    for name, tier in mapping.items():
        place = ("service_tiers", name)
        if name == AUTO_TIER:
            yield Problem(place, "auto always means the key's own tier")
        elif tier not in tiers:
            yield Problem(place, _no_such_tier(tier, tiers))


def _moves(parts: Parts, tiers: tuple[str, ...]) -> Iterator[Problem]:
    """Requests move from tiers that are gone to tiers that there are."""
    mapping = parts.get(("moved_to",))
    for old, new in mapping.items() if isinstance(mapping, Mapping) else ():
        if old in tiers:
            yield Problem(("moved_to", old), "this tier exists: its requests stay where they are")
        if new not in tiers:
            yield Problem(("moved_to", old), _no_such_tier(new, tiers))


def _batches(parts: Parts, tiers: tuple[str, ...]) -> Iterator[Problem]:
    batches = parts.get(("batches",))
    if isinstance(batches, BatchesSection) and batches.tier not in (None, *tiers):
        yield Problem(("batches", "tier"), _no_such_tier(str(batches.tier), tiers))


def _keys(parts: Parts, tiers: tuple[str, ...]) -> Iterator[Problem]:
    mapping = parts.get(("service_tiers",))
    default = default_tier(tiers, mapping if isinstance(mapping, Mapping) else None)
    for place, key in _sections(parts, KeySection):
        for name, tier in (("tier", key.tier), ("max_tier", key.max_tier)):
            if tier is not None and tier not in tiers:
                yield Problem((*place, name), _no_such_tier(tier, tiers))
        own = key.tier or default
        best = key.max_tier or own
        if own in tiers and best in tiers and tiers.index(best) > tiers.index(own):
            yield Problem((*place, "max_tier"), f"{best!r} ranks below the key's own tier {own!r}")


def _key_models(values: Mapping[str, object], parts: Parts) -> Iterator[Problem]:
    """A key may name only known models, where none are left to be discovered."""
    models = _sections(parts, ModelSection)
    given = values.get("models")
    if values.get("replicas") or not isinstance(given, list) or len(models) != len(given):
        return
    known = {ANY_MODEL} | {name for _, m in models for name in (m.name, *m.aliases)}
    for place, key in _sections(parts, KeySection):
        for index, name in enumerate(key.models):
            if name not in known:
                yield Problem((*place, "models", index), f"there is no model {name!r}")


def _prices(values: Mapping[str, object], parts: Parts) -> Iterator[Problem]:
    """Where prices are charged each model has one: a mixture of units would be no order at all."""
    scheduling = parts.get(("scheduling",))
    if not isinstance(scheduling, SchedulingSection) or scheduling.cost != "price":
        return
    if values.get("replicas"):
        yield Problem(
            ("scheduling", "cost"),
            "price needs a price for every model: list the models, with their replicas and "
            "prices, under models instead of discovering them from replicas",
        )
    for place, model in _sections(parts, ModelSection):
        if model.price is None:
            yield Problem((*place, "price"), "is required for every model when cost is price")
        elif not model.price.input + model.price.output > 0:
            yield Problem((*place, "price"), "must not be 0 for both when cost is price")


def _scaling(parts: Parts) -> Iterator[Problem]:
    scaling = parts.get(("scaling",))
    if not isinstance(scaling, ScalingSection):
        return
    if scaling.min > scaling.max:
        yield Problem(
            ("scaling", "min"), f"{scaling.min} is not allowed: must be at most max, {scaling.max}"
        )
    below, above = scaling_thresholds(scaling)
    if below >= above:
        wrong = "above" if scaling.below is None else "below"
        yield Problem(("scaling", wrong), f"below ({below:g}) must be less than above ({above:g})")


def _autoscale(parts: Parts) -> Iterator[Problem]:
    autoscale, scaling = parts.get(("autoscale",)), parts.get(("scaling",))
    if not isinstance(autoscale, AutoscaleSection):
        return
    if autoscale.sleep and not autoscale.drain:
        yield Problem(
            ("autoscale", "sleep"), "needs autoscale.drain: only who is drained may sleep"
        )
    most = scaling.max if isinstance(scaling, ScalingSection) else Scaling().max
    if autoscale.min > most:
        yield Problem(("autoscale", "min"), f"{autoscale.min} is more than scaling.max, {most}")
    if autoscale.webhook.url is not None and autoscale.webhook.secret_env is None:
        yield Problem(
            ("autoscale", "webhook", "secret_env"),
            "is required with a url: who gets a message must be able to tell whose it is",
        )


def _exposure(values: Mapping[str, object]) -> Iterator[Problem]:
    """Without keys, only this machine gets in, and no web page that it shows."""
    listen = values.get("listen")
    if values.get("keys") or not isinstance(listen, Mapping):
        return
    host = listen.get("host")
    is_elsewhere = isinstance(host, str) and not is_loopback(host)
    admin = values.get("admin")
    is_operated = isinstance(admin, Mapping) and (admin.get("key_sha256") or admin.get("keys"))
    # With an admin key nobody gets in until a key is made at run time.
    if is_elsewhere and not (is_operated or values.get("insecure_no_auth")):
        yield Problem(
            ("listen", "host"),
            f"{host!r} is not allowed without keys: anybody could use the engines; "
            "configure keys, or the admin key that makes them, listen on 127.0.0.1, "
            "or say --insecure-no-auth",
        )
    origins = listen.get("cors_origins")
    if isinstance(origins, list) and "*" in origins:
        yield Problem(
            ("listen", "cors_origins"),
            "* is not allowed without keys: any web page could use the engines",
        )


def _admin(parts: Parts) -> Iterator[Problem]:
    """Operators are told apart by name and key, and from users; their port is one of its own."""
    listen, admin = parts.get(("listen",)), parts.get(("admin",))
    if isinstance(listen, ListenSection) and listen.port and listen.admin_port == listen.port:
        yield Problem(("listen", "admin_port"), "must be another port than listen.port")
    if not isinstance(admin, AdminSection):
        return
    places: list[Place] = [("admin", "keys", index) for index, _ in enumerate(admin.keys)]
    yield from _repeated(
        [((*place, "name"), key.name) for place, key in zip(places, admin.keys, strict=True)],
        "another admin key has this name",
    )
    hashes: list[tuple[Place, Hashable]] = [
        ((*place, "key_sha256"), key.key_sha256)
        for place, key in zip(places, admin.keys, strict=True)
    ]
    if admin.key_sha256 is not None:
        hashes.insert(0, (("admin", "key_sha256"), admin.key_sha256))
    yield from _repeated(hashes, "another admin key has this hash")
    users = {key.key_sha256 for _, key in _sections(parts, KeySection)}
    for place, hash_ in hashes:
        if hash_ in users:
            yield Problem(place, "a user's key has this hash")


def _no_such_tier(tier: str, tiers: tuple[str, ...]) -> str:
    return f"there is no tier {tier!r}; there are {', '.join(tiers)}"
