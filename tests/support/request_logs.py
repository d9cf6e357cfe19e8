"""Request logs for tests of what reads them: lines as the gateway writes them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gateway.core.messages import Usage
from gateway.telemetry.record import SettledRequest

BEGAN_AT = 1_700_000_000.0


def line(at: float, *, user: str = "light", **more: Any) -> bytes:
    """One request that arrived `at` seconds after the log began, and was answered whole."""
    told: dict[str, Any] = {
        "request_id": f"r-{at}-{user}",
        "route": "/v1/chat/completions",
        "model": "m",
        "tenant": "acme",
        "user": user,
        "tier": "standard",
        "replica": "engine-1",
        "outcome": "done",
        "status": 200,
        "attempts": 1,
        "waited_s": 0.01,
        "ttft_s": 0.05,
        "tpot_s": 0.02,
        "duration_s": 0.85,
        "overhead_s": 0.001,
        "usage": Usage(prompt_tokens=64, output_tokens=40),
        "arrived_at": BEGAN_AT + at,
        "streams": True,
        "output_tokens_max": 64,
        "body_bytes": 256,
    }
    return msgspec.json.encode(SettledRequest(**{**told, **more}))


def flood(*, power: int = 60, light: int = 10, **more: Any) -> list[bytes]:
    """A power user's requests within two seconds, and those of a light one, one each second."""
    heavy = [line(0.2 + 2 * number / power, user="power", **more) for number in range(power)]
    return heavy + [line(float(number), **more) for number in range(light)]


def log_file(folder: Path, lines: Iterable[bytes], name: str = "requests.jsonl") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_bytes(b"".join(each + b"\n" for each in lines))
    return path
