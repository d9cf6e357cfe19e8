"""What the gateway reads of a JSON body; all else is skipped without being built, and forwarded.

Prompts and what hangs on them stay JSON text: a million tokens are skipped in a few milliseconds.
What a value means is decided elsewhere; here only its type is checked.
"""

import re

import msgspec
from msgspec import Raw

from gateway.api.routes import Route
from gateway.errors import BadRequestError

ABSENT = Raw()
"""A field that the body does not have."""
NULL = Raw(b"null")
FALSE = Raw(b"false")

_WRONG_TYPE = re.compile(r"(?:Expected `(\w+)(?: \| null)?`)?.* - at `\$\.(\w+)", re.DOTALL)
_KINDS = {"str": "a string", "int": "an integer", "bool": "true or false"}


class Fields(msgspec.Struct, kw_only=True, gc=False):
    """Fields of every route."""

    model: str | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: Raw = ABSENT

    messages: Raw = ABSENT
    prompt: Raw = ABSENT
    input: Raw = ABSENT
    documents: Raw = ABSENT
    text_2: Raw = ABSENT
    tools: Raw = ABSENT
    system: Raw = ABSENT
    instructions: Raw = ABSENT

    priority: Raw = ABSENT
    kv_transfer_params: Raw = ABSENT
    request_id: Raw = ABSENT
    chat_template: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    cache_salt: Raw = ABSENT

    @property
    def heavy(self) -> tuple[Raw, ...]:
        """The fields that may be large."""
        return (
            self.messages, self.prompt, self.input, self.documents, self.text_2, self.tools,
            self.system, self.instructions,
        )  # fmt: skip

    def prompts(self, name: str) -> Raw:
        """The field `name` of a route's `prompts_in`."""
        match name:
            case "prompt":
                return self.prompt
            case "input":
                return self.input
            case "documents":
                return self.documents
            case _:
                assert name == "text_2"
                return self.text_2


class GenerationFields(Fields, kw_only=True, gc=False):
    """Fields of the routes that generate tokens."""

    stream: bool | None = None
    stream_options: Raw = ABSENT
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None

    def limit(self, name: str) -> int | None:
        """The field `name` of a route's `output_tokens_in`."""
        match name:
            case "max_tokens":
                return self.max_tokens
            case "max_completion_tokens":
                return self.max_completion_tokens
            case _:
                assert name == "max_output_tokens"
                return self.max_output_tokens


NO_GENERATION = GenerationFields()

_FIELDS = msgspec.json.Decoder(Fields)
_GENERATION_FIELDS = msgspec.json.Decoder(GenerationFields)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def read_fields(route: Route, body: bytes) -> Fields:
    """The fields of `body`. Raises BadRequestError with the field that is wrong."""
    try:
        return (_GENERATION_FIELDS if route.decodes else _FIELDS).decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequestError(f"The request body is not valid JSON: {error}") from None
    except RecursionError:
        raise BadRequestError("The request body is not valid JSON: nested too deep.") from None


def read_members(text: bytes) -> dict[str, Raw]:
    """All members of the object `text`, which was read before; of equal names the last."""
    return _MEMBERS.decode(text)


def _wrong_type(message: str) -> BadRequestError:
    found = _WRONG_TYPE.match(message)
    if found is None:
        return BadRequestError("The request body must be a JSON object.")
    name = found[2]
    kind = _KINDS.get(found[1], "in range")
    return BadRequestError(f"`{name}` must be {kind}.", param=name)
