"""Airflow on this machine: started as a service that outlives the terminal, found again, ended.

The service itself lives in the package `headrace_airflow`, which needs Airflow; here are only its
login, its record on disk and the handling of its processes.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import psutil
from filelock import FileLock

from headrace.errors import HeadraceError, UserError
from headrace.files.atomic import read_record, read_text, write_json
from headrace.files.private import make_private
from headrace.processes import ProcessIdentity, end_processes, spawn_detached
from headrace.recipe.load import home
from headrace.record import Record

USER = "admin"

MARK = "HEADRACE_AIRFLOW_HOME"
"""Environment variable that all processes of the service carry; its value is headrace's home."""

ASKED_BEFORE_S = 1.0
"""Seconds until processes are killed that the supervisor had asked to end before."""

_PASSWORD_BYTES = 18
_START_TIMEOUT_S = 180.0
_STOP_GRACE_S = 20.0
_POLL_S = 0.2


class AirflowError(HeadraceError):
    """Airflow could not be started."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """Name and password, for the web UI and the REST API."""

    user: str
    password: str = field(repr=False)
    file: Path
    """The file that holds the password."""
    is_new: bool = False
    """Whether it was made just now."""


def passwords_file(folder: Path) -> Path:
    """The file in Airflow's home that its simple auth manager reads the password from."""
    return folder / "passwords.json"


def read_login(folder: Path) -> Login:
    """The login that `make_login` has made.

    Raises:
        UserError: There is none.
    """
    file = passwords_file(folder)
    text = read_text(file)
    password = json.loads(text).get(USER) if text else None
    if password is None:
        raise UserError(f"{file} holds no password of the user '{USER}'", "Run: headrace up")
    return Login(user=USER, password=password, file=file)


def make_login(folder: Path) -> Login:
    """The login, made with a random password the first time; a password that was changed stays.

    Side effects: writes the password's file, readable by its owner alone.
    """
    file = passwords_file(folder)
    if file.exists():
        file.chmod(0o600)
        return read_login(folder)
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    write_json(file, {USER: password})
    return Login(user=USER, password=password, file=file, is_new=True)


def words_for(login: Login, *, shows_password: bool) -> str:
    """How to log in, for the user; with a new password where only its owner sees the words."""
    if login.is_new and shows_password:
        return f"Log in as {login.user}, password {login.password} (kept in {login.file})"
    return f"Log in as {login.user}; the password is in {login.file}"


class Server(Record):
    """An Airflow that is up (`up.json`)."""

    process: ProcessIdentity
    """The supervisor, parent of all components."""
    url: str
    """Address of the web UI and the REST API."""
    folder: str
    """Airflow's home: database, logs."""
    environment: dict[str, str]
    """Variables with which `airflow` on the command line talks to this Airflow."""


def airflow_folder() -> Path:
    """Airflow's home inside headrace's."""
    return home() / "airflow"


def record_file() -> Path:
    """File with the record of the running Airflow."""
    return airflow_folder() / "up.json"


def log_file() -> Path:
    """Log of the supervisor; the components' logs lie beside it."""
    return airflow_folder() / "logs" / "supervisor.log"


def running() -> Server | None:
    """The Airflow that is up, if there is one."""
    server = read_record(record_file(), Server)
    return server if server is not None and server.process.is_alive else None


def login() -> Login:
    """How to log in to the Airflow of `up`; made with a new password the first time."""
    make_private(airflow_folder())
    return make_login(airflow_folder())


def up(port: int | None = None) -> Server:
    """Start Airflow and wait until it is healthy; one that is up already is left as it is.

    Raises:
        AirflowError: It did not become healthy; the message ends with the end of its log.
        UserError: Airflow is not installed.
    """
    _check_installed()
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
    """End all processes of Airflow, also what a killed supervisor left; whether there were any."""
    found = processes()
    server = running()
    if server is not None:
        supervisor = psutil.Process(server.process.pid)
        supervisor.terminate()
        psutil.wait_procs([supervisor], timeout=_STOP_GRACE_S)
    end_processes(processes(), grace_s=ASKED_BEFORE_S)
    record_file().unlink(missing_ok=True)
    return bool(found)


def processes() -> list[psutil.Process]:
    """Living processes of the service, without this one and its ancestors."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    mark = str(home())
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in own and marked(process, MARK) == mark
    ]


def marked(process: psutil.Process, name: str) -> str | None:
    """Value of an environment variable of a living process; None when it has none or has ended."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(name)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _check_installed() -> None:
    try:
        distribution("apache-airflow-core")
    except PackageNotFoundError:
        hint = "Install it: pip install 'headrace[airflow]'."
        raise UserError("Airflow is not installed", hint) from None


def _spawn(port: int | None) -> ProcessIdentity:
    command = [sys.executable, "-m", "headrace_airflow.supervisor"]
    if port is not None:
        command += ["--port", str(port)]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")
    }
    environment |= {MARK: str(home()), "HEADRACE_HOME": str(home())}
    log_file().unlink(missing_ok=True)
    return spawn_detached(command, log_file(), environment)


def _started(process: ProcessIdentity) -> Server:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        server = running()
        if server is not None:
            return server
        if not process.is_alive:
            raise AirflowError("Airflow could not be started", _log_end())
        time.sleep(_POLL_S)
    raise AirflowError(f"Airflow was not healthy after {_START_TIMEOUT_S:g} s", _log_end())


def _log_end(num_lines: int = 15) -> str:
    lines = log_file().read_text(errors="replace").splitlines()[-num_lines:]
    return "\n  ".join([f"The end of {log_file()}:", *lines])
