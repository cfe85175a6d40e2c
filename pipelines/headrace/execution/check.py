"""Checks a recipe on a few real samples, in a process of this machine, without a lease."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.errors import DataError, HeadraceError, UserCodeError, UserError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.processes.children import Child, ChildGroup
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.overrides import check_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.record import Figures, Record
from headrace.runs.resolve import resolve
from headrace.steps.model_process import python_module, start_forked
from headrace.training.launch import alone, rank_children

REPORT = "check.json"
"""File of the run's folder to which the process writes its `CheckReport`."""


class Finding(Record):
    """Something that training would fail on, or that users should know."""

    stage: str
    """Part of the run: recipe, data, training or evaluation."""
    what: str
    hint: str = ""
    trace: str = ""
    """Trace of the user's code; empty without one."""
    is_error: bool = True
    """Whether the run would fail."""

    @classmethod
    def of(cls, stage: str, error: HeadraceError) -> Finding:
        """Return an error of a stage."""
        trace = error.trace if isinstance(error, UserCodeError) else ""
        return cls(stage=stage, what=error.what, hint=error.hint, trace=trace)


class CheckReport(Figures):
    """Result of a check; what was not measured is null or empty."""

    findings: tuple[Finding, ...] = ()
    samples: int | None = None
    """Samples of the whole source, or of the packed dataset."""
    batch: str = ""
    """Parts of a training batch with dtype and shape."""
    parameters: int | None = None
    """Parameters of the model."""
    loss: float | None = None
    """Loss of the first batch."""
    logged: tuple[str, ...] = ()
    """Names of the metrics that the model logged."""
    command: tuple[str, ...] = ()
    """Words of a script's command."""
    seconds: float = 0.0
    """Time that the check took."""

    @property
    def is_good(self) -> bool:
        """Whether nothing was found that training would fail on."""
        return not any(each.is_error for each in self.findings)


def check(recipe: str, overrides: Sequence[str], site: str) -> CheckReport:
    """Check a recipe on a site as `run` does; then train on one batch, and evaluate a few samples.

    A suite's recipe is checked without its suite, a script is not run. All files are written below
    a temporary folder, which is removed.
    """
    began_s = time.monotonic()
    check_size(overrides)
    try:
        loaded = load_recipe(recipe, overrides).model_copy(update={"suite": None})
        resolved = resolve(loaded, load_site(site), "train", is_from_terminal=True)
    except (UserError, DataError) as error:
        report = CheckReport(findings=(Finding.of("recipe", error),))
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
            report = _tried(*resolved, RunFolder(Path(folder)))
    return report.model_copy(update={"seconds": time.monotonic() - began_s})


def _tried(recipe: Recipe, site: Site, run: RunFolder) -> CheckReport:
    write_record(run.recipe, recipe)
    write_record(run.site, site)
    node = alone(run)
    rank = rank_children(node, recipe, site.roles[recipe.train.role])[0]
    report = CheckReport()
    if not recipe.train.is_script or recipe.dataset is not None:
        ready = str(node.launch.folder.ready(0))
        command = python_module("headrace.execution.check_process", ready)
        report = _reported(replace(rank, name="check", command=command), run)
    words = rank.command[rank.command.index("--") + 1 :] if recipe.train.is_script else ()
    return report.model_copy(update={"command": words})


def _reported(child: Child, run: RunFolder) -> CheckReport:
    with ChildGroup([child], start=start_forked) as group:
        (end,) = group.supervise(lambda: True)
    report = read_record(run.path / REPORT, CheckReport)
    if report is not None:
        return report
    what = f"The process of the check ended by {end.cause}"
    hint = f"{end.advice}\n{end.last_words}".strip()
    return CheckReport(findings=(Finding(stage="training", what=what, hint=hint),))
