"""Settings as an operator meets them: where they come from, and what they become."""

from pathlib import Path

import pytest

from gateway.core.policy import (
    DEFAULT_TIERS,
    Affinity,
    Ageing,
    Bounds,
    CostWeights,
    GpuTime,
    Policy,
    Price,
    Room,
    Scaling,
    Tenant,
    Tier,
)
from gateway.settings import load_settings
from gateway.tenancy.keys import Principal, id_of
from tests.support.loading import KEY, OTHER_KEY, OTHER_SHA, REPLICA, SHA, Loading


@pytest.fixture
def load(tmp_path: Path) -> Loading:
    """A loader with a file of its own."""
    return Loading(tmp_path)


# --- what comes out -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", '"off"', "drain", "balance"])
def test_running_requests_are_moved_as_far_as_one_says(load: Loading, mode: str) -> None:
    """YAML reads a bare `off` as false, and an operator means the word."""
    policy = load(REPLICA + f"scheduling: {{migrate_running: {mode}}}").policy()
    assert policy.migrate_running == mode.strip('"')


def test_one_replica_url_is_enough() -> None:
    """The newcomer with one vLLM writes no file at all."""
    settings = load_settings(
        config=None, environ={}, overrides={"replicas": ("http://127.0.0.1:8000",)}
    )
    (address,) = settings.addresses()
    assert (address.name, address.url) == ("127.0.0.1-8000", "http://127.0.0.1:8000")
    assert address.models is None
    assert settings.is_open
    assert settings.is_local


def test_defaults_are_the_policys_own(load: Loading) -> None:
    """Who leaves a key out gets what the scheduler was tuned with, not a second opinion."""
    assert load().policy() == Policy(tiers=DEFAULT_TIERS)


def test_default_tiers_written_out_by_name_fill_in_the_same(load: Loading) -> None:
    """Who copies the four names into the file must not get other limits by that."""
    tiers = load(REPLICA + "tiers: [{name: a}, {name: b}, {name: c}, {name: d}]").policy().tiers
    assert [tier.queue_limit for tier in tiers] == [tier.queue_limit for tier in DEFAULT_TIERS]
    assert [tier.min_share for tier in tiers] == [tier.min_share for tier in DEFAULT_TIERS]


def test_a_single_tier_may_queue_in_the_engine(load: Loading) -> None:
    """A fleet without classes would otherwise leave its engines idle for a round trip each time."""
    (tier,) = load(REPLICA + "tiers: [{name: all}]").policy().tiers
    assert (tier.queue_limit, tier.min_share) == (2, 0.0)


@pytest.mark.parametrize(
    ("written", "is_on"),
    [("on", True), ("'on'", True), ("true", True), ("off", False), ('"off"', False)],
)
def test_continuation_is_on_or_off_with_quotes_or_without(
    load: Loading, written: str, is_on: bool
) -> None:
    """YAML takes the bare words for truth values, and the quoted ones for texts."""
    (tier,) = load(REPLICA + f"tiers: [{{name: all, continuation: {written}}}]").policy().tiers
    assert tier.continuation is is_on


