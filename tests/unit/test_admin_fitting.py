"""What the store holds, over what the file says: what is in force, and what does not fit."""

from typing import Any

import pytest

from gateway.admin.fitting import UnfitError, fitted, judged
from gateway.admin.key_records import key_of, made_key, rotated, section_of
from gateway.admin.names import user_id
from gateway.admin.overlay import POLICY, Name, overlaid
from gateway.admin.policy_document import checked, differences, document_of
from gateway.settings import SettingsError
from gateway.settings_sources import Sources, from_yaml
from gateway.tenancy.store.port import Kind, Record
from tests.support.loading import SHA

FILE = f"""
replicas: [http://file:1]
models: [{{name: llama, replicas: [http://file:2]}}]
tiers: [{{name: gold}}, {{name: lead}}]
service_tiers: {{default: lead}}
tenants:
  - {{name: filed, weight: 2, users: {{fay: {{weight: 3}}}}}}
keys: [{{tenant: filed, tier: gold, key_sha256: {SHA}}}]
"""


def sources(text: str = FILE) -> Sources:
    """What a file says."""
    return Sources(from_yaml(text, name="fairgate.yaml"))


def record(kind: Kind, id: str, **body: Any) -> Record:
    """One record."""
    return Record(kind=kind, id=id, version=1, body=body)


def user(tenant: str, name: str, **body: Any) -> Record:
    """A user's record."""
    return record("user", user_id(tenant, name), tenant=tenant, name=name, **body)


def test_names_are_added_and_those_of_the_file_stay_as_they_are() -> None:
    """A record from before the file was changed must not win over the file."""
    records = [
        record("tenant", "acme", name="acme", weight=4.0),
        record("tenant", "filed", name="filed", weight=9.0),
        user("acme", "al", weight=2.0),
        user("filed", "fay", weight=9.0),
        user("filed", "new", weight=5.0),
        user("lone", "one", weight=6.0),
        record("replica", "a", url="http://store:1"),
        record("replica", "b", url="http://store:2", model="llama"),
        record("replica", "c", url="http://store:3", model="other"),
        record("replica", "d", url="http://file:1"),
        record("replica", "file-2", drained=True),
        record("key", "k", tenant="acme"),
    ]
    found = fitted(sources(), records)
    policy = found.settings.policy()
    assert {name: policy.tenant_weight(name) for name in ("acme", "filed", "lone")} == {
        "acme": 4, "filed": 2, "lone": 1,
    }  # fmt: skip
    assert policy.user_weight("filed", "fay") == 3
    assert policy.user_weight("filed", "new") == 5
    assert policy.user_weight("lone", "one") == 6
    assert found.overlay.shadowed == {
        ("tenant", "filed"), ("user", "filed/fay"), ("replica", "d"),
    }  # fmt: skip
    models = {address.url: address.models for address in found.settings.addresses()}
    assert models["http://store:1"] is None
    assert models["http://store:2"] == frozenset({"llama"})
    assert models["http://store:3"] == frozenset({"other"})
    assert set(models) == {f"http://{host}:{n}" for host in ("file", "store") for n in (1, 2)} | {
        "http://store:3"
    }
    assert found.set_aside == {}


def test_a_policy_replaces_whole_sections_and_nothing_else() -> None:
    """Half the file's section under half the stored one would be a policy that nobody wrote."""
    document = checked({"tiers": [{"name": "gold"}], "moved_to": {"lead": "gold"}})
    found = fitted(sources(), [record(*POLICY, **document)])
    assert found.settings.tier_names == ("gold",)
    assert found.settings.service_tiers is None
    assert [tenant.name for tenant in found.settings.tenants] == ["filed"]
    assert document_of(found.settings) == document
    overlay = overlaid(sources().tree, [record(*POLICY, **document)])
    assert overlay.tree.origin(("tiers", 0, "name")) == "store"
    assert overlay.tree.origin(("keys", 0)) == "fairgate.yaml:8"


def test_a_policy_that_no_longer_fits_is_set_aside_and_the_rest_holds() -> None:
    """A gateway that does not start at night since a tier was renamed in the file helps nobody."""
    document = checked({"tiers": [{"name": "only"}], "service_tiers": None})
    records = [record(*POLICY, **document), record("tenant", "acme", name="acme", weight=4.0)]
    found = fitted(sources(), records)
    assert found.settings.tier_names == ("gold", "lead")
    assert list(found.set_aside) == [POLICY]
    assert "there is no tier 'gold'" in found.set_aside[POLICY][0]
    assert found.settings.policy().tenant_weight("acme") == 4
    healed = fitted(sources(FILE.replace("tier: gold,", "tier: only,")), records[:1])
    assert healed.settings.tier_names == ("only",)


