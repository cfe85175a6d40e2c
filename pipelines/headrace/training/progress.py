"""Progress of a training, and the usage of an attempt.

Reports of rank 0 go to the status of the step: ranks of a script report by `ScriptReports`, those
of a model by `headrace.training.history_writer`.
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
from headrace.ledger.attempt_usage import AttemptUsage
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
from headrace.training.launch_records import (
    REPORT,
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
_MAX_EVALUATED = 3
_INTERVAL_S = 1.0
_S_PER_H = 3600.0
_NOTHING = TrainingProgress(epoch=0, step=0)


class AttemptMeter:
    """Counts samples, and the seconds waited for batches, since it was restarted.

    `counted` returns the samples of all ranks and the seconds that this rank has waited, so far.
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
        """Seconds since the restart, above 0."""
        return max(time.monotonic() - self._since_s, 1e-9)

    def figures(self) -> dict[str, float]:
        """Return `samples_per_s`, and `data_wait` as a share of the time."""
        samples, wait_s = self._counted()
        seconds = self.seconds
        return {
            "samples_per_s": max(samples - self._samples, 0) / seconds,
            "data_wait": min((wait_s - self._wait_s) / seconds, 1.0),
        }


def training_rows(run: RunFolder, least_s: float) -> tuple[RowWriter[HistoryRow], int]:
    """Return the writer of a launch's rows, and the number of the launch over all attempts."""
    rows = RowWriter(training_file(run), HistoryRow, least_s)
    return rows, 1 + max((row.launch for row in rows.before), default=0)


class ScriptReports:
    """Takes the reports of a rank of a script: signs of life; of rank 0 also the progress.

    Those of another source than the script itself are no sign of life; see `SOURCES`. `loader`
    returns headrace's loader of training batches, or None if the script has its own.
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
        self._reported_samples: int | None = None
        self._rows: RowWriter[HistoryRow] | None = None
        self._number = 1
        self._meter = AttemptMeter(self._counted)

    def take(
        self, now: TrainingProgress, samples: int | None, metrics: Mapping[str, SupportsFloat]
    ) -> None:
        """Note a sign of life; write the report about once a second, and for new metrics."""
        now = now.model_copy(update={"source": now.source or REPORT})
        if is_own := now.source == REPORT:
            self._beat.tick()
        if not self._is_first or (self._last and self._last.source == REPORT and not is_own):
            return
        self._reported_samples = samples
        if self._last is None:
            run = RunFolder(Path(self._launch.run_folder))
            self._rows, self._number = training_rows(run, _INTERVAL_S)
            begin = {"step": max(now.step - 1, 0), "starts": True}
            self._rows.append(self._row(now).model_copy(update=begin))
            self._meter.restart()
        is_new = set(metrics) - {"loss"} - (self._names if is_own else set())
        self._names = set(metrics)
        self._last = now
        self._metrics |= {name: _kept(value) for name, value in metrics.items()}
        if is_new or self._meter.seconds >= _INTERVAL_S:
            self.write(self._names if is_new else ())

    def write(self, new: set[str] | tuple[()] = ()) -> None:
        """Write the last report; `new` metrics go to the history at once."""
        if self._last is None or self._rows is None:
            return
        values = {name: float(value) for name, value in self._metrics.items()}
        figures = {"loss": finite(values.get("loss")), **self._meter.figures()}
        self._meter.restart()
        notes = {"notes": loader.notes} if (loader := self._loader()) else {}
        now = self._last.model_copy(update={**figures, **notes, "metrics": values})
        run = RunFolder(Path(self._launch.run_folder))
        inform(run, "progress", partial(write_record, self._launch.folder.progress, now))
        shown = {name: values[name] for name in new if name != "loss"}
        if self._rows.is_due or (shown and self._rows.has_room):
            update = {**figures, "metrics": shown}
            self._rows.append(self._row(self._last).model_copy(update=update))

    def _row(self, now: TrainingProgress) -> HistoryRow:
        return HistoryRow(at=time.time(), launch=self._number, epoch=now.epoch, step=now.step)

    def _counted(self) -> tuple[int, float]:
        loader, samples = self._loader(), self._reported_samples
        if loader is None:
            return samples or 0, 0.0
        if samples is None:
            samples = loader.num_samples * self._launch.world_size
        return samples, loader.wait_s


def finite(loss: SupportsFloat | None) -> float | None:
    """Return a loss as a number; None if it is not finite."""
    value = math.nan if loss is None else float(loss)
    return value if math.isfinite(value) else None


def _kept(value: SupportsFloat) -> SupportsFloat:
    """Return a tensor without its graph; its value is read when it is written."""
    detach: Callable[[], SupportsFloat] = getattr(value, "detach", lambda: value)
    return detach()


class Follower:
    """Passes the progress of rank 0 on to the step's status; `last` is the newest.

    The status also shows a `problem` that does not end the training.
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
        if progress.notes != self.last.notes:
            self._context.event("notes", **progress.notes)
        if progress != self.last:
            self.last = progress
            loss = {} if progress.loss is None else {"loss": progress.loss}
            run, learned = self._context.run_folder, partial(self._learned, progress)
            figures = inform(run, "figures of the status", learned, within_s=None) or {}
            rates = {"samples_per_s": progress.samples_per_s, "data_wait": progress.data_wait}
            self._context.report(**(figures | loss | rates))
        epochs = "" if self._plan is None else f"/{self._plan.epochs}"
        notes = [f"{name.replace('_', ' ')}: {text}" for name, text in progress.notes.items()]
        known = [f"epoch {progress.epoch + 1}{epochs}", *filter(None, [self.problem]), *notes]
        self._context.progress(progress.step, total, progress.unit, "; ".join(known))

    def _learned(self, progress: TrainingProgress) -> dict[str, float]:
        """Return the newest metrics, few enough for a line, and the monitored metric's best value.

        Metrics of the newest evaluated checkpoint come last.
        """
        finite = [(name, each) for name, each in progress.metrics.items() if math.isfinite(each)]
        best = checkpoints.best_of(self._context.run_folder.checkpoints)
        known = dict(finite[:_MAX_METRICS]) | ({f"best {best.metric}": best.value} if best else {})
        rows = read_evaluated(self._context.run_folder)
        newest = max(rows, key=lambda row: row.step, default=None)
        if newest is None:
            return known
        evaluated = list(newest.metrics.items())[:_MAX_EVALUATED]
        named = {f"evaluated {newest.split}/{name}": value for name, value in evaluated}
        return known | {"evaluated step": float(newest.step)} | named


