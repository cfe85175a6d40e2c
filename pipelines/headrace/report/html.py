"""A report: one HTML file with all tables and figures, which needs no other file and no network.

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
"""Colour of a figure's main data."""

_DPI = 144

_POLICY = "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'"
"""What the user's own HTML may load: nothing from elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One figure in large type."""

    name: str
    value: str
    note: str = ""
    is_bad: bool = False
    """Whether it misses its goal."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind = "text"
    """How its cells are shown; images are PNG bytes."""


def columns(*names: str, kind: Kind = "text") -> tuple[Column, ...]:
    """Return columns of one kind."""
    return tuple(Column(name=name, kind=kind) for name in names)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    empty: str = ""
    """Text in place of a table without rows."""
    shown: int | None = None
    """Rows shown at first; the others after a click. None for all."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All data of a report."""

    title: str
    lead: str
    """One line below the title."""
    cards: tuple[Card, ...]
    figures: dict[str, bytes]
    """PNG bytes by title."""
    tables: tuple[Table, ...]
    training: dict[str, bytes] = field(default_factory=dict)
    """PNG bytes by title: figures of the training."""
    pages: dict[str, str] = field(default_factory=dict)
    """The user's own HTML by title; isolated, it may load and run nothing."""
    failures: tuple[str, ...] = ()
    """Goals that were missed."""


def render(report: Report) -> str:
    """Return the report as HTML; everything that comes from data is escaped."""
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
    """Return a figure of that size, in inches, with one pair of axes."""
    made = Figure(figsize=(width, height), layout="compressed")
    axes = made.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return made, axes


def png(drawn: Figure) -> bytes:
    """Return a figure as PNG bytes."""
    buffer = BytesIO()
    drawn.set_dpi(_DPI)
    # `savefig` draws once more beforehand for its layout; any drawing does that
    FigureCanvasAgg(drawn).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
