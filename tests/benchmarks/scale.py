"""How training scales with its ranks: real runs of a recipe that differ in nothing else."""

from __future__ import annotations

import statistics
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from headrace.cli.console import SiteOption, open_console, tidy_end
from headrace.cli.watching import telling
from headrace.errors import StepError, UserError
from headrace.execution.execute import execute
from headrace.files.atomic import write_bytes
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.site import Role
from headrace.record import Record
from headrace.runs.lifecycle import create_run
from headrace.runs.owners import process_owner
from headrace.runs.runs import Run, RunRequest
from headrace.steps.history import HistoryRow, read_history
from headrace_bench.machine import machine
from headrace_bench.records import BenchMachine

Mode = Literal["strong", "weak"]
"""Whether all ranks together have one batch, or each rank as much as one alone."""

_NEVER = 10**6
_WARM_UP = 0.2
_LEAST_ROWS = 3


class Point(Record):
    """Training with so many ranks."""

    ranks: int
    nodes: int
    global_batch_size: int
    """Samples an optimizer step, of all ranks."""
    modes: tuple[Mode, ...]
    """What it is a point of: that with the fewest ranks is one of both."""

    def overrides(self, steps: int) -> tuple[str, ...]:
        """Changes to the recipe: steps only, no validation, no checkpoint but the last."""
        return (
            f"train.nodes={self.nodes}",
            f"train.ranks_per_node={self.ranks // self.nodes}",
            f"data.global_batch_size={self.global_batch_size}",
            f"trainer.max_steps={steps}",
            f"trainer.max_epochs={_NEVER}",
            f"trainer.val_every_epochs={_NEVER}",
            f"trainer.checkpoint_every_steps={_NEVER}",
            "evaluate=null",
        )


class Measured(Record):
    """What a training with so many ranks gave."""

    point: Point
    run_id: str
    samples_per_s: float
    """Median of the history's rows after the warm-up."""
    data_wait: float
    """Share of rank 0's time that it waited for batches, likewise."""
    communication: float | None
    """Share that it only waited for other ranks; null where nobody tells, as on accelerators."""


class ScaleReport(Record):
    """All trainings, with what they ran on."""

    command: str
    date: str
    recipe: str
    site: str
    machine: BenchMachine
    """Of whoever asked; the nodes are the site's."""
    steps: int
    measured: tuple[Measured, ...]
    efficiency: dict[Mode, dict[int, float]]
    """By ranks: the rate over that of the fewest ranks, over how many times more there are."""


def scale(
    recipe: Annotated[str, typer.Argument(help="Recipe that is trained.")] = "digits",
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Changes to it.")
    ] = None,
    site: SiteOption = "laptop",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "1,2,4",
    mode: Annotated[str, typer.Option(help="strong, weak, or both.")] = "both",
    steps: Annotated[int, typer.Option(min=10, help="Optimizer steps of each training.")] = 200,
    plot: Annotated[Path | None, typer.Option(help="File of a figure (PNG).")] = None,
) -> None:
    """Train a recipe with more and more ranks: samples a second, and how much of it scales.

    Strong: all ranks share the recipe's batch. Weak: the batch grows with the ranks. Each training
    is a run of its own on the site, with the model, data and checkpoints of headrace; the first
    fifth of its steps is a warm-up. Ranks of one machine share its cores.

    Examples:
        PYTHONPATH=tests python -m benchmarks.scale

        … my-recipe.yaml --site my-cluster --ranks 4,8,16 --plot scale.png
    """
    modes = get_args(Mode) if mode == "both" else (mode,)
    if not set(modes) <= set(get_args(Mode)):
        raise UserError(f"--mode '{mode}' is not known", "Valid: strong, weak, both.")
    given = tuple(overrides or ())
    loaded = load_recipe(recipe, given)
    role = load_site(site).roles[loaded.train.role]
    points = points_of(numbers(ranks), modes, loaded.data.global_batch_size, role)
    with tidy_end(), telling(open_console(stderr=True)) as tick:
        measured = run_all(RunRequest(
            recipe=recipe, site=site, overrides=given, key="", owner=process_owner()
        ), points, steps, tick)  # fmt: skip
    report = ScaleReport(
        command=" ".join(sys.argv),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        recipe=loaded.name,
        site=site,
        machine=machine([]),
        steps=steps,
        measured=measured,
        efficiency={each: efficiency(measured, each) for each in modes},
    )
    if plot is not None:
        write_bytes(plot.expanduser(), drawn(report))
    print(report.model_dump_json(indent=1))


