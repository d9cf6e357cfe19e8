"""Settings that cannot work: all faults at once, at their place, and no secret among the words."""

from pathlib import Path

import pytest

from gateway.settings import SettingsError, load_settings
from tests.support.loading import KEY, REPLICA, SHA, Loading


@pytest.fixture
def load(tmp_path: Path) -> Loading:
    """A loader with a file of its own."""
    return Loading(tmp_path)


def test_all_faults_are_listed_at_once_with_their_lines(load: Loading) -> None:
    """Who fixes a file wants one round, not twelve."""
    errors = load.errors(
        """listen: {host: 0.0.0.0, port: 99999}
models:
  - name: llama
    aliases: [gpt]
    replicas:
      - http://gpu0:8000
      - {url: http://gpu1:8000, max_num_seqs: 0}
tiers:
  - {name: high, queue_limit: 2, min_share: 0.7}
  - {name: low, queue_limit: 2, min_share: 0.7}
service_tiers: {flex: lowest}
kyes: []
""",
        environ={"FAIRGATE_RETRIES__ATTEMPTS": "none"},
    )
    assert errors == (
        "fairgate.yaml:1: listen.port: 99999 is not allowed: must be less than or equal to 65535",
        "fairgate.yaml:7: models[0].replicas[1].max_num_seqs: 0 is not allowed: "
        "must be greater than or equal to 1",
        "fairgate.yaml:12: kyes: unknown key; did you mean keys?",
        "FAIRGATE_RETRIES__ATTEMPTS: retries.attempts: 'none' is not allowed: "
        "must be a valid integer",
        "fairgate.yaml:10: tiers[1].queue_limit: 2 is not allowed: "
        "must be less than 2, the limit of the tier above",
        "fairgate.yaml:8: tiers: the min_share of all tiers add up to 1.4: must be below 1",
        "fairgate.yaml:11: service_tiers.flex: there is no tier 'lowest'; there are high, low",
        "fairgate.yaml:1: listen.host: '0.0.0.0' is not allowed without keys: anybody could use "
        "the engines; configure keys, or the admin key that makes them, listen on 127.0.0.1, or "
        "say --insecure-no-auth",
    )


