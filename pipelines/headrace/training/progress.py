"""How far a training is, and what an attempt at it used.

What rank 0 tells goes to the status of the step; ranks of a script tell it by `ScriptReports`,
those of a model by `headrace.training.history_writer`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from headrace.checkpoints import files as checkpoints
from headrace.files.atomic import read_record, read_text, write_record
from headrace.files.layout import RunFolder
from headrace.informing import inform
from headrace.steps.context import StepContext
from headrace.steps.history import (
    HistoryRow,
    NodeRow,
    RowWriter,
    read_evaluated,
    read_history,
    read_ranks,
    read_usage,
    training_file,
)
from headrace.steps.usage import AttemptUsage
from headrace.training.launch_records import (
    LaunchFolder,
    NodeLaunch,
    NodeReady,
    TrainingOutcome,
    TrainingProgress,
)
from headrace.training.watch_ranks import Beat

if TYPE_CHECKING:  # they import torch and NumPy
    from headrace.data.loader import BatchLoader
    from headrace.training.training_plan import TrainPlan

_MAX_METRICS = 12
_MAX_JUDGED = 3
_INTERVAL_S = 1.0
_S_PER_H = 3600.0
_NOTHING = TrainingProgress(epoch=0, step=0)


class AttemptMeter:
    """Counts samples, and the time that batches were waited for, since it was restarted.

    `counted` gives samples of all ranks and seconds that this one has waited for them, so far.
    """

    def __init__(self, counted: Callable[[], tuple[int, float]]) -> None:
        self._counted = counted
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._since_s = time.monotonic()
        self._samples, self._wait_s = self._counted()

    @property
    def seconds(self) -> float:
        """Time since then."""
        return max(time.monotonic() - self._since_s, 1e-9)

    def figures(self) -> dict[str, float]:
        """`samples_per_s`, and `data_wait` as a share of the time."""
        samples, wait_s = self._counted()
        seconds = self.seconds
        return {
            "samples_per_s": max(samples - self._samples, 0) / seconds,
            "data_wait": min((wait_s - self._wait_s) / seconds, 1.0),
        }


def training_rows(run: RunFolder, least_s: float) -> tuple[RowWriter[HistoryRow], int]:
    """The writer of a launch's rows, and the number of the launch over all attempts."""
    rows = RowWriter(training_file(run), HistoryRow, least_s)
    return rows, 1 + max((row.launch for row in rows.before), default=0)


