"""One JSON line a request on a logger of its own; never a prompt, an output or a key."""

import logging

import msgspec

from gateway.telemetry.record import SettledRequest

LOGGER = logging.getLogger("fairgate.requests")


def log_settled(record: SettledRequest) -> None:
    """Write the record, if anybody listens."""
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("%s", msgspec.json.encode(record).decode("utf-8"))
