"""The scripts that count for all gateways, held against the window and the calendar of one."""

import random
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.cluster.counters import RESERVE
from gateway.tenancy.shared import NOT_KNOWN, Ask, Correction, Known
from gateway.tenancy.window import SLOTS_MAX, Window
from tests.support.redis_parties import Party, parties
from tests.support.redis_server import RedisServer, running_redis

HOLDER = "tenant:acme"
KEY = f"{{fairgate}}:cluster:used:{HOLDER}"
MOST = 100
EVER = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that keeps nothing."""
    folder: Path = tmp_path_factory.mktemp("redis")
    with running_redis(folder, ("--save", "", "--appendonly", "no")) as found:
        yield found


@pytest.fixture
async def party(server: RedisServer) -> AsyncIterator[Party]:
    """One line to it, with nothing counted."""
    async with parties(server.url, "a") as (found,):
        await found.own.link.ask("FLUSHALL")
        yield found


def ask(**asked: object) -> Ask:
    """Of a holder without any limit, but for what is given."""
    whole: dict[str, object] = {
        "holder": HOLDER, "requests_most": None, "tokens": 0, "tokens_most": None,
        "budget": 0, "budget_most": None, "per": "month", "known": NOT_KNOWN,
    }  # fmt: skip
    return Ask(**(whole | asked))  # type: ignore[arg-type]  # as each test says


def used(ago_s: int, tokens: int) -> Correction:
    """So many tokens, so many seconds ago."""
    return Correction(HOLDER, None, ago_s, 0, tokens, 0, "", "")


async def field(party: Party, name: str) -> bytes | None:
    """Of the holder's hash."""
    found = await party.own.link.ask("HGET", KEY, name)
    assert isinstance(found, bytes | None)
    return found


async def second_of(party: Party) -> int:
    """By Redis' clock."""
    found = await party.own.link.ask("TIME")
    assert isinstance(found, list)
    return int(found[0])


@pytest.mark.parametrize("seed", range(25))
async def test_a_minute_is_counted_as_one_gateway_counts_it(party: Party, seed: int) -> None:
    """Another arithmetic in Redis would refuse what the documents promise, or the reverse."""
    dice = random.Random(seed)
    shape = [(dice.randint(0, 70), dice.randint(1, 30)) for _ in range(dice.randint(0, 12))]
    amount = dice.randint(1, MOST)
    for _ in range(20):
        # A second must not end between what is told and what is asked.
        await party.own.link.ask("FLUSHALL")
        before = await second_of(party)
        party.own.counters.correct([used(*each) for each in shape])
        answer = await party.own.counters.reserve([ask(tokens=amount, tokens_most=MOST)])
        if before == await second_of(party):
            break
    now = answer.wall_s
    window = Window()
    for ago_s, tokens in sorted(shape, reverse=True):
        window.add(tokens, float(int(now) - ago_s))
    fits_at = window.fits_at(amount, MOST, now)
    assert fits_at is not None
    (found,) = answer.found
    assert found.tokens_wait_s == pytest.approx(fits_at - now, abs=0.002)
    assert (answer.taken is not None) == (fits_at == now)
    if answer.taken is not None:
        window.add(amount, now)
    assert found.tokens_used == window.used
    assert found.tokens_empty_s == pytest.approx(window.empty_at(now) - now, abs=0.002)


async def test_what_is_older_than_a_minute_leaves_nothing_behind(party: Party) -> None:
    """A hash that grows by a field a second is a leak in a place that nobody looks at."""
    second = await second_of(party)
    for ago in (300, 100, 62):
        await party.own.link.ask("HSET", KEY, f"r{second - ago}", 5)
    await party.own.link.ask("HSET", KEY, "ru", 15, "ro", second - 300, "rn", second - 62)
    answer = await party.own.counters.reserve([ask(requests_most=10)])
    assert answer.found[0].requests_used == 1
    assert await party.own.link.ask("HLEN", KEY) == 4
    left = await party.own.link.ask("TTL", KEY)
    assert isinstance(left, int)
    assert left > 31 * 24 * 3600


async def test_a_clock_that_was_set_back_loses_nothing(party: Party) -> None:
    """An operator who corrects the clock of Redis must not hand out a minute anew."""
    second = await second_of(party)
    await party.own.link.ask(
        "HSET", KEY, f"r{second + 30}", 10, "ru", 10, "ro", second + 30, "rn", second + 30
    )
    answer = await party.own.counters.reserve([ask(requests_most=10)])
    assert answer.taken is None
    assert answer.found[0].requests_wait_s > SLOTS_MAX


async def test_what_is_given_back_never_makes_less_than_nothing(party: Party) -> None:
    """A request that is settled after its second was forgotten would be a gift to the next."""
    counters = party.own.counters
    answer = await counters.reserve([ask(tokens=10, tokens_most=MOST, requests_most=5)])
    assert answer.taken is not None
    second = answer.taken.second
    counters.correct([Correction(HOLDER, second, 0, -1, -10, 0, "", "")] * 3)
    counters.correct([Correction(HOLDER, second - 100, 0, -1, -10, 0, "", "")])
    again = await counters.reserve([ask(tokens=10, tokens_most=MOST, requests_most=5)])
    assert (again.found[0].requests_used, again.found[0].tokens_used) == (1, 10)


