"""How `headrace up` configures Airflow: a pure function of its folder and port."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from headrace.cli.airflow_login import USER, passwords_file

_BUNDLES = [{"name": "headrace", "classpath": "headrace_airflow.bundle.HeadraceDagBundle"}]

_LOCK_TIMEOUT_S = 60
"""SQLite has one writer at a time; the others wait this long, not only 5 s, before they give up."""

_NOBODY_LISTENS = "1"
"""A port without a server: logs are read from disk, not from a server open to the network."""


def airflow_settings(folder: Path, port: int, jwt_secret: Path, parallelism: int) -> dict[str, str]:
    """Environment variables that configure all components of Airflow.

    Args:
        folder: Airflow's home.
        port: Port of the API server on 127.0.0.1.
        jwt_secret: File with what signs the tokens between the components; at least 64 bytes. The
            secret itself is in no environment: leases and their work inherit that of a task.
        parallelism: Tasks that run at once; each runs for seconds only.
    """
    url = f"http://127.0.0.1:{port}"
    values = {
        "core": {
            "executor": "headrace_airflow.local_executor.LocalExecutor",
            "parallelism": str(parallelism),
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            "simple_auth_manager_all_admins": "False",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(passwords_file(folder)),
            "execution_api_server_url": f"{url}/execution/",
            "hostname_callable": "socket.gethostname",
        },
        "database": {
            "sql_alchemy_conn": f"sqlite:///{folder / 'airflow.db'}?timeout={_LOCK_TIMEOUT_S}"
        },
        "api": {"host": "127.0.0.1", "port": str(port), "base_url": url, "workers": "1"},
        "api_auth": {"jwt_secret_cmd": shlex.join(["cat", str(jwt_secret)])},
        "dag_processor": {
            "dag_bundle_config_list": json.dumps([{**b, "kwargs": {}} for b in _BUNDLES]),
            "refresh_interval": "30",
            "min_file_process_interval": "15",
            "parsing_processes": "1",
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


def _recovery() -> dict[str, dict[str, str]]:
    """A component that was killed is replaced at once; its tasks should not wait for minutes."""
    return {
        "scheduler": {
            "scheduler_health_check_threshold": "20",
            "orphaned_tasks_check_interval": "10",
            "task_instance_heartbeat_timeout": "45",
            "task_instance_heartbeat_timeout_detection_interval": "10",
            "task_queued_timeout": "30",
            "task_queued_timeout_check_interval": "15",
        },
        "triggerer": {"triggerer_health_check_threshold": "20"},
        "workers": {
            # on a busy machine an answer may take long; asking again meanwhile costs the task a try
            "execution_api_timeout": "60",
            "execution_api_retry_wait_max": "5",
            # a worker may notice the end of its task this late, and is not free until then
            "min_heartbeat_interval": "1",
        },
    }


def loopback_without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep a proxy of the surroundings away from the loopback interface."""
    names = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    hosts = [*(host for host in names.split(",") if host), "127.0.0.1", "localhost"]
    value = ",".join(dict.fromkeys(hosts))
    return {"NO_PROXY": value, "no_proxy": value}
