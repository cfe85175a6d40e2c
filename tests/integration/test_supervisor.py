"""Airflow as `headrace up` runs it: real processes, a real DAG run, and nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from headrace.cli import airflow_server
from headrace.cli.airflow_server import AirflowApi
from headrace.ledger.ledger import open_ledger
from support.airflow_service import TaskApi
from support.doors import Door, doors
from support.images import write_class_folders
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(900)]

_HEADRACE = str(Path(sys.executable).with_name("headrace"))
_GENEROUS_S = 240.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_RECIPE = """
dataset:
  name: small
  source: {source}
model:
  _target_: headrace.examples.digits_model.DigitsClassifier
"""


@pytest.fixture
def home(tmp_path, monkeypatch, no_leftover_processes):
    """A headrace home with one small recipe."""
    home = tmp_path / "home"
    (home / "recipes").mkdir(parents=True)
    images = write_class_folders(home / "examples" / "images")
    (home / "recipes" / "small.yaml").write_text(_RECIPE.format(source=images))
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    yield home
    airflow_server.down()


def headrace(*arguments):
    return subprocess.run([_HEADRACE, *arguments], capture_output=True, text=True, check=False)


def pack(server):
    """Trigger `headrace_pack`, wait for its end, and give the run in the ledger."""
    api = AirflowApi(server.url, airflow_server.login())
    dag_run = api.trigger("headrace_pack", {"recipe": "small", "site": "laptop"})
    wait_until(
        lambda: api.run_state("headrace_pack", dag_run) in ("success", "failed"),
        _GENEROUS_S,
        f"DAG run {dag_run} to end",
        poll_s=0.5,
    )
    assert api.run_state("headrace_pack", dag_run) == "success"
    return open_ledger().run_by_key(f"airflow:headrace_pack:{dag_run}")


def test_up_packs_behind_a_login_and_goes_down_without_a_trace(home):
    answer = headrace("up")
    assert answer.returncode == 0, answer.stderr
    server = airflow_server.running()
    assert server.url in answer.stdout
    assert "SQLite" in answer.stdout
    assert f"the password is in {home}/airflow/passwords.json" in answer.stdout
    assert f"up already: {server.url}" in headrace("up").stdout

    exported = headrace("env").stdout
    assert f"export AIRFLOW_HOME={home}/airflow" in exported
    assert airflow_server.MARK not in exported
    assert (airflow_server.record_file().stat().st_mode & 0o077) == 0

    _assert_strangers_stay_outside(server, home / "airflow")

    first = pack(server)
    assert first.outputs["pack"]["num_samples"] == 60
    assert not open_ledger().active_leases()
    events = TaskApi(server.url, airflow_server.login()).asset_events("headrace://dataset/small")
    assert len(events) == 1

    assert "is down" in headrace("down").stdout
    assert airflow_server.processes() == []
    assert not airflow_server.record_file().exists()
    assert "was not up" in headrace("down").stdout


def _assert_strangers_stay_outside(server, folder):
    """What other accounts of the machine find: one port that asks for a login, and no secret."""
    port = urlsplit(server.url).port
    assert doors(airflow_server.processes()) == {Door("127.0.0.1", port)}
    for path in ("/auth/token", "/auth/token/login"):
        assert _status(server, path) == 403
    wrong = {"username": "admin", "password": "wrong"}
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
