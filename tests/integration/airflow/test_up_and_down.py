"""What `headrace up` tells and opens, and to whom."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import datetime, timezone
from urllib.parse import urlsplit

import psutil
import pytest

from headrace.cli import airflow_server
from headrace.recipe.unix_accounts import account
from headrace_airflow.housekeeping import REAPER, clean_command
from support.airflow_service import DAG_ID, AirflowService
from support.command_line import headrace
from support.doors import Door, doors
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def test_up_tells_how_to_log_in_and_keeps_strangers_outside(airflow_service: AirflowService):
    """That `headrace down` leaves nothing is asserted whenever the service goes down."""
    home, server = airflow_service.home, airflow_service.server
    assert server.url in airflow_service.told
    assert "SQLite" in airflow_service.told
    assert "its password: headrace password" in airflow_service.told
    assert "AIRFLOW__CORE__EXECUTOR is not used" in airflow_service.told
    with airflow_service.settings():
        assert f"already up: {server.url}" in headrace("up").stdout
        exported = headrace("env").stdout
        assert f"export AIRFLOW_HOME={home}/airflow" in exported
        assert airflow_server.MARK not in exported
        assert (airflow_server.record_file().stat().st_mode & 0o077) == 0
        _assert_strangers_stay_outside(server, home / "airflow")


def test_tasks_start_when_the_api_server_listens(airflow_service: AirflowService):
    """Else an Airflow that comes back on a slow machine fails the tasks that it finds at work."""
    told = (airflow_service.home / "airflow" / "logs" / "supervisor.log").read_text()
    assert 0 <= told.rfind("waiting for: api-server") < told.rfind("scheduler started")


def test_airflow_forgets_old_runs_of_the_reaper_and_no_others(airflow_service: AirflowService):
    """Those kept are the newest, so that Airflow goes on from there. One ends with its task, in an
    hour or when that is marked; the next begins at once.
    """
    service = airflow_service
    logs = service.home / "airflow" / "logs" / "tasks" / f"dag_id={REAPER}"

    def reaped() -> set[str]:
        return {run["dag_run_id"] for run in service.api.runs(REAPER) if run["end_date"]}

    def open_run() -> str:
        ids = [run["dag_run_id"] for run in service.api.runs(REAPER) if not run["end_date"]]
        has_looked = ids and (logs / f"run_id={ids[0]}").exists()
        return ids[0] if has_looked else ""

    def end_newest() -> datetime:
        running, at = wait_until(open_run, 120, "a run", poll_s=1), datetime.now(timezone.utc)
        service.api.mark_task(REAPER, running, "reap", "success")
        return at

    for num in (1, 2):
        before = end_newest()
        wait_until(lambda num=num: len(reaped()) >= num, 120, "runs of the reaper", poll_s=1)
    given = service.trigger(overrides=["no_such_key=1"])
    assert service.wait_end(given) == "failed"
    old = reaped()
    command = clean_command(before)
    environment = {**os.environ, **service.server.environment}
    here = service.here.folder  # nothing of it may be imported, which `service.stop` checks
    done = subprocess.run(
        command, env=environment, cwd=here, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(old & reaped()) <= 1
    assert given in {run["dag_run_id"] for run in service.api.runs(DAG_ID)}
    end_newest()
    wait_until(lambda: reaped() - old, 120, "the next run of the reaper", poll_s=1)
    assert {each.name for each in logs.iterdir()} >= {f"run_id={each}" for each in reaped() - old}


def _assert_strangers_stay_outside(server, folder):
    """What other accounts of the machine find: one port that asks for a login, and no secret."""
    port = urlsplit(server.url).port
    assert doors(airflow_server.processes()) == {Door("127.0.0.1", port)}
    for path in ("/auth/token", "/auth/token/login"):
        assert _status(server, path) == 403
    wrong = {"username": account(), "password": "wrong"}
    assert _status(server, "/auth/token", wrong) == 401
    assert _status(server, "/api/v2/dags") == 401
    assert _status(server, "/api/v2/dags/headrace_train/dagRuns", {"conf": {}}) == 401
    assert _mode(folder) == 0o700
    for name in ("passwords.json", "jwt_secret", "airflow.db", "up.json"):
        assert _mode(folder / name) == 0o600, name
    secrets = (airflow_server.login().password, (folder / "jwt_secret").read_text())
    for process in airflow_server.processes():
        with suppress(psutil.NoSuchProcess):  # a task that has ended meanwhile
            shown = " ".join([*process.cmdline(), *process.environ().values()])
            assert not any(secret in shown for secret in secrets), process


def _mode(path):
    return path.stat().st_mode & 0o777


def _status(server, path, body=None):
    """Status of the answer to a request without a login."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data=data, headers=headers)
    try:
        with _DIRECTLY.open(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
