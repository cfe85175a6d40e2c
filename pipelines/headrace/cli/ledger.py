"""`headrace ledger` and `headrace audit`: the database of runs, and user actions in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import arguments
from headrace.cli.console import JsonOption, facts, moment, open_console, tell_json
from headrace.cli.listing import ListColumn, tell_list
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.database import default_url, masked
from headrace.ledger.ledger import Ledger, open_ledger
from headrace.ledger.run_filter import first_day, span_of
from headrace.ledger.usage_file import write_usage
from headrace.runs.audit import Actor
from headrace.runs.refresh_usage import refresh_usage

app = typer.Typer(
    name="ledger", help="The database of runs, leases and attempts.", no_args_is_help=True
)


SinceOption = Annotated[str, typer.Option(help="First day: 2026-11-01, 2026-11, or 30d.")]


@app.command()
def show(as_json: JsonOption = False) -> None:
    """Show how much the ledger holds, its schema revision and its address.

    Example: headrace ledger show
    """
    summary = Ledger.open().summary()
    if as_json:
        tell_json(summary)
        return
    leases = f"{summary.num_leases} ({summary.num_active_leases} open)"
    counts = (("runs", f"{summary.num_runs}"), ("leases", leases))
    known = (("ledger", summary.url), ("schema", summary.revision), *counts)
    open_console().print(facts((*known, ("attempts", f"{summary.num_attempts}"))))


@app.command()
def migrate() -> None:
    """Create the schema, or bring it to the revision of this release.

    Opening the ledger does the same; this command does it at a time of your choice.

    Example: headrace ledger migrate
    """
    summary = Ledger.open().summary()
    typer.echo(f"{summary.url} has schema revision {summary.revision}.")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="File to write, .parquet or .csv.", dir_okay=False)],
    run: Annotated[
        str, typer.Option(help="Id of a run or suite; default: all.", autocompletion=arguments.runs)
    ] = "",
    since: SinceOption = "",
) -> None:
    """Write what each attempt took, a row for each, for other programs.

    A row is an attempt at a step or a trial.

    Examples:
        headrace ledger export attempts.parquet
        headrace ledger export november.csv --since 2026-11
    """
    day = first_day(since)
    refresh_usage(run or None)
    count = write_usage(file, open_ledger().usage_blocks(run or None, day))
    typer.echo(f"{file} has {count:,} rows.")


@app.command()
def url() -> None:
    """Print the ledger's URL, with `***` in place of a password.

    Example: HEADRACE_LEDGER=postgresql://me:secret@db/headrace headrace ledger url
    """
    typer.echo(masked(default_url()))


def audit(
    user: Annotated[str, typer.Option(help="Only actions of this user.")] = "",
    run: Annotated[
        str, typer.Option(help="Only actions on this run or suite.", autocompletion=arguments.runs)
    ] = "",
    since: SinceOption = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only refused requests.")] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="At most this many, the newest.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """List who started, changed or stopped what, the newest first.

    A refused request in Airflow has the id of its DAG run in place of a run's. Airflow's own audit
    log has the tasks that were marked or cleared in Airflow.

    Examples:
        headrace audit --since 7d
        headrace audit --user ada --json
        headrace audit --refused
    """
    found = open_ledger().acts(user, run, span_of(since)[0], limit, refused=refused)
    tell_list(found, _ACTS, "No actions.", as_json=as_json)


def _details(row: ActRecord) -> str:
    why = f"refused: {' '.join(row.refused.split())}" if row.refused else ""
    return "; ".join(filter(None, (row.details, why)))


_ACTS = (
    ListColumn("when", lambda row: moment(row.created_at)),
    ListColumn("who", lambda row: str(Actor(row.user or "unknown", row.through))),
    ListColumn("what", lambda row: row.what),
    ListColumn("run", lambda row: row.run_id or "-"),
    ListColumn("details", _details),
)
