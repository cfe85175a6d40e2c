"""Airflow on this machine: a service that outlives the terminal; its start, state and end.

The service itself is in the package `headrace_airflow`, which needs Airflow. Here are only its
login, its record on disk, its processes, and calls to its public REST API.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from filelock import FileLock

from headrace.errors import HeadraceError, StepError, UnknownNameError, UserError
from headrace.files.atomic import read_record, read_text, write_json
from headrace.files.private import make_private
from headrace.processes.children import Child, start_program
from headrace.processes.identity import ProcessIdentity, end_processes
from headrace.processes.working_folder import python_module
from headrace.recipe.home import home
from headrace.recipe.unix_accounts import account
from headrace.record import Record

MARK = "HEADRACE_AIRFLOW_HOME"
"""Environment variable of all processes of the service; its value is headrace's home."""

ASKED_BEFORE_S = 1.0
"""Seconds that processes have to end after the supervisor's request, before they are killed."""

_START_TIMEOUT_S = 600.0
"""Its services take 15 to 30 s on an idle machine; on a busy one the API server alone took 180 s.
If a service ends, or at an interrupt, the wait ends at once."""

_STOP_GRACE_S = 20.0
_POLL_S = 0.2
_API_TIMEOUT_S = 30.0
_TOKEN = "/auth/token"

_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without a proxy, for this machine's Airflow."""


class AirflowError(HeadraceError):
    """Airflow could not be started."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Name and password, for the web UI and the REST API."""

    user: str
    password: str = field(repr=False)
    file: Path
    """The file with the password."""
    is_new: bool = False
    """Whether it was created just now."""


def passwords_file(folder: Path) -> Path:
    """Return the file in Airflow's home from which its simple auth manager reads the password."""
    return folder / "passwords.json"


def read_login(folder: Path) -> Credentials:
    """Return the login that `make_login` made; raise UserError if it is missing or not readable."""
    file = passwords_file(folder)
    try:
        text = read_text(file)
    except PermissionError as error:
        hint = "Ask the user who called headrace up."
        raise UserError(f"{file} is readable by its owner only", hint) from error
    password = json.loads(text).get(account()) if text else None
    if password is None:
        raise UserError(f"{file} has no password of the user '{account()}'", "Run: headrace up")
    return Credentials(user=account(), password=password, file=file)


def make_login(folder: Path) -> Credentials:
    """Return the login; the first call creates a random password, a changed password stays.

    Side effects: writes the password's file, readable by its owner only.
    """
    file = passwords_file(folder)
    known = json.loads(read_text(file) or "{}")
    if account() in known:
        file.chmod(0o600)
        return read_login(folder)
    password = secrets.token_urlsafe(18)
    write_json(file, {**known, account(): password})
    return Credentials(user=account(), password=password, file=file, is_new=True)


class Server(Record):
    """An Airflow that is up (`up.json`)."""

    process: ProcessIdentity
    """The supervisor, parent of all components."""
    url: str
    """Address of the web UI and the REST API."""
    folder: str
    """Airflow's home: database, logs."""
    environment: dict[str, str]
    """Variables that connect `airflow` on the command line to this Airflow."""
    notices: tuple[str, ...] = ()
    """Variables of the caller's environment that are not used, a line for each."""


def airflow_folder() -> Path:
    """Return Airflow's home inside headrace's."""
    return home() / "airflow"


def record_file() -> Path:
    """Return the file with the record of the running Airflow."""
    return airflow_folder() / "up.json"


def log_file() -> Path:
    """Return the log of the supervisor; the components' logs lie beside it."""
    return airflow_folder() / "logs" / "supervisor.log"


def login() -> Credentials:
    """Return the login of the Airflow of `up`; the first call creates a password."""
    make_private(airflow_folder())
    return make_login(airflow_folder())


def running() -> Server | None:
    """Return the Airflow that is up; None if there is none."""
    server = read_record(record_file(), Server)
    return server if server is not None and server.process.is_alive else None


def up(port: int | None = None) -> Server:
    """Start Airflow and wait until it is healthy; if it is already up, return it.

    Raises:
        AirflowError: It did not become healthy; the message includes the end of its log.
        UserError: Airflow is not installed.
    """
    if not any(distributions(name="apache-airflow-core")):
        hint = "Install it: pip install 'headrace[airflow]'."
        raise UserError("Airflow is not installed", hint)
    login()
    log_file().parent.mkdir(exist_ok=True)
    with FileLock(airflow_folder() / "start.lock"):
        server = running()
        if server is not None:
            return server
        down()
        try:
            return _started(_spawn(port))
        except BaseException:
            down()
            raise


