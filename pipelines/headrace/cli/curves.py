"""Metrics of a running training in a terminal: the newest and best value, and a small curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from rich.table import Table
from rich.text import Text

from headrace.cli.console import plain_table
from headrace.files.layout import RunFolder
from headrace.steps.history import History, read_history, series_of, training_file

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_MOST = 6
_BEST = "best "
_OF_THE_STEP = ("samples_per_s", "data_wait", "skipped_shards", "skipped_samples")
"""Figures of a train step that are not the model's metrics."""


def history_of(run: RunFolder) -> History:
    """Return the history of a training; read again only if its file has grown."""
    file = training_file(run)
    return _read(run.path, file.stat().st_size) if file.exists() else History(())


@lru_cache(maxsize=2)
def _read(folder: Path, _num_bytes: int) -> History:
    return read_history(RunFolder(folder))


def metrics_table(newest: Mapping[str, float], history: History) -> Table | None:
    """Return a table of a training's metrics: the loss, metrics with a best value, the rest.

    Args:
        newest: As in the step's status; the best value of a metric is under `best METRIC`.
        history: What the training has reported so far.

    Returns:
        None before the first report.
    """
    curves = {
        "loss" if each.kind == "loss" else each.name: [value for _, value in each.points]
        for each in series_of(history)
        if each.kind != "lr"
    }
    found = {name: values[-1] for name, values in curves.items()}
    found |= {name: value for name, value in newest.items() if name not in _OF_THE_STEP}
    names = sorted(
        (name for name in found if not name.startswith(_BEST)),
        key=lambda name: (name != "loss", f"{_BEST}{name}" not in found, name),
    )
    if not names:
        return None
    table = plain_table("metric", figures=("now", "best"))
    table.columns[0].overflow = "fold"
    table.add_column("so far", no_wrap=True)
    for name in names[:_MOST]:
        best = found.get(f"{_BEST}{name}")
        best_value = "" if best is None else f"{best:.4g}"
        table.add_row(Text(name), f"{found[name]:.4g}", best_value, curve(curves.get(name, ())))
    if len(names) > _MOST:
        table.add_row(f"and {len(names) - _MOST} more: --json", "", "", "")
    return table


def curve(values: Sequence[float], width: int = _WIDTH) -> str:
    """Return values as blocks of eight heights, the newest last; empty for fewer than two.

    If there are more values than `width`, neighbours are shown by their mean.
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    count = min(width, len(known))
    ends = [part * len(known) // count for part in range(count + 1)]
    means = [math.fsum(known[a:b]) / (b - a) for a, b in pairwise(ends)]
    least, most = min(means), max(means)
    scale = (len(_BLOCKS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BLOCKS[round((mean - least) * scale)] for mean in means)
