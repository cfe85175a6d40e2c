"""Figures of a training: losses and metrics by step, speed and use of the nodes by time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Sized
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from headrace.report.html import ACCENT, figure, png
from headrace.steps.history import PARTS, History, HistoryRow, NodeRow, RankRow, Series, series_of

_SIZE = (5.2, 3.4)
_MAX_FIGURES = 12
_MAX_NODES = 4
_LINES = ("-", "--", ":", "-.")
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


def training_figures(
    history: History,
    usage: Mapping[str, Sequence[NodeRow]],
    evaluated: int | None = None,
    ranks: Mapping[int, Sequence[RankRow]] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Return all figures of a training, by title; none without a history.

    Restarts are dashed lines. Metrics that differ in `train` and `val` only share a figure.

    Args:
        history: Of the training.
        usage: How busy each node was.
        evaluated: Optimizer steps of the checkpoint that is evaluated, which is marked.
        ranks: What each rank took.
    """
    if not history.rows:
        return {}
    series = series_of(history)
    figures = {
        _title(name): _by_step(curves, history, evaluated)
        for name, curves in list(_grouped(series).items())[:_MAX_FIGURES]
    }
    rates = {each.name: _curve(each.points) for each in series if each.kind == "lr"}
    figures["Learning rate"] = _by_step(rates, history, evaluated)
    figures["Throughput"] = _throughput(history)
    figures["Waiting for data, and use of the nodes"] = _utilisation(history, usage)
    return figures | _use_figures(history, usage, ranks)


