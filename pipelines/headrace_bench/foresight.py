"""Errors of predictions: runs, then suites, each predicted from those before it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated

import typer
from pydantic import computed_field

from headrace.cli.console import (
    JsonOption,
    duration,
    open_console,
    plain_table,
    tell_json,
    tidy_end,
)
from headrace.cli.watching import telling
from headrace.examples.digits import export_digits
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import Ledger
from headrace.record import Record
from headrace.runs.prediction import Prediction
from headrace_bench import machine
from headrace_bench.suite import HEADRACE, last_line, made_home

_EPOCHS = "10,30,60,20,45,15"
_PRUNED = (
    "model.learning_rate=tag(log,interval(1e-5,1e-1)) --trials=12 trainer.max_epochs=12 "
    "trainer.monitor=val/accuracy trainer.monitor_mode=max +suite.search.pruner=median"
)
_SUITES = (
    "model.learning_rate=0.001,0.003,0.01 trainer.max_epochs=5,10 seed=1,2",
    "model.learning_rate=0.002,0.005 trainer.max_epochs=8 seed=1,2,3",
    *[_PRUNED] * 2,
)


class Foretold(Record):
    """Prediction of a run, and what it took."""

    what: str
    num_known: int
    """Runs of the same recipe before it, or suites."""
    predicted_s: float | None
    """Null if nothing was known."""
    half_s: float | None
    """Half of its 80 % interval."""
    took_s: float
    parts: dict[str, tuple[float, float]]
    """Predicted and actual seconds of each step, and of the time between steps."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> float | None:
        """Relative error of the prediction; positive if it was too long."""
        return None if self.predicted_s is None else self.predicted_s / self.took_s - 1


@dataclass(frozen=True, kw_only=True)
class _Job:
    words: tuple[str, ...]
    what: str
    kind: str
    """Kind of the job: earlier jobs of the same kind inform about it."""
    folder: Path | None = None
    """Where to run it; None for the benchmark's own folder."""


def foresight(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="`digits`, or files; each runs in its folder.")
    ] = None,
    epochs: Annotated[
        str, typer.Option(help="Epochs of each run of a recipe, with commas between them.")
    ] = _EPOCHS,
    batches: Annotated[
        str, typer.Option(help="Batch sizes of these runs, cyclic; empty: the recipe's.")
    ] = "",
    suites: Annotated[
        int, typer.Option(min=0, max=len(_SUITES), help="Suites of the digits after them.")
    ] = len(_SUITES),
    as_json: JsonOption = False,
) -> None:
    """Run recipes several times, and compare the predicted with the actual time of each run.

    Each is predicted from those before it; none exists for the first run of a recipe and
    the first suite. Use an otherwise idle machine.

    Examples:
        headrace bench foresight
        headrace bench foresight --epochs 5,20,10 --suites 0
        headrace bench foresight audio.yaml vqa.yaml --epochs 1,4,2,3 --batches 32,16 --suites 0
    """
    load = machine.load()
    jobs = [
        _run(recipe, each, batch)
        for recipe in recipes or ["digits"]
        for each, batch in zip(epochs.split(","), cycle(batches.split(",")), strict=False)
    ]
    jobs += [
        _Job(words=("sweep", "digits", *words.split()), what=f"suite {words}", kind="suite")
        for words in _SUITES[:suites]
    ]
    with made_home() as folder, tidy_end(), telling(open_console(stderr=True)) as tick:
        found = list(_measured(Path(folder), jobs, tick))
    host = machine.machine()
    if as_json:
        tell_json({"runs": found, "load": load, "machine": host})
        return
    titles = ("", "predicted", "took", "off", "of its parts")
    open_console().print(plain_table(*titles, rows=map(_row, found)))
    for line in (in_words(found, "one", (1,)), in_words(found, "three or more", range(3, 1000))):
        typer.echo(line)
    typer.echo(f"{host.cpu}, {host.num_cores} cores; load {load:.2f} before")


def _run(recipe: str, epochs: str, batch: str) -> _Job:
    changes = [f"trainer.max_epochs={epochs}"]
    changes += [f"data.global_batch_size={batch}"] if batch else []
    file = Path(recipe).absolute() if recipe.endswith((".yaml", ".yml")) else None
    return _Job(
        words=("run", recipe if file is None else file.name, *changes),
        what=" ".join((Path(recipe).stem, *changes)),
        kind=recipe,
        folder=None if file is None else file.parent,
    )


def in_words(found: Sequence[Foretold], known: str, counts: Container[int]) -> str:
    """Return the errors of predictions from so many earlier runs of their recipe, as a text."""
    predictions = [each for each in found if each.num_known in counts and each.error is not None]
    if not predictions:
        return f"with {known} known: no predictions"
    errors = [abs(each.error or 0.0) for each in predictions]
    halves = [(each.half_s or 0.0) / (each.predicted_s or 1.0) for each in predictions]
    held = sum(
        abs((each.predicted_s or 0.0) - each.took_s) <= (each.half_s or 0.0) for each in predictions
    )
    return (
        f"with {known} known: {len(predictions)} predictions, off by "
        f"{statistics.median(errors):.0%} in the median, {max(errors):.0%} most; {held} within "
        f"their intervals, of ±{statistics.median(halves):.0%} in the median"
    )


def _measured(home: Path, jobs: list[_Job], tick: Callable[[str], object]) -> Iterator[Foretold]:
    export_digits(home / "examples" / "digits")
    done_of: Counter[str] = Counter()
    for job in jobs:
        tick(name := f"headrace {' '.join(job.words)}")
        last_line(f"`{name}`", [*HEADRACE, *job.words], home, job.folder)
        yield _newest(home, job.what, done_of[job.kind])
        done_of[job.kind] += 1


def _newest(home: Path, what: str, num_known: int) -> Foretold:
    """Return the newest run of a home."""
    ledger = Ledger.open(f"sqlite:///{home / 'ledger.db'}")
    (run,) = ledger.runs(limit=1)
    found = read_record(RunFolder(Path(run.folder)).prediction, Prediction)
    took_s = (run.finished_at or run.created_at) - run.created_at
    steps = {
        each.step: (each.finished_at or 0.0) - (each.started_at or 0.0)
        for each in ledger.attempts(run.run_id)
    }
    steps["between"] = took_s - sum(steps.values())
    expected = {part.name: part.seconds for part in found.parts} if found else {}
    return Foretold(
        what=what,
        num_known=num_known,
        predicted_s=found.seconds if found else None,
        half_s=found.half_s if found else None,
        took_s=took_s,
        parts={name: (expected[name], steps[name]) for name in expected if name in steps},
    )


def _row(each: Foretold) -> Iterator[str]:
    said, error = "nothing was known", ""
    if each.predicted_s is not None and each.half_s is not None and each.error is not None:
        said = f"{duration(each.predicted_s)} ± {duration(each.half_s)}"
        error = f"{each.error:+.0%}"
    yield from (each.what, said, duration(each.took_s), error)
    yield ", ".join(f"{name} {a:.1f}:{b:.1f}" for name, (a, b) in each.parts.items())