def test_the_error_text_counts_and_lists(load: Loading) -> None:
    """The terminal shows the exception's text and nothing else."""
    with pytest.raises(SettingsError) as caught:
        load("a: 1\nb: 2")
    assert str(caught.value).splitlines() == [
        "3 errors in the settings:",
        "  fairgate.yaml:1: a: unknown key",
        "  fairgate.yaml:2: b: unknown key",
        "  no replica: give --replica URL, or replicas or models in the file",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("models: [{name: a, replicas: []}]", "models[0].replicas: a list is not allowed: must"),
        ("models: [{replicas: [http://g:1]}]", "models[0].name: is required"),
        (
            "models: [{name: a, replicas: [http://g:1]}, {name: b, aliases: [a],"
            " replicas: [http://g:2]}]",
            "models[1].aliases[0]: another model has this name or alias",
        ),
        (
            "models: [{name: a, replicas: [http://g:1, http://g:1/]}]",
            "models[0].replicas[1]: the same replica is listed twice",
        ),
        (
            "models: [{name: a, replicas: [http://g:1]},"
            " {name: b, replicas: [{url: http://g:1, weight: 2}]}]",
            "models[1].replicas[0]: the same replica is given other options elsewhere",
        ),
        ("replicas: [http://g:1, http://G:1]", "replicas[1]: two replicas would be called 'g-1'"),
        ("replicas: [{weight: 1}]", "replicas[0]: a replica has a url or a dns name, and not both"),
        ("replicas: [{dns: vllm}]", "replicas[0].dns: 'vllm' is not allowed: must be a name with"),
        ("replicas: [ftp://g:1]", "replicas[0].url: must be like http://host:8000"),
        ("replicas: ['http://g:99999']", "replicas[0].url: must be like http://host:8000"),
        ("replicas: ['http://:80']", "replicas[0].url: must be like http://host:8000"),
        ("replicas: ['http://a b:80']", "replicas[0].url: must have no spaces"),
        ("replicas: ['http://g:1?key=1']", "replicas[0].url: must have no query"),
        ("replicas: ['http://g:1/v1']", "replicas[0].url: must be the engine's root"),
        ("replicas: [{url: http://g:1, ca_file: /nowhere/ca.pem}]", "replicas[0].ca_file: there"),
        (REPLICA + "tiers: [{name: a}, {name: a}]", "tiers[1].name: another tier has this name"),
        (REPLICA + "tiers: [{name: auto tier}]", "tiers[0].name: 'auto tier' is not allowed"),
        (REPLICA + "tiers: [{name: a, patience_s: 0}]", "tiers[0].patience_s: 0 is not allowed"),
        (REPLICA + "service_tiers: {auto: high}", "service_tiers.auto: auto always means"),
        (REPLICA + "tenants: [{name: a}, {name: a}]", "tenants[1].name: another tenant has this"),
        (REPLICA + "tenants: [{name: a, weight: 0}]", "tenants[0].weight: 0 is not allowed"),
        (REPLICA + "scheduling: {headroom_max: .nan}", "scheduling.headroom_max: nan is not"),
        (REPLICA + "bounds: {body: 1 gig}", "bounds.body: '1 gig' is not allowed: must be"),
        (REPLICA + "listen: {port: '80'}", "listen.port: '80' is not allowed: must be a valid int"),
        (REPLICA + "listen: {port: yes}", "listen.port: True is not allowed: must be a valid int"),
        (REPLICA + "listen: [1]", "listen: a list is not allowed: must be a mapping of keys"),
        (REPLICA + "tiers: {a: 1}", "tiers: a mapping is not allowed: must be a list"),
        (REPLICA + "retries: {attempts: null}", "retries.attempts: null is not allowed: must be"),
        (REPLICA + "retries: {continuation_wait_s: -1}", "retries.continuation_wait_s: -1 is not"),
        (REPLICA + "scheduling: {ageing: {after_s: 0}}", "scheduling.ageing.after_s: 0 is not"),
        (REPLICA + "scheduling: {ageing: {per_s: 0}}", "scheduling.ageing.per_s: 0 is not allowed"),
        (REPLICA + "scheduling: {affinity: {prefix: -1}}", "scheduling.affinity.prefix: -1 is not"),
        (REPLICA + "scheduling: {affinity: {lora: 1}}", "scheduling.affinity.lora: unknown key"),
        (REPLICA + "scheduling: {inflight_limit: 0}", "scheduling.inflight_limit: 0 is not"),
        (REPLICA + "scheduling: {gpu_time: {output_s: 0}}", "scheduling.gpu_time.output_s: 0 is"),
        (REPLICA + "scheduling: {recall: 1}", "scheduling.recall: 1 is not allowed: must be a"),
        (REPLICA + "scheduling: {limiter: off}", "scheduling.limiter: False is not allowed: must"),
        (REPLICA + "scheduling: {within_user: lifo}", "scheduling.within_user: 'lifo' is not"),
        (REPLICA + "scheduling: {cost: money}", "scheduling.cost: 'money' is not allowed: must"),
        (REPLICA + "tiers: [{name: a, weight: 0}]", "tiers[0].weight: 0 is not allowed"),
        (REPLICA + "tiers: [{name: a, room: {requests: 0}}]", "tiers[0].room.requests: 0 is not"),
        (REPLICA + "tenants: [{name: a, room: {bytes: 1GB1}}]", "tenants[0].room.bytes: '1GB1' is"),
        (REPLICA + "tenants: [{name: a, room: 5}]", "tenants[0].room: 5 is not allowed: must be a"),
        (REPLICA + "bounds: {prefixes: 0}", "bounds.prefixes: 0 is not allowed"),
        (REPLICA + "bounds: {waiting_tokens: -5}", "bounds.waiting_tokens: -5 is not allowed"),
        (REPLICA + "scaling: {max: 0}", "scaling.max: 0 is not allowed"),
        (REPLICA + "scaling: {above: 3}", "scaling.above: 3 is not allowed"),
        (REPLICA + "scaling: {above: -0.1}", "scaling.above: below (-0.1) must be less than above"),
        (
            "models: [{name: a, replicas: [http://g:1], price: {input: 1}}]",
            "models[0].price.output: is",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_its_place(load: Loading, text: str, fault: str) -> None:
    """A typo found at start costs a minute; found in service it costs a night."""
    (error,) = load.errors(text)
    assert error.startswith("fairgate.yaml:")
    assert error.partition(": ")[2].startswith(fault)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("tier: lowest", "keys[0].tier: there is no tier 'lowest'; there are critical, high,"),
        ("max_tier: top", "keys[0].max_tier: there is no tier 'top'"),
        (
            "tier: high, max_tier: background",
            "keys[0].max_tier: 'background' ranks below the key's own tier 'high'",
        ),
        ("max_tier: background", "keys[0].max_tier: 'background' ranks below the key's own tier"),
        ("models: [gpt]", "keys[0].models[0]: there is no model 'gpt'"),
        ("models: []", "keys[0].models: a list is not allowed: must have at least one item"),
    ],
)
def test_a_key_names_only_what_there_is(load: Loading, key: str, fault: str) -> None:
    """A key with a misspelt tier would fail at its owner's first call, not at start."""
    text = "models: [{name: llama, replicas: [http://g:1]}]\n"
    (error,) = load.errors(text + f"keys: [{{tenant: a, key_sha256: {SHA}, {key}}}]")
    assert error.partition(": ")[2].startswith(fault)


