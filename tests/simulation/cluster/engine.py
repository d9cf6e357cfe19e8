"""Engines that tell the truth about who is inside, and what clients ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.cluster.store import Heap

if TYPE_CHECKING:
    from tests.simulation.cluster.site import Gateway

PREFILL_S = 0.02


@dataclass(eq=False)
class Job:
    """A request as its client sees it."""

    id: str
    model: str
    user: str
    tier: str
    service_s: float
    output_tokens: int
    gateway: Gateway
    arrived_at: float
    """By true time."""
    state: str = "waiting"
    """waiting, granted, done, refused, cancelled, crashed"""
    replica: str = ""
    granted_at: float = 0.0
    was_alone: bool = False
    """Whether its gateway granted it on its own."""
    was_let_in: bool = False
    """Whether anybody judged that it may wait."""
    ends: int = 0
    grants: int = 0


class Engine:
    """Slots, and a line in front of them."""

    def __init__(
        self, heap: Heap, name: str, models: frozenset[str], *, slots: int, is_mute: bool
    ) -> None:
        """`is_mute`: its metrics tell nothing of what is inside."""
        self.is_mute = is_mute
        self.heap = heap
        self.name = name
        self.models = models
        self.slots = slots
        self.running: dict[str, Job] = {}
        self.line: dict[str, Job] = {}

    @property
    def inside(self) -> list[Job]:
        """All that is there."""
        return [*self.running.values(), *self.line.values()]

    def enter(self, job: Job) -> None:
        """A request reaches the engine."""
        self.line[job.id] = job
        job.gateway.world.entered(self)
        self._start()

    def leave(self, job: Job) -> None:
        """Its client hung up, or it is done."""
        self.running.pop(job.id, None)
        self.line.pop(job.id, None)
        self._start()

    def _start(self) -> None:
        while self.line and len(self.running) < self.slots:
            job = self.line.pop(next(iter(self.line)))
            self.running[job.id] = job
            self.heap.after(PREFILL_S, lambda job=job: self._begun(job))  # type: ignore[misc]  # a default binds it
            self.heap.after(PREFILL_S + job.service_s, lambda job=job: self._done(job))  # type: ignore[misc]  # a default binds it

    def _begun(self, job: Job) -> None:
        if self.running.get(job.id) is job:
            job.gateway.soon(lambda: job.gateway.began(job))

    def _done(self, job: Job) -> None:
        if self.running.get(job.id) is job:
            self.leave(job)
            job.gateway.soon(lambda: job.gateway.done(job))
