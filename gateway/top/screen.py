"""How a picture looks on a terminal of a given size, with or without colours.

Pure: the same picture and size give the same lines.
"""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.shown import shown
from gateway.top.picture import VIEWS, Picture, View
from gateway.top.rows import COLUMNS, TEXTS, Row, rows_of
from gateway.top.watching import Watching

MOODS = {"well": "", "waits": "yellow", "bad": "bold red", "idle": "dim"}
AROUND = 6
"""Lines that are no rows: two of figures, one of news, the headings, the foot, and one spare."""
ROWS_MIN = 1
KEYS = "t tiers, n tenants, u users, r replicas, w waiting, b batches, q"
GAP = 2
"""Cells between two columns."""
WORD_MIN = 4
"""Cells that the longest of the words has at least."""
NARROW = 100
DROPPED: dict[View, frozenset[str]] = {
    "tiers": frozenset(),
    "tenants": frozenset(),
    "users": frozenset(),
    "replicas": frozenset({"tpot", "others"}),
    "requests": frozenset({"model"}),
    "batches": frozenset({"tier", "user"}),
}
"""Columns that a narrow terminal goes without."""


def rows_that_fit(height: int) -> int:
    """Rows of a view on a terminal of `height` lines."""
    return max(ROWS_MIN, height - AROUND)


def screenful(watching: Watching, url: str, *, width: int, now: float) -> RenderableType:
    """All that is shown; as many lines as fit where `rows_per_page` was set by `rows_that_fit`."""
    lines: list[RenderableType] = [*_head(watching.picture, url)]
    news = watching.news(now)
    lines.append(_line(shown(news), "bold red" if watching.is_stale else "green"))
    rows = watching.rows
    begin = watching.page * watching.rows_per_page
    if rows is not None:
        page = rows.lines[begin : begin + watching.rows_per_page]
        lines.append(table_of(watching.view, page, width=width, is_dim=watching.is_stale))
    pages = f"{watching.page + 1}/{watching.pages}{'+' if rows and rows.more else ''}"
    lines.append(_line(f"{watching.view} {pages}   {KEYS}", "dim"))
    return Group(*lines)


def print_once(picture: Picture, url: str, console: Console, *, rows_max: int) -> None:
    """All views below one another, for a file or a pipe."""
    for line in _head(picture, url):
        console.print(line)
    for view in VIEWS:
        rows = rows_of(picture, view)
        if rows is None:
            continue
        console.print()
        if not rows.lines:
            console.print(Text(f"{view}: none"))
            continue
        console.print(table_of(view, rows.lines[:rows_max], width=console.width))
        more = rows.more + max(0, len(rows.lines) - rows_max)
        if more:
            console.print(Text(f"and {'' if view != 'replicas' else 'at least '}{more} more"))


def table_of(view: View, lines: Sequence[Row], *, width: int, is_dim: bool = False) -> Table:
    """One page; words that are too long end in dots, so that each row is one line."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    widths = _widths(view, lines, width)
    for index, cells in widths.items():
        name = COLUMNS[view][index]
        table.add_column(
            name,
            justify="left" if name in TEXTS else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=cells,
            header_style="bold",
        )
    for line in lines:
        style = "dim" if is_dim else MOODS[line.mood]
        table.add_row(*(Text(line.cells[index], style=style) for index in widths))
    return table


def _widths(view: View, lines: Sequence[Row], width: int) -> dict[int, int]:
    """Cells of each column that is shown: figures whole, and words by what is left."""
    names = COLUMNS[view]
    found = {
        index: max(cell_len(name), *(cell_len(line.cells[index]) for line in lines), 1)
        for index, name in enumerate(names)
        if width >= NARROW or name not in DROPPED[view]
    }
    words = [index for index in found if names[index] in TEXTS]
    while (over := sum(found.values()) + GAP * (len(found) - 1) - width) > 0:
        widest = max(words, key=lambda index: found[index])
        second = max((found[index] for index in words if index != widest), default=WORD_MIN)
        less = min(over, max(1, found[widest] - second), found[widest] - WORD_MIN)
        if less > 0:
            found[widest] -= less
        elif len(found) > 1:  # not even the figures fit: the last ones go
            gone = max(found)
            del found[gone]
            words = [index for index in words if index != gone]
        else:
            break
    return found


def _head(picture: Picture | None, url: str) -> list[Text]:
    if picture is None:
        return [_line(f"fairgate at {shown(url)}", "bold"), Text("")]
    told = picture.overview
    first = _line(f"fairgate {shown(told['version'])} at {shown(url)}", "bold")
    counts = (
        f"waiting {told['waiting']} of at most {told['waiting_most']}, "
        f"held {told['held']}, running {told['running']}"
    )
    return [first, _line(counts, "")]


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
