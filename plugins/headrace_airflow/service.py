"""The service of `headrace up`: Airflow's configuration, its port, and one component kept alive."""

from __future__ import annotations

import json
import logging
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.cli.airflow_server import all_marked, passwords_file
from headrace.errors import CapacityError, UserError
from headrace.processes.identity import die_with_parent, end_processes
from headrace.processes.working_folder import python_module
from headrace.recipe.unix_accounts import account

logger = logging.getLogger(__name__)

GENERATION_MARK = "HEADRACE_AIRFLOW_COMPONENT"
"""Environment variable `<name>/<generation>` of a component and its child processes."""

ORPHAN_GRACE_S = 20.0
"""Seconds within which a task of a killed scheduler may end by itself."""

_LONG_LIFE_S = 60.0
_LONGEST_WAIT_S = 30.0

PREFERRED_PORT = 8080
PARALLELISM = 8
"""Tasks at once; they are short, and a waiting one takes no slot."""

_NUM_TRIED = 100
_BUNDLE = "headrace_airflow.bundle.HeadraceDagBundle"
_OWN_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
_DEFAULTS = {
    "AIRFLOW__API__SSL_CERT",
    "AIRFLOW__API__SSL_KEY",
    "AIRFLOW__CORE__AUTH_MANAGER",
    "AIRFLOW__CORE__DAGS_FOLDER",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC",
}
"""Variables that have to stay at Airflow's default."""
_HERE = Path(__file__).parent

_LOCK_TIMEOUT_S = 60
"""SQLite has one writer at a time; others wait this long before they fail, instead of 5 s."""

_NOBODY_LISTENS = "1"
"""A port without a server: logs are read from disk, not from a server that the network reaches."""


def dags_folder() -> Path:
    """Return the folder of the DAG files: in the installed package, or `dags/` of a checkout."""
    packaged = _HERE / "dags"
    return packaged if packaged.is_dir() else _HERE.parent.parent / "dags"


def airflow_settings(folder: Path, port: int, jwt_secret: Path) -> dict[str, str]:
    """Return environment variables that configure all components of Airflow, of a home and a port.

    `jwt_secret` is a file with the key of the tokens between the components, at least 64 bytes. The
    key itself is in no environment: leases and their work inherit that of a task.
    """
    url = f"http://127.0.0.1:{port}"
    own = {"path": str(folder.parent / "dags"), "refresh_interval": 5}
    values = {
        "core": {
            "executor": "headrace_airflow.local_executor.LocalExecutor",
            "parallelism": str(PARALLELISM),
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            "simple_auth_manager_all_admins": "False",
            "simple_auth_manager_users": f"{account()}:admin",
            "simple_auth_manager_passwords_file": str(passwords_file(folder)),
            "execution_api_server_url": f"{url}/execution/",
            "hostname_callable": "socket.gethostname",
            # the form shows a new recipe once the DAG has been stored again
            "min_serialized_dag_update_interval": "1",
        },
        "database": {
            "sql_alchemy_conn": f"sqlite:///{folder / 'airflow.db'}?timeout={_LOCK_TIMEOUT_S}"
        },
        "api": {"host": "127.0.0.1", "port": str(port), "base_url": url, "workers": "1"},
        "api_auth": {"jwt_secret_cmd": shlex.join(["cat", str(jwt_secret)])},
        "dag_processor": {
            "dag_bundle_config_list": json.dumps(
                [
                    {"name": "headrace", "classpath": _BUNDLE, "kwargs": {}},
                    {"name": "own", "classpath": _OWN_BUNDLE, "kwargs": own},
                ]
            ),
            "parsing_processes": "2",  # a slow file of a user delays none of headrace's
            # the bundle requests an earlier look when files have changed
            "min_file_process_interval": "300",
        },
        "logging": {
            "base_log_folder": str(folder / "logs" / "tasks"),
            "colored_console_log": "False",
            "worker_log_server_port": _NOBODY_LISTENS,
            "trigger_log_server_port": _NOBODY_LISTENS,
        },
        "usage_data_collection": {"enabled": "False"},
        **_recovery(),
    }
    return {
        f"AIRFLOW__{section.upper()}__{name.upper()}": value
        for section, options in values.items()
        for name, value in options.items()
    } | {"AIRFLOW_HOME": str(folder)}


