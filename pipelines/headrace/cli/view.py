"""A run as rich renderables: the live table with its metrics and curves, the closing summary."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import typer
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli import EXIT_ERROR, EXIT_METRICS
from headrace.cli.console import duration, facts, plain_table
from headrace.cli.words import (
    ABANDONED,
    busy,
    cost_words,
    ends,
    heading,
    predicted,
    repeated,
    result_line,
    styled,
)
from headrace.errors import MetricsError
from headrace.files.layout import RunFolder
from headrace.runs.owners import owner_process
from headrace.states import FailureClass, StepState
from headrace.status.run_details import RunDetails
from headrace.status.step import StepView
from headrace.steps.history import History, read_history, series_of, training_file

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_MOST = 6
_BEST = "best "
_OF_THE_STEP = ("samples_per_s", "data_wait", "skipped_shards", "skipped_samples")
"""Figures of a train step that are not the model's metrics."""


def live(view: RunDetails, history: History | None = None) -> RenderableType:
    """Return the table of a running run; `history` belongs to its current training."""
    table = Table(expand=True, box=None, pad_edge=False)
    for title in ("step", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("", ratio=1, min_width=6)
    table.add_column("", ratio=4, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    for step in view.steps:
        table.add_row(*_row(step))
    foot = Text(f"{duration(view.elapsed_s)}{ends(view.ahead)}", style="dim")
    if view.dashboard_url:
        foot.append(f" · Dask dashboard {view.dashboard_url}")
    if view.cost is not None:
        foot.append(f" · {cost_words(view.cost)}")
    notes = (Text(remark, style="yellow") for remark in remarks(view))
    status = train.status if (train := trains(view)) else None
    learned = metrics_table(status.metrics, history or History(())) if status else None
    parts = () if learned is None else (learned,)
    return Group(_heading(view), table, *parts, *map(Text, busy(view.use)), *notes, foot)


def trains(view: RunDetails) -> StepView | None:
    """Return the train step of a run that trains at present; None if it does not."""
    running = (step for step in view.steps if step.state is StepState.RUNNING)
    return next((step for step in running if step.name == "train"), None)


def _heading(view: RunDetails, *more: str) -> Text:
    state = Text(ABANDONED, style="red") if view.is_orphan else styled(view.state.value)
    return heading(view, state, *more)


def remarks(view: RunDetails) -> Iterator[str]:
    """Yield notes about a run's problems, with the next step."""
    process, resume = owner_process(view.owner), f"headrace resume {view.run_id.partition(':')[0]}"
    if view.is_orphan and process is not None:
        yield (
            f"Abandoned: process {process.pid} on {process.host}, which ran it, has ended. "
            f"Resume it: {resume} --detach"
        )
    if view.is_interrupted:
        yield f"Its suite has ended, and it continues with it: {resume}"
    yield from (f"Resumed with changes, {each}" for each in view.changed)
    if view.waits_for:
        yield f"Waits for {'nodes' if view.has_lease else 'a lease'}: {view.waits_for}"
    if view.without:
        nodes = ", ".join(view.without)
        yield f"Avoids {nodes}: jobs failed there; details: headrace lease show LEASE"
    if view.lost_nodes:
        count, last = len(view.lost_nodes), view.lost_nodes[-1]
        nodes = "1 node" if count == 1 else f"{count} nodes"
        where, why = f" (on {last.host})" if last.host else "", last.why.partition("\n")[0]
        yield f"{nodes} of its pools ended early, the last: {why}{where}"
    if view.informing.count:
        yield view.informing.words
    for step in view.steps:
        goes_on = not view.state.is_final
        yield from (f"{step.name}: {words}" for words in _troubles(step, goes_on=goes_on))
    if view.damage:
        yield view.damage
    if view.suspects:
        yield (
            f"Its jobs failed on {', '.join(view.suspects)}, and the batch system cannot exclude "
            "nodes; details: headrace lease show LEASE"
        )


def _troubles(step: StepView, *, goes_on: bool) -> Iterator[str]:
    if step.restarts:
        yield repeated("restarted {}", len(step.restarts), step.restarts[-1].splitlines()[0])
    if step.failures and goes_on:
        yield repeated("failed {} without progress", step.failures, step.last_failure)
    if step.damage:
        yield step.damage


def _row(step: StepView) -> Iterator[RenderableType]:
    yield step.name
    if step.state is None:
        yield from (Text("waiting", style="dim"), "", "", "")
        return
    tries = f" ({step.attempt})" if step.attempt > 1 else ""
    yield styled(step.state.value, tries)
    yield "" if step.progress is None else ProgressBar(total=1.0, completed=step.progress)
    yield Text(step.words if step.state is StepState.RUNNING else "")
    yield duration(step.elapsed_s)


def closing(view: RunDetails) -> RenderableType:
    """Return the summary of an ended run: its name, steps, metrics and files."""
    steps = Table("step", "state", "attempts", "time", "result", expand=False)
    for step in view.steps:
        state = styled(step.state.value) if step.state else Text("not begun", style="dim")
        tries, took = str(step.attempt or ""), duration(step.elapsed_s)
        steps.add_row(step.name, state, tries, took, Text(result_line(step)))
    return Group(_heading(view, f" · {duration(view.elapsed_s)}"), steps, facts(_places(view)))


def print_failures(view: RunDetails, console: Console) -> None:
    """Print why each step without success failed, once, and what can be done."""
    ended = [step for step in view.steps if step.state is not None and step.state.is_final]
    failed = [step for step in ended if step.state is not StepState.SUCCEEDED]
    if view.why and view.failure is None:
        console.print(f"It got no lease: {view.why}", soft_wrap=True)
    for step in failed:
        why = f" ({step.failure_class.value})" if step.failure_class else ""
        state = step.state.value if step.state else ""
        console.print(Text.assemble((f"{step.name} {state}", "red"), f"{why}:"), end=" ")
        console.print(step.message, soft_wrap=True)
        if step.trace:
            console.print(_frames(step.trace, step.message), soft_wrap=True)
        if step.folder:
            console.print(f"  logs: headrace logs {view.run_id} {step.name}", soft_wrap=True)
    if failed and view.state.is_final and view.asked:
        for line in _ways_on(view, failed[-1]):
            console.print(f"  {line}", soft_wrap=True)


def exit_as(view: RunDetails) -> None:
    """Exit with code 1, or 3 for its metrics, if a run did not succeed."""
    if view.state is not StepState.SUCCEEDED:
        missed = any(step.error == MetricsError.__name__ for step in view.steps)
        raise typer.Exit(EXIT_METRICS if missed else EXIT_ERROR)


def _frames(trace: str, message: str) -> str:
    """Return a trace without the error at its end if the message has it already."""
    lines = trace.rstrip().splitlines()
    for index, line in enumerate(lines):
        error = "\n".join([re.sub(r"^[\w.]+\.(?=\w+(:|$))", "", line), *lines[index + 1 :]])
        if not line.startswith(" ") and error in message:
            return "\n".join(lines[:index])
    return "\n".join(lines)


def _ways_on(view: RunDetails, failed: StepView) -> Iterator[str]:
    if failed.failure_class not in (FailureClass.USER_ERROR, FailureClass.DATA_ERROR):
        yield f"after the cause is corrected: headrace resume {view.run_id}"
        return
    done = {step.name for step in view.steps if step.state is StepState.SUCCEEDED}
    if "train" in done:
        way = f"headrace evaluate {view.run_id} evaluate.KEY=VALUE (nothing is trained again)"
        yield f"after a correction of the recipe's evaluate: {way}"
    again = " (the packed dataset is used again)" if "pack" in done else ""
    yield f"after a correction of recipe or site: headrace {shlex.join(view.asked)}{again}"
    yield f"after any other correction, with the recipe of this run: headrace resume {view.run_id}"


def _places(view: RunDetails) -> Iterator[tuple[str, str]]:
    outputs = {step.name: step.outputs for step in view.steps}
    removed = f" ({view.removed.words if view.removed else 'removed by hand'})"
    for title, step, key in (
        ("dataset", "pack", "dataset"),
        ("checkpoint", "train", "checkpoint"),
        ("best", "train", "best_checkpoint"),
        ("report", "evaluate", "report"),
        ("report", "probe", "report"),
        ("report", "train", "report"),
    ):
        value = outputs.get(step, {}).get(key)
        gone = removed if isinstance(value, str) and not _is_there(value) else ""
        yield title, f"{value}{gone}" if isinstance(value, str) else ""
    if view.own_data:
        yield "dataset", "none: the training reads its own data"
    yield from (("changed", each) for each in view.changed)
    yield from (("image", f"{image} ({digest})") for image, digest in view.images.items())
    yield from (("profile", each.opened_by) for each in view.traces)
    if "suite" in outputs:
        yield "trials", f"headrace suite show {view.run_id}"
        yield "results", f"headrace results {view.run_id}"
    yield "cost", "" if view.cost is None else cost_words(view.cost)
    yield from predicted(view.ahead, view.elapsed_s)
    yield "left out", view.informing.words if view.informing.count else ""
    yield "run folder", f"{Path(view.folder)}{removed if view.removed else ''}"


def _is_there(place: str) -> bool:
    """Whether a path exists; True for URLs, and where this machine cannot tell."""
    return "://" in place or os.path.exists(place) or not os.path.isdir(os.path.dirname(place))


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
    table.add_column("so far", no_wrap=True)
    for name in names[:_MOST]:
        best = found.get(f"{_BEST}{name}")
        best_value = "" if best is None else f"{best:.4g}"
        table.add_row(Text(name), f"{found[name]:.4g}", best_value, curve(curves.get(name, ())))
    if len(names) > _MOST:
        table.add_row(f"and {len(names) - _MOST} more: --json")
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
