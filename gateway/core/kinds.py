"""Eligibility classes: which replicas can take a request; one that fits nowhere blocks no other.

All requests of one class fit the same replicas: same model, similar size, same exclusions.
"""

from typing import Final

SMALL_TOKENS_LOG4: Final = 6
"""Requests below 4^6 = 4,096 tokens are one size: on any engine they fit or fit soon."""


class Kind:
    """An eligibility class; two of equal content may exist, each with its own requests."""

    __slots__ = ("decodes", "replicas", "sequences", "size")

    def __init__(
        self, replicas: frozenset[str], *, size: int, sequences: int, decodes: bool
    ) -> None:
        self.replicas = replicas
        """Names of those that serve the model and have not failed the request."""
        self.size = size
        """0 for small ones, then the floor of log4 of the KV tokens."""
        self.sequences = sequences
        self.decodes = decodes
        """False for embeddings and scores: they need prefill, and no slot."""


def size_of(kv_tokens: int) -> int:
    """The size of a request that will hold `kv_tokens` at its end, as in `Kind.size`."""
    log4 = (kv_tokens.bit_length() - 1) // 2
    return log4 if log4 >= SMALL_TOKENS_LOG4 else 0
