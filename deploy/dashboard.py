"""The Grafana dashboard in `manifests/grafana/fleet.json`, made from the panels of `dashboard_panels.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from deploy.dashboard_panels import ROWS, Panel

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 3
WIDTH = 24 // COLUMNS
"""In columns of Grafana's grid."""
HEIGHT = 8
VARIABLES = {"model": "model_name", "path": "path"}
"""Variable -> the label it filters by."""
ANNOTATIONS = {"Rolled back": ("rolled_back", "red"), "Promoted": ("promoted", "green")}
"""Title -> state of the rollout and color."""


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; it asks for the data source, and filters by model and path."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    variables = [_variable(name, label) for name, label in VARIABLES.items()]
    return {
        "uid": "speculation-fleet",
        "title": "Speculation fleet",
        "tags": ["llm", "speculative-decoding"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source, *variables]},
        "annotations": {"list": [_annotation(title, *what) for title, what in ANNOTATIONS.items()]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_laid_out(ROWS), start=1)],
    }


def render_dashboard() -> str:
    """The content of `manifests/grafana/fleet.json`."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def _laid_out(rows: Iterable[tuple[str, tuple[Panel, ...]]]) -> Iterator[dict[str, Any]]:
    """Rows one below the other, the panels of each from left to right."""
    y = 0
    for title, panels in rows:
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, y, 24, 1)}
        y += 1
        for index, panel in enumerate(panels):
            line, column = divmod(index, COLUMNS)
            yield _panel(panel) | {"gridPos": _place(column * WIDTH, y + line * HEIGHT, WIDTH, HEIGHT)}
        y += -(-len(panels) // COLUMNS) * HEIGHT


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query.expression,
            "legendFormat": query.legend,
            "instant": panel.is_instant,
            "range": not panel.is_instant,
        }
        for index, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}} if panel.kind == "timeseries" else {},
        "targets": targets,
    }


def _variable(name: str, label: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": f"label_values(fleet_replicas_wanted, {label})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _annotation(title: str, state: str, color: str) -> dict[str, Any]:
    return {
        "name": title,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": f'max(fleet_rollout_state{{state="{state}"}}) == 1',
        "iconColor": color,
        "titleFormat": title,
    }
