"""The routes that read texts and generate nothing, when the emulator is asked to have them."""

from dataclasses import dataclass
from types import MappingProxyType

from gateway.emulator.pooling_answer import (
    Answer,
    classes_body,
    embeddings_body,
    pooling_body,
    rerank_body,
    scores_body,
)
from gateway.emulator.pooling_request import Parse, parse_rerank, parse_scores, parse_texts


@dataclass(frozen=True, slots=True)
class PoolingRoute:
    """How one of them is read and answered."""

    parse: Parse
    answer: Answer
    id_prefix: str


_EMBEDDINGS = PoolingRoute(parse_texts, embeddings_body, "embd-")
_SCORES = PoolingRoute(parse_scores, scores_body, "score-")
_RERANK = PoolingRoute(parse_rerank, rerank_body, "score-")

POOLING_ROUTES = MappingProxyType(
    {
        "/v1/embeddings": _EMBEDDINGS,
        "/v1/score": _SCORES,
        "/score": _SCORES,
        "/v1/rerank": _RERANK,
        "/rerank": _RERANK,
        "/pooling": PoolingRoute(parse_texts, pooling_body, "pooling-"),
        "/classify": PoolingRoute(parse_texts, classes_body, "classify-"),
    }
)
