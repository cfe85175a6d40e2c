"""Figures of a training: losses and metrics by step, speed and use of the nodes by time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from headrace.report.html import ACCENT, figure, png
from headrace.steps.history import PARTS, History, NodeRow, RankRow, Series, series_of

_SIZE = (5.2, 3.4)
_MAX_FIGURES = 12
_LINES = ("-", "--", ":", "-.")
"""Styles of lines; so many nodes or ranks are shown."""

_SHARES = (0, 1.05)
_TRAFFIC = {
    "read from disk": "disk_read_bytes_per_s",
    "written": "disk_write_bytes_per_s",
    "received": "network_in_bytes_per_s",
    "sent": "network_out_bytes_per_s",
}
_LOG_FROM = 100.0
_MARKED = 60
_PART = re.compile(r"^(train(ing)?|val(id(ation)?)?|test)[/_.\- ]")
_UNITS = ((259_200.0, 86_400.0, "days"), (10_800.0, 3_600.0, "hours"), (180.0, 60.0, "minutes"))

Curve = tuple[Sequence[float], Sequence[float]]
"""Steps and values."""

_Line = tuple[Sequence[Any], Callable[[Any], float | None], str, str, str]
"""Rows and what is drawn of each, None for nothing; then label, color and style."""


def training_figures(
    history: History,
    usage: Mapping[str, Sequence[NodeRow]],
    evaluated: int | None = None,
    ranks: Mapping[int, Sequence[RankRow]] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Return all figures of a training, by title; none without a history.

    Restarts are dashed lines. Metrics that differ in `train` and `val` only share a figure.
    `evaluated` are the optimizer steps of the checkpoint that is evaluated, which is marked.
    """
    if not history.rows:
        return {}
    series = series_of(history)
    figures = {
        name[:1].upper() + name[1:].replace("_", " "): _by_step(curves, history, evaluated)
        for name, curves in list(_grouped(series).items())[:_MAX_FIGURES]
    }
    rates = {each.name: _curve(each.points) for each in series if each.kind == "lr"}
    figures["Learning rate"] = _by_step(rates, history, evaluated)
    speed: _Line = (history.all_rows, lambda row: row.samples_per_s, "", ACCENT, "-")
    figures["Throughput"] = _by_time(history, [speed], ylabel="Samples a second", ylim=(0, None))
    figures["Waiting for data, and use of the nodes"] = _utilisation(history, usage)
    return figures | _use_figures(history, usage, ranks)


def _use_figures(
    history: History, usage: Mapping[str, Sequence[NodeRow]], ranks: Mapping[int, Sequence[RankRow]]
) -> dict[str, bytes]:
    """Return the figures of parts of steps, traffic of disks and network, and ranks' memory."""
    found = {}
    if any(row.parts for row in history.all_rows):
        found["What the time of steps goes to"] = _parts(history)
    if any(row.network_in_bytes_per_s is not None for rows in usage.values() for row in rows):
        found["Disks and network of the nodes"] = _traffic(history, usage)
    if ranks:
        found["Memory of the ranks"] = _memory(history, ranks)
    return found


def _grouped(series: Sequence[Series]) -> dict[str, dict[str, Curve]]:
    """Return the curves of each figure by name, the losses first, others in the logged order."""
    found: dict[str, dict[str, Curve]] = {"loss": {}}
    for each in series:
        if each.kind != "lr":
            title = "loss" if each.kind == "loss" else _PART.sub("", each.name)
            found.setdefault(title, {})[each.name] = _curve(each.points)
    return {name: curves for name, curves in found.items() if curves}


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    steps, values = zip(*points, strict=True)
    return steps, values


