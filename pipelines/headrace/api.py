"""headrace from Python: notebooks, scripts and CI.

The functions are also those of the package: `headrace.run` and so on. They do what the commands of
the same names do, in the calling process.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.batch.findings import Section
from headrace.cli.console import open_console
from headrace.cli.runs import request_of
from headrace.cli.watching import Watching
from headrace.errors import StepError, UserError
from headrace.execution.check import check as checked
from headrace.execution.execute import Plan, execute, planned
from headrace.files.layout import RunFolder
from headrace.ledger.run_filter import RunFilter
from headrace.recipe.home import home
from headrace.recipe.load import load_recipe, load_site, parse
from headrace.recipe.overrides import check_size
from headrace.runs.lifecycle import create_run
from headrace.runs.names import named
from headrace.runs.planned_steps import run_metrics
from headrace.runs.results import table_of, trials_of
from headrace.runs.suite_sites import asked_sites
from headrace.runs.suites import sought_by
from headrace.states import StepState
from headrace.status.run_details import RunDetails, run_details
from headrace.status.run_list import found_runs
from headrace.steps.history import read_history
from headrace.suites import values as sweep_values

RecipeLike = str | Path | Mapping[str, Any]
"""Name of a recipe, path of a YAML file, or the content of one."""

Sites = str | Path | Sequence[str | Path]
"""Name or path of a site, or a list of several."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A run, suite or trial, read anew at each access.

    Attributes:
        run_id: Its id, as in `headrace status`; `SUITE:NUMBER` of a trial.
    """

    run_id: str

    @property
    def details(self) -> RunDetails:
        """State, steps, time, cost and main metric."""
        return run_details(self.run_id)

    @property
    def state(self) -> StepState:
        """State, such as `succeeded`."""
        return self.details.state

    @property
    def folder(self) -> Path:
        """Its folder."""
        return named(self.run_id).folder.path

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of training, and of evaluation where it has the same names; of a suite none."""
        return run_metrics(self._outputs)

    @property
    def checkpoint(self) -> Path | None:
        """The last checkpoint; None if there is none."""
        return self._path("train", "checkpoint")

    @property
    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best monitored metric; None without `trainer.monitor`."""
        return self._path("train", "best_checkpoint")

    @property
    def report(self) -> Path | None:
        """The HTML report of the evaluation; None without one."""
        return self._path("evaluate", "report") or self._path("train", "report")

    @property
    def history(self) -> Any:
        """Table of training: epoch, step, loss, rates and logged metrics, a row each time.

        A `pandas.DataFrame`, or a `pyarrow.Table` if pandas is not installed.
        """
        rows = read_history(RunFolder(self.folder)).rows
        names = ("at", "launch", "epoch", "step", "loss", "samples_per_s", "data_wait")
        return _table(
            {**{name: getattr(row, name) for name in names}, **row.metrics} for row in rows
        )

    @property
    def trials(self) -> Any:
        """Table of the suite's trials: values, metrics, time and cost, a row each; as `history`."""
        record = named(self.run_id).record
        objectives = sought_by(RunFolder(Path(record.folder))).objectives
        return _table(table_of(trials_of(record), objectives))

    @property
    def _outputs(self) -> dict[str, dict[str, Any]]:
        return {each.name: each.outputs for each in self.details.steps if each.state == "succeeded"}

    def _path(self, step: str, output: str) -> Path | None:
        found = self._outputs.get(step, {}).get(output)
        return Path(found) if isinstance(found, str) and found else None


def run(recipe: RecipeLike, site: str | Path = "laptop", **overrides: Any) -> RunResult:
    """Run a recipe to its end, as `headrace run`; show progress, also in a notebook.

    Args:
        recipe: Name, path or content of a recipe.
        site: Name or path of a site.
        **overrides: Changes to the recipe: `trainer={"max_epochs": 3}`, `seed=1`, or by dotted keys
            `**{"trainer.max_epochs": 3}`.

    Raises:
        UserError: The recipe does not fit the site.
        StepError: A step failed; the message names it and why.
    """
    return _carried_out(recipe, [str(site)], _words(overrides), "train")


def sweep(recipe: RecipeLike, site: Sites = (), **values: Any) -> RunResult:
    """Run the trials of a suite to their end, as `headrace sweep`.

    Args:
        recipe: Name, path or content of a recipe.
        site: Name or path of a site, or a list of several, which share the trials; empty:
            `suite.sites` of the recipe, else `laptop`.
        **values: Keys of the recipe, as for `run`: a list gives a trial for each entry. Text is
            read as by `headrace sweep`: `**{"model.lr": "tag(log, interval(1e-5, 1e-1))"}`.
            `trials` is the number of points that a sampler proposes.

    Raises:
        UserError: The recipe does not fit the site.
        StepError: The suite failed; the message says why.
    """
    number = values.pop("trials", None)
    words = [
        f"{key}={','.join(map(_word, each)) if isinstance(each, list | tuple | range) else each}"
        for key, each in _flat(values)
    ]
    overrides, update = sweep_values.parse(words, trials=number)
    given = (*overrides, *sweep_values.as_overrides(update))
    return _carried_out(recipe, _listed(site), given, "suite")


