"""A usage object as engines write it: read into a struct, without a dict in between.

What does not fit, since an engine counts in a way of its own, is for the slower reader.
"""

import msgspec

from gateway.core.messages import Usage


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


_DECODER = msgspec.json.Decoder(Counts)


def usage_told(text: bytes) -> Usage | None:
    """The usage in `text`; None for anything but a plain usage object of OpenAI's."""
    try:
        counts = _DECODER.decode(text)
    except msgspec.MsgspecError:
        return None
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached = details.cached_tokens if details is not None else None
    prompt = counts.prompt_tokens or counts.input_tokens or 0
    output = counts.completion_tokens or counts.output_tokens or 0
    if min(prompt, output, cached or 0) < 0:
        return None
    return Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached or 0)
