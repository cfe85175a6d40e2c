"""Runs Airflow's components on one machine: `python -m headrace_airflow.supervisor [--port N]`.

`headrace up` starts it, detached. It prepares the database and starts the API server, the DAG
processor, the triggerer and, once the API server listens, the scheduler. It restarts any of them
that ends, and publishes `up.json` when all are healthy. SIGTERM or SIGINT ends it with all its
child processes; if it is killed, the kernel and a guard (`--guard`) end them.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from headrace.cli.airflow_server import (
    ASKED_BEFORE_S,
    AirflowApi,
    AirflowError,
    Server,
    airflow_folder,
    log_file,
    processes,
    read_login,
    record_file,
)
from headrace.errors import HeadraceError
from headrace.files.atomic import write_record, write_text
from headrace.processes.identity import ProcessIdentity, die_with_parent, end_processes
from headrace.processes.working_folder import python_module
from headrace_airflow.housekeeping import Housekeeping
from headrace_airflow.service import (
    Component,
    airflow_settings,
    dags_folder,
    environment_for,
    loopback_without_proxy,
    reserve_port,
)

logger = logging.getLogger(__name__)

_COMPONENTS = (
    ("api-server",),
    ("scheduler", "--skip-serve-logs"),
    ("dag-processor",),
    ("triggerer", "--skip-serve-logs"),
)
_POLL_S = 0.25
_STOP_GRACE_S = 4.0
_MAX_SHORT_LIVES = 3
_REPORTING = ("metadatabase", "scheduler", "triggerer", "dag_processor")


class Supervisor:
    """Keeps the components of one Airflow alive, by its home and the port of its API server."""

    def __init__(self, folder: Path, port: int) -> None:
        self._port = port
        self._url = f"http://127.0.0.1:{port}"
        self._folder = folder
        secret = folder / "jwt_secret"
        if not secret.exists():
            write_text(secret, secrets.token_urlsafe(64))
        (folder.parent / "dags").mkdir(exist_ok=True)
        self._settings = airflow_settings(folder, port, secret)
        environment, self._notices = environment_for(os.environ, self._settings)
        self._environment = {
            **environment,
            **loopback_without_proxy(os.environ),
            "SPT_NOENV": "1",  # processes that change their title keep their environment variables
        }
        logs = log_file().parent
        self._components = [
            Component(command, self._environment, logs / f"{command[0]}.log")
            for command in _COMPONENTS
        ]
        self._housekeeping = Housekeeping(folder, self._environment, logs)
        self._asked_to_end = False
        self._published = False
        self._missing_before: list[str] = []

    def run(self) -> None:
        """Work until asked to end."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._note_request)
        self._migrate()
        try:
            while not self._asked_to_end:
                self._look()
                time.sleep(_POLL_S)
        finally:
            record_file().unlink(missing_ok=True)
            self._end()

    def _note_request(self, number: int, frame: FrameType | None) -> None:
        logger.info("asked to end by signal %d", number)
        self._asked_to_end = True

    def _look(self) -> None:
        api_server, scheduler, *others = self._components
        for component in (api_server, *others):
            component.look()
        # the scheduler starts waiting work at once, which loses a try without an API server
        if scheduler.was_started or api_server.listens(self._port):
            scheduler.look()
        if self._published:
            self._housekeeping.look()
            return
        failing = [c.name for c in self._components if c.num_short_lives >= _MAX_SHORT_LIVES]
        if failing:
            raise AirflowError(
                f"Airflow's {failing[0]} ended {_MAX_SHORT_LIVES} times right after its start",
                f"See {log_file().parent / failing[0]}.log",
            )
        missing = self._missing()
        if missing != self._missing_before:
            logger.info("waiting for: %s", ", ".join(missing) or "nothing")
            self._missing_before = missing
        if not missing:
            self._publish()

    def _missing(self) -> list[str]:
        if not self._components[0].listens(self._port):
            return ["api-server"]  # another server may answer there
        wanted = {path.stem for path in dags_folder().glob("headrace_*.py")}
        try:
            api = AirflowApi(self._url, read_login(self._folder))
            return unhealthy_components(api.health()) or sorted(wanted - api.dag_ids())
        except (HeadraceError, ValueError) as error:
            return [f"api-server ({error})"]

    def _publish(self) -> None:
        server = Server(
            process=ProcessIdentity.of(),
            url=self._url,
            folder=str(self._folder),
            environment=self._settings,
            notices=self._notices,
        )
        write_record(record_file(), server)
        self._published = True
        logger.info("healthy: %s", self._url)

    def _migrate(self) -> None:
        done = self._folder / "migrated"
        current = version("apache-airflow-core")
        if done.exists() and done.read_text() == current:
            return
        logger.info("preparing the database")
        (self._folder / "airflow.db").touch(mode=0o600)
        migration = subprocess.run(
            python_module("headrace_airflow.component", "db", "migrate"),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            check=False,
        )
        if migration.returncode != 0:
            raise AirflowError("`airflow db migrate` failed", "Its output is above.")
        write_text(done, current)

    def _end(self) -> None:
        """End all others first: they end sooner while the API server still answers."""
        api_server, *others = self._components
        left = _ended(others) + _ended([api_server])
        logger.info("ended%s", f"; to be killed: {', '.join(left)}" if left else "")


def unhealthy_components(health: Mapping[str, Any]) -> list[str]:
    """Return components that are not healthy, by the answer of Airflow's health endpoint."""
    return [name for name in _REPORTING if (health.get(name) or {}).get("status") != "healthy"]


def _ended(components: list[Component]) -> list[str]:
    deadline = time.monotonic() + _STOP_GRACE_S
    for component in components:
        component.ask_to_end()
    return [c.name for c in components if not c.wait(deadline - time.monotonic())]


def _guard() -> int:
    """Wait for the supervisor's end, then end every process of the service."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()  # returns when the supervisor has ended
    end_processes(processes(), grace_s=ASKED_BEFORE_S)
    return 0


def main(arguments: list[str]) -> int:
    """Entry point: exit code 0 after a request to end, 1 after an error, which is in the log."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="headrace_airflow.supervisor")
    parser.add_argument("--port", type=int, default=None)
    parser.add_argument("--guard", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.guard:
        return _guard()
    folder = airflow_folder()
    try:
        with FileLock(folder / "supervisor.lock", timeout=0):
            # ends Airflow if this process, the other end of its standard input, is killed
            command = python_module("headrace_airflow.supervisor", "--guard")
            guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            logger.info("guard started, process %d", guard.pid)
            reservation = reserve_port(asked.port)
            Supervisor(folder, reservation.port).run()
    except Timeout:
        logger.error("Another supervisor runs in %s", folder)  # noqa: TRY400
        return 1
    except HeadraceError as error:
        logger.error("%s", error)  # noqa: TRY400
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
