"""What a rank of a script tells: signs of life; of rank 0 also progress and the history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

from headrace.files.atomic import write_if_room
from headrace.files.layout import RunFolder
from headrace.steps.history import HistoryRow, RowWriter, training_file
from headrace.training.records import NodeLaunch, TrainingProgress
from headrace.training.watch import Beat

if TYPE_CHECKING:  # it imports torch
    from headrace.data.loader import BatchLoader

_INTERVAL_S = 1.0


class ScriptReports:
    """Takes the reports of one rank.

    Args:
        launch: Its node's.
        rank: Its number.
        loader: Gives the loader of training batches, None without one of headrace's.
    """

    def __init__(
        self, launch: NodeLaunch, rank: int, loader: Callable[[], BatchLoader | None]
    ) -> None:
        self._beat = Beat(launch.folder.beat(rank))
        self._launch = launch
        self._loader = loader
        self._is_first = rank == 0
        self._last: TrainingProgress | None = None
        self._metrics: dict[str, SupportsFloat] = {}
        self._names: set[str] = set()
        self._told_samples: int | None = None
        self._rows: RowWriter[HistoryRow] | None = None
        self._number = 1
        self._written_at = 0.0
        self._samples, self._wait_s = 0, 0.0

    def take(
        self,
        now: TrainingProgress,
        samples: int | None,
        metrics: Mapping[str, SupportsFloat],
    ) -> None:
        """Beat; written about once a second, and when other metrics come than last time."""
        self._beat.tick()
        if not self._is_first:
            return
        if self._last is None:
            self._begin(now, samples)
        is_new = set(metrics) - self._names - {"loss"}
        self._names = set(metrics)
        self._last, self._told_samples = now, samples
        self._metrics |= {name: _kept(value) for name, value in metrics.items()}
        if is_new or time.monotonic() - self._written_at >= _INTERVAL_S:
            self.write(self._names if is_new else ())

    def write(self, told: set[str] | tuple[()] = ()) -> None:
        """Write what was taken last; metrics that were just `told` go to the history at once."""
        if self._last is None or self._rows is None:
            return
        values = {name: float(value) for name, value in self._metrics.items()}
        loss = values.get("loss", math.nan)
        now = time.monotonic()
        elapsed_s = max(now - self._written_at, 1e-9)
        samples, wait_s = self._counted(self._told_samples)
        figures = {
            "loss": loss if math.isfinite(loss) else None,
            "samples_per_s": max(samples - self._samples, 0) / elapsed_s,
            "data_wait": min((wait_s - self._wait_s) / elapsed_s, 1.0),
        }
        self._written_at, self._samples, self._wait_s = now, samples, wait_s
        write_if_room(
            self._launch.folder.progress,
            self._last.model_copy(update={**figures, "metrics": values}),
        )
        shown = {name: values[name] for name in told if name != "loss"}
        if self._rows.is_due or (shown and self._rows.has_room):
            self._rows.append(
                self._row(self._last).model_copy(update={**figures, "metrics": shown})
            )

    def _begin(self, now: TrainingProgress, samples: int | None) -> None:
        run = RunFolder(Path(self._launch.run_folder))
        self._rows = RowWriter(training_file(run), HistoryRow, _INTERVAL_S)
        self._number += max((row.launch for row in self._rows.before), default=0)
        start = self._row(now)
        self._rows.append(start.model_copy(update={"step": max(now.step - 1, 0), "starts": True}))
        self._written_at = time.monotonic()
        self._samples, self._wait_s = self._counted(samples)

    def _row(self, now: TrainingProgress) -> HistoryRow:
        return HistoryRow(at=time.time(), launch=self._number, epoch=now.epoch, step=now.step)

    def _counted(self, told: int | None) -> tuple[int, float]:
        """Samples of all ranks and seconds waited for them, so far."""
        loader = self._loader()
        if loader is None:
            return told or 0, 0.0
        samples = loader.num_samples * self._launch.world_size
        return samples if told is None else told, loader.wait_s


def _kept(value: SupportsFloat) -> SupportsFloat:
    """A tensor without the graph that made it; it is read when it is written."""
    detach: Callable[[], SupportsFloat] = getattr(value, "detach", lambda: value)
    return detach()
