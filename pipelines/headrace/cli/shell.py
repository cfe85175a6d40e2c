"""The command shell: a terminal, or a command, on a node of a lease."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Annotated

import typer

from headrace.cli import arguments
from headrace.cli.console import open_console, with_handler
from headrace.cli.watching import telling
from headrace.errors import UserError
from headrace.recipe.load import load_site
from headrace.runs.runs import open_run
from headrace.runs.shells import command_on, lease_of, lease_on, variables

_HOUR_S = 3600.0


def shell(
    words: Annotated[
        list[str] | None,
        arguments.a_run("Id of a run; a command and its arguments.", "[RUN] [-- COMMAND]"),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            help="Open a lease of one node on this site, instead of a run's.",
            autocompletion=arguments.sites,
        ),
    ] = None,
    role: Annotated[str | None, typer.Option(help="Role of the site; its first gang.")] = None,
    lifetime: Annotated[
        float, typer.Option(min=60, help="Maximum lifetime of the lease, seconds.")
    ] = _HOUR_S,
    notebook: Annotated[bool, typer.Option("--notebook", help="Start Jupyter there.")] = False,
) -> None:
    """Open a shell or Jupyter on a node of a lease.

    It has the run's dataset and checkpoints in `HEADRACE_DATASET` and `HEADRACE_CHECKPOINTS`. A
    lease of its own is closed when the shell ends. It works on this machine and on Slurm, where the
    shell is one more step of the job (`srun --overlap`). The exit code is the command's.

    Examples:
        headrace shell digits-20260102-030405-0a1b2c3d
        headrace shell RUN -- nvidia-smi
        headrace shell --site my-cluster --role gpu --lifetime 7200
        headrace shell RUN --notebook
    """
    given = list(words or ())
    if notebook and (words := given[site is None :]):
        raise UserError(f"--notebook starts Jupyter, not '{words[0]}'", "Leave one out.")
    with ExitStack() as stack:
        ends = (signal.SIGTERM, signal.SIGHUP)
        stack.enter_context(with_handler(signal.default_int_handler, *ends))
        run = None
        if site is not None:
            with telling(open_console(stderr=True)) as tick:  # ends before the shell starts
                folder = stack.enter_context(lease_on(load_site(site), role, lifetime, tick))
        elif given:
            run = open_run(given.pop(0))
            folder = lease_of(run)
        else:
            raise UserError("Name a run, or a site", "headrace shell RUN, headrace shell --site S")
        if notebook:  # Dask takes half a second to load
            module = importlib.import_module("headrace.clusters.notebook")
            with suppress(KeyboardInterrupt):
                module.run_notebook(
                    folder,
                    variables(run, folder),
                    lambda url: typer.echo(f"{url}\nCtrl-C ends it."),
                )
            return
        command = command_on(folder, given, with_terminal=sys.stdin.isatty())
        code = _run(command, {**os.environ, **variables(run, folder)})
    raise typer.Exit(code)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command at this terminal until it ends; it handles Ctrl-C and the terminal's end."""
    try:
        # the command gets the signal as well; headrace waits for its end
        with with_handler(lambda *_: None, signal.SIGINT, signal.SIGHUP):
            return subprocess.call(list(command), env=dict(environment))
    except OSError as error:
        raise UserError(f"{command[0]} cannot be run: {error.strerror or error}") from error
