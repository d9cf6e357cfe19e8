"""What a running gateway says of itself: whether it is ready, and who else uses its engines.

Asked over the admin REST as an operator would; without a gateway there is nothing to say.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from gateway.check import Finding
from gateway.remote import RemoteError
from gateway.shown import shown

REPLICAS_MAX: Final = 1_000


class Gateway(Protocol):
    """Whoever is asked."""

    def ask(self, method: str, *path: str, query: Any = None) -> Any:
        """What it answers. Raises RemoteError."""


def of_running(gateway: Gateway, url: str, version: str, *, is_wanted: bool) -> list[Finding]:
    """What the gateway at `url` says; `is_wanted`: somebody named it, so it should be there."""
    try:
        overview = gateway.ask("GET", "overview", query={"limit": 1})
        replicas = gateway.ask("GET", "replicas", query={"limit": REPLICAS_MAX})["data"]
    except RemoteError as error:
        return [
            Finding(
                "error" if is_wanted else "note", "gateway", f"it cannot be asked: {error}",
                "start it, or say where it is and its key with --gateway and --admin-key",
                "only it knows whether others use its engines, and how it is",
            )
        ]  # fmt: skip
    told = str(overview["version"])
    found = [Finding("ok", "gateway", f"fairgate {shown(told)} answers at {shown(url)}")]
    if told != version:
        found.append(
            Finding(
                "note", "gateway", f"it is version {shown(told)}, and this command {version}",
                "use the command of the same version", "it may not know each of its settings",
            )
        )  # fmt: skip
    for each in replicas:
        found.extend(_of_replica(each))
    return found


def _of_replica(replica: Mapping[str, Any]) -> Iterator[Finding]:
    live, name = replica["live"], shown(replica["name"])
    if live is None:
        return
    load = live["load"] or {}
    if load.get("foreign"):
        yield Finding(
            "warning", name, f"{load['foreign']} requests there did not come through the gateway",
            "let only the gateway reach the engine (a network policy, an API key), or accept it",
            "they wait in no queue and count against no limit, and the gate has to keep room free",
        )  # fmt: skip
    if live["circuit"]["state"] != "closed":
        yield Finding(
            "warning", name, f"its circuit is {live['circuit']['state']}: "
            f"{shown(live['circuit']['reason'] or 'no reason told')}",
            "look into the engine's log", "nothing new is sent there for now",
        )  # fmt: skip
    if live["is_up"] and live["metrics"]["is_stale"]:
        yield Finding(
            "warning", name, "what the gateway knows of its load is out of date",
            "look why its /metrics does not answer in time", "the gate goes by its own count alone",
        )  # fmt: skip
    if replica["is_drained"]:
        yield Finding(
            "note", name, "an operator drained it", f"fairgate replicas undrain {name}",
            "nothing new is sent there",
        )  # fmt: skip
