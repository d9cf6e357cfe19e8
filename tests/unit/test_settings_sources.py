"""Where settings come from: files with their lines, variables, options, and what wins."""

from pathlib import Path

import pytest

from gateway.settings_sources import (
    DEPTH_MAX,
    Tree,
    from_environment,
    from_file,
    from_overrides,
    from_yaml,
)

# Ten aliases of ten aliases of ...: 500 bytes that unfold to 10^9 places.
LAUGHS = "a0: &a0 x\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


def test_every_place_of_a_file_knows_its_line() -> None:
    """An operator with a file of 300 lines needs the line, not only the key."""
    tree = from_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", name="f.yaml")
    assert tree.values == {"a": 1, "b": ["x", {"c": 2}]}
    assert tree.origin(("a",)) == "f.yaml:1"
    assert tree.origin(("b", 0)) == "f.yaml:3"
    assert tree.origin(("b", 1, "c")) == "f.yaml:4"


def test_what_is_missing_is_placed_where_it_belongs() -> None:
    """A forgotten key has no line of its own; its section has."""
    tree = from_yaml("a:\n  - {b: 1}\n", name="f.yaml")
    assert tree.origin(("a", 0, "forgotten")) == "f.yaml:2"
    assert tree.origin(("elsewhere",)) == ""


def test_a_repeated_key_is_a_problem() -> None:
    """YAML itself keeps the last one silently: half of the operator's tiers would be gone."""
    (problem,) = from_yaml("a: 1\nb: {c: 1, c: 2}\n", name="f.yaml").problems
    assert problem.place == ("b", "c")
    assert problem.message == "written a second time (first: f.yaml:2)"


def test_merge_keys_are_not_repetitions() -> None:
    """Who writes options once with an anchor and merges them is doing the right thing."""
    text = "a: &a {x: 1}\nb: &b {y: 2}\nc: {<<: [*a, *b], z: 3}\n"
    tree = from_yaml(text, name="f.yaml")
    assert tree.problems == ()
    assert tree.values["c"] == {"x": 1, "y": 2, "z": 3}


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n"])
def test_an_empty_file_is_no_settings(text: str) -> None:
    """A mounted but empty file means the defaults."""
    assert from_yaml(text, name="f.yaml") == Tree()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "f.yaml:2: not valid YAML: expected ',' or ']'"),
        ("a: 1\n\tb: 2", "f.yaml:2: not valid YAML: found character '\\t' that cannot start"),
        ("a: !!python/object:x {}", "f.yaml:1: not valid YAML: could not determine a constructor"),
        ("- a\n- b", "f.yaml: the document must be a mapping of keys"),
        ("just text", "f.yaml: the document must be a mapping of keys"),
        ("a: 1\n---\nb: 2", "f.yaml:2: not valid YAML: but found another document"),
        ("a: &a [*a]", "f.yaml: not valid YAML"),
        ("a: " + "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), "f.yaml: not valid YAML"),
        ("a: 2024-99-99", "f.yaml: not valid YAML"),
        (LAUGHS, "f.yaml: not valid YAML"),
    ],
)
def test_what_is_no_yaml_says_where(text: str, message: str) -> None:
    """A missing bracket is found by its line."""
    (problem,) = from_yaml(text, name="f.yaml").problems
    assert problem.place == ()
    assert problem.message.startswith(message)


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    """A secret mounted as a folder, or in UTF-16, is a common slip of deployment."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xff")
    reasons = [from_file(path).problems[0].message for path in (tmp_path, latin)]
    assert reasons == [
        f"{tmp_path}: cannot be read: Is a directory",
        f"{latin}: cannot be read: it is not UTF-8 text",
    ]


def test_variables_name_nested_keys_and_hold_yaml() -> None:
    """Containers are configured by variables, numbers and lists included."""
    tree = from_environment(
        {
            "FAIRGATE_LISTEN__PORT": "9000",
            "FAIRGATE_LISTEN__HOST": "::1",
            "FAIRGATE_REPLICAS": "[http://a:1, {url: http://b:2}]",
            "FAIRGATE_SCHEDULING__LEND": "false",
            "FAIRGATE_SCHEDULING__HEADROOM_DECAY": "null",
            "HOME": "/root",
        }
    )
    assert tree.values == {
        "listen": {"port": 9000, "host": "::1"},
        "replicas": ["http://a:1", {"url": "http://b:2"}],
        "scheduling": {"lend": False, "headroom_decay": None},
    }
    assert tree.origin(("listen", "port")) == "FAIRGATE_LISTEN__PORT"
    assert tree.origin(("replicas", 1, "url")) == "FAIRGATE_REPLICAS"


@pytest.mark.parametrize("text", ["a: b", "[unclosed", "*alias", "- x", "2024-99-99"])
def test_a_variable_that_is_no_simple_yaml_is_text(text: str) -> None:
    """A value with a colon in it is meant as it stands."""
    assert from_environment({"FAIRGATE_X": text}).values == {"x": text}


def test_variables_of_others_are_left_alone() -> None:
    """A Service called "fairgate" puts its own variables into every pod: no reason not to start."""
    tree = from_environment(
        {
            "FAIRGATE_CONFIG": "/etc/fairgate.yaml",
            "FAIRGATE_LISTEN__PORT": "",
            "FAIRGATE_SERVICE_HOST": "10.0.0.1",
            "FAIRGATE_SERVICE_PORT": "8080",
            "FAIRGATE_SERVICE_PORT_HTTP": "8080",
            "FAIRGATE_PORT": "tcp://10.0.0.1:8080",
            "FAIRGATE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
            "FAIRGATE_PORT_8080_TCP_ADDR": "10.0.0.1",
        }
    )
    assert tree.values == {}


def test_service_tiers_are_no_service_links() -> None:
    """The filter for Kubernetes' variables must not swallow a setting."""
    tree = from_environment({"FAIRGATE_SERVICE_TIERS__FLEX": "background"})
    assert tree.values == {"service_tiers": {"flex": "background"}}


