"""Which requests could be continued exactly on another replica, judged before they are sent.

Another replica is given the token ids so far as a prompt. Whatever looks at the *output* so far, as
penalties do, or holds state that ids do not carry, as a seeded generator or a grammar, would see
something else there. What is not known here is taken to be harmless: engines ignore unknown fields.
"""

import re
from typing import Any

import msgspec
from msgspec import Raw

from gateway.continuation.obstacles import Obstacle

_ABSENT = Raw()
_UNSET = frozenset((b"", b"null", b"false", b"0", b"0.0", b"[]", b"{}", b'""'))
"""Values that switch a field off."""
_ZERO = re.compile(rb"-?0(?:\.0+)?")
_MEDIA = re.compile(
    rb'"(?:image|input_image|audio|input_audio|video|file|input_file|thinking|custom_embeds)'
    rb'(?:_url|_embeds|_pil|_data|_id)?"'
)
"""Keys and types of parts that become more than tokens; a quote inside a JSON string is escaped."""
_MEDIA_STARTS = (b'"image', b'"input_', b'"audio', b'"video', b'"file', b'"thinking', b'"custom_')
"""What they begin with: found a hundred times as fast in a long history."""


class _Asked(msgspec.Struct, gc=False):
    """The fields of a body that decide."""

    temperature: Raw = _ABSENT
    seed: Raw = _ABSENT
    stop: Raw = _ABSENT
    return_token_ids: Raw = _ABSENT
    messages: Raw = _ABSENT
    response_format: Raw = _ABSENT
    tool_choice: Raw = _ABSENT
    best_of: Raw = _ABSENT
    presence_penalty: Raw = _ABSENT
    frequency_penalty: Raw = _ABSENT
    use_beam_search: Raw = _ABSENT
    echo: Raw = _ABSENT
    suffix: Raw = _ABSENT
    prompt_embeds: Raw = _ABSENT
    tools: Raw = _ABSENT
    functions: Raw = _ABSENT
    function_call: Raw = _ABSENT
    structured_outputs: Raw = _ABSENT
    guided_json: Raw = _ABSENT
    guided_regex: Raw = _ABSENT
    guided_choice: Raw = _ABSENT
    guided_grammar: Raw = _ABSENT
    structural_tag: Raw = _ABSENT
    logprobs: Raw = _ABSENT
    top_logprobs: Raw = _ABSENT
    prompt_logprobs: Raw = _ABSENT
    bad_words: Raw = _ABSENT
    repetition_detection: Raw = _ABSENT
    thinking_token_budget: Raw = _ABSENT
    watermarking: Raw = _ABSENT
    logits_processors: Raw = _ABSENT
    vllm_xargs: Raw = _ABSENT
    ec_transfer_params: Raw = _ABSENT


_ASKED = msgspec.json.Decoder(_Asked)
_SWITCHED_OFF = (
    (Obstacle.BEAMS, ("use_beam_search",)),
    (Obstacle.ECHO, ("echo",)),
    (Obstacle.PROMPT, ("prompt_embeds", "suffix")),
    (Obstacle.TOOLS, ("tools", "functions", "function_call")),
    (
        Obstacle.FORMAT,
        ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
         "structural_tag"),
    ),
    (Obstacle.LOGPROBS, ("top_logprobs",)),
    (Obstacle.PENALTY, ("presence_penalty", "frequency_penalty")),
    (
        Obstacle.HISTORY,
        ("bad_words", "repetition_detection", "thinking_token_budget", "watermarking",
         "logits_processors", "vllm_xargs", "ec_transfer_params"),
    ),
)  # fmt: skip
"""Fields that must be switched off."""
_UNSAID = ("logprobs", "prompt_logprobs")
"""Fields in which 0 asks for something already."""


class Verdict(msgspec.Struct, frozen=True):
    """What a body says of continuing its stream."""

    obstacle: Obstacle | None = None
    is_greedy: bool = False
    """Whether the same ids would come again."""
    shows_ids: bool = False
    """Whether the client asked for token ids itself."""


def judged(text: bytes, *, sequences: int) -> Verdict:
    """Judge the body `text` of a streamed chat or completion; `sequences` as the gateway read it.

    Long strings and lists in `text` may be shortened.
    """
    try:
        asked = _ASKED.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Verdict(Obstacle.PROMPT)  # read before, so only by a hair
    return Verdict(
        _obstacle(asked, sequences),
        is_greedy=_ZERO.fullmatch(bytes(asked.temperature)) is not None,
        shows_ids=bytes(asked.return_token_ids) == b"true",
    )


def _obstacle(asked: _Asked, sequences: int) -> Obstacle | None:
    if sequences != 1 or bytes(asked.best_of) not in (b"", b"null", b"1"):
        return Obstacle.SEVERAL
    for obstacle, names in _SWITCHED_OFF:
        for name in names:
            if bytes(getattr(asked, name)) not in _UNSET:
                return obstacle
    if any(bytes(getattr(asked, name)) not in (b"", b"null", b"false") for name in _UNSAID):
        return Obstacle.LOGPROBS
    if bytes(asked.tool_choice) not in (b"", b"null", b'"none"'):
        return Obstacle.TOOLS
    if bytes(asked.return_token_ids) not in (b"", b"true"):
        return Obstacle.DECLINED
    if bytes(asked.seed) not in (b"", b"null") and not _ZERO.fullmatch(bytes(asked.temperature)):
        return Obstacle.SEED
    if not _is_text(_value(asked.response_format)):
        return Obstacle.FORMAT
    if not _fits_one_character(_value(asked.stop)):
        return Obstacle.STOP
    return Obstacle.PROMPT if _has_media(bytes(asked.messages)) else None


def _has_media(messages: bytes) -> bool:
    for start in _MEDIA_STARTS:
        at = messages.find(start)
        while at >= 0:
            if _MEDIA.match(messages, at):
                return True
            at = messages.find(start, at + 1)
    return False


def _is_text(response_format: Any) -> bool:
    return response_format is None or (
        isinstance(response_format, dict) and response_format.get("type") == "text"
    )


def _fits_one_character(stop: Any) -> bool:
    """A longer stop string is held back by the engine, and one part of it may be sent already."""
    stops = [stop] if isinstance(stop, str) else stop
    return not stops or (
        isinstance(stops, list) and all(isinstance(each, str) and len(each) == 1 for each in stops)
    )


def _value(text: Raw) -> Any:
    return msgspec.json.decode(text) if bytes(text) else None