def test_every_written_value_reaches_the_policy(load: Loading) -> None:
    """A key that is accepted and then dropped would be a lie."""
    policy = load(
        REPLICA
        + """
policy: fifo
tiers:
  - {name: gold, queue_limit: 7, tpot_limit_ms: 90, prefill_limit_s: 3, patience_s: 5,
     min_share: 0.1, ttft_target_ms: 400, tpot_target_ms: 80}
  - {name: rest}
service_tiers: {default: rest}
scheduling: {cost: requests, headroom_max: 0.3, headroom_decay: 2, lend: false, hold_s: 7,
             weights: {prompt: 3, output: 4, cached: 0}, prefill_limit_s: 2, min_inflight: 2,
             scrape_interval_s: 0.5}
bounds: {waiting_per_user: 11, waiting: 12, waiting_bytes: 13MiB, body: 14KiB, stream_buffer: 15KB,
         users_per_tenant: 16, max_sequences: 17, predictions: 18, retry_after_s_max: 19,
         client_stall_s: 20}
retries: {attempts: 5}
tenants: [{name: acme, weight: 2, users: {alice: {weight: 3}}}]
"""
    ).policy()
    assert policy == Policy(
        tiers=(
            Tier(name="gold", queue_limit=7, tpot_limit_ms=90, prefill_limit_s=3, patience_s=5,
                 min_share=0.1, ttft_target_ms=400, tpot_target_ms=80),
            Tier(name="rest", queue_limit=0, prefill_limit_s=2, min_share=0.02),
        ),
        tenants={"acme": Tenant(weight=2, users={"alice": 3})},
        cost="requests",
        weights=CostWeights(prompt=3, output=4, cached=0),
        headroom_max=0.3,
        headroom_decay=2,
        lend=False,
        hold_s=7,
        min_inflight=2,
        scrape_interval_s=0.5,
        bounds=Bounds(
            waiting_per_user=11, waiting=12, waiting_bytes=13 << 20, body_bytes=14 << 10,
            stream_buffer_bytes=15_000, users_per_tenant=16, max_sequences=17, predictions=18,
            retry_after_s_max=19, attempts=5, client_stall_s=20,
        ),
        release_at_once=True,
    )  # fmt: skip


def test_every_written_value_of_order_cost_and_place_reaches_the_policy(load: Loading) -> None:
    """Which of several policies is in force must be the one that was written."""
    policy = load(
        """
models:
  - {name: llama, replicas: [http://g:1], price: {input: 0.2, output: 0}}
  - {name: qwen, replicas: [http://g:2], price: {input: 1, output: 3}}
tiers:
  - {name: gold, weight: 3, room: {requests: 5, bytes: 1GiB, tokens: 6000}}
  - {name: rest}
scheduling: {order: weighted, within_user: shortest, cost: price,
             gpu_time: {prompt_s: 0.1, output_s: 0.2, kv_s: 0}, ageing: {after_s: 9, per_s: 2},
             limiter: static, inflight_limit: 12, reserve_after_s: 0, warm_up_s: 0,
             affinity: {prefix: 0.5, session: 0, adapter: 2}, recall: false, recall_gap: 0.7}
bounds: {waiting_tokens: 21, waiting_bytes_per_user: 22KiB, waiting_tokens_per_user: 23,
         prefixes: 24, sessions: 25}
retries: {continuation_wait_s: 8}
scaling: {min: 1, max: 4, below: 0, above: 0.9, hold_s: 2, cooldown_s: 3}
tenants: [{name: acme, room: {requests: 7, bytes: 8KiB}}]
"""
    ).policy()
    assert policy == Policy(
        tiers=(
            Tier(name="gold", weight=3, queue_limit=2,
                 room=Room(requests=5, body_bytes=1 << 30, tokens=6000)),
            Tier(name="rest", queue_limit=0, min_share=0.02),
        ),
        tenants={"acme": Tenant(room=Room(requests=7, body_bytes=8 << 10))},
        order="weighted",
        within_user="shortest",
        cost="price",
        gpu_time=GpuTime(prompt_s=0.1, output_s=0.2, kv_s=0),
        prices={"llama": Price(input=0.2, output=0), "qwen": Price(input=1, output=3)},
        ageing=Ageing(after_s=9, per_s=2),
        limiter="static",
        inflight_limit=12,
        reserve_after_s=0,
        warm_up_s=0,
        affinity=Affinity(prefix=0.5, session=0, adapter=2),
        recall=False,
        recall_gap=0.7,
        continuation_wait_s=8,
        scaling=Scaling(min=1, max=4, below=0, above=0.9, hold_s=2, cooldown_s=3),
        bounds=Bounds(
            waiting_tokens=21, waiting_bytes_per_user=22 << 10, waiting_tokens_per_user=23,
            prefixes=24, sessions=25,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("order", ["strict", "weighted"]),
        ("within_user", ["fcfs", "shortest", "deadline", "prefix"]),
        ("cost", ["requests", "tokens", "gpu_seconds"]),
        ("limiter", ["static", "adaptive"]),
    ],
)
def test_every_choice_can_be_made(load: Loading, key: str, choices: list[str]) -> None:
    """A choice that the scheduler knows and the file does not would never be used."""
    for choice in choices:
        policy = load(REPLICA + f"scheduling: {{{key}: {choice}}}").policy()
        assert getattr(policy, key) == choice


