"""Results of a suite: its trials as a table, and its report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import UnknownNameError, nearest
from headrace.files.atomic import AS_USUAL, replacing, write_text
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.record import Record
from headrace.runs.suites import sought_by
from headrace.runs.trials import note_trials
from headrace.states import StepState
from headrace.steps.history import read_history
from headrace.suites.analysis import finished, ranked
from headrace.suites.names import written
from headrace.suites.records import PRUNED

_MOST = 1_000_000
_BETWEEN = "; "
_BEST = 5
_OF_ATTEMPTS = ("attempts", "site", "node", "started_at", "finished_at")
_OF_NUMBERS = ("environment", "weights")


class Environment(Record):
    """Trials that succeeded with the same hardware and software."""

    differs: str
    """What other groups of the suite do not have in common with it, separated by `; `."""
    numbers: tuple[int, ...]
    """The trials."""


def trials_of(record: RunRecord) -> tuple[TrialRecord, ...]:
    """Return all trials of a suite by its journal now."""
    note_trials(RunFolder(Path(record.folder)))
    return open_ledger().trials(record.run_id, limit=_MOST)


def judged_by(
    rows: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> tuple[TrialRecord, ...]:
    """Return trials with other objectives than the suite's.

    Raises:
        UnknownNameError: No trial has one of the metrics.
    """
    known = sorted({name for row in rows for name in row.metrics})
    for each in objectives:
        if each.metric not in known:
            what = f"No trial has the metric '{each.metric}'"
            raise UnknownNameError(what, nearest(each.metric, known))
    for row in rows:
        found = [row.metrics[each.metric] for each in objectives if each.metric in row.metrics]
        row.objectives = tuple(found) if len(found) == len(objectives) else ()
        is_known = bool(row.objectives) and math.isfinite(row.objectives[0])
        row.objective = row.objectives[0] if is_known else None
    return tuple(rows)


def environments_of(rows: Sequence[TrialRecord]) -> tuple[Environment, ...]:
    """Return the trials that succeeded by their environment, the largest group first."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        if row.state is StepState.SUCCEEDED:
            numbers.setdefault(row.environment, []).append(row.number)
    parts = {each: each.split(_BETWEEN) for each in numbers}
    common = set.intersection(*map(set, parts.values())) if parts else set()
    own = {each: _BETWEEN.join(x for x in parts[each] if x not in common) for each in parts}
    groups = [Environment(differs=own[each], numbers=tuple(numbers[each])) for each in numbers]
    return tuple(sorted(groups, key=lambda each: (-len(each.numbers), each.numbers)))


def comparable(rows: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
    """Return the trials of the largest environment, and those that have not succeeded."""
    left_out = {number for each in environments_of(rows)[1:] for number in each.numbers}
    return tuple(row for row in rows if row.number not in left_out)


def table_of(rows: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[dict[str, Any]]:
    """Return a row of plain values for each trial, with the same columns.

    Columns are named by the dotted keys of values, `metrics.NAME` and `objective.NAME`.
    """
    keys = dict.fromkeys(key for row in rows for key in row.values)
    metrics = sorted({name for row in rows for name in row.metrics})
    return [
        {
            **{name: getattr(row, name) for name in ("number", "name", "group")},
            "state": PRUNED if row.pruned else row.state.value,
            **{key: _plain(row.values.get(key)) for key in keys},
            **_named("objective", [each.metric for each in objectives], row.objectives),
            **{f"metrics.{name}": row.metrics.get(name) for name in metrics},
            **{name: getattr(row, name) for name in (*_OF_ATTEMPTS, *_OF_NUMBERS)},
            "failure_class": row.failure_class.value if row.failure_class else None,
            "message": row.message,
            "usd": row.usd,
            "kwh": None if row.energy_wh is None else row.energy_wh / 1000,
        }
        for row in rows
    ]


def write_parquet(table: Sequence[dict[str, Any]], file: Path) -> None:
    """Write a table as Parquet; a column of several types becomes text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: [row[name] for row in table] for name in (table[0] if table else ["number"])}
    whole = pa.table({name: _alike(values) for name, values in columns.items()})
    with replacing(file, AS_USUAL) as out:
        pq.write_table(whole, out)


def write_report(
    record: RunRecord,
    file: Path | None = None,
    objectives: Sequence[Objective] = (),
    choose: Callable[[Sequence[TrialRecord]], Sequence[TrialRecord]] = tuple,
) -> Path:
    """Write the report of a suite and return its path, by default in the run's report folder.

    `objectives` replace those of the suite; `choose` may leave out trials.
    """
    from headrace.report.html import render
    from headrace.suites.suite_report import ReportInputs, suite_report

    folder = RunFolder(Path(record.folder))
    rows = choose(trials_of(record))
    rows = judged_by(rows, objectives) if objectives else rows
    sought = sought_by(folder)
    objectives = objectives or sought.objectives
    inputs = ReportInputs(
        run_id=record.run_id,
        lead=f"Suite of {record.recipe_name} on {record.site_name}: {len(rows):,} trials",
        rows=rows,
        objectives=objectives,
        log_keys=sought.log_keys,
        curves=_curves(folder, rows, objectives),
    )
    place = file or folder.report_file
    write_text(place, render(suite_report(inputs)))
    return place


def _curves(
    folder: RunFolder, rows: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> dict[str, list[tuple[float, float]]]:
    """Return the first objective of the best trials by validated step."""
    if not objectives:
        return {}
    metric = objectives[0].metric
    found = {
        f"{row.number} {row.name}"[:40]: [
            (float(each.step), each.metrics[metric])
            for each in read_history(folder.trial(row.number)).metrics
            if metric in each.metrics
        ]
        for row in ranked(finished(rows), objectives)[:_BEST]
    }
    return {name: points for name, points in found.items() if points}


def _named(kind: str, names: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    given = [*values, *[None] * len(names)]
    return {f"{kind}.{name}": value for name, value in zip(names, given, strict=False)}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else written(value)


def _alike(values: Sequence[Any]) -> Sequence[Any]:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [
            float(value) if kinds == {int, float} and value is not None else value
            for value in values
        ]
    return [None if value is None else str(value) for value in values]