def test_a_damaged_record_takes_only_itself_out() -> None:
    """One record edited by hand must not undo what all others say."""
    records = [
        record("tenant", "acme", name="acme", weight=-1.0),
        record("tenant", "fine", name="fine", weight=4.0),
        record("replica", "x", url="nowhere"),
        user("fine", "u", wieght=1),
    ]
    found = fitted(sources(), records)
    assert set(found.set_aside) == {
        ("tenant", "acme"), ("replica", "x"), ("user", "fine/u"),
    }  # fmt: skip
    assert found.settings.policy().tenant_weight("fine") == 4


def test_a_faulty_file_is_the_files_fault() -> None:
    """What the store holds must not be blamed for it, nor hide it."""
    with pytest.raises(SettingsError, match="lead"):
        fitted(sources(FILE.replace("[{name: gold}, {name: lead}]", "[{name: gold}]")), [])


def test_a_change_must_fit_as_a_whole_and_says_where_it_does_not() -> None:
    """An error about line 3 of a tree that only the gateway has would help nobody."""
    bad = record("tenant", "acme", name="acme", room={"requests": 0})
    with pytest.raises(UnfitError) as caught:
        judged(sources(), [bad], set_aside={}, written={("tenant", "acme")})
    assert [problem.place for problem in caught.value.problems] == [("room", "requests")]
    good = record("tenant", "fine", name="fine", weight=4.0)
    aside: dict[Name, tuple[str, ...]] = {("tenant", "acme"): ("why",)}
    found = judged(sources(), [bad, good], set_aside=aside, written={("tenant", "fine")})
    assert found.settings.policy().tenant_weight("fine") == 4
    assert found.set_aside == aside


def body(**fields: Any) -> dict[str, Any]:
    """A key's record."""
    hashes = [{"sha256": made_key("k")[1], "until": None}]
    usual = {"tenant": "acme", "user": None, "tier": None, "max_tier": None, "models": ["*"]}
    return {**usual, "hashes": hashes, "expires_at": None, "blocked": False, **fields}


@pytest.mark.parametrize(
    ("tier", "max_tier", "ranks"),
    [
        (None, None, (2, 2)), ("high", None, (1, 1)), ("high", "critical", (1, 0)),
        ("old", "old", (3, 3)), ("gone", None, (2, 2)), ("gone", "gone", (2, 2)),
        ("background", "gone", (3, 3)), ("gone", "background", (2, 2)),
    ],
)  # fmt: skip
def test_a_key_of_a_tier_that_is_gone_loses_rank_rather_than_entry(
    tier: str | None, max_tier: str | None, ranks: tuple[int, int]
) -> None:
    """Its owner must neither be locked out by a rename, nor be lifted above what was granted."""
    settings = fitted(sources("replicas: [http://a:1]\nmoved_to: {old: background}"), []).settings
    found = key_of(settings, record("key", "k", **body(tier=tier, max_tier=max_tier)))
    assert found is not None
    assert (found.principal.tier, found.principal.max_tier) == ranks
    assert section_of(settings, body(tier=tier)).tenant == "acme"


def test_a_damaged_key_is_no_key() -> None:
    """What cannot be read must not let anybody in, nor stop the others."""
    settings = fitted(sources(), []).settings
    damages: list[dict[str, Any]] = [
        {"hashes": []}, {"tenant": ""}, {"models": []}, {"hashes": [{"sha256": 1}]},
    ]  # fmt: skip
    for broken in damages:
        assert key_of(settings, record("key", "k", **body(**broken))) is None


def test_a_rotation_keeps_the_last_form_and_no_older_one() -> None:
    """A key with five good forms is a key that nobody can revoke."""
    first = [{"sha256": "a", "until": None}]
    second = rotated(first, "b", now=0.0, overlap_s=10.0)
    assert second == [{"sha256": "b", "until": None}, {"sha256": "a", "until": 10.0}]
    third = rotated(second, "c", now=5.0, overlap_s=100.0)
    assert third == [{"sha256": "c", "until": None}, {"sha256": "b", "until": 105.0}]
    assert rotated(third, "d", now=5.0, overlap_s=0.0) == [{"sha256": "d", "until": None}]


def test_differences_are_told_by_the_names_of_tiers() -> None:
    """A place like tiers[2] says little once the order changed as well."""
    old = checked({"tiers": [{"name": "a"}, {"name": "b"}]})
    new = checked({"tiers": [{"name": "b", "weight": 2.0}, {"name": "a"}]})
    assert [(each.path, each.before, each.after) for each in differences(old, new)] == [
        ("tiers.b.weight", 1.0, 2.0), ("order of tiers", ["a", "b"], ["b", "a"]),
    ]  # fmt: skip
    assert differences(old, old) == []