def _by_step(curves: Mapping[str, Curve], history: History, evaluated: int | None) -> bytes:
    drawn, axes = figure(*_SIZE)
    for name, (steps, values) in curves.items():
        axes.plot(steps, values, marker=_marker(values), markersize=3, linewidth=1.3, label=name)
    _scale(axes, [value for _, values in curves.values() for value in values])
    _mark_restarts(axes, [row.step for row in history.starts[1:]])
    if evaluated is not None:
        axes.axvline(evaluated, color=ACCENT, linewidth=1, alpha=0.6, label="evaluated")
    axes.set(xlabel="Optimizer step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8, frameon=False)
    return png(drawn)


def _utilisation(history: History, usage: Mapping[str, Sequence[NodeRow]]) -> bytes:
    waits = attrgetter("data_wait")
    lines: list[_Line] = [(history.all_rows, waits, "waiting for data", "C1", "-")]
    for style, (place, rows) in zip(_LINES, usage.items(), strict=False):
        lines.append((rows, attrgetter("cpu"), f"CPU of {place}", "C0", style))
        lines.append((rows, attrgetter("gpu"), f"GPUs of {place}", "C2", style))
    legend = {"fontsize": 8, "title": _shown_of(usage, "nodes"), "title_fontsize": 8}
    return _by_time(history, lines, legend, ylim=_SHARES)


def _traffic(history: History, usage: Mapping[str, Sequence[NodeRow]]) -> bytes:
    def rate_of(key: str) -> Callable[[NodeRow], float]:
        return lambda row: (getattr(row, key) or 0.0) / 1e6

    lines: list[_Line] = [
        (rows, rate_of(key), f"{name}, {place}", f"C{color}", style)
        for style, (place, rows) in zip(_LINES, usage.items(), strict=False)
        for color, (name, key) in enumerate(_TRAFFIC.items())
    ]
    return _by_time(history, lines, {"fontsize": 7}, ylabel="MB a second", ylim=(0, None))


def _memory(history: History, ranks: Mapping[int, Sequence[RankRow]]) -> bytes:
    """Draw the memory of the largest ranks; dotted: the peak of tensors on their GPUs."""

    def peak(row: RankRow) -> float | None:
        return None if row.gpu_peak_bytes is None else row.gpu_peak_bytes / 1e9

    most = sorted(ranks, key=lambda rank: -max((row.rss_bytes for row in ranks[rank]), default=0))
    lines: list[_Line] = []
    for number, rank in enumerate(sorted(most[: len(_LINES)])):
        rows, color = ranks[rank], f"C{number}"
        lines.append((rows, lambda row: row.rss_bytes / 1e9, f"rank {rank}", color, "-"))
        lines.append((rows, peak, f"its GPU's peak, rank {rank}", color, ":"))
    legend = {"fontsize": 8, "title": _shown_of(ranks, "ranks"), "title_fontsize": 8}
    return _by_time(history, lines, legend, ylabel="GB", ylim=(0, None))


def _parts(history: History) -> bytes:
    """Draw shares of rank 0's time, stacked."""
    rows = [row for row in history.all_rows if row.parts]
    names = ("data", *(name for name in PARTS if any(name in row.parts for row in rows)))
    parts = [{"data": row.data_wait or 0.0, **row.parts} for row in rows]
    shares = {name: [each.get(name, 0.0) for each in parts] for name in names}
    stack = ([row.at for row in rows], shares)
    legend = {"fontsize": 8, "ncols": 3, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    return _by_time(history, (), legend, stack, ylim=_SHARES)


def _shown_of(all_of_them: Sized, what: str) -> str | None:
    """Return the title of a legend that has not room for all; None if all are shown."""
    return f"{len(_LINES)} of {len(all_of_them)} {what}" if len(all_of_them) > len(_LINES) else None


def _by_time(
    history: History,
    lines: Iterable[_Line],
    legend: Mapping[str, Any] | None = None,
    stack: tuple[Sequence[float], Mapping[str, Sequence[float]]] | None = None,
    **of_axes: Any,
) -> bytes:
    """Draw lines, or a `stack` of shares by name, over the time since the start of a training.

    Times are seconds since the epoch, and shown in a fitting unit. Lines break at restarts.
    """
    rows = history.all_rows
    length_s = rows[-1].at - rows[0].at
    fitting = ((size, name) for least, size, name in _UNITS if length_s >= least)
    unit_s, unit = next(fitting, (1.0, "seconds"))

    def places(times: ArrayLike) -> NDArray[np.float64]:
        return (np.asarray(times, float) - rows[0].at) / unit_s

    starts = [row.at for row in rows if row.starts][1:]
    drawn, axes = figure(*_SIZE)
    for of_line, value, label, color, style in lines:
        known = [(row.at, each) for row in of_line if (each := value(row)) is not None]
        points = np.array(known, float).reshape(-1, 2)
        for part in np.split(points, np.searchsorted(points[:, 0], starts)):
            if len(part):
                shape: dict[str, Any] = {"marker": _marker(part), "markersize": 3, "linewidth": 1.2}
                x, y = places(part[:, 0]), part[:, 1]
                axes.plot(x, y, style, color=color, label=label, **shape)
                label = "_"
    if stack is not None:
        times, shares = stack
        axes.stackplot(places(times), list(shares.values()), labels=list(shares))
    _mark_restarts(axes, places(starts))
    axes.set(xlabel=f"Time since training began, {unit}", **of_axes)
    if of_axes["ylim"] is _SHARES:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if legend is not None:
        axes.legend(frameon=False, **legend)
    return png(drawn)


def _mark_restarts(axes: Axes, places: Iterable[float]) -> None:
    for index, place in enumerate(places):
        label = "restart" if index == 0 else "_"
        axes.axvline(place, color="grey", linestyle="--", linewidth=0.9, alpha=0.7, label=label)


def _marker(values: Sized) -> str:
    return "o" if len(values) <= _MARKED else ""


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Show values that are far apart on a logarithmic axis, and one value above zero."""
    known = [value for value in values if math.isfinite(value)]
    if not known or min(known) <= 0:
        return
    if max(known) / min(known) > _LOG_FROM:
        axes.set_yscale("log")
    elif max(known) == min(known):
        axes.set_ylim(0, 2 * known[0])
