"""What is a chart of the report? A heading with figures for plotly.js: data and layout, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#97bbf5", "#a463f2", "#3ca951")

Figure = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture."""

    id: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Chart:
    """One heading with what it shows, in one or several panels."""

    title: str
    note: str
    panels: tuple[Panel, ...]

    @classmethod
    def single(cls, name: str, title: str, note: str, figure: Figure) -> Chart:
        """Without a panel where there is nothing to show."""
        return cls(title, note, (Panel(name, "", figure),) if figure["data"] else ())
