"""A usage object as engines write it, for a reader that makes no dict in between."""

import msgspec


class Details(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int | None = None


class Counts(msgspec.Struct):
    """OpenAI's, of chat or of responses; without Anthropic's own, whose sums differ."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    cache_read_input_tokens: msgspec.UnsetType = msgspec.UNSET
    cache_creation_input_tokens: msgspec.UnsetType = msgspec.UNSET


COUNTS = msgspec.json.Decoder(Counts)
