"""API keys as they are told, and as they are asked for: never with anything that opens."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from gateway.admin.key_records import present
from gateway.admin.names import OwnName, origin_of
from gateway.admin.office import Office
from gateway.settings_document import LimitsSection, Name, Section, TierName, not_empty
from gateway.tenancy.keys import id_of
from gateway.tenancy.store.port import Record

OVERLAP_S_MAX = 30 * 86_400.0
LABEL_CHARS_MAX = 200
MODELS_MAX = 1_000
INSTANT_MAX = 1e11
Models = Annotated[
    tuple[Name, ...], Strict(strict=False), AfterValidator(not_empty), Field(max_length=MODELS_MAX)
]
Instant = Annotated[float, Field(gt=0, le=INSTANT_MAX)]


class KeyFields(Section):
    """What may be changed of a key; what is left out stays."""

    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX, description="For people.")] = ""
    tier: TierName | None = Field(None, description="Of its requests; null: the default one.")
    max_tier: TierName | None = Field(
        None, description="The best that its requests may ask for; null: its own."
    )
    models: Models = Field(("*",), description="Names or aliases it may ask for; `*`: all.")
    speaks_for_users: bool = False
    allows_chat_template: bool = False
    limits: LimitsSection = LimitsSection()
    expires_at: Instant | None = Field(None, description="Seconds since 1970; null: never.")
    blocked: bool = Field(
        False, description="Whether it opens nothing at present.", examples=[True]
    )


class NewKey(KeyFields):
    """A key to be made."""

    tenant: Annotated[OwnName, Field(examples=["acme"])]
    user: Annotated[OwnName, Field(examples=["alice"])] | None = Field(
        None, description="Whose requests they are; null: `anonymous`."
    )


class Rotation(Section):
    """How a key is handed out anew."""

    overlap_s: Annotated[
        float,
        Field(
            ge=0,
            le=OVERLAP_S_MAX,
            description="The present form stays good for so long.",
            examples=[3600.0],
        ),
    ] = 0.0


EXAMPLE: dict[str, Any] = {
    "object": "key", "id": "zrsh29dslud3", "source": "store", "origin": None, "version": 13,
    "label": "chat", "tenant": "acme", "user": "alice", "tier": "standard", "max_tier": "high",
    "models": ["*"], "speaks_for_users": False, "allows_chat_template": False,
    "limits": {
        "requests_per_minute": 60, "tokens_per_minute": None, "concurrent": None, "budget": None,
    },
    "created_at": 1795000000.5, "expires_at": None, "blocked": False, "state": "good",
    "rotates_until": None, "problems": [],
}  # fmt: skip
SHOWN_ONCE = "The key is shown this once: it is kept as a hash only."


class KeyView(BaseModel):
    """One key."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})
    object: Literal["key"] = "key"
    id: str
    source: Literal["file", "store"]
    origin: str | None = Field(description="Where the configuration names it.")
    version: int | None = Field(description="As in `ETag`; null where the file has it.")
    label: str
    tenant: str
    user: str | None
    tier: str | None
    max_tier: str | None
    models: list[str]
    speaks_for_users: bool
    allows_chat_template: bool
    limits: LimitsSection
    created_at: float | None
    expires_at: float | None
    blocked: bool
    state: Literal["good", "blocked", "expired"]
    rotates_until: float | None = Field(
        description="Until when the form before the last rotation is good as well."
    )
    problems: list[str] = Field(description="What of it cannot be as it says.")


class KeyMade(KeyView):
    """A key and, this once, the key itself."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                **EXAMPLE,
                "key": "fg-zrsh29dslud3-3dz21tNddGddIU_nppRi5LibMzRO6g1_ZaP4yFFfR6I",
                "notice": SHOWN_ONCE,
            }
        }
    )
    key: str | None = Field(
        description="Shown once; null where the answer is told again for an idempotency key."
    )
    notice: str


NOT_AGAIN = "The key was shown when this was first answered. Rotate it if it is lost."


def stored_view(office: Office, record: Record) -> KeyView:
    """A key of the store."""
    body, now = record.body, office.wall()
    last = [each["until"] for each in body["hashes"] if each["until"] is not None]
    until = max(last, default=0.0)
    return KeyView(
        id=record.id,
        source="store",
        origin=None,
        version=record.version or None,
        label=body["label"],
        tenant=body["tenant"],
        user=body["user"],
        tier=body["tier"],
        max_tier=body["max_tier"],
        models=list(body["models"]),
        speaks_for_users=body["speaks_for_users"],
        allows_chat_template=body["allows_chat_template"],
        limits=LimitsSection.model_validate(body["limits"]),
        created_at=body["created_at"],
        expires_at=body["expires_at"],
        blocked=body["blocked"],
        state=_state(body, now),
        rotates_until=until if until > now else None,
        problems=_problems(office, body),
    )


def file_views(office: Office) -> list[KeyView]:
    """The keys of the configuration."""
    return [
        KeyView(
            id=id_of(key.key_sha256),
            source="file",
            origin=origin_of(office, ("keys", index)),
            version=None,
            label="",
            created_at=None,
            expires_at=None,
            blocked=False,
            state="good",
            rotates_until=None,
            problems=[],
            **key.model_dump(mode="json", exclude={"key_sha256"}),
        )
        for index, key in enumerate(office.settings.keys)
    ]


def made(view: KeyView, key: str | None) -> KeyMade:
    """The answer to who made or rotated it; None: told again."""
    notice = NOT_AGAIN if key is None else SHOWN_ONCE
    return KeyMade(**view.model_dump(), key=key, notice=notice)


def _state(body: Any, now: float) -> Literal["good", "blocked", "expired"]:
    if body["blocked"]:
        return "blocked"
    expires_at = body["expires_at"]
    return "expired" if expires_at is not None and expires_at <= now else "good"


def _problems(office: Office, body: Any) -> list[str]:
    settings = office.settings
    return [
        f"{field}: there is no tier {body[field]!r} any more: {instead}"
        for field, instead in (
            ("tier", f"its requests are {settings.default_tier}"),
            ("max_tier", "it may ask for no better than its own"),
        )
        if body[field] is not None and present(settings, body[field]) is None
    ]