def plan(recipe: RecipeLike, site: Sites = (), **overrides: Any) -> Plan:
    """Return what a run would request, take and cost.

    Args:
        recipe: Name, path or content of a recipe.
        site: As for `sweep`.
        **overrides: Changes to the recipe, as for `run`.

    Raises:
        UserError: The recipe does not fit the site.
    """
    first, changes = asked_sites(_source(recipe), _words(overrides), _listed(site))
    return planned(load_recipe(_source(recipe), changes), load_site(first))


def check(recipe: RecipeLike, site: Sites = (), **overrides: Any) -> Section:
    """Return what training would fail on, by one real batch on this machine; as `headrace check`.

    `findings` has each result, `has_failed` is True if one is an error.

    Args:
        recipe: Name, path or content of a recipe.
        site: As for `sweep`.
        **overrides: Changes to the recipe, as for `run`.
    """
    return checked(_source(recipe), _words(overrides), _listed(site))


def _listed(site: Sites) -> list[str]:
    return [str(each) for each in ((site,) if isinstance(site, str | Path) else site) if each]


def list_runs(limit: int = 20, state: str | None = None, **filters: Any) -> Any:
    """Return a table of runs, the newest first, a row each; `metrics.NAME` are its metrics.

    A `pandas.DataFrame`, or a `pyarrow.Table` if pandas is not installed.

    Args:
        limit: Most rows.
        state: State of the runs, such as `failed`; None for all.
        **filters: As the options of `headrace runs`: `since="7d", where=["lr=0.1"], sort="f1"`.

    Raises:
        UserError: A filter does not exist, or has no such value.
    """
    given = {**filters, "limit": limit, "state": () if state is None else (state,)}
    rows = found_runs(parse(RunFilter, given, "The filter of the list"))
    names = (
        "run_id",
        "kind",
        "recipe",
        "site",
        "user",
        "step",
        "created_at",
        "elapsed_s",
        "folder",
    )
    return _table(
        {
            **{name: getattr(row, name) for name in names},
            "state": row.state.value,
            "metric": row.metric.name if row.metric else None,
            "value": row.metric.value if row.metric else None,
            "overrides": " ".join(row.overrides),
            **{f"metrics.{name}": value for name, value in row.metrics.items()},
        }
        for row in rows
    )


def result(run_id: str) -> RunResult:
    """Return a run, suite or trial.

    Args:
        run_id: Its id, as in `headrace runs`; `SUITE:NUMBER` of a trial; or `latest`.

    Raises:
        UnknownNameError: The ledger has none of that name.
    """
    return RunResult(run_id=named(run_id).name)


def _carried_out(
    recipe: RecipeLike, sites: Sequence[str], overrides: Sequence[str], kind: str
) -> RunResult:
    job = create_run(request_of(_source(recipe), list(overrides), *sites, kind=kind))
    with Watching(job.run_id, open_console(), job.folder) as tick:
        execute(job, tick)
    done = RunResult(run_id=job.run_id)
    details = done.details
    if details.state is not StepState.SUCCEEDED:
        raise StepError(
            f"Run {job.run_id} is {details.state.value}: {details.why or details.step}",
            f"headrace.result('{job.run_id}') has what it made; `headrace logs {job.run_id}` why.",
        )
    return done


def _source(recipe: RecipeLike) -> str:
    """Return the name or path of a recipe; content is kept in a file named by its hash."""
    if not isinstance(recipe, Mapping):
        return str(recipe)
    text = json.dumps(recipe, indent=2, default=str)
    name = str(recipe.get("name", "notebook"))
    folder = home() / "notebook" / hashlib.sha256(text.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / f"{Path(name).name}.yaml"  # JSON is YAML
    file.write_text(text)
    return str(file)


def _words(overrides: Mapping[str, Any]) -> tuple[str, ...]:
    words = tuple(f"{key}={_word(value)}" for key, value in _flat(overrides))
    check_size(words)
    return words


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value and "_target_" not in value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _word(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain)
    except TypeError as error:
        raise UserError(
            f"A {type(value).__name__} cannot stand in a recipe", "Give plain values."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # a number of NumPy or torch
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as a plain value")


def _table(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows as a table of pandas, or of Arrow without it."""
    listed = list(rows)
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        pyarrow = importlib.import_module("pyarrow")
        names = dict.fromkeys(name for row in listed for name in row)
        return pyarrow.table({name: [row.get(name) for row in listed] for name in names})
    return pandas.DataFrame(listed)
