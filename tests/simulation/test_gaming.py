"""Clients that try to get more than their share: none of them does."""

from functools import cache, partial
from random import Random

from gateway.core.policy import Bounds, Policy
from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job, Size
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, Sizes, chat, fixed, keep_asking
from tests.simulation.judge import backlogged, unfair

FROM_S, UNTIL_S = 20, 140
MARGIN = 0.1
HONEST = ("a", "b", "c")
FAIR = policies.gated(tiers=policies.one_tier())


def honest(policy: Policy = FAIR) -> Fleet:
    """Three users who always have more, and play by the rules."""
    fleet = Fleet(policy, scenarios.pair(), Wires(late_s=1.0))
    for number, user in enumerate(HONEST):
        keep_asking(fleet, Asking(user=user), chat, depth=16, seed=number)
    return fleet


def when_granted(fleet: Fleet, user: str, after_s: float) -> None:
    """That user leaves this long after each of its requests was let go."""

    def leave(job: Job) -> None:
        if job.request.user == user:
            fleet.clock.after(after_s, lambda: fleet.cancel(job))

    fleet.on_grant(leave)


def beside_a_quitter() -> dict[str, float]:
    """Service by user while one cancels prompts of 100,000 tokens two seconds after each began."""
    fleet = honest()
    when_granted(fleet, "quitter", 2.0)
    keep_asking(fleet, Asking(user="quitter"), fixed(100_000, 100), depth=10)
    return figures.served_between(fleet, figures.user_of, FROM_S, UNTIL_S)


def test_a_client_that_cancels_long_prompts_gains_nothing() -> None:
    """Free prefill, were the charge given back: 100,000 tokens computed and never paid."""
    served = beside_a_quitter()
    fair = sum(served.values()) / 4
    assert served["quitter"] <= (1 + MARGIN) * fair
    assert min(served[user] for user in HONEST) >= (1 - MARGIN) * fair


def seldom_long() -> Sizes:
    """Nine answers of two tokens teach the prediction, then one of six hundred comes."""
    turns = 0

    def size(dice: Random) -> Size:
        nonlocal turns
        turns += 1
        return Size(50, 600 if turns % 10 == 0 else 2)

    return size


def beside_a_liar() -> dict[str, float]:
    """Service by user while one takes far more than its history says."""
    fleet = honest()
    keep_asking(fleet, Asking(user="liar"), seldom_long(), depth=16)
    return figures.served_between(fleet, figures.user_of, FROM_S, UNTIL_S)


def test_a_client_that_predicts_little_and_takes_much_gains_nothing() -> None:
    """Estimates are a courtesy: what was produced is charged while it is produced."""
    served = beside_a_liar()
    assert unfair(served, backlogged((*HONEST, "liar")), {}, margin=MARGIN) == []


def renamed(fleet: Fleet, depth: int) -> None:
    """A tenant that asks under a new user name each time."""
    names = iter(range(10**9))
    mine: set[str] = set()

    def ask() -> None:
        asking = Asking(user=f"new{next(names)}", tenant="swarm")
        mine.add(asking.send(fleet, Size(200, 96)).request.id)

    def again(job: Job) -> None:
        if job.request.id in mine:
            ask()

    fleet.on_end(again)
    for _ in range(depth):
        ask()


def beside_a_swarm() -> dict[str, float]:
    """Service by tenant while one of the two has a new user for each request."""
    fleet = honest()
    renamed(fleet, depth=60)
    return figures.served_between(fleet, figures.tenant_of, FROM_S, UNTIL_S)


def test_fresh_user_names_gain_a_tenant_nothing() -> None:
    """Names are free; tenants are not."""
    served = beside_a_swarm()
    assert unfair(served, backlogged(("t", "swarm")), {}, margin=MARGIN) == []


@cache
def beside_a_flood() -> Fleet:
    """Eight users of one tenant send 4,000 requests at once into a queue of 1,000."""
    policy = policies.gated(tiers=policies.one_tier(), bounds=Bounds(waiting=1_000))
    fleet = Fleet(policy, scenarios.pair(), Wires(late_s=1.0))

    def flood() -> None:
        for number in range(4_000):
            fleet.send(f"flood{number % 8}", Size(200, 96), tenant="flood")

    fleet.clock.at(10.0, flood)
    light = [Asking(user=f"light{n}", tenant="light") for n in range(3)]
    for number in range(80):
        come = partial(light[number % 3].send, fleet, Size(100, 20))
        fleet.clock.at(12.0 + number, come)
    fleet.run(110.0)
    return fleet


def is_light(job: Job) -> bool:
    """Whether somebody sent it who asks for little."""
    return job.request.tenant == "light"


def test_who_fills_the_queue_refuses_only_itself() -> None:
    """A full queue must not let the power user have everybody else turned away."""
    fleet = beside_a_flood()
    refused = [job.request.tenant for job in fleet.jobs.values() if job.reason is not None]
    assert len(refused) > 2_000
    assert set(refused) == {"flood"}
    assert max(figures.waits_s(fleet, is_light, 0.0, 110.0)) < 2.0
