"""What an attempt at training used, put together from what its launches left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.steps.context import StepContext
from headrace.steps.history import HistoryRow, UsageRow, read_history, read_ranks, read_usage
from headrace.steps.usage import AttemptUsage
from headrace.training.records import LaunchFolder, NodeReady, TrainingOutcome, TrainingProgress

_S_PER_H = 3600.0
_NOTHING = TrainingProgress(epoch=0, step=0)


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """One launch of all ranks that got its data."""

    ready: NodeReady
    start: HistoryRow | None
    """Where it went on from; None when no step began, or a script told nothing."""
    batches: int = 0
    """Those of optimizer steps that it trained on."""
    data_wait: float = 0.0
    """Share of its time."""


def spent(context: StepContext, began_at: float, ended_at: float) -> AttemptUsage:
    """What the training of a step used between two times, in seconds since the epoch.

    What nobody has told is null, as much of a script that reports nothing.
    """
    recipe = context.recipe
    launches = _launches(context, began_at)
    if not launches:
        return AttemptUsage()
    launch = launches[0].ready.launch
    staging_s = sum(each.ready.staging_s for each in launches)
    told: dict[str, Any] = {}
    if recipe.train.script is not None:  # all of its time is training's, whatever it tells
        told = {"train_s": max(ended_at - began_at - staging_s, 0.0)}
    started = [(each, each.start) for each in launches if each.start is not None]
    if started:
        start_s = sum(start.at - each.ready.at for each, start in started)
        train_s = max(ended_at - began_at - staging_s - start_s, 0.0)
        last, _ = started[-1]
        batches = sum(each.batches for each in launches)
        told = {
            "start_s": start_s,
            "train_s": train_s,
            "data_wait_s": last.data_wait * train_s,
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


def _launches(context: StepContext, began_at: float) -> list[_Launch]:
    starts = [row for row in read_history(context.run_folder).starts if row.at >= began_at]
    found: list[_Launch] = []
    for path in sorted(context.folder.parts.glob("launch-*"), reverse=True):
        ready = read_record(LaunchFolder(path).ready(0), NodeReady)
        if ready is not None:
            own = [row for row in starts if row.at >= ready.at]
            starts = [row for row in starts if row.at < ready.at]
            found.insert(0, _launch(ready, own[0] if own else None))
    return found


def _launch(ready: NodeReady, start: HistoryRow | None) -> _Launch:
    folder = ready.launch.folder
    progress = read_record(folder.progress, TrainingProgress) or _NOTHING
    trained = read_record(folder.trained, TrainingOutcome)
    if start is None:
        return _Launch(ready=ready, start=None)
    steps = progress.step if trained is None else trained.steps
    return _Launch(
        ready=ready,
        start=start,
        batches=max(steps - start.step, 0) // progress.steps_per_batch,
        data_wait=min(progress.data_wait if trained is None else trained.data_wait, 1.0),
    )


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
    nodes = [rows for rows in nodes if rows]
    cpu = [_mean(rows, since, lambda row: row.cpu) for rows in nodes]
    gpu = [_mean(rows, since, lambda row: row.gpu) for rows in nodes]
    power = [_mean(rows, since, lambda row: row.gpu_power_w) for rows in nodes]
    watts = [each for each in power if each is not None]
    return {
        "cpu_use": _mean_of(cpu),
        "gpu_use": _mean_of(gpu),
        "energy_wh": sum(watts) * train_s / _S_PER_H if watts else None,
    }


def _mean(
    rows: Sequence[UsageRow], since: float, value: Callable[[UsageRow], float | None]
) -> float | None:
    """Mean over time: each row tells of the time since the one before."""
    weights = [
        max(row.at - at, 1e-3)
        for row, at in zip(rows, (since, *(r.at for r in rows)), strict=False)
    ]
    told = [(value(row), weight) for row, weight in zip(rows, weights, strict=True)]
    known = [(each, weight) for each, weight in told if each is not None]
    return (
        sum(each * weight for each, weight in known) / sum(w for _, w in known) if known else None
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return min(sum(known) / len(known), 1.0) if known else None
