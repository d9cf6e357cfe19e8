"""Where a JSON string ends, however it is escaped and in however many looks it is found."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.strings import FIRST_LOOK_BYTES, SLICE_BYTES, end_of_string, look_for_end

PIECES = st.sampled_from([b"\\\\", b'\\"', b"a", b"b", b'"', b"\\"])


def reference(text: bytes, at: int) -> int:
    """Byte by byte."""
    while at < len(text):
        if text[at : at + 1] == b"\\":
            at += 2
        elif text[at : at + 1] == b'"':
            return at + 1
        else:
            at += 1
    return len(text)


@given(pieces=st.lists(PIECES, max_size=40), size=st.integers(2, 9))
def test_the_end_is_found_whatever_the_size_of_a_look(pieces: list[bytes], size: int) -> None:
    """Half an escape at the end of a look would turn every quote after it round."""
    text = b"".join(pieces)
    at, is_over = 0, False
    while not is_over:
        before = at
        at, is_over = look_for_end(text, at, size)
        assert is_over or at > before
    assert at == end_of_string(text, 0) == reference(text, 0)


def test_code_is_looked_through_a_slice_at_a_time() -> None:
    """A prompt full of quotes held everybody else for a fifth of a second."""
    text = b'x = {\\"a\\": \\"b\\"}\\n' * 200_000 + b'", "more"'
    at, looks = look_for_end(text, 0, FIRST_LOOK_BYTES)[0], 1
    assert 0 < at <= FIRST_LOOK_BYTES
    is_over = False
    while not is_over:
        before = at
        at, is_over = look_for_end(text, at)
        assert at - before <= SLICE_BYTES
        looks += 1
    assert at == len(text) - len(b', "more"')
    assert looks > len(text) // SLICE_BYTES
