"""Commands about Airflow on this machine: up, down, env, and demo, the main job under it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli import airflow_server
from headrace.cli.airflow_server import AirflowApi, AirflowBusyError, Credentials, Server
from headrace.cli.console import open_console
from headrace.cli.view import closing, print_failures
from headrace.cli.watching import Pause, Watching
from headrace.errors import HeadraceError, StepError, UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.runs.runs import open_run
from headrace.states import StepState
from headrace.status.run_details import run_details

DAG_ID = "headrace_train"

_POLL_S = 0.25
_DAG_TIMEOUT_S = 120.0
_ASK_S = 1.0
_STALL_S = 180.0
_LAST_STATES = ("success", "failed")
_UP = """Airflow is up: {}
For one person on this machine: SQLite, 127.0.0.1 only.
`airflow` in this shell: eval "$(headrace env)"; to end it: headrace down"""


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
    """Start Airflow with headrace's DAGs on this machine.

    It is for trials and for one person: the database is SQLite, it listens on 127.0.0.1 only, and
    it asks for a password, which the first start creates and shows. A team installs Airflow in its
    own way and adds headrace.

    Examples:
        headrace up
        headrace up --port 8088 --foreground
    """
    console = open_console()
    login = airflow_server.login()
    server = airflow_server.running()
    if server is not None:
        console.print(f"Airflow is already up: {server.url}")
    else:
        with console.status("Starting Airflow"):
            server = airflow_server.up(port)
        console.print(_UP.format(server.url))
        for notice in server.notices:
            console.print(notice, soft_wrap=True, markup=False)
    console.print(words_for(login, shows_password=console.is_terminal), soft_wrap=True)
    if foreground and _interrupted(lambda: server.process.is_alive):
        with console.status("Stopping Airflow"):
            airflow_server.down()
    elif foreground:
        airflow_server.raise_if_killed(server)


def down() -> None:
    """Stop the Airflow that `headrace up` started.

    All its processes end. Leases stay open until their work is done or their idle time is over:
    `headrace lease list`.
    """
    typer.echo("Airflow is down" if airflow_server.down() else "Airflow was not up")


def env() -> None:
    """Print the settings that connect `airflow` to this Airflow.

    Examples:
        eval "$(headrace env)"
    """
    server = airflow_server.running()
    if server is None:
        raise UserError("Airflow is not up", "Start it: headrace up")
    for name, value in sorted(server.environment.items()):
        typer.echo(f"export {name}={shlex.quote(value)}")


def password() -> None:
    """Print the password of the Airflow of `headrace up`.

    `headrace demo` has the same password. The user has the name of your account; only the owner of
    the password's file can read it.

    Examples:
        headrace password
    """
    typer.echo(airflow_server.read_login(airflow_server.airflow_folder()).password)


def words_for(login: Credentials, *, shows_password: bool) -> str:
    """Return how to log in; a new password is included if only its owner can read the text."""
    if login.is_new and shows_password:
        return f"Log in as {login.user}, password {login.password} (kept in {login.file})"
    return f"Log in as {login.user}; its password: headrace password (kept in {login.file})"


def _interrupted(goes_on: Callable[[], bool]) -> bool:
    """Wait while a condition holds, or until Ctrl-C; return whether it was that."""
    try:
        while goes_on():
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return True
    return False


def demo(
    once: Annotated[
        bool,
        typer.Option(
            help="Stop Airflow and exit when the run has ended (implied without a terminal)."
        ),
    ] = False,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe, as in trainer.max_epochs=3.")
    ] = None,
) -> None:
    """Train and evaluate the digits under Airflow on this machine.

    Examples:
        headrace demo
        headrace demo --once trainer.max_epochs=3
    """
    console = open_console()
    once = once or bool(os.environ.get("CI")) or not console.is_terminal
    login = airflow_server.login()
    _prepare_digits(console)
    with _airflow(console, login) as (server, stop_airflow):
        dag_run = _trigger(AirflowApi(server.url, login), overrides or [], console)
        with _cancelled_when_left(dag_run, stop_airflow, console):
            run_id = _followed(dag_run, console)
        succeeded = _tell_end(run_id, dag_run.url, console)
        if not once:
            console.print(f"Airflow stays up at {server.url}; Ctrl-C stops it.")
            _interrupted(lambda: True)
    if not succeeded:
        raise typer.Exit(1)


def _prepare_digits(console: Console) -> None:
    from headrace.examples import digits  # NumPy and Pillow, for this command only

    folder = digits.default_folder()
    with console.status("Writing the digits as PNG files"):
        digits.export_digits(folder)
    console.print(f"samples: {folder}")


@contextmanager
def _airflow(console: Console, login: Credentials) -> Iterator[tuple[Server, Callable[[], None]]]:
    """Yield Airflow, and a function that stops it early; one that was up before never stops."""
    was_up = airflow_server.running() is not None

    def stop() -> None:
        if not was_up:
            with console.status("Stopping Airflow"):
                airflow_server.down()

    try:
        with console.status("Starting Airflow"):
            server = airflow_server.up()
        console.print(f"Airflow: {server.url}")
        words = words_for(login, shows_password=console.is_terminal)
        console.print(words, soft_wrap=True)
        yield server, stop
    finally:
        stop()


class _DagRun:
    """The DAG run of a demo; an API that stalls is tolerated while it is followed."""

    def __init__(self, api: AirflowApi, dag_run_id: str) -> None:
        self.key, self.url = f"airflow:{DAG_ID}:{dag_run_id}", api.run_url(DAG_ID, dag_run_id)
        self._api, self._id = api, dag_run_id
        self._is_due, self._answered_at = Pause(_ASK_S), time.monotonic()

    def has_ended(self) -> bool:
        """Whether it has ended, as far as is known; Airflow is queried periodically."""
        if not self._is_due():
            return False
        try:
            state = self._api.run_state(DAG_ID, self._id)
        except AirflowBusyError:
            if time.monotonic() - self._answered_at > _STALL_S:
                raise
            return False
        self._answered_at = time.monotonic()
        return state in _LAST_STATES

    def fail(self) -> None:
        """Mark it as failed: from now on it starts only tasks that clean up."""
        self._api.fail_run(DAG_ID, self._id)

    def run(self) -> RunRecord | None:
        """Return the run that its first task has made; None before."""
        return open_ledger().run_by_key(self.key)


@contextmanager
def _cancelled_when_left(
    dag_run: _DagRun, stop_airflow: Callable[[], None], console: Console
) -> Iterator[None]:
    """Cancel a run, with all its work, if the block is left before the run's end (as by Ctrl-C).

    Otherwise its leases would work on without Airflow, and the next Airflow would continue it.
    """
    try:
        yield
    except BaseException:
        try:
            dag_run.fail()
        except HeadraceError as error:
            console.print(f"The DAG run will continue when Airflow is started again: {error.what}")
        else:
            if (record := dag_run.run()) is not None:  # before its last task reports it as failed
                open_ledger().finish_run(record.run_id, StepState.CANCELLED, time.time())
        stop_airflow()
        record = dag_run.run()  # its first task may have made it since
        if record is not None and airflow_server.running() is None:
            with console.status("Ending the run"):
                end_run(open_run(record.run_id), StepState.CANCELLED)
        raise


def _trigger(api: AirflowApi, overrides: list[str], console: Console) -> _DagRun:
    conf = {"recipe": "digits", "site": "laptop", "overrides": overrides}
    deadline = time.monotonic() + _DAG_TIMEOUT_S
    with console.status("Waiting for Airflow to read the DAGs"):
        while True:
            try:
                return _DagRun(api, api.trigger(DAG_ID, conf))
            except (UnknownNameError, AirflowBusyError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)


def _followed(dag_run: _DagRun, console: Console) -> str:
    """Show the progress of the DAG run until its end; return the run's id."""
    with console.status("Triggered; waiting for the first task"):
        while (record := dag_run.run()) is None:
            if dag_run.has_ended() and dag_run.run() is None:
                raise StepError(
                    f"DAG run {dag_run.key} ended before it had made a run",
                    f"Its log: {dag_run.url}",
                )
            time.sleep(_POLL_S)
    with Watching(record.run_id, console) as tick:
        while not dag_run.has_ended():
            tick()
            time.sleep(_POLL_S)
    return record.run_id


def _tell_end(run_id: str, url: str, console: Console) -> bool:
    view = run_details(run_id)
    console.print(closing(view))
    console.print(f"Airflow run     {url}")
    if view.dashboard_url:
        console.print(f"Dask dashboard  {view.dashboard_url}")
    print_failures(view, console)
    return view.state is StepState.SUCCEEDED