def environment_for(
    asked: Mapping[str, str], settings: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the components' environment, and a line for each of the caller's variables left out.

    These are the settings in all forms: `…_CMD` and `…_SECRET` would replace them, too.
    """
    options = {name.removesuffix("_CMD") for name in settings} | _DEFAULTS
    ours = {f"{option}{form}" for option in options for form in ("", "_CMD", "_SECRET")}
    kept = {name: value for name, value in asked.items() if name not in ours}
    has_ours = asked.get("AIRFLOW_HOME") == settings["AIRFLOW_HOME"]  # of `headrace env`
    left_out = () if has_ours else sorted(asked.keys() & ours)
    lines = (f"{name} is not used: `headrace up` has its own value" for name in left_out)
    return {**kept, **settings}, tuple(lines)


def _recovery() -> dict[str, dict[str, str]]:
    """Return settings that replace a killed component at once; its tasks should not wait long."""
    return {
        "scheduler": {
            "scheduler_idle_sleep_time": "0.4",  # a run has ten tasks that wait for it
            "max_dagruns_per_loop_to_schedule": "4",  # so that many waiting runs all progress
            "scheduler_health_check_threshold": "20",
            "orphaned_tasks_check_interval": "10",
            "task_instance_heartbeat_timeout": "45",
            "task_instance_heartbeat_timeout_detection_interval": "10",
            "task_queued_timeout": "30",
            "task_queued_timeout_check_interval": "15",
        },
        "triggerer": {"triggerer_health_check_threshold": "20"},
        "workers": {
            # on a busy machine an answer may take long; a repeated request costs the task a try
            "execution_api_timeout": "60",
            "execution_api_retry_wait_max": "5",
            # a worker notices the end of its task this late, and is not free until then
            "min_heartbeat_interval": "2",
        },
    }


def loopback_without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exclude the loopback interface from the environment's proxy."""
    names = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = [*(host for host in names.split(",") if host), "127.0.0.1", "localhost"]
    value = ",".join(dict.fromkeys(hosts))
    return {"NO_PROXY": value, "no_proxy": value}


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A port that no other supervisor on this machine takes while this one lives.

    The API server binds its port only after many seconds. Until then, a name in the abstract
    namespace of Unix sockets represents it; the kernel frees the name with the process.
    """

    port: int
    holder: socket.socket


def reserve_port(asked: int | None) -> Reservation:
    """Reserve the given port, or, with None, the first free one from 8080 on."""
    candidates = range(PREFERRED_PORT, PREFERRED_PORT + _NUM_TRIED) if asked is None else (asked,)
    for port in candidates:
        holder = _hold(port) if is_free(port) else None
        if holder is not None:
            return Reservation(port=port, holder=holder)
    if asked is not None:
        raise UserError(
            f"Port {asked} of 127.0.0.1 is taken",
            "Give another one, or none: then a free one is chosen.",
        )
    raise CapacityError(
        f"The ports {candidates[0]} to {candidates[-1]} of 127.0.0.1 are all taken",
        "Give another one: headrace up --port 9090",
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _hold(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0headrace-airflow-{port}")
    except OSError:
        holder.close()
        return None
    return holder


def wait_before_restart_s(num_short_lives: int) -> float:
    """Return the seconds until the next start, after so many early ends in a row."""
    return 0.0 if num_short_lives <= 1 else min(_LONGEST_WAIT_S, 2.0 ** (num_short_lives - 2))


class Component:
    """A component of Airflow, kept alive; `command` follows `airflow`, its name first."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log_file: Path) -> None:
        self.name = command[0]
        self.num_short_lives = 0
        self._command = python_module("headrace_airflow.component", *command)
        self._environment = environment
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._generation = 0
        self._started_at = 0.0
        self._start_at = 0.0
        self._orphans: dict[str, float] = {}

    @property
    def was_started(self) -> bool:
        """Whether the component has been started at least once."""
        return self._generation > 0

    def listens(self, port: int) -> bool:
        """Whether the component listens on a port."""
        return self._process is not None and listens(self._process.pid, port)

    def look(self) -> None:
        """Start the component if it is due; end processes of an earlier generation."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._note_end(self._process.returncode, now)
        if self._process is None and now >= self._start_at:
            self._start(now)
        for mark in [mark for mark, due in self._orphans.items() if now >= due]:
            del self._orphans[mark]
            end_processes(all_marked(GENERATION_MARK, mark))

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return False if the component still runs after the time."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start(self, now: float) -> None:
        self._generation += 1
        environment = {**self._environment, GENERATION_MARK: self._mark}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=die_with_parent,
            )
        self._started_at = now
        logger.info("%s started, process %d", self.name, self._process.pid)

    def _note_end(self, code: int, now: float) -> None:
        lived_long = now - self._started_at >= _LONG_LIFE_S
        self.num_short_lives = 1 if lived_long else self.num_short_lives + 1
        wait_s = wait_before_restart_s(self.num_short_lives)
        logger.warning("%s ended with %d; started again in %g s", self.name, code, wait_s)
        self._orphans[self._mark] = now + ORPHAN_GRACE_S
        self._start_at = now + wait_s
        self._process = None

    @property
    def _mark(self) -> str:
        home = self._environment["AIRFLOW_HOME"]
        return f"{self.name}/{self._generation} of {home}"


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one of its child processes, listens on a port."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        connections = [one for member in family for one in member.net_connections("tcp")]
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # ended; or ends, and only root may look
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)
