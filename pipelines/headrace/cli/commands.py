"""All commands of `headrace`, each group from a module of its own, and how they tell errors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

from headrace import __version__
from headrace.cli import (
    EXIT_INTERRUPTED,
    airflow,
    audit,
    cache,
    cost,
    datasets,
    export,
    leases,
    ledger,
    origins,
    plan,
    results,
    runs,
    shell,
    site,
    suites,
    what_if,
)
from headrace.cli.console import open_console, outlive_readers
from headrace.entry_points import load_group
from headrace.errors import HeadraceError, StorageFullError
from headrace.files.machine import full_words, is_full
from headrace.processes.identity import end_quickly, tell_children

COMMANDS = "headrace.commands"
"""Entry points: functions that add commands of other packages, as of the benchmarks."""

_PANELS: Mapping[str, Sequence[Callable[..., None] | typer.Typer]] = {
    "Run": (
        *(runs.run, suites.sweep, runs.evaluate, runs.resume, origins.rerun, runs.cancel),
        *(plan.plan, what_if.what_if),
    ),
    "Look": (
        *(runs.status, runs.logs, runs.app, suites.app, results.results),
        *(origins.diff, cost.cost, shell.shell),
    ),
    "Data": (datasets.inspect, datasets.verify, export.export, cache.app, datasets.examples),
    "Airflow": (airflow.demo, airflow.up, airflow.down, airflow.env, airflow.password),
    "Admin": (
        leases.app,
        site.app,
        ledger.app,
        audit.audit,
        site.schema,
        cost.ownership,
    ),
}
"""Commands and groups of commands, by the parts of the help."""

_EXIT_ERROR = 1
_EXIT_USAGE = 2


def build() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="headrace",
        help="From raw samples to evaluated models: pack, stage, train, evaluate.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        """From raw samples to evaluated models: pack, stage, train, evaluate."""
        if version:
            typer.echo(__version__)
            raise typer.Exit

    for panel, parts in _PANELS.items():
        for part in parts:
            if isinstance(part, typer.Typer):
                app.add_typer(part, rich_help_panel=panel)
            else:
                app.command(rich_help_panel=panel)(part)
    for register in load_group(COMMANDS).values():
        register(app)
    app.command(hidden=True)(leases.top)
    _part_examples(app)
    return app


def _part_examples(app: typer.Typer) -> None:
    """Have each example of a help on a line of its own: they are a block of code in Markdown."""
    for part in (*app.registered_commands, app.registered_callback):
        if part is None or part.callback is None:
            continue
        before, title, examples = (inspect.getdoc(part.callback) or "").partition("Examples:\n")
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        if lines:
            part.help = "\n".join((before + title, "```text", *lines, "```"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _part_examples(group.typer_instance)


def run() -> None:
    """Do what the command line asks; errors that headrace raises on purpose have no trace."""
    tell_children()
    outlive_readers()
    end_quickly()
    try:
        build()()
    except HeadraceError as error:
        _tell(error)
        sys.exit(_EXIT_USAGE if error.failure_class.value == "user_error" else _EXIT_ERROR)
    except OSError as error:
        if not is_full(error):
            raise
        _tell(StorageFullError(full_words(error, Path.cwd()), "Free some space, and ask again."))
        sys.exit(_EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _tell(error: HeadraceError) -> None:
    console = open_console(stderr=True)
    console.print("error:", style="bold red", end=" ")
    console.print(str(error), highlight=False, soft_wrap=True)
