"""Text to token ids and back, for an engine without a model.

Ids are: three special tokens, the 256 bytes, letter pairs, letters after a space, and a
few hundred English words. Encoding is greedy by word, so that text costs about 2.5 bytes a token,
and decoding gives the very bytes back. As with real models, a generated sequence of ids need not
be the one its text encodes to.
"""

import re
import string
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gateway.emulator.words import WORDS

START, END = 1, 2
"""Ids around a chat message: `<|im_start|>`, `<|im_end|>`; 0 is the end of text, never produced."""
SPECIAL_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE = len(SPECIAL_NAMES)

LEAD = FIRST_BYTE + 0xC3
"""A byte that begins a two-byte character: its text is held back until the next token."""
TAILS = range(FIRST_BYTE + 0xA0, FIRST_BYTE + 0xC0)
"""Bytes that complete it, to one of the letters from a-grave to y-diaeresis."""

WORDS_REMEMBERED = 8192
"""Bound of the cache from words to ids."""

_PIECES = re.compile(rb" ?[A-Za-z]+|[^A-Za-z]", re.DOTALL)


class Vocabulary:
    """All tokens there are. Immutable but for a bounded cache."""

    def __init__(self) -> None:
        letters = string.ascii_lowercase
        pieces = [b"", b"", b"", *(bytes((byte,)) for byte in range(256))]
        pieces += [(a + b).encode() for a in letters for b in letters]
        pieces += [f" {a}".encode() for a in string.ascii_letters]
        self._first_word = len(pieces)
        pieces += [f" {word}".encode() for word in WORDS]
        self._pieces = pieces
        self.texts = tuple(piece.decode("utf-8", "replace") for piece in pieces)
        """Text of each token by itself."""
        self._ids = {piece: id for id, piece in enumerate(pieces) if piece}
        self._word_ids = lru_cache(WORDS_REMEMBERED)(self._split)
        marks = [FIRST_BYTE + byte for byte in b',.,.,.\n"']
        self.produced = (*range(self._first_word, len(pieces)), *marks, *[LEAD] * 6)
        """Ids that generation draws from, some more than once."""

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; `decode` gives the text back."""
        ids: list[int] = []
        for piece in _PIECES.findall(text.encode("utf-8", "replace")):
            ids += self._word_ids(piece)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens have none, incomplete characters become U+FFFD."""
        return b"".join([self._pieces[id] for id in ids]).decode("utf-8", "replace")

    def encode_chat(
        self, messages: Sequence[tuple[str, str]], *, opens_answer: bool, continues_last: bool
    ) -> list[int]:
        """Ids of (role, text) messages in ChatML.

        Args:
            messages: in order, at least one.
            opens_answer: whether an assistant's turn is begun at the end.
            continues_last: whether the last message is left open, to be continued.
        """
        ids: list[int] = []
        for role, text in messages:
            ids += [START, *self.encode(f"{role}\n{text}"), END, *self.encode("\n")]
        if continues_last:
            return ids[:-2]
        return [*ids, START, *self.encode("assistant\n")] if opens_answer else ids

    def token_text(self, id: int) -> str:
        """How `/tokenize` shows one token."""
        if id < FIRST_BYTE:
            return SPECIAL_NAMES[id]
        return self._pieces[id].decode("latin-1").replace(" ", "\u0120").replace("\n", "\u010a")

    def _split(self, word: bytes) -> tuple[int, ...]:
        whole = self._ids.get(word)
        if whole is not None:
            return (whole,)
        ids: list[int] = []
        at = 0
        while at < len(word):
            pair = word[at : at + 2]
            ids.append(self._ids.get(pair) or self._ids[word[at : at + 1]])
            at += len(self._pieces[ids[-1]])
        return tuple(ids)