def down() -> bool:
    """End all processes of Airflow, also those of a killed supervisor; return if there were any."""
    found = processes()
    server = running()
    if server is not None:
        supervisor = psutil.Process(server.process.pid)
        supervisor.terminate()
        psutil.wait_procs([supervisor], timeout=_STOP_GRACE_S)
    end_processes(processes(), grace_s=ASKED_BEFORE_S)
    record_file().unlink(missing_ok=True)
    return bool(found)


def raise_if_killed(server: Server) -> None:
    """Raise `AirflowError` if an Airflow that has ended did not end by a request."""
    if read_record(record_file(), Server) == server:  # a request removes the record
        raise AirflowError("Airflow has ended without a request", _log_end())


def processes() -> list[psutil.Process]:
    """Return living processes of the service, without this one and its ancestors."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [each for each in all_marked(MARK, str(home())) if each.pid not in own]


def all_marked(name: str, value: str) -> list[psutil.Process]:
    """Return living processes of this machine with that value of an environment variable."""
    return [each for each in psutil.process_iter() if marked(each, name) == value]


def marked(process: psutil.Process, name: str) -> str | None:
    """Return the value of a living process's environment variable; None if it has none."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(name)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _spawn(port: int | None) -> ProcessIdentity:
    asked = [] if port is None else ["--port", str(port)]
    command = python_module("headrace_airflow.supervisor", *asked)
    environment = {**os.environ, MARK: str(home()), "HEADRACE_HOME": str(home())}
    log_file().unlink(missing_ok=True)
    service = Child(name="airflow", command=command, log=log_file(), env=environment)
    return ProcessIdentity.of(start_program(service, {}).pid)


def _started(process: ProcessIdentity) -> Server:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if (server := running()) is not None:
            return server
        if not process.is_alive:
            raise AirflowError("Airflow could not be started", _log_end())
        time.sleep(_POLL_S)
    raise AirflowError(f"Airflow was not healthy after {_START_TIMEOUT_S:g} s", _log_end())


def _log_end(num_lines: int = 15) -> str:
    lines = log_file().read_text(errors="replace").splitlines()[-num_lines:]
    return "\n  ".join([f"The end of {log_file()}:", *lines])


class AirflowBusyError(HeadraceError):
    """Airflow's API server did not answer in time; it may be busy or restarting."""


class AirflowApi:
    """Calls to Airflow's REST API (v2) that the command line and Airflow's supervisor need."""

    def __init__(self, base_url: str, login: Credentials) -> None:
        self._base_url = base_url.rstrip("/")
        self._login = login
        self._token = ""

    def trigger(self, dag_id: str, conf: Mapping[str, object]) -> str:
        """Trigger a DAG; return the id of the DAG run.

        Raises:
            UnknownNameError: Airflow does not know the DAG (yet).
            StepError: Airflow refuses; the message gives its reason.
        """
        body = {"logical_date": None, "conf": dict(conf)}
        answer = self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        return str(answer["dag_run_id"])

    def dag_ids(self) -> frozenset[str]:
        """Return the ids of the DAGs that Airflow knows."""
        return frozenset(
            str(dag["dag_id"]) for dag in self._call("GET", "/api/v2/dags?limit=100")["dags"]
        )

    def health(self) -> dict[str, Any]:
        """Return the health of Airflow's components, by name."""
        return self._call("GET", "/api/v2/monitor/health")

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a DAG run: queued, running, success, failed."""
        return str(self._call("GET", _dag_run(dag_id, run_id))["state"])

    def fail_run(self, dag_id: str, run_id: str) -> None:
        """Mark a DAG run as failed: from now on it starts only tasks that clean up."""
        self._call("PATCH", _dag_run(dag_id, run_id), {"state": "failed"})

    def run_url(self, dag_id: str, run_id: str) -> str:
        """Return the address of a DAG run's page in the web UI."""
        return f"{self._base_url}/dags/{dag_id}/runs/{quote(run_id)}"

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        if not self._token and path != _TOKEN:
            who = {"username": self._login.user, "password": self._login.password}
            self._token = str(self._call("POST", _TOKEN, who)["access_token"])
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            self._base_url + path,
            method=method,
            headers=headers,
            data=json.dumps(body).encode() if body is not None else None,
        )
        try:
            with _DIRECTLY.open(request, timeout=_API_TIMEOUT_S) as answer:
                content: dict[str, Any] = json.loads(answer.read() or b"{}")
                return content
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")[:2000]
            kind = UnknownNameError if error.code == 404 else StepError
            raise kind(f"Airflow answered {error.code} to {method} {path}: {reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise AirflowBusyError(f"Airflow did not answer {method} {path}: {error}") from error


def _dag_run(dag_id: str, run_id: str) -> str:
    return f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}"
