"""What the gateway read of one request, and the bytes to send on."""

from gateway.api.fields import Fields
from gateway.api.outline import Outline
from gateway.api.routes import Route
from gateway.api.upload import Upload


class Call:
    """One request to a route: what the gateway read of it, and the bytes to send on.

    Nobody changes one.
    """

    __slots__ = (
        "asks_usage", "body", "fields", "is_background", "model", "outline", "output_tokens_max",
        "previous_response_id", "prompt_tokens", "route", "sequences", "service_tier", "session",
        "size", "streams", "upload", "user", "wants_usage",
    )  # fmt: skip

    def __init__(
        self,
        *,
        route: Route,
        model: str | None,
        streams: bool,
        body: bytes,
        sequences: int,
        prompt_tokens: int | None,
        output_tokens_max: int | None,
        service_tier: str | None = None,
        user: str | None = None,
        session: str | None = None,
        wants_usage: bool = False,
        previous_response_id: str | None = None,
        is_background: bool = False,
        upload: Upload | None = None,
        fields: Fields,
        outline: Outline | None = None,
    ) -> None:
        self.route = route
        self.model = model
        """As the client wrote it; None when it wrote none."""
        self.streams = streams
        self.body = body
        """Empty for a form, which is an `upload`."""
        self.sequences = sequences
        self.prompt_tokens = prompt_tokens
        """Of all prompts together, where the client wrote token ids; 1 where no GPU is used."""
        self.output_tokens_max = output_tokens_max
        self.service_tier = service_tier
        self.user = user
        self.session = session
        """The client's `prompt_cache_key`."""
        self.wants_usage = wants_usage
        """Whether the client itself asked for the usage of its stream."""
        self.asks_usage = streams and route.tells_usage_if_asked and not wants_usage
        """Whether the gateway must ask for it, since the client did not."""
        self.previous_response_id = previous_response_id
        """The stored response that this one goes on from."""
        self.is_background = is_background
        """Whether the engine may answer at once, and go on working."""
        self.upload = upload
        self.fields = fields
        """What the body says of its prompt."""
        self.outline = outline
        """Of a large body."""
        self.size = len(body) if upload is None else upload.length
        """Bytes of the body."""