@pytest.mark.parametrize("late_s", [-1, 0, 1])
async def test_what_is_given_back_by_its_age_may_be_a_second_off(party: Party, late_s: int) -> None:
    """A request that took nothing would count for a minute, since a second ended meanwhile."""
    counters, asked = party.own.counters, ask(tokens=1, tokens_most=MOST, requests_most=50)
    for _ in range(20):
        # No other second may end meanwhile than the one that is meant.
        await party.own.link.ask("FLUSHALL")
        second = await second_of(party)
        entered = [Correction(HOLDER, None, ago_s, 1, 10, 0, "", "") for ago_s in (20, 21, 22)]
        counters.correct(entered)
        counters.correct([Correction(HOLDER, None, 21 + late_s, -2, -15, 0, "", "")])
        counters.correct([Correction(HOLDER, None, 40, -1, -1, 0, "", "")])
        (found,) = (await counters.reserve([asked])).found
        if await second_of(party) == second:
            break
    assert (found.requests_used, found.tokens_used) == (3 - 2 + 1, 30 - 15 + 1)


async def test_a_budget_begins_anew_with_its_period(party: Party) -> None:
    """The first of the month, and the day after."""
    answer = await party.own.counters.reserve([ask(budget=1, budget_most=100)])
    assert answer.taken is not None
    day, month = answer.taken.day, answer.taken.month
    assert day.startswith(month)
    await party.own.link.ask("HSET", KEY, "D", "2001-01-01", "d", 99, "M", "2001-01", "m", 99)
    answer = await party.own.counters.reserve([ask(budget=50, budget_most=100)])
    assert answer.taken is not None
    assert answer.found[0].spent == 50
    # What belongs to a period that is over does not come into the new one.
    late = Correction(HOLDER, None, 0, 0, 0, 40, "2001-01-01", "2001-01")
    party.own.counters.correct([late])
    assert (await field(party, "m"), await field(party, "d")) == (b"50", b"50")
    assert (await field(party, "M"), await field(party, "D")) == (month.encode(), day.encode())


async def test_a_new_day_keeps_the_month(party: Party) -> None:
    """A monthly budget that begins anew each morning is thirty budgets."""
    answer = await party.own.counters.reserve([ask(budget=30, budget_most=100)])
    assert answer.taken is not None
    await party.own.link.ask("HSET", KEY, "D", "2001-01-01")
    answer = await party.own.counters.reserve([ask(budget=30, budget_most=100)])
    assert answer.found[0].spent == 60
    assert await field(party, "d") == b"30"


@pytest.mark.parametrize(("may_lack", "spent"), [(False, 10), (True, 70)])
async def test_what_a_gateway_knows_counts_where_redis_knows_less(
    party: Party, may_lack: bool, spent: int
) -> None:
    """A Redis that was restored from yesterday would hand out a day of every budget again."""
    counters = party.own.counters
    answer = await counters.reserve([ask(budget=10, budget_most=100)])
    assert answer.taken is not None
    known = Known(answer.taken.day, 70, answer.taken.month, 70)
    nothing = Correction(
        HOLDER, None, 0, 0, 0, 0, answer.taken.day, answer.taken.month, known, may_lack
    )
    counters.correct([nothing])
    assert await field(party, "m") == b"%d" % spent


async def test_a_redis_without_the_holder_begins_with_what_the_gateway_knows(party: Party) -> None:
    """The first request after a loss, before anybody has told anything."""
    second = await second_of(party)
    today = datetime.fromtimestamp(second, UTC)
    known = Known(f"{today:%Y-%m-%d}", 5, f"{today:%Y-%m}", 95)
    answer = await party.own.counters.reserve([ask(budget=10, budget_most=100, known=known)])
    assert answer.taken is None
    answer = await party.own.counters.reserve(
        [ask(budget=10, budget_most=100, per="day", known=known)]
    )
    assert answer.taken is not None
    assert answer.found[0].spent == 15
    assert await field(party, "m") == b"105"


async def test_days_and_months_are_those_of_the_calendar(party: Party) -> None:
    """Leap years, and the first and last of each month, until 2100."""
    text = RESERVE.text.decode()
    function = text[text.index("local function date(") : text.index("local month, number")]
    script = (
        f"{function} local found = {{}} for day = ARGV[1], ARGV[2] do local month, number = "
        "date(day) found[#found + 1] = string.format('%s-%02d', month, number) end return found"
    )
    days = (datetime(2101, 1, 1, tzinfo=UTC) - EVER).days
    for first in range(0, days, 1000):
        found = await party.own.link.ask("EVAL", script, 0, first, first + 999)
        dates = [EVER + timedelta(days=day) for day in range(first, first + 1000)]
        assert found == [f"{each:%Y-%m-%d}".encode() for each in dates]


async def test_a_correction_after_a_long_weekend_is_cheap(party: Party) -> None:
    """Redis would stand still while it walks all seconds between, and everybody go on alone."""
    second = await second_of(party)
    friday = second - 60 * 3600
    await party.own.link.ask("HSET", KEY, f"t{friday}", 5, "tu", 5, "to", friday, "tn", friday)
    await party.own.link.ask("CONFIG", "RESETSTAT")
    party.own.counters.correct([used(1, 7)])
    answer = await party.own.counters.reserve([ask(tokens=1, tokens_most=MOST)])
    assert answer.found[0].tokens_used == 8
    assert await field(party, f"t{friday}") is None
    told = await party.own.link.ask("INFO", "commandstats")
    assert isinstance(told, bytes)
    calls = [int(found) for found in re.findall(rb"[:,]calls=(\d+)", told)]
    assert calls
    assert sum(calls) < 100
