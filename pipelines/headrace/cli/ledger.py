"""`headrace ledger`: what the database of runs holds, where it is, its schema."""

from __future__ import annotations

import typer

from headrace.ledger.database import default_url, masked
from headrace.ledger.ledger import Ledger

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
    _line("ledger", summary.url)
    _line("schema", summary.revision)
    _line("runs", str(summary.num_runs))
    _line("leases", f"{summary.num_leases} ({summary.num_active_leases} open)")
    _line("attempts", str(summary.num_attempts))


def migrate() -> None:
    """Make the schema, or bring it to the revision of this release.

    Opening the ledger does the same; this is for doing it at a time of your choice.

    Example: headrace ledger migrate
    """
    summary = Ledger.open().summary()
    typer.echo(f"{summary.url} has schema revision {summary.revision}.")


def url() -> None:
    """Print the ledger's URL, with `***` in place of a password.

    Example: HEADRACE_LEDGER=postgresql://me:secret@db/headrace headrace ledger url
    """
    typer.echo(masked(default_url()))


def _line(name: str, value: str) -> None:
    typer.echo(f"{name:<10}{value}")
