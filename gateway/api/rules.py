"""What no client may have an engine do: run a template of its own, or fetch what it likes.

A body in which no such thing stands costs a look at fields that were read anyway, and a search for
a few words.
"""

from gateway.api.call import Call
from gateway.api.fields import ABSENT, NULL, Fields, read_members
from gateway.api.media import MediaRule
from gateway.errors import BadRequestError
from gateway.tenancy.keys import Principal


class Rules:
    """The rules on bodies, as configured."""

    def __init__(self, media_hosts: tuple[str, ...] = ()) -> None:
        self.configure(media_hosts)

    def configure(self, media_hosts: tuple[str, ...]) -> None:
        """These hosts from now on."""
        self._media = MediaRule(media_hosts)

    def check(self, call: Call, principal: Principal) -> None:
        """Raises BadRequestError for a template that the key does not allow."""
        fields = call.fields
        if fields.chat_template is ABSENT and fields.chat_template_kwargs is ABSENT:
            return
        if not principal.allows_chat_template and (param := _template_in(fields)) is not None:
            raise BadRequestError(
                f"`{param}` is refused: the engine would run it, and this API key does not allow "
                "that.",
                param=param,
            )

    async def media_bytes(self, call: Call) -> int:
        """Bytes of the media in a body. Raises BadRequestError for what may not be fetched.

        Need not be asked where `may_fetch` finds nothing.
        """
        return await self._media.check(call)


def _template_in(fields: Fields) -> str | None:
    """The member that holds a template. Engines take one from among its arguments, too."""
    if fields.chat_template is not ABSENT and fields.chat_template != NULL:
        return "chat_template"
    arguments = bytes(fields.chat_template_kwargs)
    if arguments.startswith(b"{") and read_members(arguments).get("chat_template", NULL) != NULL:
        return "chat_template_kwargs.chat_template"
    return None
