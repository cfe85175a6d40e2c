"""Figures as PNG bytes, drawn without a display; equal input gives equal bytes."""

from __future__ import annotations

from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ACCENT = "#0b6e99"

_DPI = 144


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
