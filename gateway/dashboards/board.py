"""Dashboards as values, and how Grafana writes them: places, ids and defaults are settled here.

It knows Grafana's form and nothing of fairgate. Equal boards give equal text, so that a file can be
compared with what makes it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

WIDTH = 24
"""Columns of Grafana's grid."""
SCHEMA_VERSION = 39
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


class Kind(StrEnum):
    """How a panel draws."""

    LINES = "timeseries"
    FIGURE = "stat"
    STATES = "state-timeline"
    HEAT = "heatmap"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, and what its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    text: str
    """What it shows, and what to make of it."""
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = Kind.LINES
    width: int = 8
    height: int = 8
    is_stacked: bool = False
    least: float | None = 0.0
    """Where the scale begins; None: where the values do."""
    most: float | None = None
    """Where the scale ends; None: where the values do."""
    thresholds: tuple[tuple[float, str], ...] = ()
    """From which value on which colour, beside green from the start."""
    words: tuple[tuple[str, str, str], ...] = ()
    """(value, what to write instead, colour) where values are states."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one headline."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard; `uid` is part of its address and must stay."""

    uid: str
    title: str
    text: str
    rows: tuple[Row, ...] = field(default=())


def text_of(board: Board) -> str:
    """The file that Grafana reads."""
    return json.dumps(_board(board), indent=1, sort_keys=True) + "\n"


def _board(board: Board) -> Json:
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.text,
        "tags": ["fairgate"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair on all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards", "tags": ["fairgate"], "title": "fairgate",
                "asDropdown": True, "includeVars": True, "keepTime": True,
            }
        ],
        "templating": {"list": list(_variables())},
        "panels": list(_panels(board)),
    }  # fmt: skip


def _variables() -> Iterator[Json]:
    yield {
        "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus",
        "hide": 0,
    }  # fmt: skip
    for name, query in (
        ("job", "label_values(fairgate_build_info, job)"),
        ("instance", 'label_values(fairgate_build_info{job=~"$job"}, instance)'),
    ):
        yield {
            "name": name, "label": name.capitalize(), "type": "query", "datasource": DATASOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
            "includeAll": True, "multi": True, "allValue": ".*", "sort": 1, "hide": 0,
            "current": {"text": ["All"], "value": ["$__all"]},
        }  # fmt: skip


def _panels(board: Board) -> Iterator[Json]:
    ident = top = 0
    for row in board.rows:
        ident += 1
        yield {
            "id": ident, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
        }  # fmt: skip
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            ident += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": ident, "gridPos": place, **_panel(panel)}
            left, height = left + panel.width, max(height, panel.height)
        top += height


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "editorMode": "code",
                "exemplar": panel.kind is Kind.LINES and "_bucket" in query.expr,
                "instant": panel.kind is Kind.TABLE,
                "range": panel.kind is not Kind.TABLE,
                "format": {Kind.HEAT: "heatmap", Kind.TABLE: "table"}.get(
                    panel.kind, "time_series"
                ),
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> Json:
    steps = [{"color": "green", "value": None}] + [
        {"color": colour, "value": value} for value, colour in panel.thresholds
    ]
    found: Json = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [
            {"type": "value", "options": {value: {"text": word, "color": colour, "index": number}}}
            for number, (value, word, colour) in enumerate(panel.words)
        ],
    }
    if panel.least is not None:
        found["min"] = panel.least
    if panel.most is not None:
        found["max"] = panel.most
    if panel.kind is Kind.LINES:
        found["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 25 if panel.is_stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
        }
    return found


def _options(panel: Panel) -> Json:
    match panel.kind:
        case Kind.LINES:
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case Kind.FIGURE:
            return {
                "colorMode": "value", "graphMode": "area", "textMode": "auto",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            }  # fmt: skip
        case Kind.STATES:
            return {"mergeValues": True, "rowHeight": 0.9, "showValue": "auto"}
        case Kind.HEAT:
            return {"calculate": False, "yAxis": {"unit": panel.unit}, "cellGap": 1}
        case Kind.TABLE:
            return {"showHeader": True, "cellHeight": "sm"}
