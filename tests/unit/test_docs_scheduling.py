"""docs/scheduling.md, held against the scheduler: constants, tables, worked examples, a bound."""

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest

from gateway.core import admission, kinds, limiter, policy, quantiles, scaling, sightings, weigh
from gateway.core import replica as beliefs
from gateway.core.flows import Waiting
from gateway.core.freeness import capacity_and_use, freeness
from gateway.core.gate import Closed, Gates, reserved_shares
from gateway.core.ledger import Grant
from gateway.core.limiter import ConcurrencyLimit
from gateway.core.messages import (
    PREFIX_BLOCK_TOKENS,
    Arrived,
    Decision,
    Event,
    Finished,
    Granted,
    Outcome,
    Reason,
    ReplicaFound,
    Request,
    Usage,
)
from gateway.core.placement import Search
from gateway.core.policy import DEFAULT_TIERS, Affinity, Cost, CostWeights, Policy, Scaling, Tier
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.scaling import ScalingAdvisor
from gateway.core.scheduler import Scheduler
from gateway.core.speed import ITL_TOKENS_MIN, SPEED_HALVING_S
from gateway.errors import REFUSALS
from tests.simulation import test_moving
from tests.simulation.fleet import figures

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "scheduling.md").read_text()
FOUR = Policy(tiers=DEFAULT_TIERS)
SLOTS, KV_TOKENS = 16, 100_000
STANDARD = 2
COUNTS = {3: "three", 10: "ten"}
SENDS = {"a": ("alice", 100, 50), "b": ("bob", 300, 150), "c": ("carol", 100, 50)}
"""First letter of an id -> user, prompt tokens, output tokens foreseen."""


