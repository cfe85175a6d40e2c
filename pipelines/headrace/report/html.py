"""A report: one HTML file that needs nothing else, no network either; its tables and figures.

Figures are drawn without a display; equal input gives equal bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Cell = str | bytes | None
Kind = Literal["text", "number", "path", "image"]

ACCENT = "#0b6e99"
"""Colour of what a figure is about."""

_DPI = 144

_POLICY = "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'"
"""What HTML of the user's own may load: nothing from elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One figure in large type."""

    name: str
    value: str
    note: str = ""
    is_bad: bool = False
    """Whether it misses what was asked for."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind = "text"
    """How its cells are shown; images are PNG bytes."""


def columns(*names: str, kind: Kind = "text") -> tuple[Column, ...]:
    """Columns of one kind."""
    return tuple(Column(name=name, kind=kind) for name in names)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    empty: str = ""
    """What to say when there is no row."""
    shown: int | None = None
    """Rows seen at first, the others when they are asked for; None for all."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the report shows."""

    title: str
    lead: str
    """One line below the title."""
    cards: tuple[Card, ...]
    figures: dict[str, bytes]
    """PNG bytes by title."""
    tables: tuple[Table, ...]
    training: dict[str, bytes] = field(default_factory=dict)
    """PNG bytes by title: how training went."""
    pages: dict[str, str] = field(default_factory=dict)
    """HTML by title, of the user's own; shown on its own, and may load and run nothing."""
    failures: tuple[str, ...] = ()
    """What was asked for and is not reached."""


def render(report: Report) -> str:
    """The report as HTML; whatever comes from data is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["policy"] = _POLICY
    environment.filters["png"] = _data_url
    return environment.get_template("report.html.jinja").render(report=report)


def _data_url(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes."""
    made = Figure(figsize=(width, height), layout="compressed")
    axes = made.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return made, axes


def png(drawn: Figure) -> bytes:
    """A figure as a PNG."""
    buffer = BytesIO()
    drawn.set_dpi(_DPI)
    # `savefig` draws once more beforehand for its layout, which any drawing brings about
    FigureCanvasAgg(drawn).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
