"""What every exchange uses and none owns, and what follows from it for one request."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.api.auth import Asking
from gateway.api.background import Backgrounds
from gateway.api.life import Life
from gateway.api.rewrite import Rewrite
from gateway.api.stored import Place, Places
from gateway.upstream.fleet import Fleet

FINGERPRINTS_MAX = 1_024
"""Replicas whose latest one is remembered."""


@dataclass(slots=True)
class Surroundings:
    """What every exchange uses and none owns; the relay changes it with the configuration."""

    fleet: Fleet
    asking: Asking
    tiers: int
    clock: Callable[[], float]
    places: Places
    """Where responses that engines keep lie."""
    continues: Callable[[int], bool] = lambda _: False
    """Whether broken streams of a tier go on on another replica."""
    backgrounds: Backgrounds = field(default_factory=Backgrounds)
    """Responses that are worked on although nobody waits for them."""
    is_leaving: Callable[[], bool] = lambda: False
    """Whether nobody can come in any more to fetch one."""
    fingerprints: dict[str, bytes | None] = field(default_factory=dict)
    """By replica, what its latest stream was marked with; see `Rewrite.fingerprint`."""

    def engine_priority(self, replica: str, tier: int) -> int | None:
        """What to tell an engine that schedules by priority; None for all others."""
        return self.fleet.engine_priority(replica, tier, self.tiers)

    def rewrite_for(self, life: Life) -> Rewrite | None:
        """What must differ in the answer; None, the usual case, for nothing."""
        call = life.call
        assert call is not None
        if life.alias is None and call.service_tier is None and not call.asks_usage:
            return None
        return Rewrite(
            model=life.alias,
            service_tier=self.service_tier_for(life),
            strips_usage=call.asks_usage,
            events=life.route.events if call.streams else None,
        )

    def note_place(self, response_id: str, life: Life, replica: str) -> None:
        """A response was made for this request, and lies on `replica`."""
        assert life.asked is not None
        place = Place(
            replica=replica,
            tenant=life.asked.tenant,
            user=life.asked.user,
            alias=life.alias,
            service_tier=self.service_tier_for(life),
        )
        self.places.note(response_id, place)

    def note_fingerprint(self, replica: str, fingerprint: bytes | None) -> None:
        """A stream of `replica` ended, and was marked with this."""
        known = self.fingerprints
        if known.get(replica) == fingerprint:
            return
        if len(known) >= FINGERPRINTS_MAX:
            known.clear()
        known[replica] = fingerprint

    def service_tier_for(self, life: Life) -> str | None:
        """The tier used, in the client's words; None where it did not ask for one."""
        assert life.call is not None
        assert life.asked is not None
        return (
            None if life.call.service_tier is None else self.asking.service_tier_of(life.asked.tier)
        )