def test_a_key_may_name_a_model_that_is_still_to_be_discovered(load: Loading) -> None:
    """Discovered models are not in the file; a key for one of them is no mistake."""
    text = REPLICA + f"keys: [{{tenant: a, models: [later], key_sha256: {SHA}}}]"
    principal = load(text).keyring().find(KEY)
    assert principal is not None
    assert principal.models == frozenset({"later"})


def test_one_hash_belongs_to_one_key(load: Loading) -> None:
    """Two rows for one key would make its rights a matter of order."""
    row = f"{{tenant: a, key_sha256: {SHA}}}"
    (error,) = load.errors(REPLICA + f"keys: [{row}, {row}]")
    assert error == "fairgate.yaml:2: keys[1].key_sha256: another key has this hash"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "gateway.example"])  # noqa: S104  # the very address that is refused
def test_without_keys_nobody_else_gets_in(load: Loading, host: str) -> None:
    """An open gateway on a public address gives the GPUs to whoever finds it."""
    text = REPLICA + f"listen: {{host: '{host}'}}\n"
    (error,) = load.errors(text)
    assert "not allowed without keys" in error
    assert load(text + "insecure_no_auth: true").listen.host == host
    assert not load(text + f"keys: [{{tenant: a, key_sha256: {SHA}}}]").is_local


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_no_key(load: Loading, host: str) -> None:
    """The newcomer tries the gateway at home first."""
    assert load(REPLICA, listen__host=host).is_local


def test_web_pages_stay_out_of_an_open_gateway(load: Loading) -> None:
    """Any page in the operator's browser could otherwise use the engines behind 127.0.0.1."""
    text = REPLICA + "listen: {cors_origins: ['*']}\n"
    (error,) = load.errors(text)
    assert "listen.cors_origins: * is not allowed without keys" in error
    assert load(text + f"keys: [{{tenant: a, key_sha256: {SHA}}}]").listen.cors_origins == ("*",)


def test_a_choice_that_there_is_not_is_refused_with_those_there_are(load: Loading) -> None:
    """Who misspells weighted must not get strict order without a word."""
    (error,) = load.errors(REPLICA + "scheduling: {order: weihgted}")
    assert error.endswith("'weihgted' is not allowed: must be 'strict' or 'weighted'")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "models: [{name: a, price: {input: 1, output: 2}, replicas: [http://g:1]},"
            " {name: b, replicas: [http://g:2]}]",
            "models[1].price: is required for every model when cost is price",
        ),
        (
            "models: [{name: a, price: {input: 0, output: 0}, replicas: [http://g:1]}]",
            "models[0].price: must not be 0 for both when cost is price",
        ),
        (REPLICA.strip(), "scheduling.cost: price needs a price for every model: list the models"),
    ],
)
def test_prices_are_charged_only_where_every_model_has_one(
    load: Loading, text: str, fault: str
) -> None:
    """Tokens of one model against money of another would make whoever uses it first or last."""
    (error,) = load.errors(text + "\nscheduling: {cost: price}")
    assert error.partition(": ")[2].startswith(fault)
    load(text + "\nscheduling: {cost: tokens}")


def test_all_models_without_a_price_are_listed_at_once(load: Loading) -> None:
    """One a round would take as many rounds as there are models."""
    errors = load.errors(
        """scheduling: {cost: price}
models:
  - {name: a, replicas: [http://g:1]}
  - {name: b, replicas: [http://g:2], price: {input: -1, output: 2}}
  - {name: c, replicas: [http://g:3]}
scaling: {min: 9, below: 0.7}
"""
    )
    assert errors == (
        "fairgate.yaml:4: models[1].price.input: -1 is not allowed: "
        "must be greater than or equal to 0",
        "fairgate.yaml:3: models[0].price: is required for every model when cost is price",
        "fairgate.yaml:5: models[2].price: is required for every model when cost is price",
        "fairgate.yaml:6: scaling.min: 9 is not allowed: must be at most max, 8",
        "fairgate.yaml:6: scaling.below: below (0.7) must be less than above (0.6)",
    )


