"""Fairness by token counters alone: no tiers, no tenants, no gate but what fits into the engine.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI'24,
arXiv 2401.00588): of all clients that wait, the one that was served least is next. A prompt counts
when it is admitted, each token of an answer when it is heard of. Who comes back after a pause is
lifted to the least counter of those that wait. VTC lives inside the engine and admits what fits
into the free KV; here it looks at the engines for that, and knows nothing of what is on its way.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from gateway.sim.baselines.central import Central
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Decisions, Machine, Truth

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""Of a token, as in the paper's evaluation."""

Client = tuple[str, str]
"""(tenant, user)."""


class Counters:
    """See `central.Queue`: the client that waits and has the least counter; ties by name."""

    def __init__(self) -> None:
        self.counters: dict[Client, float] = {}
        self._queues: dict[Client, deque[Job]] = {}
        """Of those that wait."""
        self._last: Client | None = None
        """Who left the queue empty."""

    def put(self, job: Job, *, is_back: bool) -> None:
        """See `Queue.put`."""
        client = _client(job)
        queue = self._queues.get(client)
        if queue is None:
            self._lift(client)
            queue = self._queues[client] = deque()
        if is_back:
            queue.appendleft(job)
        else:
            queue.append(job)

    def head(self) -> Job | None:
        """See `Queue.head`."""
        if not self._queues:
            return None
        return self._queues[self._next()][0]

    def take(self) -> Job:
        """See `Queue.take`."""
        client = self._next()
        job = self._queues[client].popleft()
        self._prune(client)
        self.counters[client] += PROMPT_WEIGHT * job.prompt_tokens
        return job

    def drop(self, job: Job) -> None:
        """See `Queue.drop`."""
        self._queues[_client(job)].remove(job)
        self._prune(_client(job))

    def produced(self, job: Job, tokens: int) -> None:
        """See `Queue.produced`."""
        self.counters[_client(job)] += OUTPUT_WEIGHT * tokens

    def _next(self) -> Client:
        counters = self.counters
        return min(self._queues, key=lambda client: (counters[client], client))

    def _lift(self, client: Client) -> None:
        """Idle time earns no credit [Algorithm 2 there]."""
        own = self.counters.get(client, 0.0)
        if self._queues:
            own = max(own, min(self.counters[each] for each in self._queues))
        elif self._last is not None:
            own = max(own, self.counters[self._last])
        self.counters[client] = own

    def _prune(self, client: Client) -> None:
        if not self._queues[client]:
            del self._queues[client]
            self._last = client


class Vtc(Central):
    """See the module."""

    hears_progress = True

    def __init__(self) -> None:
        super().__init__(Counters())
        self._truth: Truth | None = None

    def begin(self, machines: Sequence[Machine], truth: Truth, now: float) -> Decisions:
        """See `Dispatch.begin`."""
        self._truth = truth
        return super().begin(machines, truth, now)

    def has_room(self, replica: int, job: Job) -> bool:
        """See `Central.has_room`: a slot, and KV for all prompts that have not begun."""
        assert self._truth is not None
        config = self.machines[replica].config
        if self.outstanding[replica] >= config.max_num_seqs:
            return False
        coming = self.unstarted[replica].values()
        prompts = (job.prompt_tokens, *(each.prompt_tokens for each in coming))
        needed = sum(config.blocks_for(tokens) for tokens in prompts) + config.watermark_blocks
        is_empty = not self.outstanding[replica]
        return is_empty or needed <= self._truth.engine(replica).blocks_free

    def progressed(self, replica: int, tokens: Mapping[int, int], now: float) -> Decisions:
        """See `Dispatch.progressed`."""
        for number, count in tokens.items():
            job, _ = self._at[number]
            self._hear(job, count)
        return self.release()


def _client(job: Job) -> Client:
    return job.tenant, job.user
