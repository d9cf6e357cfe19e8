"""A whole schedule from one integer: fleet, policy, clients and faults.

Small on purpose. What goes wrong between two engines and a dozen requests goes wrong among
hundreds, and a small one is played, and understood, in no time.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

from gateway.core.messages import PREFIX_BLOCK_TOKENS
from gateway.core.policy import (
    DEFAULT_TIERS,
    Ageing,
    Bounds,
    Policy,
    Price,
    Tenant,
    Tier,
)
from gateway.sim.asks import Ask
from gateway.sim.faults import OURS, Fault, FaultKind
from gateway.sim.prober import Wires
from gateway.sim.profiles import DEMO, Profile
from gateway.sim.server import ServerSpec
from gateway.sim.site import Schedule

SPAN_S = 8.0
"""Clients come, and faults begin, within this time."""
FAULTS_MAX = 7
OUTPUT_TOKENS = 25
OUTPUT_TOKENS_MAX = 200
LONG_SHARE = 0.1
"""Of the answers so many last for seconds: most faults hit those."""
FLEETS = (1, 2, 2, 2, 3, 4)
"""Numbers of replicas."""
BURST = 8
CROWD = 25
FIRST_S = 1.0
"""Before that no replica may have been found."""
SERVED_S = 2.0
"""About so long a request is served."""
LONG_S = 45.0
"""What some faults last: longer than it takes to notice a stall."""
COUSIN = replace(DEMO, name="cousin", weights_ms=60.0, token_ms=0.1)
"""A slow engine that long prompts make slower."""
PATIENCE_S = 60.0
FOUR = tuple(replace(tier, patience_s=min(PATIENCE_S, tier.patience_s)) for tier in DEFAULT_TIERS)
TIERS: Sequence[tuple[Tier, ...]] = (
    FOUR,
    tuple(replace(tier, patience_s=6.0 + 4.0 * rank) for rank, tier in enumerate(FOUR)),
    (replace(FOUR[0], queue_limit=2), replace(FOUR[3], name="rest", weight=2.0, preemptible=True)),
    (Tier(name="only", queue_limit=3, patience_s=20.0),),
)
TIGHT = Bounds(waiting=8, waiting_per_user=4, predictions=3, prefixes=4, sessions=2, attempts=2)
IMPATIENT = Bounds(client_stall_s=3.0, attempts=4)
KINDS = tuple(FaultKind)
USUAL = 4
OFTEN = {
    FaultKind.CRASH: 6,
    FaultKind.BUSY: 5,
    FaultKind.DRAIN: 8,
    FaultKind.DRAINING: 6,
    FaultKind.POLICY: 3,
    FaultKind.SHUTDOWN: 1,
}
WEIGHTS = tuple(OFTEN.get(kind, USUAL) for kind in KINDS)


def schedule_of(seed: int) -> Schedule:
    """The schedule of that number, the same on every machine."""
    dice = Random(seed)
    policy = _policy(dice)
    servers = tuple(_server(dice, number) for number in range(dice.choice(FLEETS)))
    asks = _asks(dice, len(policy.tiers))
    names = [tier.name for tier in policy.tiers]
    return Schedule(
        policy=policy,
        servers=servers,
        asks=tuple(asks),
        faults=tuple(_faults(dice, [server.name for server in servers], asks)),
        wires=Wires(
            hop_s=dice.choice([0.0005, 0.002, 0.05]),
            late_s=dice.choice([0.01, 0.01, 0.2, 1.5]),
            interval_s=policy.scrape_interval_s,
        ),
        continues=frozenset(name for name in names if dice.random() < 0.8),
    )


def _policy(dice: Random) -> Policy:
    return Policy(
        tiers=dice.choice(TIERS),
        tenants=dice.choice([{}, {"t1": Tenant(weight=3.0, users={"a": 2.0})}]),
        order=dice.choice(["strict", "strict", "weighted"]),
        within_user=dice.choice(["fcfs", "fcfs", "shortest", "deadline", "prefix"]),
        cost=dice.choice(["tokens", "tokens", "requests", "gpu_seconds", "price"]),
        prices={"m": Price(input=3.0, output=9.0)},
        ageing=dice.choice([Ageing(), Ageing(after_s=0.5)]),
        lend=dice.random() < 0.7,
        limiter=dice.choice(["adaptive", "static"]),
        inflight_limit=dice.choice([None, None, 2]),
        allowance=dice.choice(["bridge", "constant"]),
        reserve_after_s=dice.choice([0.5, 5.0]),
        warm_up_s=dice.choice([10.0, 0.0]),
        migrate_running=dice.choice(["off", "drain", "drain", "balance"]),
        recall=dice.random() < 0.8,
        recall_gap=dice.choice([0.3, 0.0]),
        scrape_interval_s=dice.choice([1.0, 3.0, 3.0]),
        continuation_wait_s=dice.choice([30.0, 3.0]),
        bounds=dice.choice([Bounds(), Bounds(), TIGHT, IMPATIENT]),
        release_at_once=dice.random() < 0.04,
    )


def _server(dice: Random, number: int) -> ServerSpec:
    profile: Profile = dice.choice([DEMO, DEMO, COUSIN])
    return ServerSpec(
        name=f"r{number}",
        slots=dice.choice([1, 2, 2, 4]),
        profile=profile,
        tells_slots=dice.random() < 0.7,
        models=frozenset({"m"} if number else {"m", "x"}),
        kv_blocks=dice.choice([None, None, 24]),
        is_measured=dice.random() < 0.9,
        orders_by_tier=number % 2 == 1,
    )


def _asks(dice: Random, tiers: int) -> list[Ask]:
    """Some come one by one, some in a burst."""
    asks = [
        _ask(dice, f"q{number}", dice.uniform(FIRST_S, SPAN_S), tiers)
        for number in range(dice.randint(4, 12))
    ]
    at = dice.uniform(FIRST_S, SPAN_S)
    burst = dice.choice([0, 0, 0, 0, BURST, BURST, BURST, CROWD])
    asks.extend(_ask(dice, f"b{number}", at, tiers) for number in range(burst))
    return sorted(asks, key=lambda ask: (ask.at, ask.id))


def _ask(dice: Random, id: str, at: float, tiers: int) -> Ask:
    output_tokens = min(OUTPUT_TOKENS_MAX, 1 + int(dice.expovariate(1 / OUTPUT_TOKENS)))
    if dice.random() < LONG_SHARE:
        output_tokens = OUTPUT_TOKENS_MAX
    streams = dice.random() < 0.8
    stalls_at = at + dice.uniform(0.0, 3.0) if streams and dice.random() < 0.08 else inf
    prompt_tokens = dice.choice([1, 20, 20, 120, 300])
    return Ask(
        id=id,
        at=at,
        model=dice.choice(["m"] * 9 + ["x"]),
        user=dice.choice("abc"),
        tenant=dice.choice(["t1", "t1", "t2"]),
        tier=dice.randrange(tiers),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tokens_max=dice.choice([None, output_tokens, 2 * output_tokens]),
        sequences=dice.choice([1] * 8 + [2, 3]),
        streams=streams,
        patience_s=dice.choice([None, None, None, 0.0, 2.0]),
        leaves_at=at + dice.expovariate(1 / 3) if dice.random() < 0.15 else inf,
        stalls_at=stalls_at,
        reads_again_at=stalls_at + dice.uniform(0.5, 8.0) if dice.random() < 0.5 else inf,
        prefix=dice.choice([(), (), (7,), (7, 8)]) if prompt_tokens > PREFIX_BLOCK_TOKENS else (),
        session=dice.choice([None, None, "s1", "s2"]),
        is_bad=dice.random() < 0.03,
        is_exact=dice.random() < 0.9,
    )


def _faults(dice: Random, replicas: Sequence[str], asks: Sequence[Ask]) -> list[Fault]:
    """Most hit while somebody is served."""
    count = dice.randint(0, FAULTS_MAX)
    faults = [
        _fault(dice, kind, replicas, asks) for kind in dice.choices(KINDS, weights=WEIGHTS, k=count)
    ]
    return sorted(faults, key=lambda fault: (fault.at, fault.kind, fault.replica))


def _fault(dice: Random, kind: FaultKind, replicas: Sequence[str], asks: Sequence[Ask]) -> Fault:
    lasts_s = dice.choice([0.0, dice.uniform(0.05, 2.0), dice.uniform(1.0, 12.0), LONG_S])
    factor = float(dice.choice([2, 4, 10, 100])) if kind is FaultKind.SLOW else dice.randint(1, 6)
    return Fault(
        kind=kind,
        at=dice.choice(asks).at + dice.uniform(-0.5, SERVED_S),
        duration_s=lasts_s,
        replica="" if kind in OURS else dice.choice(replicas),
        factor=float(factor),
        policy=_policy(dice) if kind is FaultKind.POLICY else None,
    )
