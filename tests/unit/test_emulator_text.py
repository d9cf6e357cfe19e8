"""Tokens and text of the emulated engine: invertible, deterministic, continuable by token ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.emulator.text import END_OF_TEXT, Output
from gateway.emulator.vocabulary import FIRST_BYTE, REPLACEMENT, SPELLINGS, Vocabulary

VOCABULARY = Vocabulary()


def ids_of(prompt: list[int], n: int, *, salt: int = 0) -> list[int]:
    """The next ids after a prompt."""
    return Output(VOCABULARY, prompt, salt=salt).take(n)[0]


@given(text=st.text(max_size=200))
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    """Clients that count or cut by tokens would get other text than they sent."""
    clean = text.encode("utf-8", "replace").decode()
    assert VOCABULARY.decode(VOCABULARY.encode(clean)) == clean


def test_english_costs_between_two_and_four_bytes_a_token() -> None:
    """Estimates of prompt tokens from bytes would be tried on a tokenizer like no other."""
    text = "Write a function that parses the date of a letter and gives back the day of the week."
    assert 2 <= len(text) / len(VOCABULARY.encode(text)) <= 4


@given(
    prompt=st.lists(st.integers(0, len(VOCABULARY) - 1), min_size=1, max_size=20),
    n=st.integers(2, 60),
    cut=st.integers(1, 59),
)
def test_a_greedy_answer_continued_from_its_ids_goes_on_unchanged(
    prompt: list[int], n: int, cut: int
) -> None:
    """Continuing a broken stream elsewhere could not be tested against the unbroken one."""
    whole = ids_of(prompt, n)
    cut = min(cut, n - 1)
    assert ids_of(prompt + whole[:cut], n - cut) == whole[cut:]


def test_a_sampled_answer_continued_from_its_ids_differs() -> None:
    """A gateway that continues seeded samples would look right here and be wrong in production."""
    prompt = VOCABULARY.encode("once upon a time")
    whole = ids_of(prompt, 30, salt=5)
    assert ids_of(prompt, 30, salt=5) == whole
    assert ids_of(prompt + whole[:10], 20, salt=5) != whole[10:]


def test_deltas_join_to_the_decoded_ids_and_half_a_character_is_held_back() -> None:
    """Empty deltas and multi-byte text are what makes event counting wrong; they must occur."""
    output = Output(VOCABULARY, VOCABULARY.encode("hello"))
    ids, deltas = [], []
    for _ in range(4000):
        new, text = output.take(1)
        ids += new
        deltas.append(text)
    assert "".join(deltas) == VOCABULARY.decode(ids).rstrip(REPLACEMENT)
    assert "" in deltas
    lengths = {len(letter.encode()) for letter in "".join(deltas)}
    assert lengths == {1, 2, 3, 4}
    assert REPLACEMENT not in "".join(deltas)


@pytest.mark.parametrize("lead", SPELLINGS)
def test_after_a_cut_inside_a_character_the_prompt_is_said_again(lead: int) -> None:
    """A gateway that cuts there sends a user the prompt; only this tells it from a clean cut."""
    prompt = [*VOCABULARY.encode("hello world"), lead]
    text, missing = "", len(SPELLINGS[lead])
    output = Output(VOCABULARY, prompt)
    for left in range(missing, 0, -1):
        assert text == ""
        ids, text = output.take(1)
        assert ids[0] in SPELLINGS[lead][missing - left]
    assert text.startswith("hello world")
    assert len(text) == len("hello world") + 1
    assert REPLACEMENT not in text + output.take(1)[1]


def test_stray_bytes_are_told_with_the_text_after_them() -> None:
    """Recorded: an empty delta, then U+FFFD and the next token's text in one."""
    byte = FIRST_BYTE + 0xE4
    output = Output(VOCABULARY, VOCABULARY.encode("hi"))
    output.recite([byte, *VOCABULARY.encode("a"), byte, byte, *VOCABULARY.encode("b"), byte])
    assert [output.take(1)[1] for _ in range(6)] == [
        *("", f"{REPLACEMENT}a", "", "", f"{REPLACEMENT * 2}b", "")
    ]


@given(
    prompt=st.lists(st.integers(0, len(VOCABULARY) - 1), min_size=1, max_size=20),
    cut=st.integers(0, 400),
)
def test_an_answer_that_ends_by_itself_ends_there_when_continued(
    prompt: list[int], cut: int
) -> None:
    """The end is a token like any other; a continuation that misses it would go on for ever."""
    output = Output(VOCABULARY, prompt)
    length = output.look_ahead(400, mean_tokens=50)
    whole = output.take(length)[0]
    assert (whole[-1] == END_OF_TEXT) == (output.finish_reason == "stop")
    assert END_OF_TEXT not in whole[:-1]
    cut = min(cut, length - 1)
    rest = Output(VOCABULARY, prompt + whole[:cut])
    assert rest.take(rest.look_ahead(400 - cut, mean_tokens=50))[0] == whole[cut:]
    assert rest.finish_reason == output.finish_reason


def test_answers_that_end_by_themselves_are_as_long_as_asked_for() -> None:
    """A load of the wrong length measures something else."""
    prompts = ([number] for number in range(3, 503))
    lengths = [Output(VOCABULARY, each).look_ahead(2000, mean_tokens=50) for each in prompts]
    assert 40 < sum(lengths) / len(lengths) < 60
    assert min(Output(VOCABULARY, [9]).look_ahead(99, mean_tokens=1, min_tokens=7), 99) == 8


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    """Recorded: ids run ahead of the text, which matters to who continues from them."""
    output = Output(VOCABULARY, [7])
    stop = "zzzzqqqq"
    length = output.look_ahead(12, stops=(stop,))
    full = Output(VOCABULARY, [7]).take(12)[1]
    sent = ""
    for step in range(1, length + 1):
        sent += output.take(1, ended=step == length)[1]
        so_far = Output(VOCABULARY, [7]).take(step)[1]
        assert sent == (full if step == length else so_far[: max(0, len(so_far) - 7)])


@pytest.mark.parametrize("stop", ["e", "th", " in", "of the moon"])
def test_a_stop_string_ends_the_text_before_itself(stop: str) -> None:
    """Stop strings would come through, or too much would be cut."""
    prompt = VOCABULARY.encode("a story")
    unstopped = Output(VOCABULARY, prompt).take(400)[1]
    output = Output(VOCABULARY, prompt)
    length = output.look_ahead(400, stops=(stop, "never in this text"))
    text = "".join(output.take(1)[1] for _ in range(length))
    assert text == unstopped.partition(stop)[0][: len(text)]
    assert (output.stop_reason == stop) == (stop in unstopped)
    assert output.finish_reason == ("stop" if stop in unstopped else "length")
    assert stop not in text


def test_several_tokens_at_once_are_the_same_as_one_by_one() -> None:
    """A slow reader, whose tokens are handed over together, would get another text."""
    one = Output(VOCABULARY, [7])
    single = [one.take(1) for _ in range(50)]
    ids, text = Output(VOCABULARY, [7]).take(50)
    assert ids == [id for new, _ in single for id in new]
    assert text == "".join(delta for _, delta in single)


def test_the_chat_template_can_leave_the_last_message_open() -> None:
    """continue_final_message would begin a new message instead."""
    turns = [("user", "hi"), ("assistant", "def parse")]
    closed = VOCABULARY.encode_chat(turns, opens_answer=False, continues_last=False)
    open_ = VOCABULARY.encode_chat(turns, opens_answer=False, continues_last=True)
    assert closed[: len(open_)] == open_
    assert VOCABULARY.decode(open_).endswith("def parse")