def _use_figures(
    history: History,
    usage: Mapping[str, Sequence[NodeRow]],
    ranks: Mapping[int, Sequence[RankRow]],
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


def _title(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


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


def _throughput(history: History) -> bytes:
    drawn, axes = figure(*_SIZE)
    clock = _Clock(history.all_rows)
    rows = [row for row in history.all_rows if row.samples_per_s is not None]
    rates = [row.samples_per_s or 0.0 for row in rows]
    clock.plot(axes, [row.at for row in rows], rates, "", ACCENT)
    clock.finish(axes)
    axes.set(ylabel="Samples a second", ylim=(0, None))
    return png(drawn)


def _utilisation(history: History, usage: Mapping[str, Sequence[NodeRow]]) -> bytes:
    drawn, axes = figure(*_SIZE)
    clock = _Clock(history.all_rows)
    waits = [row for row in history.all_rows if row.data_wait is not None]
    times = [row.at for row in waits]
    clock.plot(axes, times, [row.data_wait or 0.0 for row in waits], "waiting for data", "C1")
    for index, (place, rows) in enumerate(list(usage.items())[:_MAX_NODES]):
        style, times = _LINES[index], [row.at for row in rows]
        clock.plot(axes, times, [row.cpu for row in rows], f"CPU of {place}", "C0", style)
        asked = [row for row in rows if row.gpu is not None]
        shares, times = [row.gpu or 0.0 for row in asked], [row.at for row in asked]
        clock.plot(axes, times, shares, f"GPUs of {place}", "C2", style)
    clock.finish(axes)
    axes.set(ylim=(0, 1.05))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    more = f"{_MAX_NODES} of {len(usage)} nodes" if len(usage) > _MAX_NODES else None
    axes.legend(fontsize=8, title=more, title_fontsize=8, frameon=False)
    return png(drawn)


def _parts(history: History) -> bytes:
    """Draw shares of rank 0's time, stacked."""
    drawn, axes = figure(*_SIZE)
    clock, rows = _Clock(history.all_rows), [row for row in history.all_rows if row.parts]
    names = ("data", *(name for name in PARTS if any(name in row.parts for row in rows)))
    parts = [{"data": row.data_wait or 0.0, **row.parts} for row in rows]
    shares = [[each.get(name, 0.0) for each in parts] for name in names]
    axes.stackplot(clock.places([row.at for row in rows]), shares, labels=names)
    clock.finish(axes)
    axes.set(ylim=(0, 1.05))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return png(drawn)


def _traffic(history: History, usage: Mapping[str, Sequence[NodeRow]]) -> bytes:
    drawn, axes = figure(*_SIZE)
    clock = _Clock(history.all_rows)
    for index, (place, rows) in enumerate(list(usage.items())[:_MAX_NODES]):
        times = [row.at for row in rows]
        for color, (name, key) in enumerate(_TRAFFIC.items()):
            rates = [(getattr(row, key) or 0.0) / 1e6 for row in rows]
            clock.plot(axes, times, rates, f"{name}, {place}", f"C{color}", _LINES[index])
    clock.finish(axes)
    axes.set(ylabel="MB a second", ylim=(0, None))
    axes.legend(fontsize=7, frameon=False)
    return png(drawn)


def _memory(history: History, ranks: Mapping[int, Sequence[RankRow]]) -> bytes:
    """Draw the memory of the largest ranks; dotted: the peak of tensors on their GPUs."""
    drawn, axes = figure(*_SIZE)
    clock = _Clock(history.all_rows)
    most = sorted(ranks, key=lambda rank: -max((row.rss_bytes for row in ranks[rank]), default=0))
    for color, rank in enumerate(sorted(most[:_MAX_NODES])):
        rows = ranks[rank]
        times, rss = [row.at for row in rows], [row.rss_bytes / 1e9 for row in rows]
        clock.plot(axes, times, rss, f"rank {rank}", f"C{color}")
        on_gpu = [row for row in rows if row.gpu_peak_bytes is not None]
        peaks, times = [(row.gpu_peak_bytes or 0) / 1e9 for row in on_gpu], [r.at for r in on_gpu]
        clock.plot(axes, times, peaks, f"its GPU's peak, rank {rank}", f"C{color}", ":")
    clock.finish(axes)
    axes.set(ylabel="GB", ylim=(0, None))
    more = f"{_MAX_NODES} of {len(ranks)} ranks" if len(ranks) > _MAX_NODES else None
    axes.legend(fontsize=8, title=more, title_fontsize=8, frameon=False)
    return png(drawn)


class _Clock:
    """The time since the start of a training, in a fitting unit; lines break at restarts."""

    def __init__(self, rows: Sequence[HistoryRow]) -> None:
        self._began_at = rows[0].at
        self._starts = [row.at for row in rows if row.starts][1:]
        length_s = rows[-1].at - self._began_at
        fitting = ((size, name) for least, size, name in _UNITS if length_s >= least)
        self._unit_s, self._unit = next(fitting, (1.0, "seconds"))

    def places(self, times: Sequence[float]) -> NDArray[np.float64]:
        """Return positions on the axis of times in seconds since the epoch."""
        return (np.asarray(times, float) - self._began_at) / self._unit_s

    def plot(
        self,
        axes: Axes,
        times: Sequence[float],
        values: Sequence[float],
        label: str,
        color: str,
        style: str = "-",
    ) -> None:
        """Draw a line of values at times in seconds since the epoch; nothing without any."""
        cuts = np.searchsorted(times, self._starts)
        parts = zip(
            np.split(self.places(times), cuts),
            np.split(np.asarray(values, float), cuts),
            strict=True,
        )
        for x, y in parts:
            if len(x):
                marker = _marker(y)
                axes.plot(
                    x,
                    y,
                    style,
                    color=color,
                    marker=marker,
                    markersize=3,
                    linewidth=1.2,
                    label=label,
                )
                label = "_"

    def finish(self, axes: Axes) -> None:
        """Mark the restarts and name the axis."""
        _mark_restarts(axes, [(at - self._began_at) / self._unit_s for at in self._starts])
        axes.set(xlabel=f"Time since training began, {self._unit}")


def _mark_restarts(axes: Axes, places: Sequence[float]) -> None:
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