def test_a_threshold_left_out_or_null_is_the_default_one(load: Loading) -> None:
    """The page says null; an advice that never comes would look like a fleet that is right."""
    written = load(REPLICA + "scaling: {below: null, above: null}").policy()
    assert written.scaling == Scaling()
    assert load(REPLICA + "scaling: {below: 0.1}").policy().scaling == Scaling(below=0.1)


def test_the_environment_reaches_what_is_nested(load: Loading) -> None:
    """A container is tuned by variables, one value at a time."""
    environ = {
        "FAIRGATE_SCHEDULING__AFFINITY__PREFIX": "0",
        "FAIRGATE_SCHEDULING__AGEING": "{after_s: 5}",
        "FAIRGATE_SCALING__MIN": "2",
    }
    policy = load(environ=environ).policy()
    assert policy.affinity == Affinity(prefix=0)
    assert (policy.ageing, policy.scaling.min) == (Ageing(after_s=5), 2)


def test_replica_options_reach_the_address(load: Loading, tmp_path: Path) -> None:
    """An option that does not arrive shows only as a slow engine weeks later."""
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("")
    settings = load(
        f"""
models:
  - name: llama
    replicas:
      - {{url: "https://gpu1:8000/engine/", engine: vllm, max_num_seqs: 256, weight: 0.5,
          scheduling_policy: priority, api_key_env: VLLM_KEY, ca_file: {ca_file}}}
""",
        environ={"VLLM_KEY": "sk-engine"},
    )
    (address,) = settings.addresses()
    assert address.url == "https://gpu1:8000/engine"
    assert address.models == frozenset({"llama"})
    assert (address.engine, address.max_num_seqs, address.weight) == ("vllm", 256, 0.5)
    assert (address.scheduling_policy, address.api_key) == ("priority", "sk-engine")
    assert address.ca_file == str(ca_file)
    assert "sk-engine" not in repr(settings)


def test_an_engine_listed_under_two_models_is_one_replica(load: Loading) -> None:
    """Two ledgers for one engine (a model and its LoRA) would release twice what it can hold."""
    settings = load(
        "models: [{name: base, replicas: [http://gpu0:8000, http://gpu1:8000]},"
        " {name: lora, replicas: [http://gpu0:8000/]}]"
    )
    models = {address.name: address.models for address in settings.addresses()}
    assert models == {
        "gpu0-8000": frozenset({"base", "lora"}),
        "gpu1-8000": frozenset({"base"}),
    }


def test_a_name_to_look_up_makes_addresses(load: Loading) -> None:
    """A headless Kubernetes service has replicas that no file can list."""
    (lookup,) = load(
        'models: [{name: llama, replicas: [{dns: "vllm:8000", every_s: 9, max_num_seqs: 8}]}]'
    ).lookups()
    assert (lookup.host, lookup.port, lookup.every_s) == ("vllm", 8000, 9)
    address = lookup.found("http://10.0.0.7:8000")
    assert (address.name, address.max_num_seqs) == ("10.0.0.7-8000", 8)
    assert address.models == frozenset({"llama"})


def test_keys_come_with_their_tiers_filled_in(load: Loading) -> None:
    """The edge takes ranks as they are: a hole would be an error in the middle of a call."""
    keyring = load(
        REPLICA
        + f"""
keys:
  - {{tenant: acme, key_sha256: {SHA.upper()}}}
  - {{tenant: acme, user: bob, tier: background, max_tier: critical, models: [x, y],
     speaks_for_users: true, allows_chat_template: true, key_sha256: {OTHER_SHA}}}
"""
    ).keyring()
    assert not keyring.is_open
    assert keyring.find(KEY) == Principal(
        tenant="acme", user="anonymous", tier=2, max_tier=2, key_id=id_of(SHA)
    )
    assert keyring.find(OTHER_KEY) == Principal(
        tenant="acme", user="bob", tier=3, max_tier=0, models=frozenset({"x", "y"}),
        speaks_for_users=True, allows_chat_template=True, key_id=id_of(OTHER_SHA),
    )  # fmt: skip
    assert keyring.find(b"another") is None


