"""The recorded traffic that ships with the package: what each trace is, and its rows as recorded.

Knows nothing of tiers; who sends what is decided in `traced.py` by the rules stated here. Licences
and origins stand in `data/LICENCES.md`.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from importlib.resources import files
from io import TextIOWrapper
from typing import Literal, NamedTuple

BLOCK_TOKENS = 512
"""Tokens of a prompt that one id of `Row.prefix` stands for; the last block may hold fewer."""


class Row(NamedTuple):
    """One recorded request."""

    arrived_at: float
    """Seconds since the recording began; 0 where no instants were recorded."""
    prompt_tokens: int
    output_tokens: int
    client: int | None
    prefix: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One recording."""

    name: str
    about: str
    licence: str
    rows: int
    prompt_tokens: int
    """Of all rows together."""
    output_tokens: int
    span_s: float = 0.0
    """Instant of the last request; 0: lengths only."""
    column: Literal["", "client", "prefix"] = ""
    """What the trace tells beyond instants and lengths."""
    blocks: int = 0
    """Ids of prefix blocks are below that."""
    session_block: int = 0
    """Prompts that agree up to this block are taken to be of one conversation."""
    tenant: str | None = None
    """Of all clients; None: each client is a tenant of its own."""
    rule: str = ""
    """Which request is whose."""

    @property
    def lap_s(self) -> float:
        """The time after which a repetition begins: the span and one mean gap."""
        return self.span_s * self.rows / (self.rows - 1)


SEEDED = "No client is recorded: each request draws its user, seeded, from a crowd by weight."
CONVERSED = (
    "No client is recorded: each conversation (prompts that agree in their first {} tokens) draws "
    "its user, seeded, from a crowd by weight, and is a session of that user."
)
CLOUD = "Each client of the cloud is a tenant with one user, both named client-N."

TRACES = (
    Trace(
        name="azure-code",
        about="Azure 2023, code completion: long prompts, short answers, 57 minutes",
        licence="CC-BY-4.0",
        rows=8_819,
        prompt_tokens=18_059_974,
        output_tokens=245_896,
        span_s=3435.948,
        rule=SEEDED,
    ),
    Trace(
        name="azure-conv",
        about="Azure 2023, conversations, 58 minutes",
        licence="CC-BY-4.0",
        rows=19_366,
        prompt_tokens=22_361_870,
        output_tokens=4_088_665,
        span_s=3501.722,
        rule=SEEDED,
    ),
    Trace(
        name="mooncake-conversation",
        about="Mooncake, conversations with prefix blocks: prompts of 12,000 tokens, 59 minutes",
        licence="Apache-2.0",
        rows=12_031,
        prompt_tokens=144_793_823,
        output_tokens=4_122_048,
        span_s=3536.999,
        column="prefix",
        blocks=182_790,
        session_block=1,
        rule=CONVERSED.format("1,024"),
    ),
    Trace(
        name="mooncake-synthetic",
        about="Mooncake, mixed public data sets with prefix blocks: long prompts, 17 minutes",
        licence="Apache-2.0",
        rows=3_993,
        prompt_tokens=61_194_628,
        output_tokens=595_432,
        span_s=1022.025,
        column="prefix",
        blocks=43_924,
        rule=CONVERSED.format("512"),
    ),
    Trace(
        name="lmsys-clients",
        about="Chatbot Arena as VTC used it: 27 clients, short prompts, 10 minutes",
        licence="Apache-2.0",
        rows=1_500,
        prompt_tokens=204_398,
        output_tokens=384_297,
        span_s=600.0,
        column="client",
        tenant="lmsys",
        rule="Each client is a user named client-N, all of one tenant, lmsys.",
    ),
    Trace(
        name="servegen-small",
        about="ServeGen m-small, sampled at 8 requests/s: 17 clients of a cloud, 20 minutes",
        licence="Apache-2.0",
        rows=9_567,
        prompt_tokens=1_179_458,
        output_tokens=174_195,
        span_s=1200.0,
        column="client",
        rule=CLOUD,
    ),
    Trace(
        name="servegen-large",
        about="ServeGen m-large, sampled at 8 requests/s: 38 clients, one sends 77 %, 20 minutes",
        licence="Apache-2.0",
        rows=9_705,
        prompt_tokens=7_209_298,
        output_tokens=436_738,
        span_s=1200.0,
        column="client",
        rule=CLOUD,
    ),
    Trace(
        name="servegen-reasoning",
        about="ServeGen deepseek-r1, sampled at 4 requests/s: 30 clients, long answers, 20 minutes",
        licence="Apache-2.0",
        rows=4_791,
        prompt_tokens=4_178_207,
        output_tokens=3_712_862,
        span_s=1200.0,
        column="client",
        rule=CLOUD,
    ),
)

