"""`headrace ledger`: what the database of runs holds, where it is, its schema."""

from __future__ import annotations

import typer

from headrace.ledger.database import default_url, masked
from headrace.ledger.ledger import Ledger

app = typer.Typer(help="The database of runs, leases and attempts.", no_args_is_help=True)


@app.command()
def show() -> None:
    """Show how much the ledger holds, its schema revision and where it is.

    Example: headrace ledger show
    """
    summary = Ledger.open().summary()
    for name, value in (
        ("ledger", summary.url),
        ("schema", summary.revision),
        ("runs", summary.num_runs),
        ("leases", f"{summary.num_leases} ({summary.num_active_leases} open)"),
        ("attempts", summary.num_attempts),
    ):
        typer.echo(f"{name:<10}{value}")


@app.command()
def migrate() -> None:
    """Make the schema, or bring it to the revision of this release.

    Opening the ledger does the same; this is for doing it at a time of your choice.

    Example: headrace ledger migrate
    """
    summary = Ledger.open().summary()
    typer.echo(f"{summary.url} has schema revision {summary.revision}.")


@app.command()
def url() -> None:
    """Print the ledger's URL, with `***` in place of a password.

    Example: HEADRACE_LEDGER=postgresql://me:secret@db/headrace headrace ledger url
    """
    typer.echo(masked(default_url()))