def test_a_key_for_a_model_covers_all_names_of_it(load: Loading) -> None:
    """A key for an alias must not stop working because the alias is replaced on the way."""
    keyring = load(
        "models: [{name: llama, aliases: [gpt, mini], replicas: [http://g:1]},"
        " {name: qwen, aliases: [big], replicas: [http://g:2]}]\n"
        f"keys: [{{tenant: acme, models: [gpt], key_sha256: {SHA}}}]"
    ).keyring()
    principal = keyring.find(KEY)
    assert principal is not None
    assert principal.models == frozenset({"llama", "gpt", "mini"})


def test_without_keys_everybody_is_let_in_under_any_name(load: Loading) -> None:
    """The newcomer tells users and tiers apart before there is any key."""
    settings = load(REPLICA + "tiers: [{name: gold}, {name: silver}, {name: lead}]")
    opened = settings.keyring().find(None)
    assert opened == Principal(
        tenant="default", user="anonymous", tier=2, max_tier=0, speaks_for_users=True
    )


def test_users_of_the_file_are_known_by_name(load: Loading) -> None:
    """A configured user must never be hashed together with strangers."""
    settings = load(
        REPLICA
        + "tenants: [{name: acme, users: {alice: {weight: 2}}}]\n"
        + f"keys: [{{tenant: other, user: bob, key_sha256: {SHA}}},"
        + f" {{tenant: other, key_sha256: {OTHER_SHA}}}]"
    )
    assert settings.known_users() == {("acme", "alice"), ("other", "bob")}


def test_service_tiers_follow_the_tiers_there_are(load: Loading) -> None:
    """Own tier names must not leave OpenAI's words pointing at tiers that are gone."""
    assert load().tier_by_service_tier == {
        "priority": "high", "default": "standard", "flex": "background",
    }  # fmt: skip
    own = load(REPLICA + "tiers: [{name: high}, {name: low}]")
    assert own.tier_by_service_tier == {"priority": "high"}
    assert (load().default_tier, own.default_tier) == ("standard", "low")


def test_aliases_lead_to_their_model(load: Loading) -> None:
    """A client written for another name gets the model that the operator meant."""
    settings = load("models: [{name: llama, aliases: [gpt-4o-mini], replicas: [http://g:1]}]")
    assert settings.model_by_alias == {"gpt-4o-mini": "llama"}


def test_settings_do_not_change(load: Loading) -> None:
    """A setting changed in passing would hold in one place and not in another."""
    with pytest.raises(ValueError, match="frozen"):
        load().listen.port = 1  # type: ignore[misc]  # the point of the test


# --- where it comes from ------------------------------------------------------------------------


def test_the_command_line_wins_over_environment_over_file(load: Loading) -> None:
    """An operator in a hurry must be able to count on the last word."""
    text = REPLICA + "listen: {port: 1, host: localhost}\nkeepalive_after_s: 1"
    environ = {"FAIRGATE_LISTEN__PORT": "2", "FAIRGATE_KEEPALIVE_AFTER_S": "2"}
    settings = load(text, environ=environ, listen__port=3)
    assert (settings.listen.port, settings.keepalive_after_s) == (3, 2)
    assert settings.listen.host == "localhost"


def test_an_option_not_given_changes_nothing(load: Loading) -> None:
    """Every option of the command has a value of None when nobody typed it."""
    assert load(REPLICA + "listen: {port: 1}", listen__port=None).listen.port == 1


def test_the_environment_may_name_the_file(load: Loading, tmp_path: Path) -> None:
    """A container gets its file by a variable, not by a changed command."""
    path = tmp_path / "other.yaml"
    path.write_text(REPLICA + "listen: {port: 7}")
    settings = load_settings(config=None, environ={"FAIRGATE_CONFIG": str(path)}, overrides={})
    assert settings.listen.port == 7
