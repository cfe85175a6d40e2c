"""The commands runs and runs show: the list of runs, and the attempts of one."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.cli.arguments import NamedRun
from headrace.cli.console import (
    JsonOption,
    amount,
    duration,
    open_console,
    tell,
    tell_json,
)
from headrace.cli.listing import Listing
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import AttemptRecord, RunRecord
from headrace.runs.audit import Actor, refused_requests
from headrace.runs.causes import why_failed, why_no_lease
from headrace.runs.provenance import owner_is_gone
from headrace.states import StepState
from headrace.views.headline import headline, suite_words
from headrace.views.runs import Books

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
    name, else the loss. A suite has its trials there, and the best value. Below them is what was
    asked for in Airflow meanwhile and refused; `headrace audit --refused` tells it whole.

    Examples:
        headrace runs

        headrace runs --state failed --json
    """
    if context.invoked_subcommand is not None:
        return
    records = open_ledger().runs(limit, () if state is None else (state,))
    books = Books.of(records)
    if as_json:
        tell_json([_for_programs(row, books) for row in records])
        return
    listed = Listing("run", "site", "state", "time", "result", figures=("time",))
    for row in records:
        took = duration((row.finished_at or time.time()) - row.created_at)
        listed.add(row.run_id, row.site_name, row.state.value, took, _result(row, books))
    open_console().print(listed)
    since = records[-1].created_at if len(records) == limit else 0.0
    for act in () if state else refused_requests(limit=limit, since=since):
        ago, why = duration(time.time() - act.created_at), act.refused.splitlines()[0]
        tell(f"Refused {ago} ago to {Actor(act.user or 'somebody', act.through)}: {why}")


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
    attempts, books = open_ledger().attempts(run_id), Books.of([record])
    if as_json:
        told = {**_for_programs(record, books), "attempts": [asdict(row) for row in attempts]}
        tell_json(told)
        return
    console = open_console()
    result = _result(record, books) or "no result"
    console.print(f"{run_id}: {record.state.value}, {result}", style="bold")
    titles = ("step", "attempt", "state", "asked", "time", "lease", "why")
    listed = Listing(*titles, figures=("attempt", "time"), labels=("asked",))
    for row in attempts:
        listed.add(
            row.step,
            str(row.attempt),
            row.state.value,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_at)),
            duration(_took_s(row)),
            row.lease_id.removeprefix(f"{run_id}-"),
            _cause(row),
        )
    console.print(listed)


def _took_s(row: AttemptRecord) -> float | None:
    if row.started_at is None:
        return None
    return (row.finished_at or time.time()) - row.started_at


def _cause(row: AttemptRecord) -> str:
    why = f"{row.failure_class.value}: " if row.failure_class else ""
    return f"{why}{row.message}"


def _for_programs(row: RunRecord, books: Books) -> dict[str, Any]:
    failed, main = why_failed(row, books.attempts.get(row.run_id, ())), headline(row)
    told = {name: getattr(failed, name) for name in _TOLD} if failed else None
    metric = {"name": main.name, "value": main.value} if main else None
    return {**asdict(row), "failure": told, "metric": metric}


def _result(row: RunRecord, books: Books) -> str:
    if not row.state.is_final and owner_is_gone(row.owner):
        return f"its process has ended: headrace resume {row.run_id}"
    attempts = books.attempts.get(row.run_id, ())
    failed = why_failed(row, attempts)
    if failed is not None:
        first_line = (failed.message or failed.state.value).splitlines()[0]
        return f"{failed.step}: {first_line}"
    if why := why_no_lease(row, attempts, books.leases.get(row.run_id, ())):
        return why.splitlines()[0]
    main = headline(row)
    return suite_words(row) or (f"{main.name} {amount(main.value)}" if main else "")
