"""What the product can do and these tests make use of where it can."""

from gateway.core.policy import DEFAULT_TIERS
from gateway.settings import SettingsError, load_settings


def tiers(*, continuation: bool) -> list[dict[str, object]]:
    """The default tiers, streams of which go on elsewhere, or do not."""
    return [
        {
            "name": tier.name,
            "queue_limit": tier.queue_limit,
            "patience_s": tier.patience_s,
            **({"continuation": True} if continuation else {}),
        }
        for tier in DEFAULT_TIERS
    ]


def can_continue() -> bool:
    """Whether there is a setting `tiers[].continuation`."""
    overrides = {"replicas": ("http://x",), "tiers": tiers(continuation=True)}
    try:
        load_settings(config=None, environ={}, overrides=overrides)
    except SettingsError as error:
        if "continuation" in str(error):
            return False
        raise
    return True
