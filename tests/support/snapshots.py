"""What a test of snapshots needs beside the scheduler: JSON between, and what seldom comes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.replica import Replica
from gateway.core.report import Rank, ReplicaReport


def through_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """As another process reads it."""
    read: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return read


def lack_something(replicas: Iterable[Replica], now: float) -> None:
    """Each of these lacks requests that it should have, and has a rank that stands still."""
    for number, replica in enumerate(replicas, start=1):
        report = ReplicaReport(running=2, waiting=0, ranks=(Rank(2, 7.0), Rank(0, float(number))))
        for _ in range(2):
            replica.absence.present(report, sent_at=now, still_s=9.0)
            replica.absence.take(number, sent_at=now, has_grown=True)
