"""The command audit: user actions."""

from __future__ import annotations

import calendar
import time
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli import arguments
from headrace.cli.console import JsonOption, open_console, tell_json
from headrace.cli.listing import Listing
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.runs.audit import Actor
from headrace.runs.refresh_usage import first_day


def audit(
    user: Annotated[str, typer.Option(help="Only actions of this user.")] = "",
    run: Annotated[
        str, typer.Option(help="Only actions on this run or suite.", autocompletion=arguments.runs)
    ] = "",
    since: Annotated[str, typer.Option(help="First day: 2026-11-01, 2026-11, or 30d.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only refused requests.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many, the newest.")] = 50,
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
    found = open_ledger().acts(user, run, _begin(since), limit, refused=refused)
    if as_json:
        tell_json([asdict(row) for row in found])
        return
    listed = Listing("when", "who", "what", "run", "details")
    for row in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_at))
        who = Actor(row.user or "unknown", row.through)
        listed.add(when, str(who), row.what, row.run_id or "-", _details(row))
    open_console().print(listed if found else "No actions.")


def _details(row: ActRecord) -> str:
    refused = f"refused: {' '.join(row.refused.split())}" if row.refused else ""
    return "; ".join(filter(None, (row.details, refused)))


def _begin(since: str) -> float:
    """Return when a day began (UTC), in seconds since the epoch."""
    day = first_day(since)
    return calendar.timegm(time.strptime(f"{day}-01"[:10], "%Y-%m-%d")) if day else 0.0
