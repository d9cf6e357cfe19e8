"""Tokens and text of the emulated engine: invertible, deterministic, continuable by token ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.emulator.text import REPLACEMENT, Output
from gateway.emulator.vocabulary import LEAD, TAILS, Vocabulary

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
    for _ in range(2000):
        new, text = output.take(1)
        ids += new
        deltas.append(text)
    if ids[-1] == LEAD:
        ids.pop()
    assert "".join(deltas) == VOCABULARY.decode(ids)
    assert "" in deltas
    assert any(ord(letter) > 127 for letter in "".join(deltas))


def test_the_tail_of_a_character_whose_lead_is_in_the_prompt_is_a_replacement() -> None:
    """A cut inside a character is the hard case of continuation and must look as in the engine."""
    ids, text = Output(VOCABULARY, [5, LEAD]).take(1)
    assert ids[0] in TAILS
    assert text == REPLACEMENT


@pytest.mark.parametrize("stop", ["e", "th", " in", "of the moon"])
def test_a_stop_string_ends_the_text_before_itself(stop: str) -> None:
    """Stop strings would come through, or too much would be cut."""
    prompt = VOCABULARY.encode("a story")
    unstopped = Output(VOCABULARY, prompt).take(400)[1]
    output = Output(VOCABULARY, prompt)
    length = output.stop_at((stop, "never in this text"), 400)
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