def numbers(text: str) -> tuple[int, ...]:
    """Numbers of ranks from text as `1,2,4`, in rising order.

    Raises:
        UserError: One is no number above 0.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--ranks '{text}' is not possible", "Write them as in 1,2,4.")
    return tuple(sorted({int(part) for part in parts}))


def points_of(
    ranks: Sequence[int], modes: Iterable[Mode], batch_size: int, role: Role
) -> tuple[Point, ...]:
    """What is trained, each once; `batch_size` is that of the fewest ranks.

    Nodes of a queue are filled before there are more; this machine is one node.

    Raises:
        UserError: Ranks fill no whole nodes.
    """
    found: dict[tuple[int, int], list[Mode]] = {}
    for mode in modes:
        for count in ranks:
            batch = batch_size if mode == "strong" else batch_size * count // ranks[0]
            found.setdefault((count, batch), []).append(mode)
    return tuple(
        Point(ranks=count, nodes=_nodes(count, role), global_batch_size=batch, modes=tuple(of))
        for (count, batch), of in found.items()
    )


def _nodes(ranks: int, role: Role) -> int:
    each = role.ranks_per_node
    if role.backend == "local" or ranks <= each:
        return 1
    if ranks % each:
        raise UserError(
            f"{ranks} ranks fill no whole nodes of {each} ranks",
            f"Take multiples of {each}, which the site's role says by ranks_per_node.",
        )
    return ranks // each


def run_all(
    request: RunRequest, points: Sequence[Point], steps: int, tick: Callable[[str], None]
) -> tuple[Measured, ...]:
    """Train each point in a run of its own; later ones use what the first has packed.

    Raises:
        StepError: A run failed, or was too short to measure.
    """
    found: list[Measured] = []
    for point in points:
        changes = (*request.overrides, *point.overrides(steps))
        key = f"bench:{uuid.uuid4().hex}"
        run = create_run(request.model_copy(update={"overrides": changes, "key": key}))
        title = f"{point.ranks} ranks, batch {point.global_batch_size}: {run.run_id}"
        failed = execute(run, lambda title=title: tick(title))  # type: ignore[misc]
        if failed is not None:
            why = failed.failure.message if failed.failure else "it was stopped"
            raise StepError(f"{title} failed: {why}", f"See headrace logs {run.run_id}.")
        found.append(_measured(run, point, steps))
    return tuple(found)


def _measured(run: Run, point: Point, steps: int) -> Measured:
    rows = [
        row
        for row in read_history(run.folder).rows
        if row.step > steps * _WARM_UP and row.samples_per_s is not None
    ]
    if len(rows) < _LEAST_ROWS:
        raise StepError(
            f"{run.run_id} told its speed only {len(rows)} times in {steps} steps",
            "Ask for more by --steps.",
        )
    return Measured(
        point=point,
        run_id=run.run_id,
        samples_per_s=statistics.median(row.samples_per_s or 0.0 for row in rows),
        data_wait=statistics.median(row.data_wait or 0.0 for row in rows),
        communication=_communication(rows),
    )


def _communication(rows: Sequence[HistoryRow]) -> float | None:
    told = [row.parts["communication"] for row in rows if "communication" in row.parts]
    return statistics.median(told) if told else None


def of_mode(measured: Sequence[Measured], mode: Mode) -> list[Measured]:
    """Those that are points of a mode, by ranks."""
    found = [each for each in measured if mode in each.point.modes]
    return sorted(found, key=lambda each: each.point.ranks)


def efficiency(measured: Sequence[Measured], mode: Mode) -> dict[int, float]:
    """By ranks: 1 where twice the ranks train twice the samples a second."""
    first, *_ = found = of_mode(measured, mode)
    alone = first.samples_per_s / first.point.ranks
    return {each.point.ranks: each.samples_per_s / each.point.ranks / alone for each in found}


def drawn(report: ScaleReport) -> bytes:
    """Samples a second by ranks, as a PNG; dashed is what scales without loss."""
    from headrace.report.html import figure, png  # matplotlib takes half a second

    made, axes = figure(5.2, 3.6)
    for mode in report.efficiency:
        found = of_mode(report.measured, mode)
        ranks = [each.point.ranks for each in found]
        rates = [each.samples_per_s for each in found]
        axes.plot(ranks, rates, marker="o", label=mode)
    ideal = [rates[0] * each / ranks[0] for each in ranks]
    axes.plot(ranks, ideal, "--", color="grey", linewidth=1, label="without loss")
    axes.set_xticks(ranks, [str(each) for each in ranks])
    axes.set(
        xlabel="Ranks",
        ylabel="Samples a second",
        ylim=(0, None),
        title=f"{report.recipe} on {report.site}",
    )
    axes.legend(fontsize=8, frameon=False)
    return png(made)


if __name__ == "__main__":
    typer.run(scale)
