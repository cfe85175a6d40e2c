"""All commands of `headrace`, and how errors are shown."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from headrace import __version__
from headrace.cli import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE
from headrace.cli.command_group import Command, CommandGroup
from headrace.cli.console import open_console, outlive_readers, output_problem
from headrace.errors import HeadraceError, StorageError
from headrace.files.machine import storage_error, system_error
from headrace.processes.identity import end_quickly, tell_children

COMMANDS = "headrace.commands"
"""Entry points of other packages: mappings of names to `Command`, as of the benchmarks."""

_PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "run": ("runs:run", "Run a recipe on a site from this terminal, without Airflow."),
        "sweep": ("runs:sweep", "Run many trials of a recipe, by its suite and the arguments."),
        "evaluate": ("runs:evaluate", "Evaluate checkpoints of a run, also while it trains."),
        "resume": ("runs:resume", "Continue a run that was interrupted."),
        "attach": ("run_status:attach", "Show a run live; Ctrl-C ends only this view."),
        "rerun": ("origins:rerun", "Run a run or a trial once more, from its record alone."),
        "package": ("origins:package", "Write a run as one file for another home."),
        "adopt": ("origins:adopt", "Enter the run of a package."),
        "cancel": ("runs:cancel", "Ask the running steps of a run to stop."),
        "check": ("check:check", "Check a recipe on one real batch, without a lease."),
        "plan": ("plan:plan", "Show what a run would request from a site, take and cost."),
    },
    "Look": {
        "status": ("run_status:status", "Show a run's state: steps, progress, rate, time left."),
        "logs": ("run_status:logs", "Print the logs of a run: driver and ranks of every attempt."),
        "runs": ("run_list:app", "List runs, the newest first; `runs show` shows one."),
        "mark": ("run_list:mark", "Tag, note or star runs."),
        "suite": ("suites:app", "Suites: list trials; pause, cancel, add some."),
        "results": ("results:results", "Show the results of a suite: best, means, importance."),
        "diff": ("origins:diff", "Show the differences between runs or trials."),
        "shell": ("shell:shell", "Open a shell or Jupyter on a node of a lease."),
    },
    "Data": {
        "inspect": ("datasets:inspect", "Show the content of a dataset or a shard."),
        "verify": ("datasets:verify", "Check a dataset: its manifest, and every shard."),
        "export": ("export:export", "Write a trained model for programs without headrace."),
        "cache": ("cache:app", "Staged datasets on this machine's tiers."),
        "disk": ("disk:disk", "Show what fills the disk: runs, datasets, caches, Airflow."),
        "clean": ("disk:clean", "Remove old files; the plan is shown first."),
        "example": ("datasets:examples", "Write example data to try headrace with."),
    },
    "Airflow": {
        "demo": ("airflow:demo", "Train and evaluate the digits under Airflow on this machine."),
        "up": ("airflow:up", "Start Airflow with headrace's DAGs on this machine."),
        "down": ("airflow:down", "Stop the Airflow that `headrace up` started."),
        "env": ("airflow:env", "Print the settings that connect `airflow` to this Airflow."),
        "password": ("airflow:password", "Print the password of the Airflow of `headrace up`."),
    },
    "Admin": {
        "lease": ("leases:app", "Leases: the machines that runs hold."),
        "site": ("site:app", "Sites: where work runs."),
        "ledger": ("ledger:app", "The database of runs, leases and attempts."),
        "audit": ("ledger:audit", "List who started, changed or stopped what, the newest first."),
        "schema": ("site:schema", "Print the JSON schema of recipe or site files, for editors."),
    },
}
"""Commands and groups by the sections of the help: the place and purpose of each."""

_OWN = {
    name: Command(panel, f"headrace.cli.{target}", summary)
    for panel, commands in _PANELS.items()
    for name, (target, summary) in commands.items()
}


class _Root(CommandGroup):
    group, own = COMMANDS, _OWN


def build() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        name="headrace",
        cls=_Root,
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

    return app


def run() -> None:
    """Run the command line; errors that headrace raises on purpose are shown without a trace."""
    tell_children()
    outlive_readers()
    end_quickly()
    try:
        build()()
    except SystemExit as ended:
        problem = output_problem()
        if ended.code or problem is None:
            raise
        _tell(StorageError(f"standard output cannot be written: {problem.strerror}"))
        sys.exit(EXIT_ERROR)
    except HeadraceError as error:
        _tell(error)
        sys.exit(EXIT_USAGE if error.failure_class.value == "user_error" else EXIT_ERROR)
    except (OSError, RuntimeError) as error:
        is_loop = str(error).startswith("Symlink loop")  # pathlib's text for links
        named = storage_error(system_error(error) if is_loop else error, Path())
        if named is None:
            raise
        _tell(named)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _tell(error: HeadraceError) -> None:
    console = open_console(stderr=True)
    console.print("error:", style="bold red", end=" ")
    console.print(str(error), soft_wrap=True)
