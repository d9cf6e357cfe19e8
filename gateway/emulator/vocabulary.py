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
from types import MappingProxyType

from gateway.emulator.words import WORDS

START, END = 1, 2
"""Ids around a chat message: `<|im_start|>`, `<|im_end|>`; 0 is the end of text, never produced."""
SPECIAL_NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE = len(SPECIAL_NAMES)


def _bytes(first: int, last: int) -> range:
    return range(FIRST_BYTE + first, FIRST_BYTE + last + 1)


SPELLINGS = MappingProxyType(
    {
        FIRST_BYTE + 0xC3: (_bytes(0xA0, 0xBF),),
        FIRST_BYTE + 0xE4: (_bytes(0xB8, 0xBF), _bytes(0x80, 0xBF)),
        FIRST_BYTE + 0xF0: (_bytes(0x9F, 0x9F), _bytes(0x98, 0x98), _bytes(0x80, 0xBF)),
    }
)
"""Bytes that begin a character of two, three or four tokens, and what may follow each: letters with
accents, Chinese, faces. Text is held back until the last of them."""
CHARACTER_TOKENS_MAX = 4
_SHARES = {FIRST_BYTE + 0xC3: 6, FIRST_BYTE + 0xE4: 3, FIRST_BYTE + 0xF0: 2}

REPLACEMENT = "\ufffd"

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
        self.pieces = tuple(pieces)
        """Bytes of each token; the special ones have none."""
        self.texts = tuple(piece.decode("utf-8", "replace") for piece in pieces)
        """Text of each token by itself."""
        self._ids = {piece: id for id, piece in enumerate(pieces) if piece}
        self._word_ids = lru_cache(WORDS_REMEMBERED)(self._split)
        marks = [FIRST_BYTE + byte for byte in b',.,.,.\n"']
        leads = [lead for lead, share in _SHARES.items() for _ in range(share)]
        self.produced = (*range(self._first_word, len(pieces)), *marks, *leads)
        """Ids that generation draws from, some more than once."""

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of a text; `decode` gives the text back."""
        ids: list[int] = []
        for piece in _PIECES.findall(text.encode("utf-8", "replace")):
            ids += self._word_ids(piece)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens have none, incomplete characters become U+FFFD."""
        return b"".join([self.pieces[id] for id in ids]).decode("utf-8", "replace")

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
        return self.pieces[id].decode("latin-1").replace(" ", "\u0120").replace("\n", "\u010a")

    def _split(self, word: bytes) -> tuple[int, ...]:
        whole = self._ids.get(word)
        if whole is not None:
            return (whole,)
        ids: list[int] = []
        at = 0
        while at < len(word):
            pair = word[at : at + 2]
            ids.append(self._ids.get(pair) or self._ids[word[at : at + 1]])
            at += len(self.pieces[ids[-1]])
        return tuple(ids)