def section(heading: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}\b[^\n]*\n", PAGE, re.MULTILINE)
    assert found is not None, heading
    above = rf"^#{{1,{len(found[1])}}} "
    return re.split(above, PAGE[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the rows of the table in `text` whose first column is headed `first`."""
    rest, found = text[text.index(f"| {first} |") :].splitlines(), []
    for line in rest:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found[2:]


def numbers(text: str) -> list[float]:
    """All figures in a text, thousands separators left out."""
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]


# Constants and names.


@pytest.mark.sources
def test_every_constant_is_the_codes() -> None:
    """Who tunes by this page must not tune by last year's figures."""
    rows = re.findall(r"`(\w+)\.([\w.]+)` \| ([\d.]+)", section("13. Constants"))
    assert len(rows) > 40
    for module, name, written in rows:
        value: object = import_module(f"gateway.core.{module}")
        for part in name.split("."):
            value = getattr(value, part)
        assert value == pytest.approx(float(written)), f"{module}.{name}"


def test_every_constant_that_the_text_names_is_in_the_table() -> None:
    """A name without its value sends the reader into the code."""
    text, listed = PAGE.split("## 13. Constants")
    named = set(re.findall(r"`(\w+\.(?:\w+\.)?[A-Z][A-Z_]+)`", text))
    assert named - set(re.findall(r"`([\w.]+)`", listed)) == set()


def test_every_setting_that_the_page_names_exists() -> None:
    """An unknown key is an error at start; nobody should have learnt it here."""
    keys = set(re.findall(r"`([\w.\[\]*]+)`", (DOCS / "configuration.md").read_text()))
    known = {key[:end] for key in keys for end in prefix_ends(key)}
    named = re.findall(r"`((?:scheduling|scaling|bounds|\w+\[\])\.[a-z_.]+)\b", PAGE)
    assert {name for name in named if name not in known} == set()


def prefix_ends(key: str) -> Iterator[int]:
    """Where a dotted key may be cut off: a section is a name too."""
    yield from (match.start() for match in re.finditer(r"\.", key))
    yield len(key)


def test_every_module_of_the_core_has_its_line_in_the_architecture() -> None:
    """A file that the map does not show is found last by whoever looks for a fault in it."""
    page = (DOCS / "architecture.md").read_text().split("## The scheduler\n")[1].split("\n## ")[0]
    files = {path.name for path in (DOCS.parent / "gateway" / "core").glob("*.py")}
    listed = [name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in cut(row)]
    assert sorted(listed) == sorted(files - {"__init__.py"})


def cut(cell: str) -> list[str]:
    """The names in backticks in a cell."""
    return re.findall(r"`([\w.]+)`", cell)


def test_every_reason_stands_with_its_status() -> None:
    """Whoever writes a client looks here for what it must expect."""
    rows = table(section("7. Refusing"), "reason")
    written = {name.strip("`"): int(status) for name, status, _ in rows}
    assert written == {reason.value: REFUSALS[reason].status for reason in Reason}


def test_every_condition_of_the_gate_has_its_line() -> None:
    """A word such as "reserved" must mean something to the operator who reads it."""
    rows = table(section("10. Why"), "name")
    assert sorted(name.strip("`") for name, _ in rows) == sorted(Closed)


def test_the_defaults_that_the_text_mentions_are_the_codes() -> None:
    """Weights of tokens, the floor and the thresholds are quoted in the running text."""
    costs, weights = section("5. What it costs"), CostWeights()
    assert numbers(costs[costs.index("`1 x") : costs.index("(`scheduling.weights`)")]) == [
        weights.prompt, weights.output, weights.cached,
    ]  # fmt: skip
    assert [tier.min_share for tier in DEFAULT_TIERS] == [0.0, 0.02, 0.02, 0.02]
    assert "default of 2 % for each lower tier, 94 % always" in " ".join(PAGE.split())
    assert (Scaling().below, Scaling().above) == (-0.1, 0.6)
    assert "The defaults, -0.1 and 0.6," in " ".join(PAGE.split())


def test_the_figures_in_the_running_text_are_the_codes() -> None:
    """Not every figure has its name beside it."""
    text = " ".join(PAGE.split())
    for words in (
        f"smallest of the last {COUNTS[sightings.FOREIGN_WINDOW]} scrapes",
        f"**Staleness**: {COUNTS[beliefs.FRESH_INTERVALS]} scrape intervals after",
        f"the {sightings.FOREIGN_QUANTILE:.0%}".rstrip("%") + "th percentile of the foreign load",
        f"counters stand still for {COUNTS[int(beliefs.FROZEN_S)]} seconds",
        f"once {ITL_TOKENS_MIN} tokens lie between",
        f"slowness > 1 L <- min(L, ran x max({limiter.CUT_MIN}, 1/slowness))",
        f"slowness <= {limiter.CALM} and L < 2 x ran",
        f"max(ran + {limiter.TRIED}, ran / slowness)",
        f"One move per {limiter.TOKENS_A_STEP} tokens",
        f"to {limiter.BUSY_CUT} of what ran",
        f"arrival + predicted tokens / {weigh.SHORTEST_OVERTAKES_TOKENS_PER_S:.0f} ",
        f"below {4**kinds.SMALL_TOKENS_LOG4:,} tokens are one size",
        f"by half every {quantiles.HALF_LIFE_SAMPLES} newer ones",
        f"`bounds.prefixes` blocks of {PREFIX_BLOCK_TOKENS} tokens",
        f"decay = {policy.HEADROOM_DECAY_SPAN} / (K - 1) unless set",
        f"1 - load/rest >= below + {scaling.SAFE}",
        f"(capacity - used - waiting) / capacity, within -{scaling.SIGNAL_MAX:.0f} ..",
    ):
        assert words in text, words


# Alice, Bob and Carol.


class Day:
    """The worked example: one replica with four slots, one tenant, three users."""

    def __init__(self, cost: Cost = "tokens") -> None:
        tier = Tier(name="only", queue_limit=0, patience_s=1e6)
        self.scheduler = Scheduler(Policy(tiers=(tier,), cost=cost))
        self.now = 0.0
        self.went: list[str] = []
        self.tell(ReplicaFound(replica="r", models=frozenset({"m"}), slots=4))

    def tell(self, event: Event) -> None:
        """One event; what is let go is remembered."""
        self.now += 1.0
        decisions: list[Decision] = self.scheduler.handle(event, self.now)
        self.went += [each.request_id for each in decisions if isinstance(each, Granted)]

    def arrive(self, *ids: str) -> None:
        """These come, of the size that their user always sends."""
        for id in ids:
            user, prompt_tokens, output_tokens = SENDS[id[0]]
            request = Request(
                id=id, model="m", tier=0, tenant="acme", user=user, arrived_at=self.now,
                prompt_tokens=prompt_tokens, output_tokens_max=output_tokens, streams=True,
            )  # fmt: skip
            self.tell(Arrived(request))

    def end(self, id: str, output_tokens: int | None = None) -> None:
        """One ends, as long as was foreseen unless it is said how long."""
        _, prompt_tokens, expected = SENDS[id[0]]
        usage = Usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens or expected)
        self.tell(Finished(id, Outcome.DONE, usage))

    def row(self) -> list[str]:
        """What went since the last look, the tags of the three, and the virtual time."""
        tenant = self.scheduler.pools[0].queues[0].tenants["acme"]
        went, self.went = self.went, []
        tags = [
            f"{tenant.users[user].start:g}" if user in tenant.users else "-"
            for user, _, _ in SENDS.values()
        ]
        return [" ".join(went), *tags, f"{tenant.virtual:g}"]


def test_the_start_tags_of_the_worked_example_are_the_schedulers() -> None:
    """The example is how readers learn fairness; one wrong figure and they learn something else."""
    day, rows = Day(), []
    steps: list[tuple[str, ...]] = [
        ("a1",), ("a2", "a3", "a4"), ("a5", "a6", "a7", "a8"), ("b1", "b2"), ("-a1",), ("-a2",),
        ("-a3",), ("-a4",), ("-b1",), ("c1",), ("-a5",), ("-a6",),
    ]  # fmt: skip
    for step in steps:
        if step[0].startswith("-"):
            day.end(step[0][1:], 20 if step == ("-a1",) else None)
        else:
            day.arrive(*step)
        rows.append(day.row())
    assert [cells[1:] for cells in table(section("4.2 Between tenants"), "what happens")] == rows


def spread(cost: Cost) -> tuple[float, float, float]:
    """Alice and Bob wait all the time, and nothing is as long as foreseen.

    Returns the most by which one of them was ahead in tokens, the stated bound, and what the one
    who was served less got in the end.
    """
    day, dice = Day(cost), random.Random(7)
    day.arrive(*(f"c{number}" for number in range(4)))
    day.arrive(*(f"{user}{number}" for number in range(600) for user in "ab"))
    served, truth = Counter[str](), dict[str, int]()
    apart = charge = error = 0.0
    for _ in range(700):
        running = sorted(day.scheduler.granted)
        id = dice.choice(running)
        day.went.clear()
        day.end(id, truth.get(id))
        gone = day.went[0]
        user, prompt_tokens, expected = SENDS[gone[0]]
        truth[gone] = dice.randint(1, 2 * expected)
        used = prompt_tokens + 2 * truth[gone]
        charged = day.scheduler.granted[gone][0].charged
        served[user] += used
        charge, error = max(charge, charged), max(error, abs(charged - used))
        apart = max(apart, abs(served["alice"] - served["bob"]))
    return apart, charge + 2 * 4 * error, min(served["alice"], served["bob"])


def test_two_waiting_users_stay_within_the_stated_bound() -> None:
    """The promise of the page, with requests that turn out longer and shorter than foreseen."""
    apart, bound, least = spread("tokens")
    assert least > 20 * bound
    assert apart <= bound


def test_counting_requests_does_not_keep_the_bound_in_tokens() -> None:
    """A bound that any order keeps would promise nothing."""
    apart, _, _ = spread("requests")
    assert apart > spread("tokens")[1]


# Gates.


def test_the_headroom_table_is_what_the_gates_keep() -> None:
    """An operator sizes the first tier by this table."""
    rows = table(section("3.2 Headroom"), "tier")
    headroom = [FOUR.headroom_fraction(rank) for rank in range(4)]
    all_active = kept(headroom, [True] * 4)
    two_active = kept(headroom, [False, False, True, True])
    for rank, (name, own, first, second) in enumerate(rows):
        assert name == DEFAULT_TIERS[rank].name
        assert numbers(own) == [pytest.approx(100 * headroom[rank], abs=0.005)]
        assert numbers(first) == pytest.approx(all_active[rank], abs=0.005)
        assert numbers(second) == pytest.approx(two_active[rank], abs=0.005)
    assert "0.2869 of 16 slots is 4.59, rounded up 5, leaves 11" in PAGE
    assert sum(headroom[:STANDARD]) * SLOTS == pytest.approx(4.59, abs=0.005)


def kept(
    headroom: list[float], is_active: list[bool], slots: int = SLOTS
) -> list[tuple[float, int, int]]:
    """By tier: percent reserved, slots and KV tokens that it may use."""
    gates = Gates(FOUR)
    gates.reserved = reserved_shares(headroom, is_active)
    away = gates.away(replica_of("r"), slots)
    return [
        (100 * share, slots - less, math.floor(KV_TOKENS * (1 - share)))
        for share, less in zip(gates.reserved, away, strict=True)
    ]


def test_the_slots_that_headroom_leaves_are_those_of_the_gates() -> None:
    """Small engines pay most, and how much is decided by whole slots."""
    usable, first = [], []
    for headroom_max, slots in product((0.2, 0.05), (8, 64)):
        known = Policy(tiers=DEFAULT_TIERS, headroom_max=headroom_max)
        left = kept([known.headroom_fraction(rank) for rank in range(4)], [True] * 4, slots)
        usable.append(left[-1][1])
        first.append(slots - left[1][1])
    text = " ".join(section("What headroom costs").split())
    stated = text[text.index("with 0.2 the last tier") : text.index(". So:")]
    assert numbers(stated) == [0.2, usable[0], 8, usable[1], 64, 0.05, usable[2], 8, usable[3], 64]
    assert "one slot of 8, or four of 64, is still kept for them" in text
    assert first[2:] == [1, 4]


def test_a_slow_replica_opens_after_the_silence_that_is_stated() -> None:
    """How long a shut gate stays shut is the first question of a night with a slow engine."""
    stated_s = numbers(re.findall(r"opens after\s+([\d.]+) s", PAGE)[0])[0]
    replica = slow_replica()
    assert stated_s == pytest.approx(SPEED_HALVING_S * math.log2(50 / 3), abs=0.05)
    assert replica.speed.tpot_over(0.15, 10, stated_s - 0.1)
    assert not replica.speed.tpot_over(0.15, 10, stated_s + 0.1)


def test_a_replica_slow_for_its_batch_opens_to_a_smaller_one_as_stated() -> None:
    """Whoever sees a gate open at a TPOT above its limit must find out why here."""
    text = " ".join(PAGE.split())
    assert "seen at 200 ms with 10 there, a limit of 150 ms lets in one more" in text
    assert "up to a batch of 7, since 200 x 7/10 = 140" in text
    replica = slow_replica()
    assert not replica.speed.tpot_over(0.15, 7 - 1, 0.0)
    assert replica.speed.tpot_over(0.15, 7, 0.0)


def slow_replica() -> Replica:
    """One that took 200 ms a token at instant 0, with ten sequences there."""
    replica = replica_of("r")
    replica.speed.tpot_s, replica.speed.tpot_at, replica.speed.tpot_in_use = 0.2, 0.0, 10.0
    return replica


def test_the_limiter_cuts_as_in_the_example() -> None:
    """Who sees a limit of six must find out why here."""
    limit = ConcurrencyLimit()
    limit.sampled(0.2, 50, in_use=8, target_s=DEFAULT_TIERS[0].tpot_limit_ms / 1e3)
    assert "L = 8 x 150/200 = 6" in PAGE
    assert limit.limit == pytest.approx(6)


# Where, and how many.


def test_recall_is_worth_what_is_stated() -> None:
    """An operator whose engines dislike aborted requests weighs them against this."""
    text = " ".join(section("What the others cost").split())
    stated = text[text.index("98th percentile") : text.index("came in time")]
    _, off_s, on_s, asked = numbers(stated)
    for recall, stated_s in ((False, off_s), (True, on_s)):
        fleet = test_moving.intruded(recall=recall)
        ttfts_s = figures.ttfts_s(fleet, test_moving.is_any, 5.0, 100.0)
        assert figures.percentile(ttfts_s, 0.98) == pytest.approx(stated_s, abs=0.5)
    assert fleet.moved == fleet.recalls == pytest.approx(asked, abs=5)


def replica_of(name: str) -> Replica:
    """One with the slots and the memory of the examples."""
    replica = Replica(name, tiers=4, blocks=100)
    replica.models = frozenset({"m"})
    replica.configured_slots = SLOTS
    replica.count_slots()
    replica.kv_capacity_tokens = KV_TOKENS
    return replica


def put(replica: Replica, pool: Pool, kv_by_tier: Mapping[str, int], *, started: bool) -> None:
    """One sequence a tier, half of it prompt; a number in a name tells two of a tier apart."""
    rank_of = {tier.name: rank for rank, tier in enumerate(DEFAULT_TIERS)}
    for name, kv_tokens in kv_by_tier.items():
        tier = rank_of[name.rstrip("0123456789")]
        request = Request(
            id=f"{replica.name}-{name}", model="m", tier=tier, tenant="t", user="u", arrived_at=0.0
        )
        waiting = Waiting(request, kind=pool.kind_of(request, kv_tokens), sequence=0)
        waiting.prompt_tokens, waiting.kv_tokens = kv_tokens // 2, kv_tokens
        replica.ledger.enter(Grant(waiting, sequences=1, cached_tokens=0, granted_at=0.0), 0.0)
        if started:
            replica.ledger.start(request.id)


def two_replicas(affinity: Affinity) -> tuple[Pool, Replica, Replica]:
    """What the freeness table describes."""
    first, second = replica_of("r1"), replica_of("r2")
    pool = Pool(Policy(tiers=DEFAULT_TIERS, affinity=affinity), ("m",), (first, second))
    fours = {"critical1": 10_000, "critical2": 10_000, "standard1": 10_000, "standard2": 10_000}
    put(first, pool, fours, started=True)
    put(second, pool, {"standard1": 20_000, "standard2": 30_000}, started=True)
    put(second, pool, {"background": 10_000}, started=False)
    return pool, first, second


def asking() -> Waiting:
    """The standard request of the example: of its 1,000 prompt tokens r1 was sent 768 before."""
    request = Request(
        id="next", model="m", tier=STANDARD, tenant="t", user="u", arrived_at=0.0,
        prompt_tokens=1_000, prefix=tuple(range(1, 16)),
    )  # fmt: skip
    pool, _, _ = two_replicas(Affinity())
    waiting = Waiting(request, kind=pool.kind_of(request, 1_000), sequence=1)
    waiting.prompt_tokens = 1_000
    return waiting


def test_the_freeness_table_is_what_the_scheduler_computes() -> None:
    """A reader who recomputes one cell by pencil must get what the gateway gets."""
    rows = {cells[0]: cells[1:] for cells in table(section("6. Where"), "standard asks")}
    pool, *replicas = two_replicas(Affinity())
    waiting = asking()
    pool.ties.sent(sent_before(blocks=12), replicas[0].name, has_adapters=False)
    worths = pool.ties.worths(waiting.request, waiting.prompt_tokens, Affinity())
    for column, replica in enumerate(replicas):
        capacity, used = capacity_and_use(replica, STANDARD)
        score = freeness(replica, pool.headroom, STANDARD)
        worth = worths.get(replica.name, 0.0)
        per_sequence = score * KV_TOKENS / SLOTS
        present = {grant.tier for grant in replica.ledger.grants.values()}
        reserve = [pool.headroom[tier] * KV_TOKENS for tier in sorted(present)]
        expected: dict[str, list[float]] = {
            "there": [replica.occupied, replica.kv_tokens],
            "V without headroom": [used],
            "headroom of those present": reserve,
            "M - V": [per_sequence * replica.occupied],
            "F": [per_sequence],
            "f": [score],
            "f x (1 + worth)": [score * (1 + worth)],
        }
        for name, values in expected.items():
            found = numbers(rows[name][column])[: len(values)]
            loose = 0.0005 if name.startswith("f") else 0.55
            assert found == pytest.approx(values, abs=loose), name
        assert capacity == KV_TOKENS


def sent_before(*, blocks: int) -> Request:
    """An earlier request that began with the same blocks of 64 tokens."""
    assert blocks * PREFIX_BLOCK_TOKENS == 768
    return Request(
        id="before", model="m", tier=STANDARD, tenant="t", user="u", arrived_at=0.0,
        prefix=tuple(range(1, blocks + 1)),
    )  # fmt: skip


@pytest.mark.parametrize(("prefix", "name"), [(1.0, "r1"), (0.5, "r2")])
def test_affinity_tips_the_choice_as_stated(prefix: float, name: str) -> None:
    """Whether a warm replica is waited for is what users of long prompts ask first."""
    pool, first, second = two_replicas(Affinity(prefix=prefix))
    pool.ties.sent(sent_before(blocks=12), first.name, has_adapters=False)
    for replica in (first, second):
        assert pool.open_tiers(replica, 0.0) > STANDARD
    found = Search(pool, [first, second], 0.0).place(asking(), judged_as=STANDARD)
    assert found is not None
    assert found.name == name


def test_the_scaling_example_is_what_is_advised() -> None:
    """A number of machines costs money; the reader must be able to check it."""
    assert "3.0/1.1 = 2.7, so the advice is 3" in " ".join(PAGE.split())
    advisor, scaling = ScalingAdvisor(), Scaling()
    said = [
        advisor.advise(-0.5, replicas=2, has_waiting=True, now=now, scaling=scaling)
        for now in (0.0, scaling.hold_s)
    ]
    assert said == [None, 3]


def test_the_figures_of_the_bounds_follow_from_their_formulas() -> None:
    """A guarantee with a slip of the pen in it is none."""
    text = " ".join(section("9. Guarantees").split())
    assert "c_max = 600, N = 4 and e_max = 60: 1,080" in text
    assert 600 + 2 * 4 * 60 == 1_080
    assert "s = 0.02 and R = 4,000 a second, a head of cost 600 waits at most 7.5 s" in text
    assert pytest.approx(7.5) == 600 / (0.02 * 4_000)


def test_the_places_in_line_follow_the_stated_formula() -> None:
    """Retry-After and the comments of a waiting stream are made of it."""
    day = Day()
    day.arrive(*(f"a{number}" for number in range(9)), "b1", "b2")
    pool, waiting = day.scheduler.pools[0], day.scheduler.waiting
    places = [admission.position(pool, waiting[id]) for id in ("a4", "a5", "b1", "b2")]
    # Two users share alike: the n-th request of one has twice n before the end of its turn.
    assert places == [2, 4, 2, 4]
