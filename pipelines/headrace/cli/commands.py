"""All commands of `headrace`, each group from a module of its own, and how they tell errors."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import typer

from headrace import __version__
from headrace.cli import (
    airflow,
    cache,
    cloud,
    cost,
    datasets,
    export,
    leases,
    ledger,
    origins,
    plan,
    profile,
    results,
    run_list,
    runs,
    shell,
    site,
    suites,
    sweep,
    what_if,
)
from headrace.cli.app import EXIT_INTERRUPTED
from headrace.cli.console import open_console, outlive_readers
from headrace.errors import HeadraceError, StorageFullError
from headrace.files.machine import full_words, is_full
from headrace.processes import end_quickly, tell_children

COMMANDS = "headrace.commands"
"""Entry points: functions that add commands of other packages, as of the benchmarks."""

_OF_RUNS = (runs.run, runs.resume, runs.status, runs.logs, runs.cancel, plan.plan)
_OF_AIRFLOW = (airflow.demo, airflow.up, airflow.down, airflow.env)

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

    for function in (*_OF_RUNS, *_OF_AIRFLOW):
        app.command()(function)
    app.add_typer(run_list.app, name="runs")
    app.add_typer(suites.app, name="suite")
    app.command()(results.results)
    app.add_typer(leases.app, name="lease")
    app.add_typer(site.app, name="site")
    app.add_typer(cloud.app, name="cloud")
    app.command()(cost.cost)
    app.command()(cost.ownership)
    app.command()(what_if.what_if)
    app.command()(profile.profile)
    app.command()(shell.shell)
    app.command()(sweep.sweep)
    app.command()(runs.evaluate)
    app.command()(export.export)
    app.command()(origins.diff)
    app.command()(origins.rerun)
    app.command()(datasets.inspect)
    app.command()(datasets.verify)
    app.add_typer(datasets.examples, name="example")
    app.add_typer(cache.app, name="cache")
    for command in sorted(entry_points(group=COMMANDS)):
        command.load()(app)
    app.add_typer(ledger.app, name="ledger")
    app.command()(site.schema)
    return app


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
