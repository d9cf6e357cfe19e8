"""The targeted scan finds what a full parser finds, and survives text that is none."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.upstream.dialects.scan import Sample, Scan
from tests.support.shared import shared_path

WANTED = (
    "vllm:num_requests_waiting",
    "vllm:iteration_tokens_total_count",
    "vllm:iteration_tokens_total_sum",
    "tgi_queue_size",
)
OTHERS = (
    "vllm:num_requests_waiting_by_reason",
    "vllm:num_requests",
    "vllm:iteration_tokens_total",
    "vllm:iteration_tokens_total_bucket",
    "vllm:iteration_tokens_total_created",
    "my_vllm:num_requests_waiting",
    "tgi_queue_size_total",
)
SCAN = Scan(WANTED)


def values(text: bytes, name: str = "tgi_queue_size") -> list[float]:
    """The values of one name in order."""
    return [sample.value for sample in SCAN.samples(text).get(name, ())]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"tgi_queue_size 8", [8.0]),
        (b"tgi_queue_size 8\n", [8.0]),
        (b"tgi_queue_size 8\r\n", [8.0]),
        (b"tgi_queue_size\t8", [8.0]),
        (b"tgi_queue_size{} 8", [8.0]),
        (b'tgi_queue_size {a="b"} 8', [8.0]),
        (b'tgi_queue_size{a="b"}8', [8.0]),
        (b'tgi_queue_size{a="b",} 8', [8.0]),
        (b"tgi_queue_size 8 1795988563000", [8.0]),
        (b'tgi_queue_size{a="}{ 9"} 8.5e1 17', [85.0]),
        (b'tgi_queue_size 8 # {trace_id="x"} 0.5', [8.0]),
        (b"tgi_queue_size +Inf", [math.inf]),
        (b"tgi_queue_size -Inf", [-math.inf]),
        (b"\n\n# HELP tgi_queue_size 9\n# TYPE tgi_queue_size gauge\ntgi_queue_size 8", [8.0]),
        (b"tgi_queue_size 1\nother 5\ntgi_queue_size 2", [1.0, 2.0]),
    ],
)
def test_every_legal_spelling_of_a_line_is_read(line: bytes, expected: list[float]) -> None:
    """An operator whose engine or proxy spells metrics a little differently would see no load."""
    assert values(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"tgi_queue_size",
        b"tgi_queue_size ",
        b"tgi_queue_size x",
        b"tgi_queue_size 1_000",
        b'tgi_queue_size{a="b" 8',
        b'tgi_queue_size{a="b} 8\ntgi_other{c="d"} 8',
        b"tgi_queue_size_total 8",
        b"tgi_queue_size2 8",
        b"tgi_queue_size:x 8",
        b"my_tgi_queue_size 8",
        b"# tgi_queue_size 8",
        b"tgi_queue_size\n8",
    ],
)
def test_a_malformed_or_different_line_is_no_line(line: bytes) -> None:
    """A prefix taken for the metric itself would add unrelated numbers to an engine's load."""
    assert values(line) == []


def test_nan_comes_through_as_nan() -> None:
    """A dialect must be able to tell "not a number" from a figure and from an absent name."""
    assert math.isnan(values(b"tgi_queue_size NaN")[0])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
        b'{"error":"Unauthorized"}',
        bytes(range(256)) * 20,
        b"\x1f\x8b\x08\x00tgi_queue_size 8",
        b"tgi_queue_size{" * 2_000,
        b'tgi_queue_size{a="' + b"\\" * 20_000,
    ],
)
def test_text_that_is_not_prometheus_holds_no_metric(text: bytes) -> None:
    """A proxy's error page at /metrics must not crash the probe of a replica."""
    assert SCAN.samples(text) == {}


def test_a_long_hostile_text_costs_linear_time() -> None:
    """One broken engine must not hold up the event loop for everybody."""
    text = (b'tgi_queue_size{a="b' + b'\\"' * 50 + b"\n") * 20_000
    began_at = time.perf_counter()
    assert SCAN.samples(text) == {}
    assert time.perf_counter() - began_at < 2.0


