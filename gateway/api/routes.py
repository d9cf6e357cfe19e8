"""The generation routes: which exist, what shape their bodies have, what they cost to decode.

This table is all there is: a path that does not stand here is not relayed, whatever an engine
would make of it.
"""

from dataclasses import dataclass
from types import MappingProxyType

from gateway.upstream.sse import Events


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route that is relayed to an engine by POST."""

    name: str
    """Short name for metrics and predictions; paths that mean the same share it."""
    path: str
    summary: str
    prompts_in: str | None = None
    """Body field that may hold several prompts; None: one prompt a request."""
    output_tokens_in: tuple[str, ...] = ("max_completion_tokens", "max_tokens")
    """Body fields that bound the output; the first that is set counts."""
    output_tokens_default: int | None = None
    """What an engine generates when the client names no maximum; None: unbounded, 0: nothing."""
    uses_gpu: bool = True
    """False: the engine's front end answers by itself."""
    events: Events | None = Events.CHUNKS
    """What its streams are made of; None where it never streams."""
    is_anthropic: bool = False
    """Whether errors and keep-alives have Anthropic's shape instead of OpenAI's."""
    tells_usage_if_asked: bool = False
    """Whether a stream tells its usage only where `stream_options.include_usage` is set."""
    is_form: bool = False
    """Whether the body is a multipart form with a file instead of JSON."""

    @property
    def engine_path(self) -> bytes:
        """The path as it goes to the engine: the same."""
        return self.path.encode("ascii")

    @property
    def decodes(self) -> bool:
        """Whether it generates tokens."""
        return self.output_tokens_default != 0


def _pooling(name: str, path: str, summary: str, prompts_in: str | None = None) -> Route:
    """A route whose answer takes one forward pass."""
    return Route(
        name=name,
        path=path,
        summary=summary,
        prompts_in=prompts_in,
        output_tokens_default=0,
        events=None,
    )


def _front_end(name: str, path: str, summary: str, *, is_anthropic: bool = False) -> Route:
    """A route that an engine answers without its GPU."""
    return Route(
        name=name,
        path=path,
        summary=summary,
        output_tokens_default=0,
        uses_gpu=False,
        events=None,
        is_anthropic=is_anthropic,
    )


CHAT = Route(
    name="chat", path="/v1/chat/completions", summary="Chat completion", tells_usage_if_asked=True
)
COMPLETIONS = Route(
    name="completions",
    path="/v1/completions",
    summary="Text completion",
    prompts_in="prompt",
    output_tokens_default=16,
    tells_usage_if_asked=True,
)
RESPONSES = Route(
    name="responses",
    path="/v1/responses",
    summary="Response (OpenAI's Responses API)",
    output_tokens_in=("max_output_tokens",),
    events=Events.RESPONSE,
)
MESSAGES = Route(
    name="messages",
    path="/v1/messages",
    summary="Message (Anthropic's Messages API)",
    output_tokens_in=("max_tokens",),
    events=Events.MESSAGE,
    is_anthropic=True,
)
COUNT_TOKENS = _front_end(
    "count_tokens",
    "/v1/messages/count_tokens",
    "Count the tokens of a message (Anthropic)",
    is_anthropic=True,
)
EMBEDDINGS = _pooling("embeddings", "/v1/embeddings", "Embeddings", "input")
TRANSCRIPTIONS = Route(
    name="transcriptions",
    path="/v1/audio/transcriptions",
    summary="Transcription of an audio file",
    is_form=True,
)
TRANSLATIONS = Route(
    name="translations",
    path="/v1/audio/translations",
    summary="Translation of an audio file into English",
    is_form=True,
)

_ALL = (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    EMBEDDINGS,
    _pooling("rerank", "/v1/rerank", "Rerank documents", "documents"),
    _pooling("rerank", "/rerank", "Rerank documents", "documents"),
    _pooling("score", "/v1/score", "Score pairs of texts", "text_2"),
    _pooling("score", "/score", "Score pairs of texts", "text_2"),
    _pooling("pooling", "/pooling", "Pooled hidden states", "input"),
    _pooling("classify", "/classify", "Classify texts", "input"),
    _front_end("tokenize", "/tokenize", "Tokenize a text"),
    _front_end("detokenize", "/detokenize", "Turn tokens into text"),
    TRANSCRIPTIONS,
    TRANSLATIONS,
)

ROUTES = MappingProxyType({route.path: route for route in _ALL})

RESPONSES_PREFIX = "/v1/responses/"
"""What stands in front of the id of a stored response: GET it, or POST to its `/cancel`."""
