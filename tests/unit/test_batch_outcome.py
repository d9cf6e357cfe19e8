"""What a line came to: the line that is put out, and whether it is run again."""

import json

import pytest

from gateway.batch.outcome import Answer, again, line_not_run, line_of


def answer(status: int, **more: object) -> Answer:
    """One of the gateway's."""
    return Answer(status=status, request_id="r", body=b"{}", **more)  # type: ignore[arg-type] # a test's own words


def test_an_answer_stands_in_the_output_as_the_engine_wrote_it() -> None:
    """Who compares with direct answers, or hashes them, finds the same bytes."""
    body = b'{"a": 1.50,"b":"\\u00e9"}'
    data = line_of("i", 'c"1', Answer(status=200, request_id="r", body=body))
    assert body in data
    assert data.endswith(b"}\n")
    assert json.loads(data) == {
        "id": "i", "custom_id": 'c"1', "error": None,
        "response": {"status_code": 200, "request_id": "r", "body": json.loads(body)},
    }  # fmt: skip


def test_an_answer_over_several_lines_is_one_line() -> None:
    """A reader of lines would lose both halves."""
    body = b'{\n  "a": "x\\ny"\r\n}'
    data = line_of("i", "c", Answer(status=200, request_id="r", body=body))
    assert data.count(b"\n") == 1
    assert json.loads(data)["response"]["body"] == {"a": "x\ny"}


def test_an_answer_that_is_no_json_is_a_text() -> None:
    """An engine behind a proxy answers with its page; the output must stay JSON."""
    data = line_of("i", "c", Answer(status=200, request_id="r", body=b"<html>\xff"))
    assert json.loads(data)["response"]["body"] == "<html>\ufffd"


def test_a_line_that_did_not_run_says_why() -> None:
    """OpenAI's words, which programs look for."""
    for ending in ("expired", "cancelled"):
        found = json.loads(line_not_run("i", "c", ending))
        assert found["response"] is None
        assert found["error"]["code"] == f"batch_{ending}"


@pytest.mark.parametrize("status", [200, 400, 404, 422])
def test_an_answer_is_an_answer(status: int) -> None:
    """A wrong request is not sent again and again."""
    assert again(answer(status), attempts=1, attempts_max=3, left_s=100.0) is None


def test_a_refusal_is_no_answer_however_often_it_comes() -> None:
    """A batch waits for room as long as its window lasts."""
    retry = again(answer(429, retry_after_s=4.0), attempts=99, attempts_max=3, left_s=100.0)
    assert retry is not None
    assert (retry.after_s, retry.is_refusal) == (4.0, True)


def test_a_spent_budget_is_waited_for_if_it_returns_in_time() -> None:
    """A budget by the day is free again tomorrow; a batch of an hour cannot wait for it."""
    spent = answer(429, code="insufficient_quota", retry_after_s=7_200.0, should_retry=False)
    waits = again(spent, attempts=1, attempts_max=3, left_s=86_400.0)
    assert waits is not None
    assert waits.after_s == 7_200.0
    assert again(spent, attempts=1, attempts_max=3, left_s=3_600.0) is None


@pytest.mark.parametrize("status", [0, 500, 502, 504])
def test_a_broken_engine_is_tried_so_often_and_no_more(status: int) -> None:
    """A request that kills engines must not run for ever."""
    retry = again(answer(status), attempts=2, attempts_max=3, left_s=100.0)
    assert retry is not None
    assert not retry.is_refusal
    assert again(answer(status), attempts=3, attempts_max=3, left_s=100.0) is None


def test_what_an_operator_ended_is_not_run_again() -> None:
    """They looked at it, and did not want it."""
    ended = answer(503, should_retry=False)
    assert again(ended, attempts=1, attempts_max=3, left_s=100.0) is None


def test_a_line_whose_answers_broke_off_has_no_response() -> None:
    """There is no status to tell."""
    found = json.loads(line_of("i", "c", answer(0)))
    assert (found["response"], found["error"]["code"]) == (None, "request_failed")
