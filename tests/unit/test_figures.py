"""What is read out of an answer: its usage, and the id of a response."""

import json

import pytest

from gateway.core.messages import Usage
from gateway.upstream.figures import larger, response_id_in, usage_of, usages_in
from tests.support.shared import shared_path


@pytest.mark.parametrize(
    ("text", "usages"),
    [
        (b'{"usage":{"prompt_tokens":1,"total_tokens":1}}', [Usage(prompt_tokens=1)]),
        (b'{"usage":{}}', [Usage()]),
        (b'{"usage":null}', []),
        (b'{"usage": {"input_tokens": 3, "output_tokens": 4}}',
         [Usage(prompt_tokens=3, output_tokens=4)]),
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":6,'
         b'"prompt_tokens_details":{"cached_tokens":2}}}',
         [Usage(prompt_tokens=5, output_tokens=6, cached_tokens=2)]),
        (b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":null}}}',
         [Usage(prompt_tokens=5)]),
        (b'{"usage":{"input_tokens":5,"cache_read_input_tokens":3,'
         b'"cache_creation_input_tokens":2,"output_tokens":1}}',
         [Usage(prompt_tokens=10, output_tokens=1, cached_tokens=3)]),
        (b'{"usage":{"type":"duration","seconds":3}}', [Usage()]),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}', []),
        (b'{"usage":{"prompt_tokens":5', []),
        (b'{"usage":{"prompt_tokens":"5","completion_tokens":true,"output_tokens":-1}}', [Usage()]),
        (b"", []),
    ],
)  # fmt: skip
def test_usage_is_read_in_the_forms_that_engines_write(text: bytes, usages: list[Usage]) -> None:
    """Where it is missed the user is charged by an estimate."""
    assert usages_in(text) == usages


@pytest.mark.parametrize("fields", [None, [], "usage", 7])
def test_what_is_no_object_is_no_usage(fields: object) -> None:
    """An engine may put anything there."""
    assert usage_of(fields) is None


def test_the_larger_figure_of_each_kind_counts() -> None:
    """Neither event of a message has them all."""
    one, other = Usage(prompt_tokens=5, output_tokens=1), Usage(output_tokens=7, cached_tokens=2)
    assert larger(one, other) == Usage(prompt_tokens=5, output_tokens=7, cached_tokens=2)
    assert larger(one, None) == larger(None, one) == one


@pytest.mark.parametrize(
    ("body", "ident"),
    [
        (b'{"id":"resp_1","output":[{"id":"msg_1"}]}', "resp_1"),
        (b' { "id" : "resp_1"}', "resp_1"),
        (b'{"metadata":{"id":"resp_9"},"id":"resp_1"}', "resp_1"),
        (b'{"id":"a\\"b"}', 'a"b'),
        (b'{"id":"%b"}' % (b"x" * 300), None),
        (b'{"id":""}', None),
        (b'{"id":7}', None),
        (b'{"output":[]}', None),
        (b"[]", None),
        (b"half", None),
    ],
)
def test_the_id_of_a_plain_response_is_its_own(body: bytes, ident: str | None) -> None:
    """It decides who may fetch the answer later."""
    assert response_id_in(body) == ident


def test_a_recorded_response_has_an_id_and_a_usage() -> None:
    """vLLM 0.32.0, byte for byte."""
    _, body = shared_path("fixtures", "http", "responses.http").read_bytes().split(b"\r\n\r\n", 1)
    assert response_id_in(body) == json.loads(body)["id"]
    assert usages_in(body) == [Usage(prompt_tokens=16, output_tokens=6)]
