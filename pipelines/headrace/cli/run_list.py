"""The commands runs and runs show: the list of runs, and the attempts of one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from headrace.cli.arguments import NamedRun
from headrace.cli.console import (
    JsonOption,
    amount,
    duration,
    keep_whole,
    open_console,
    plain_table,
    tell_json,
)
from headrace.errors import StepError
from headrace.files.atomic import read_bytes, read_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import AttemptRecord, RunRecord
from headrace.runs.origin import run_metrics
from headrace.runs.overview import why_failed, why_no_lease
from headrace.runs.provenance import owner_is_gone
from headrace.states import StepState
from headrace.suites.records import PRUNED, SuiteSummary

app = typer.Typer(name="runs", invoke_without_command=True)

_TOLD = ("step", "attempt", "state", "failure_class", "message")


@app.callback()
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Newest runs to list.")] = 20,
    state: Annotated[StepState | None, typer.Option(help="Only runs in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first; `runs show` tells of one.

    The main metric is what training monitors (`trainer.monitor`), else the first of evaluation by
    name, else the loss. A suite has its trials there, and the best value.

    Examples:
        headrace runs

        headrace runs --state failed --json
    """
    if context.invoked_subcommand is not None:
        return
    records = open_ledger().runs(limit=limit, state=state)
    if as_json:
        tell_json([_for_programs(row) for row in records])
        return
    table = plain_table("run", "site", "state", "time")
    table.add_column("result", overflow="fold")
    keep_whole(table.columns[0], [row.run_id for row in records])
    for row in records:
        end = row.finished_at or time.time()
        took = duration(end - row.created_at)
        table.add_row(row.run_id, row.site_name, row.state.value, took, Text(_result(row)))
    open_console().print(table)


@app.command()
def show(
    run_id: NamedRun,
    as_json: JsonOption = False,
) -> None:
    """Show all attempts at the steps of a run: when, how long, where, and why one failed.

    Examples:
        headrace runs show digits-20260102-030405-0a1b2c3d

        headrace runs show digits-20260102-030405-0a1b2c3d --json
    """
    record = open_ledger().run(run_id)
    attempts = open_ledger().attempts(run_id)
    if as_json:
        told = {**_for_programs(record), "attempts": [asdict(row) for row in attempts]}
        tell_json(told)
        return
    console = open_console()
    console.print(f"{run_id}: {record.state.value}, {_result(record) or 'no result'}", style="bold")
    table = plain_table("step", "attempt", "state", "asked", "time", "lease")
    table.add_column("why", overflow="fold")
    for row in attempts:
        table.add_row(
            row.step,
            str(row.attempt),
            row.state.value,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_at)),
            duration(_took_s(row)),
            row.lease_id.removeprefix(f"{run_id}-"),
            Text(_cause(row)),
        )
    console.print(table)


def _took_s(row: AttemptRecord) -> float | None:
    if row.started_at is None:
        return None
    return (row.finished_at or time.time()) - row.started_at


def _cause(row: AttemptRecord) -> str:
    why = f"{row.failure_class.value}: " if row.failure_class else ""
    return f"{why}{row.message}"


def _for_programs(row: RunRecord) -> dict[str, Any]:
    failed, main = why_failed(row), headline(row)
    told = {name: getattr(failed, name) for name in _TOLD} if failed else None
    metric = {"name": main.name, "value": main.value} if main else None
    return {**asdict(row), "failure": told, "metric": metric}


def _result(row: RunRecord) -> str:
    if not row.state.is_final and owner_is_gone(row.owner):
        return f"its process has ended: headrace resume {row.run_id}"
    failed = why_failed(row)
    if failed is not None:
        first_line = (failed.message or failed.state.value).splitlines()[0]
        return f"{failed.step}: {first_line}"
    if why := why_no_lease(row):
        return why.splitlines()[0]
    main = headline(row)
    return suite_words(row) or (f"{main.name} {amount(main.value)}" if main else "")


_OPEN = (StepState.QUEUED.value, StepState.RUNNING.value)


class Headline(NamedTuple):
    """A figure by its name."""

    name: str
    value: float


def headline(record: RunRecord) -> Headline | None:
    """What training monitors, else evaluation's first metric by name, else the loss.

    None for a run that gave none of these, as one that only packs.
    """
    outputs = {
        step: each if isinstance(each, dict) else {} for step, each in record.outputs.items()
    }
    known = run_metrics(outputs)
    evaluated = run_metrics({"evaluate": outputs.get("evaluate", {})})
    for name in (_monitored(record), next(iter(evaluated), None), "val_loss", "loss"):
        if name is not None and name in known:
            return Headline(name, known[name])
    return None


def suite_words(record: RunRecord) -> str:
    """How a suite stands, in a few words; empty for other runs."""
    file = RunFolder(Path(record.folder)).summary
    try:
        summary = read_record(file, SuiteSummary)
    except StepError:  # `headrace suite watch` tells what is wrong
        return f"its {file.name} is damaged"
    if summary is None:
        return ""
    ended = sum(count for state, count in summary.counts.items() if state not in _OPEN)
    useless = ended - sum(summary.counts.get(state, 0) for state in ("succeeded", PRUNED))
    words = [f"{ended:,} of {summary.total:,} trials"]
    words += [f"{useless:,} without success"] if useless else []
    if summary.best is not None and summary.best_value is not None:
        words.append(f"best {summary.best_value:.4g} (#{summary.best})")
    return ", ".join(words)


def _monitored(record: RunRecord) -> str | None:
    """`trainer.monitor` of its recipe; None also where the recipe is gone or damaged."""
    try:
        content = json.loads(read_bytes(RunFolder(Path(record.folder)).recipe) or b"{}")
    except ValueError:  # the list shows the run nonetheless
        return None
    trainer = content.get("trainer") if isinstance(content, dict) else None
    name = trainer.get("monitor") if isinstance(trainer, dict) else None
    return name if isinstance(name, str) else None
