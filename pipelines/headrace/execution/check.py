"""Checks a recipe on a few real samples, in a process of this machine, without a lease."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headrace.batch.findings import Finding, Section, fail, ok
from headrace.errors import DataError, HeadraceError, UserCodeError, UserError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.processes.children import ChildGroup
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.overrides import check_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.unix_accounts import account
from headrace.runs.resolve import resolve
from headrace.runs.suite_sites import asked_sites, suite_sites
from headrace.steps.model_process import python_module, start_forked
from headrace.training.launch import alone, rank_children

FOUND = "check.json"
"""File of the run's folder to which the process writes what it found."""


def check(recipe: str, overrides: Sequence[str], sites: Sequence[str] | None) -> Section:
    """Check a recipe on a site as `run` does; then train on one batch, and evaluate a few samples.

    A suite's recipe is checked without its suite, a script is not run. Of several sites all are
    checked, and the first one's batch is trained on. All files are written below a temporary
    folder, which is removed. Errors are among the findings.
    """
    began_s = time.monotonic()
    check_size(overrides)
    name, found = Path(recipe).stem, list[Finding]()
    try:
        first, changes = asked_sites(recipe, overrides, sites)
        loaded = load_recipe(recipe, changes)
        known = suite_sites(loaded, None, account(), is_from_terminal=True)
        alone_there = loaded.model_copy(update={"suite": None})
        resolved = resolve(alone_there, load_site(first), "train", is_from_terminal=True)
        with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
            found += _tried(*resolved, RunFolder(Path(folder)))
        if others := ", ".join(each for each in known if each != resolved[1].name):
            read = f"of {others} only folder, roles and targets were checked"
            found.append(ok("sites", f"the batch was that of {resolved[1].name}; {read}"))
    except (UserError, DataError) as error:
        found.append(failed("recipe", error))
    found.append(ok("time", f"checked in {time.monotonic() - began_s:.1f} s"))
    return Section(part=name, findings=tuple(found))


def failed(stage: str, error: HeadraceError) -> Finding:
    """Return the error of a stage, with the trace of the user's code."""
    trace = error.trace if isinstance(error, UserCodeError) else ""
    return fail(stage, error.what, f"{error.hint}\n{trace}".strip())


def _tried(recipe: Recipe, site: Site, run: RunFolder) -> Iterator[Finding]:
    write_record(run.recipe, recipe)
    write_record(run.site, site)
    node = alone(run)
    child = rank_children(node, recipe, site.roles[recipe.train.role])[0]
    if recipe.train.is_script:
        yield ok("command", " ".join(child.command[child.command.index("--") + 1 :]))
        if recipe.dataset is None:
            return
    ready = str(node.launch.folder.ready(0))
    command = python_module("headrace.execution.check_process", ready)
    with ChildGroup([replace(child, name="check", command=command)], start=start_forked) as group:
        (end,) = group.supervise(lambda: True)
    found = read_record(run.path / FOUND, Section)
    if found is not None:
        yield from found.findings
        return
    what = f"the process of the check ended by {end.cause}"
    yield fail("training", what, f"{end.advice}\n{end.last_words}".strip())