def test_no_redis_may_be_said_in_two_ways(load: Loading) -> None:
    """Files of versions that knew no Redis spelt it out with a bare null."""
    assert load(REPLICA + "redis: null").redis == load(REPLICA + "redis: {url: null}").redis


@pytest.mark.parametrize(
    "text",
    [
        "redis: {url: 'redis://:secret@host:x'}",
        "redis: {url: 'http://host'}",
        "redis: {url: 'redis+sentinel://secret:secret@a,b'}",
        "redis: {prefix: 'a b'}",
        "redis: {name: 'secret\\r\\nFLUSHALL'}",
    ],
)
def test_what_is_no_address_or_name_is_refused(load: Loading, text: str) -> None:
    """A gateway that believes it is one of many, and is alone, doubles every limit."""
    (error,) = load.errors(REPLICA + text)
    assert ": redis." in error
    assert "secret:" not in error


def test_a_file_that_cannot_be_read_is_the_only_complaint(tmp_path: Path) -> None:
    """A wrong path must not bury itself under errors about an empty document."""
    with pytest.raises(SettingsError) as caught:
        load_settings(config=tmp_path / "none.yaml", environ={}, overrides={})
    (error,) = caught.value.errors
    assert error.endswith("none.yaml: cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("replicas: [{url: http://g:1, max_num_sequences: 4}]", "max_num_seqs"),
        (REPLICA + "bounds: {max_sequence: 4}", "max_sequences"),
        (REPLICA + "tenants: [{name: a, users: {b: {weigth: 4}}}]", "weight"),
        (REPLICA + "polici: fifo", "policy"),
    ],
)
def test_an_unknown_key_suggests_one_of_its_own_section(
    load: Loading, text: str, meant: str
) -> None:
    """A suggestion that is an error itself costs a second round."""
    (error,) = load.errors(text)
    assert error.endswith(f"unknown key; did you mean {meant}?")


# --- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "keys: [sk-secret]",
        "keys: sk-secret",
        "keys: [{tenant: a, key_sha256: sk-secret}]",
        "keys: [{tenant: a, api_key: sk-secret}]",
        "admin: sk-secret",
        "admin: {key_sha256: sk-secret}",
        "admin: {key: sk-secret}",
        "api_key: sk-secret",
        "replicas: ['http://user:sk-secret@g:1']",
        "replicas: [{url: http://g:1, api_key_env: sk-secret}]",
        "replicas: [{url: http://g:1, api_key: sk-secret}]",
        "replicas: [{url: http://g:1, api_key_env: sk_secret}]",
        "replicas: [sk-secret]",
        "replicas: sk-secret",
        "admin: {key_sha256: 'sk-secret}",
    ],
)
def test_no_message_repeats_a_secret(load: Loading, text: str) -> None:
    """Start-up errors end in log collectors that everybody can read."""
    errors = "\n".join(load.errors(text, environ={"FAIRGATE_ADMIN__KEY": "sk-secret"}))
    assert "sk-secret" not in errors.replace("_", "-")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: {port: 9000, admin_port: 9000}",
         "fairgate.yaml:2: listen.admin_port: must be another port than listen.port"),
        (f"admin: {{keys: [{{name: a, key_sha256: {SHA}}}, {{name: a, key_sha256: {'b' * 64}}}]}}",
         "fairgate.yaml:2: admin.keys[1].name: another admin key has this name"),
        (f"admin: {{key_sha256: {SHA}, keys: [{{name: a, key_sha256: {SHA}}}]}}",
         "fairgate.yaml:2: admin.keys[0].key_sha256: another admin key has this hash"),
        (f"admin: {{key_sha256: {SHA}}}\nkeys: [{{tenant: t, key_sha256: {SHA}}}]",
         "fairgate.yaml:2: admin.key_sha256: a user's key has this hash"),
    ],
)  # fmt: skip
def test_operators_are_told_apart_from_one_another_and_from_users(
    load: Loading, text: str, expected: str
) -> None:
    """An audit with two people of one name names nobody; a user's key must not drain machines."""
    assert load.errors(REPLICA + text) == (expected,)


@pytest.mark.parametrize(
    "entry", ["10.0.0.0/99", "http://gpu0", "a b", "", "*", "1:2:3", "10.0.0.0/8/8"]
)
def test_a_place_for_replicas_that_is_none_is_refused(load: Loading, entry: str) -> None:
    """A rule with a typo allows something else than was meant."""
    (error,) = load.errors(REPLICA + f"admin: {{upstreams: ['{entry}']}}")
    assert error.startswith("fairgate.yaml:2: admin.upstreams")