def test_labels_are_found_by_their_whole_name_and_unescaped() -> None:
    """A label value that looks like a label would put one engine's load on another."""
    sample = Sample(1.0, rb'x="engine=\"7\"", my_engine="8" ,engine = "a\\b\"c\nd\e",z="\\"')
    assert sample.label("engine") == 'a\\b"c\nd\\e'
    assert sample.label("my_engine") == "8"
    assert sample.label("z") == "\\"
    assert sample.label("gine") is None
    assert Sample(1.0, b'x="engine=",y="1"').label("engine") is None
    assert Sample(1.0).label("engine") is None


def test_a_label_that_is_not_utf_8_is_still_readable() -> None:
    """A model called in Latin-1 must not take its replica out of service."""
    assert Sample(1.0, b'model_name="caf\xe9"').label("model_name") == "caf\ufffd"


LABEL_KEYS = ("engine", "model_name", "le", "reason", "_x9")
LABEL_NAMES = st.sampled_from(LABEL_KEYS)
LABEL_VALUES = st.text(
    st.one_of(
        st.sampled_from('\\"\n{}=, #'),
        st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")),
    ),
    max_size=12,
)
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**9), 10**12).map(str),
    st.sampled_from(("NaN", "+Inf", "-Inf", "1e+09", "1.7959885635630057e+09")),
)


def escaped(value: str) -> str:
    """A label value as the exposition format writes it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def lines(draw: st.DrawFn) -> str:
    """One sample line, now and then with comments before it."""
    name = draw(st.sampled_from(WANTED + OTHERS))
    labels = draw(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=4))
    inner = ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items())
    timestamp = draw(st.sampled_from(("", " 1795988563000")))
    comment = draw(st.sampled_from(("", f"# HELP {name} Says\\nnothing.\n", "# x\n", "\n")))
    braces = "{" + inner + "}" if inner or draw(st.booleans()) else ""
    return f"{comment}{name}{braces} {draw(VALUES)}{timestamp}"


@given(
    st.lists(lines(), max_size=12),
    st.sampled_from(("\n", "\r\n")),
    st.booleans(),
)
def test_it_agrees_with_the_reference_parser(
    drawn: list[str], newline: str, ends_with_newline: bool
) -> None:
    """Whatever an engine names its models, the load read must be the load written."""
    text = "\n".join(drawn).replace("\n", newline) + (newline if ends_with_newline else "")
    expected: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in WANTED:
                expected.setdefault(sample.name, []).append(
                    (repr(float(sample.value)), sample.labels)
                )
    found = {
        name: [
            (
                repr(sample.value),
                {key: label for key in LABEL_KEYS if (label := sample.label(key)) is not None},
            )
            for sample in samples
        ]
        for name, samples in SCAN.samples(text.encode()).items()
    }
    assert found == expected


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(noise: bytes) -> None:
    """An engine that dies while it writes must not take its probe along."""
    for sample in SCAN.samples(b"tgi_queue_size" + noise).get("tgi_queue_size", ()):
        sample.label("engine")


def test_a_real_scrape_is_read_as_the_reference_parser_reads_it() -> None:
    """Generated text proves little if the real thing differs."""
    text = shared_path("fixtures", "metrics_loaded_4run_8wait.txt").read_bytes()
    found = SCAN.samples(text)
    expected = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name in WANTED
    }
    assert {name: sample.value for name, (sample,) in found.items()} == expected
    assert set(expected) == set(WANTED) - {"tgi_queue_size"}


def test_a_real_scrape_costs_a_small_part_of_the_full_parser() -> None:
    """At 100 replicas a second the full parser would fill a core (81 %) and delay every stream."""
    text = shared_path("fixtures", "metrics_loaded_4run_8wait.txt").read_bytes()
    decoded = text.decode()

    def best_s(rounds: int, full: bool) -> float:
        times = []
        for _ in range(rounds):
            began_at = time.perf_counter()
            if full:
                list(text_string_to_metric_families(decoded))
            else:
                SCAN.samples(text)
            times.append(time.perf_counter() - began_at)
        return min(times)

    assert best_s(30, full=False) * 20 < best_s(3, full=True)
