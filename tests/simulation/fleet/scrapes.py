"""When a fleet is scraped, how old its gauges are, and when nobody can read them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.core.messages import ReplicaReported
from gateway.sim.clock import Clock
from tests.simulation.fleet.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What lies between gateway and engines, in seconds."""

    hop_s: float = 0.01
    """One way."""
    interval_s: float = 1.0
    late_s: float = 0.1
    """From sending a scrape to its answer."""
    old_s: float = 0.0
    """The gauges show what was true this long before the scrape was sent."""
    outages: tuple[tuple[float, float], ...] = ()
    """(from, until): scrapes sent then are never answered."""
    progress_s: float = 0.25
    """How often the gateway counts the tokens of the streams."""

    def is_out(self, instant: float) -> bool:
        """Whether scrapes fail then."""
        return any(start <= instant < end for start, end in self.outages)


class Scraper:
    """Asks one replica again and again."""

    def __init__(
        self,
        replica: Replica,
        wires: Wires,
        clock: Clock,
        tell: Callable[[ReplicaReported], object],
    ) -> None:
        self._replica = replica
        self._wires = wires
        self._clock = clock
        self._tell = tell
        clock.at(0.5 * wires.interval_s, self._look)

    def _look(self) -> None:
        """The gauges are what they are now; who asks in `old_s` seconds will see this."""
        wires, clock = self._wires, self._clock
        clock.after(wires.interval_s, self._look)
        sent_at = clock.now + wires.old_s
        if wires.is_out(sent_at):
            return
        reported = ReplicaReported(
            replica=self._replica.spec.name,
            sent_at=sent_at,
            report=self._replica.report(),
            round_trip_s=2 * wires.hop_s,
        )
        clock.at(sent_at + wires.late_s, partial(self._tell, reported))
