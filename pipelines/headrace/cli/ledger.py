"""`headrace ledger`: what the database of runs holds, where it is, its schema."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from headrace.ledger.ledger import Ledger, default_url, masked

_HELP = "The database of runs, leases and attempts."


def register(app: typer.Typer) -> None:
    """Add `headrace ledger …` to the command line."""
    ledger = typer.Typer(help=_HELP, no_args_is_help=True)
    ledger.command("show")(show)
    ledger.command("migrate")(migrate)
    ledger.command("url")(url)
    app.add_typer(ledger, name="ledger")


def show() -> None:
    """Show how much the ledger holds, its schema revision and where it is.

    Example: headrace ledger show
    """
    summary = Ledger.open().summary()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("ledger", summary.url)
    table.add_row("schema", summary.revision)
    table.add_row("runs", str(summary.num_runs))
    table.add_row("leases", f"{summary.num_leases} ({summary.num_active_leases} open)")
    table.add_row("attempts", str(summary.num_attempts))
    Console(soft_wrap=True).print(table)


def migrate() -> None:
    """Make the schema, or bring it to the revision of this release.

    Opening the ledger does the same; this is for doing it at a time of your choice.

    Example: headrace ledger migrate
    """
    summary = Ledger.open().summary()
    typer.echo(f"{summary.url} has schema revision {summary.revision}.")


def url() -> None:
    """Print the ledger's URL, with *** in place of a password.

    Example: HEADRACE_LEDGER=postgresql://me:secret@db/headrace headrace ledger url
    """
    typer.echo(masked(default_url()))
