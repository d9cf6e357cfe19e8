"""How sure the emulated model says it was of each token: numbers without a meaning.

Pure; they follow from the token, so that the same answer has the same numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.emulator.text import mixed
from gateway.emulator.vocabulary import Vocabulary

TOP_LOGPROBS_MAX = 20
"""More alternatives than this are not shown; the engine's own bound."""
_LEAST = 2.0
"""Logprobs lie between minus this and 0."""


def chat_logprobs(vocabulary: Vocabulary, ids: Sequence[int], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice, with `top` alternatives a token, the chosen one first."""
    content = []
    for id in ids:
        shown = [_shown(vocabulary, *one) for one in _candidates(vocabulary, id, max(1, top))]
        content.append({**shown[0], "top_logprobs": shown[:top]})
    return {"content": content}


def completion_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], top: int, offset: int
) -> dict[str, Any]:
    """The `logprobs` of a completion's choice; `offset` is the length of its text so far."""
    tokens = [vocabulary.decode((id,)) for id in ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    ranked = [list(_candidates(vocabulary, id, max(1, top))) for id in ids]
    return {
        "text_offset": offsets,
        "token_logprobs": [candidates[0][1] for candidates in ranked],
        "tokens": tokens,
        "top_logprobs": [
            {vocabulary.decode((id,)): value for id, value in candidates} for candidates in ranked
        ],
    }


def _candidates(vocabulary: Vocabulary, id: int, top: int) -> Iterator[tuple[int, float]]:
    """(id, logprob), the token itself first and the others less likely one by one."""
    logprob = -_LEAST * mixed(id + 1) / 2**32
    yield id, logprob
    produced = vocabulary.produced
    for rank in range(1, min(top, TOP_LOGPROBS_MAX)):
        logprob -= _LEAST / 2
        yield produced[(id + rank) % len(produced)], logprob


def _shown(vocabulary: Vocabulary, id: int, logprob: float) -> dict[str, Any]:
    text = vocabulary.decode((id,))
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