def test_options_are_dotted_keys() -> None:
    """The command line reaches any key, and says nothing where nothing was typed."""
    tree = from_overrides({"listen.port": 1, "listen.host": None, "replicas": ("http://a:1",)})
    assert tree.values == {"listen": {"port": 1}, "replicas": ["http://a:1"]}
    assert tree.origin(("listen", "port")) == "command line"


def test_mappings_are_merged_and_lists_replaced() -> None:
    """One overridden key must not erase its neighbours; half a list would be nobody's list."""
    lower = from_yaml("a: {b: 1, c: 2}\nd: [1, 2, 3]\n", name="f.yaml")
    tree = lower.overlaid(from_overrides({"a.b": 9, "d": [4]}))
    assert tree.values == {"a": {"b": 9, "c": 2}, "d": [4]}
    assert lower.values == {"a": {"b": 1, "c": 2}, "d": [1, 2, 3]}


def test_the_origin_is_that_of_the_value_that_won() -> None:
    """A message that blames line 7 for a value from a variable sends its reader astray."""
    tree = from_yaml("a: {b: 1, c: 2}\nd: [{e: 1}]\n", name="f.yaml").overlaid(
        from_environment({"FAIRGATE_A__B": "3", "FAIRGATE_D": "[{e: 2}]"})
    )
    assert tree.origin(("a", "b")) == "FAIRGATE_A__B"
    assert tree.origin(("a", "c")) == "f.yaml:1"
    assert tree.origin(("d", 0, "e")) == "FAIRGATE_D"


def test_problems_of_all_sources_are_kept() -> None:
    """What is wrong below is still wrong when something lies on top."""
    tree = from_yaml("a: 1\na: 2\n", name="f.yaml").overlaid(Tree())
    assert len(tree.problems) == 1