LENGTH_LISTS = (
    Trace(
        name="sharegpt",
        about="ShareGPT conversations in Llama-2 tokens: lengths only",
        licence="MIT",
        rows=10_000,
        prompt_tokens=2_457_517,
        output_tokens=3_256_299,
    ),
    Trace(
        name="arxiv",
        about="Summaries of arXiv papers in Llama-2 tokens: lengths only",
        licence="MIT",
        rows=28_257,
        prompt_tokens=73_131_321,
        output_tokens=8_234_948,
    ),
)


def trace_named(name: str) -> Trace:
    """The trace of that name, one of lengths only included.

    Raises:
        ValueError: no such trace; the message lists those there are.
    """
    known = (*TRACES, *LENGTH_LISTS)
    for trace in known:
        if trace.name == name:
            return trace
    names = ", ".join(trace.name for trace in known)
    raise ValueError(f"unknown trace {name!r}; known: {names}")


def rows(trace: Trace) -> Iterator[Row]:
    """All rows in order of arrival, read as they are asked for."""
    with _opened(trace) as file:
        names = next(file).rstrip("\n").split(",")
        timed = names[0] == "arrival_s"
        for line in file:
            cells = line.rstrip("\n").split(",")
            arrived_at = float(cells.pop(0)) if timed else 0.0
            yield Row(
                arrived_at,
                int(cells[0]),
                int(cells[1]),
                int(cells[2]) if trace.column == "client" else None,
                _prefix(cells[2]) if trace.column == "prefix" else (),
            )


def lengths_of(name: str) -> tuple[tuple[int, int], ...]:
    """(prompt, output) tokens of all rows of any trace, for `lengths.Empirical`."""
    return tuple((row.prompt_tokens, row.output_tokens) for row in rows(trace_named(name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Who sends most, and who else there is."""

    client: int
    share: float
    """Of all requests, 0..1."""
    light: tuple[int, ...]
    """The other clients, those who send most first."""

    @property
    def user(self) -> str:
        """The user of its requests."""
        return user_of(self.client)

    @property
    def light_users(self) -> tuple[str, ...]:
        """The users of all other requests."""
        return tuple(user_of(client) for client in self.light)


def power_of(trace: Trace) -> Power:
    """The client with most requests of a trace that records clients; ties go to the lower number.

    Raises:
        ValueError: it records none.
    """
    if trace.column != "client":
        raise ValueError(f"the trace {trace.name} tells no clients apart")
    counts = Counter(row.client for row in rows(trace) if row.client is not None)
    client, *light = sorted(counts, key=lambda client: (-counts[client], client))
    return Power(client=client, share=counts[client] / trace.rows, light=tuple(light))


def user_of(client: int) -> str:
    """How the user is named that stands for a recorded client."""
    return f"client-{client}"


@contextmanager
def _opened(trace: Trace) -> Iterator[TextIOWrapper]:
    place = files("gateway.sim.workload").joinpath("data", f"{trace.name}.csv.gz")
    with place.open("rb") as packed, GzipFile(fileobj=packed) as raw:
        yield TextIOWrapper(raw, encoding="ascii", newline="\n")


def _prefix(cell: str) -> tuple[int, ...]:
    """`0 7-9` is 0, 7, 8, 9."""
    blocks: list[int] = []
    for part in cell.split():
        first, _, last = part.partition("-")
        blocks.extend(range(int(first), int(last or first) + 1))
    return tuple(blocks)
