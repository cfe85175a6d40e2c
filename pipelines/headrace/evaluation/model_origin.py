"""Origin of an evaluated model: its checkpoint, recipe, data, code, and how to repeat it."""

from __future__ import annotations

import math
import platform
import shlex
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue, TypeAdapter

from headrace.errors import without_secrets
from headrace.evaluation.evaluation_plan import Inputs, evaluated_step
from headrace.files.atomic import read_bytes, read_record
from headrace.recipe.difference import Change, Resumption, differences
from headrace.recipe.recipe import Recipe
from headrace.report.html import Table, columns
from headrace.steps.context import Skipped, StepContext
from headrace.steps.history import History

_PACKAGES = ("headrace", "torch", "lightning", "torchmetrics", "numpy")
_COLUMNS = (*columns("What"), *columns("Value", kind="path"))
_Content = TypeAdapter(dict[str, JsonValue])


def chosen(context: StepContext, inputs: Inputs, history: History) -> str:
    """Return the evaluated checkpoint in one line, with the metric by which it was chosen."""
    step = evaluated_step(inputs.checkpoint, history)
    facts = [f"evaluate.checkpoint is {inputs.spec.checkpoint}"]
    if step is not None:
        epochs = [row.epoch + 1 for row in history.rows if row.step <= step]
        facts.append(f"step {step:,}" + (f" in epoch {epochs[-1]}" if epochs else ""))
    monitor, mode = context.recipe.trainer.monitor, context.recipe.trainer.monitor_mode
    if monitor is not None:
        here = [row.metrics.get(monitor, math.nan) for row in history.metrics if row.step == step]
        facts += [f"{monitor} {value:.6g}" for value in here if math.isfinite(value)]
        best = history.best(monitor, mode)
        if best is not None:
            values = f"{best.metrics[monitor]:.6g} at step {best.step:,}"
            facts.append(f"best of {len(history.metrics)} validations ({mode}): {values}")
    return "; ".join(facts)


def provenance_table(
    context: StepContext, inputs: Inputs, fingerprint: str, num_samples: int, history: History
) -> Table:
    """Return all facts about the model and its training."""
    recorded = _read(context.run_folder.provenance)
    rows = [
        ("Run", context.spec.run_id),
        *_asked(context),
        ("Checkpoint", str(inputs.checkpoint)),
        ("Chosen", chosen(context, inputs, history)),
        *_restarts(history),
        ("Recipe", context.recipe.name),
        ("Site", context.site.name),
        ("Dataset fingerprint", fingerprint),
        ("Samples", str(num_samples)),
        *_skipped(context),
        *_recorded(recorded),
        ("Python", platform.python_version()),
        *((name, version(name)) for name in _PACKAGES),
    ]
    return Table(
        title="Where this comes from",
        columns=_COLUMNS,
        rows=[(name, without_secrets(value)) for name, value in rows if value],
    )


def changes_tables(context: StepContext) -> tuple[Table, ...]:
    """Return the changes of the run's recipe to its file, and to the run of its first weights."""
    recorded = _read(context.run_folder.provenance).get("changes")
    changes = TypeAdapter(tuple[Change, ...]).validate_python(recorded or ())
    tables = [_changes("Changed from the recipe file", "In the file", changes)] if changes else []
    tables += [_changes(*each) for each in _resumed(context)]
    parent = _parent(context.recipe)
    if parent is not None:
        run_id, recipe = parent
        title = f"Changed from run {run_id}, whose weights it began with"
        tables.append(_changes(title, "There", differences(recipe, context.recipe)))
    return tuple(tables)


def _resumed(context: StepContext) -> Iterator[tuple[str, str, Sequence[Change]]]:
    recorded = _read(context.run_folder.request).get("resumed")
    for each in TypeAdapter(tuple[Resumption, ...]).validate_python(recorded or ()):
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(each.at))
        yield f"Changed when it went on at {at}", "Before", each.changes


def _parent(recipe: Recipe) -> tuple[str, Recipe] | None:
    """Return the run of `train.init_from`; None if it is not a checkpoint of a run."""
    if recipe.train.init_from is None:
        return None
    folder = Path(recipe.train.init_from).expanduser().parent.parent
    found = read_record(folder / "recipe.json", Recipe)
    return None if found is None else (folder.name, found)


def _changes(title: str, before: str, changes: Sequence[Change]) -> Table:
    return Table(
        title=title,
        columns=columns("Key", before, "In this run", kind="path"),
        rows=[
            tuple(without_secrets(text) for text in (each.key, each.before, each.after))
            for each in changes
        ],
        empty="Nothing.",
    )


def _asked(context: StepContext) -> Iterator[tuple[str, str]]:
    """Yield the command of the same request, and the run that it evaluates, where it was kept."""
    request = _read(context.run_folder.request)
    keys = ("recipe", "site", "overrides", "of")
    recipe, site, overrides, of = (request.get(name) for name in keys)
    if isinstance(recipe, str) and isinstance(site, str):
        changes = [str(each) for each in overrides] if isinstance(overrides, list) else []
        what = ["evaluate", of] if isinstance(of, str) and of else ["run", recipe]
        yield "Run it again", shlex.join(["headrace", *what, "--site", site, *changes])
    if isinstance(of, str) and of:
        yield "Evaluated run", of


def _restarts(history: History) -> list[tuple[str, str]]:
    steps = [f"{row.step:,}" for row in history.starts[1:]]
    return [("Training went on from steps", ", ".join(steps))] if steps else []


def _skipped(context: StepContext) -> list[tuple[str, str]]:
    found = read_record(context.run_folder.skipped, Skipped)
    if found is None or not found.shards:
        return []
    files = ", ".join(sorted(found.files))
    return [("Left out of training", f"{found.num_samples:,} samples of damaged shards: {files}")]


def _recorded(content: dict[str, JsonValue]) -> list[tuple[str, str]]:
    git, command = content.get("git"), content.get("command")
    facts: dict[str, object] = {
        "Git commit": git.get("commit") if isinstance(git, dict) else None,
        "Uncommitted changes": git.get("dirty") if isinstance(git, dict) else None,
        "Recipe file": content.get("recipe_file"),
        "Command": " ".join(map(str, command)) if isinstance(command, list) else None,
        "Started on": content.get("host"),
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]


def _read(path: Path) -> dict[str, JsonValue]:
    content = read_bytes(path)
    return {} if content is None else _Content.validate_json(content)
