"""The figures of a phase as a table for a terminal, or as plain lines for a file.

Pure. When they are shown is not known here.
"""

from dataclasses import dataclass

from rich.table import Table

from gateway.demo.plan import Phase
from gateway.demo.tally import Tally

NOTHING = "-"
HEADINGS = ("user", "requests", "waiting now", "mean wait", "p95 wait", "share of tokens", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One user's figures, as text."""

    user: str
    requests: str
    waiting: str
    mean_wait: str
    p95_wait: str
    token_share: str
    failed: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADINGS`."""
        return (
            *(self.user, self.requests, self.waiting, self.mean_wait),
            *(self.p95_wait, self.token_share, self.failed),
        )


def rows(tally: Tally, now: float) -> list[Row]:
    """One row a user. Waits run to the first token; `>=`: some still wait, counted so far."""
    found = []
    for user, account in tally.accounts.items():
        waits = tally.waits([user], now)
        sign = ">= " if waits and waits.is_at_least else ""
        found.append(
            Row(
                user=user,
                requests=str(account.sent),
                waiting=str(account.waiting),
                mean_wait=f"{sign}{waits.mean_s:.2f} s" if waits else NOTHING,
                p95_wait=f"{sign}{waits.p95_s:.2f} s" if waits else NOTHING,
                token_share=f"{tally.token_share(user):.0%}",
                failed=str(account.failed),
            )
        )
    return found


def as_table(phase: Phase, tally: Tally, *, elapsed_s: float, now: float) -> Table:
    """The table for a terminal; failures have a column only once there are any."""
    has_failures = tally.failed > 0
    headings = HEADINGS if has_failures else HEADINGS[:-1]
    table = Table(title=title(phase, elapsed_s), title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "user" else "right")
    for row in rows(tally, now):
        table.add_row(*row.cells[: len(headings)])
    if tally.complaint:
        table.caption = f"first failure: {tally.complaint}"
    return table


def as_lines(phase: Phase, tally: Tally, *, elapsed_s: float, now: float) -> list[str]:
    """The same for a file: one line a user."""
    lines = [
        f"[{phase.name} {elapsed_s:4.1f} s] {row.user:<9} requests {row.requests:>3}  "
        f"waiting {row.waiting:>2}  mean wait {row.mean_wait:>9}  p95 {row.p95_wait:>9}  "
        f"tokens {row.token_share:>4}" + (f"  failed {row.failed}" if row.failed != "0" else "")
        for row in rows(tally, now)
    ]
    if tally.complaint:
        lines.append(f"first failure: {tally.complaint}")
    return lines


def title(phase: Phase, elapsed_s: float) -> str:
    """What happens in this phase, and how far it is."""
    what = "light users alone"
    if phase.is_flooded:
        what = f"a flood, through the {phase.policy} gateway"
    until = "until Ctrl-C" if phase.length_s is None else f"of {phase.length_s:.0f} s"
    return f"{phase.name}: {what} ({elapsed_s:.0f} s {until})"
