"""Commands about Airflow on this machine: up, down, env."""

from __future__ import annotations

import shlex
import time
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli import airflow_server
from headrace.cli.airflow_server import words_for
from headrace.cli.console import open_console
from headrace.errors import UserError

_POLL_S = 0.5


def register(app: typer.Typer) -> None:
    """Add the commands about Airflow."""
    for command in (up, down, env):
        app.command()(command)


def up(
    port: Annotated[
        int | None,
        typer.Option(
            help="Port on 127.0.0.1; by default 8080 or the next free one.", min=1, max=65535
        ),
    ] = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, then stop Airflow.")
    ] = False,
) -> None:
    """Start Airflow with headrace's DAGs on this machine, for trying out and for one person.

    It keeps its database in SQLite, listens on 127.0.0.1 only and asks for a password, which the
    first start makes and shows. A team installs Airflow in its own way and adds headrace.

    Examples:
        headrace up

        headrace up --port 8088 --foreground
    """
    console = open_console()
    login = airflow_server.login()
    before = airflow_server.running()
    if before is not None:
        console.print(f"Airflow is up already: {before.url}")
    else:
        with console.status("Starting Airflow"):
            before = airflow_server.up(port)
        console.print(f"Airflow is up: {before.url}")
        console.print("For one person on this machine: SQLite, 127.0.0.1 only.")
        console.print('`airflow` in this shell: eval "$(headrace env)"; to end it: headrace down')
    console.print(words_for(login, shows_password=console.is_terminal), soft_wrap=True)
    if foreground:
        _stay(before, console)


def down() -> None:
    """Stop the Airflow that `headrace up` started; no process of it is left.

    Leases live on until their work is done or their idle time is over: `headrace lease list`.
    """
    typer.echo("Airflow is down" if airflow_server.down() else "Airflow was not up")


def env() -> None:
    """Print the settings with which `airflow` in a shell talks to this Airflow.

    Examples:
        eval "$(headrace env)"
    """
    server = airflow_server.running()
    if server is None:
        raise UserError("Airflow is not up", "Start it: headrace up")
    for name, value in sorted(server.environment.items()):
        typer.echo(f"export {name}={shlex.quote(value)}")


def _stay(server: airflow_server.Server, console: Console) -> None:
    try:
        while server.process.is_alive:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        with console.status("Stopping Airflow"):
            airflow_server.down()