def spent(context: StepContext, began_at: float, took_s: float) -> AttemptUsage:
    """Return what a training used since a time, in `took_s` seconds: the clock may have been set.

    Unknown figures are None, as most are for a script without reports. Errors are only logged.
    """
    used = partial(_spent, context, began_at, took_s)
    found = inform(context.run_folder, "accounting of the step", used, AttemptUsage)
    return found or AttemptUsage()


def _spent(context: StepContext, began_at: float, took_s: float) -> AttemptUsage:
    recipe = context.recipe
    launches = _launches(context, began_at)
    if not launches:
        return AttemptUsage()
    launch = launches[0][0].launch
    staging_s = sum(ready.staging_s for ready, _ in launches)
    figures: dict[str, Any] = {}
    if recipe.train.is_script:  # all of its time counts, also without reports
        figures = {"train_s": max(took_s - staging_s, 0.0)}
    started = [(ready, start) for ready, start in launches if start is not None]
    if started:
        start_s = sum(start.at - ready.at for ready, start in started)
        train_s = max(took_s - staging_s - start_s, 0.0)
        trained = [_trained(ready, start) for ready, start in started]
        batches, data_wait = sum(each for each, _ in trained), trained[-1][1]
        figures = {
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
        **figures,
        **_of_ranks(context.run_folder, began_at),
    )


def _launches(context: StepContext, began_at: float) -> list[tuple[NodeReady, HistoryRow | None]]:
    """Return the launches whose ranks got their data, and the row at which each started.

    The row is None if no step began, or a script reported nothing.
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
    """Return the batches that a launch trained on, and its share of waiting for data."""
    folder = ready.launch.folder
    progress = read_record(folder.progress, TrainingProgress) or _NOTHING
    trained = read_record(folder.trained, TrainingOutcome)
    steps = progress.step if trained is None else trained.steps
    data_wait = progress.data_wait if trained is None else trained.data_wait
    return max(steps - start.step, 0) // progress.steps_per_batch, min(data_wait, 1.0)


def _of_ranks(run: RunFolder, began_at: float) -> dict[str, Any]:
    """Return the memory of ranks; of GPUs only PyTorch's part, without the context."""
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
    """Return the mean use of the nodes, and the energy of all GPUs and of all CPUs."""
    nodes = [[row for row in rows if row.at >= began_at] for rows in read_usage(run).values()]

    def means(value: Callable[[NodeRow], float | None]) -> list[float]:
        found = (_mean(rows, since, value) for rows in nodes)
        return [each for each in found if each is not None]

    cpu, gpu = means(lambda row: row.cpu), means(lambda row: row.gpu)
    watts, cpu_watts = means(lambda row: row.gpu_power_w), means(lambda row: row.cpu_power_w)
    return {
        "cpu_use": min(sum(cpu) / len(cpu), 1.0) if cpu else None,
        "gpu_use": min(sum(gpu) / len(gpu), 1.0) if gpu else None,
        "energy_wh": sum(watts) * train_s / _S_PER_H if watts else None,
        "cpu_energy_wh": sum(cpu_watts) * train_s / _S_PER_H if cpu_watts else None,
    }


def _mean(
    rows: Sequence[NodeRow], since: float, value: Callable[[NodeRow], float | None]
) -> float | None:
    """Return a mean over time; each row is about the time since the row before."""
    begins = (since, *(row.at for row in rows))
    known = [
        (each, max(row.at - begin, 1e-3))
        for row, begin in zip(rows, begins, strict=False)
        if (each := value(row)) is not None
    ]
    whole_s = sum(seconds for _, seconds in known)
    return sum(each * seconds for each, seconds in known) / whole_s if known else None