class ScriptReports:
    """Takes the reports of one rank of a script: signs of life; of rank 0 also how far it is.

    `loader` gives the loader of training batches, None without one of headrace's.
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
        self._meter = AttemptMeter(self._counted)

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
        self._told_samples = samples
        if self._last is None:
            run = RunFolder(Path(self._launch.run_folder))
            self._rows, self._number = training_rows(run, _INTERVAL_S)
            begin = {"step": max(now.step - 1, 0), "starts": True}
            self._rows.append(self._row(now).model_copy(update=begin))
            self._meter.restart()
        is_new = set(metrics) - self._names - {"loss"}
        self._names = set(metrics)
        self._last = now
        self._metrics |= {name: _kept(value) for name, value in metrics.items()}
        if is_new or self._meter.seconds >= _INTERVAL_S:
            self.write(self._names if is_new else ())

    def write(self, told: set[str] | tuple[()] = ()) -> None:
        """Write what was taken last; metrics that were just `told` go to the history at once."""
        if self._last is None or self._rows is None:
            return
        values = {name: float(value) for name, value in self._metrics.items()}
        loss = values.get("loss", math.nan)
        figures = {"loss": loss if math.isfinite(loss) else None, **self._meter.figures()}
        self._meter.restart()
        now = self._last.model_copy(update={**figures, "metrics": values})
        run = RunFolder(Path(self._launch.run_folder))
        inform(run, "progress", partial(write_record, self._launch.folder.progress, now))
        shown = {name: values[name] for name in told if name != "loss"}
        if self._rows.is_due or (shown and self._rows.has_room):
            self._rows.append(
                self._row(self._last).model_copy(update={**figures, "metrics": shown})
            )

    def _row(self, now: TrainingProgress) -> HistoryRow:
        return HistoryRow(at=time.time(), launch=self._number, epoch=now.epoch, step=now.step)

    def _counted(self) -> tuple[int, float]:
        loader, told = self._loader(), self._told_samples
        if loader is None:
            return told or 0, 0.0
        return loader.num_samples * self._launch.world_size if told is None else told, loader.wait_s


def _kept(value: SupportsFloat) -> SupportsFloat:
    """A tensor without the graph that made it; it is read when it is written."""
    detach: Callable[[], SupportsFloat] = getattr(value, "detach", lambda: value)
    return detach()


class Follower:
    """Passes the progress of rank 0 on to the step's status; `last` is the newest.

    A `problem` that does not end the training is told beside it.
    """

    def __init__(self, context: StepContext, plan: TrainPlan | None, world_size: int) -> None:
        self._context = context
        self._plan = plan
        self._world_size = world_size
        self.last = TrainingProgress(epoch=0, step=0)
        self.problem = ""

    def __call__(self, progress: TrainingProgress | None) -> None:
        """Take a report, None while ranks start; raises as `StepContext.check`."""
        latest = progress or self.last
        total = None if self._plan is None else self._plan.steps_with(latest.steps_per_batch)
        if progress is None:
            does = "running" if self._plan is None else "starting"  # scripts need not report
            waits = read_text(self._context.folder.waits)
            phase = waits or f"{does} {self._world_size} ranks"
            self._context.progress(self.last.step, total, "steps", phase)
            return
        total = total or progress.total_steps
        if progress != self.last:
            self.last = progress
            loss = {} if progress.loss is None else {"loss": progress.loss}
            run, learned = self._context.run_folder, partial(self._learned, progress)
            told = inform(run, "figures of the status", learned, within_s=None) or {}
            rates = {"samples_per_s": progress.samples_per_s, "data_wait": progress.data_wait}
            self._context.report(**(told | loss | rates))
        epochs = "" if self._plan is None else f"/{self._plan.epochs}"
        phase = f"epoch {progress.epoch + 1}{epochs}" + (self.problem and f"; {self.problem}")
        self._context.progress(progress.step, total, "steps", phase)

    def _learned(self, progress: TrainingProgress) -> dict[str, float]:
        """The newest metrics, not too many for a line, and the best value of the monitored one.

        Also what the newest checkpoint was judged to be, where somebody evaluates them meanwhile.
        """
        told = [(name, each) for name, each in progress.metrics.items() if math.isfinite(each)]
        best = checkpoints.best_of(self._context.run_folder.checkpoints)
        known = dict(told[:_MAX_METRICS]) | ({f"best {best.metric}": best.value} if best else {})
        rows = read_evaluated(self._context.run_folder)
        newest = max(rows, key=lambda row: row.step, default=None)
        if newest is None:
            return known
        judged = list(newest.metrics.items())[:_MAX_JUDGED]
        named = {f"evaluated {newest.split}/{name}": value for name, value in judged}
        return known | {"evaluated step": float(newest.step)} | named


def spent(context: StepContext, began_at: float, ended_at: float) -> AttemptUsage:
    """Return what a training used between two times, in seconds since the epoch.

    What is not known is null, as much of a script that reports nothing; the step succeeds without.
    """
    used = partial(_spent, context, began_at, ended_at)
    found = inform(context.run_folder, "accounting of the step", used, AttemptUsage)
    return found or AttemptUsage()


def _spent(context: StepContext, began_at: float, ended_at: float) -> AttemptUsage:
    recipe = context.recipe
    launches = _launches(context, began_at)
    if not launches:
        return AttemptUsage()
    launch = launches[0][0].launch
    staging_s = sum(ready.staging_s for ready, _ in launches)
    told: dict[str, Any] = {}
    if recipe.train.script is not None:  # all of its time is training's, whatever it tells
        told = {"train_s": max(ended_at - began_at - staging_s, 0.0)}
    started = [(ready, start) for ready, start in launches if start is not None]
    if started:
        start_s = sum(start.at - ready.at for ready, start in started)
        train_s = max(ended_at - began_at - staging_s - start_s, 0.0)
        trained = [_trained(ready, start) for ready, start in started]
        batches, data_wait = sum(each for each, _ in trained), trained[-1][1]
        told = {
            "start_s": start_s,
            "train_s": train_s,
            "data_wait_s": data_wait * train_s,
            "samples": batches * recipe.data.global_batch_size if recipe.model else None,
            **_of_nodes(context.run_folder, began_at, started[0][1].at, train_s),
        }
    return AttemptUsage(
        node=launch.node_name,
        nodes=launch.num_nodes,
        cpus=float(launch.num_nodes * context.site.roles[recipe.train.role].cpus_per_node),
        staging_s=staging_s,
        **told,
        **_of_ranks(context.run_folder, began_at),
    )


def _launches(context: StepContext, began_at: float) -> list[tuple[NodeReady, HistoryRow | None]]:
    """Launches of all ranks that got their data, and where each went on from.

    That is None when no step began, or a script told nothing.
    """
    starts = [row for row in read_history(context.run_folder).starts if row.at >= began_at]
    found: list[tuple[NodeReady, HistoryRow | None]] = []
    for path in sorted(context.folder.parts.glob("launch-*"), reverse=True):
        ready = read_record(LaunchFolder(path).ready(0), NodeReady)
        if ready is not None:
            own = [row for row in starts if row.at >= ready.at]
            starts = [row for row in starts if row.at < ready.at]
            found.insert(0, (ready, own[0] if own else None))
    return found


def _trained(ready: NodeReady, start: HistoryRow) -> tuple[int, float]:
    """Batches of optimizer steps that a launch trained on, and its share of waiting for data."""
    folder = ready.launch.folder
    progress = read_record(folder.progress, TrainingProgress) or _NOTHING
    trained = read_record(folder.trained, TrainingOutcome)
    steps = progress.step if trained is None else trained.steps
    data_wait = progress.data_wait if trained is None else trained.data_wait
    return max(steps - start.step, 0) // progress.steps_per_batch, min(data_wait, 1.0)


def _of_ranks(run: RunFolder, began_at: float) -> dict[str, Any]:
    """Memory; of GPUs what PyTorch held, to which their context comes."""
    ranks = [[row for row in rows if row.at >= began_at] for rows in read_ranks(run).values()]
    on_gpu = [
        max((max(row.gpu_bytes or 0, row.gpu_peak_bytes or 0) for row in rows), default=0)
        for rows in ranks
    ]
    memory_bytes = sum(max((row.rss_bytes for row in rows), default=0) for rows in ranks)
    return {
        "gpus": float(sum(each > 0 for each in on_gpu)),
        "memory_bytes": memory_bytes or None,
        "gpu_memory_bytes": max(on_gpu, default=0) or None,
    }


def _of_nodes(run: RunFolder, began_at: float, since: float, train_s: float) -> dict[str, Any]:
    """How busy the nodes were, the mean over them, and the energy of their GPUs together."""
    nodes = [[row for row in rows if row.at >= began_at] for rows in read_usage(run).values()]

    def means(value: Callable[[NodeRow], float | None]) -> list[float]:
        found = (_mean(rows, since, value) for rows in nodes)
        return [each for each in found if each is not None]

    cpu, gpu = means(lambda row: row.cpu), means(lambda row: row.gpu)
    watts = means(lambda row: row.gpu_power_w)
    return {
        "cpu_use": min(sum(cpu) / len(cpu), 1.0) if cpu else None,
        "gpu_use": min(sum(gpu) / len(gpu), 1.0) if gpu else None,
        "energy_wh": sum(watts) * train_s / _S_PER_H if watts else None,
    }


def _mean(
    rows: Sequence[NodeRow], since: float, value: Callable[[NodeRow], float | None]
) -> float | None:
    """Mean over time of what was told: each row tells of the time since the one before."""
    begins = (since, *(row.at for row in rows))
    known = [
        (each, max(row.at - begin, 1e-3))
        for row, begin in zip(rows, begins, strict=False)
        if (each := value(row)) is not None
    ]
    whole_s = sum(seconds for _, seconds in known)
    return sum(each * seconds for each, seconds in known) / whole_s if known else None
