"""headrace's pages in a real Airflow: who may see what, who may act, what is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from headrace.files.atomic import is_there
from headrace.files.lines import read_lines
from headrace.processes import ProcessIdentity
from headrace.runs.reaper import end_run
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.suites.records import Control
from support.airflow_service import AirflowService
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.suite_journal import make_suite
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

ROLES = ("viewer", "user", "op", "admin")
NOBODY = "nobody"
"""Logged in, without any role."""

_ASKED = f"""
import json
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from headrace_airflow.web.app import app
tokens = {{}}
for name in {(*ROLES, NOBODY)!r}:
    role = None if name == {NOBODY!r} else name.upper()
    user = SimpleAuthManagerUser(username=name, role=role)
    tokens[name] = SimpleAuthManager().generate_jwt(user)
print(json.dumps([tokens, [route.path for route in app.routes]]))
"""

SHELLS = (
    "/", "/run/", "/suite/", "/leases/", "/datasets/", "/cost/", "/static/index.html",
)  # fmt: skip
DATA: dict[str, dict[str, object]] = {
    "/data/runs": {"limit": 5},
    "/data/run": {"id": "RUN"},
    "/data/curves": {"id": "RUN"},
    "/data/run/log": {"id": "RUN", "step": "pack", "attempt": 1, "name": "driver"},
    "/data/run/report": {"id": "RUN"},
    "/data/suite": {"id": "RUN"},
    "/data/trials": {"id": "RUN", "since": 0},
    "/data/leases": {},
    "/data/datasets": {},
    "/data/dataset": {"id": "RUN"},
    "/data/sample": {"id": "RUN", "split": "train", "index": 0},
    "/data/cost": {"by": "month"},
}
MISSING = {"/data/run/log", "/data/run/report", "/data/dataset", "/data/sample"}
"""Of a run that has not begun."""
ACTS: dict[str, dict[str, object]] = {
    "/act/cancel": {"id": "digits-2"},
    "/act/suite": {"id": "digits-2", "what": "pause"},
    "/act/lease": {"id": "digits-2"},
}


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Doors(NamedTuple):
    """What the app has, and who may come."""

    tokens: dict[str, str]
    """A login for each role, signed as the server signs them."""
    paths: list[str]
    """Of all endpoints."""


@pytest.fixture(scope="module")
def doors(airflow_service: AirflowService) -> Doors:
    """Asked in a process with the server's settings."""
    environment = {**os.environ, **airflow_service.server.environment}
    command = [sys.executable, "-W", "ignore", "-c", _ASKED]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Doors(*json.loads(told.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def run(airflow_service: AirflowService) -> Iterator[Run]:
    """A suite of which nothing has begun."""
    with airflow_service.settings():
        made = make_suite(overrides=("trainer.max_epochs=1",))
        yield made
        end_run(made, StepState.CANCELLED, "a test")


def ask(
    service: AirflowService,
    path: str,
    token: str = "",
    body: object = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Ask the pages' app."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{service.url}/headrace{path}", content, sent)
    try:
        with urllib.request.urlopen(request) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def test_who_may_see_and_act(airflow_service: AirflowService, doors: Doors, run: Run):
    """Anonymous, without a role, viewer, user, op, admin: every endpoint."""

    def status(path: str, who: str, **more: Any) -> int:
        return ask(airflow_service, path, doors.tokens.get(who, ""), **more).status

    people = ("anonymous", NOBODY, *ROLES)
    for path in SHELLS:
        assert [status(path, who) for who in people] == [200] * 6, path
    for path, query in DATA.items():
        asked = f"{path}?{urlencode(query)}".replace("RUN", run.run_id)
        seen = 404 if path in MISSING else 200
        assert [status(asked, who) for who in people] == [401, 403] + [seen] * 4, path
    for path, body in ACTS.items():
        told = [status(path, who, body=body) for who in people]
        assert told == [401, 403, 403, 404, 404, 404], path
    assert set(doors.paths) == {"/", "/{page}/", "/static", *DATA, *ACTS}


def test_an_unchanged_answer_is_not_sent_again(
    airflow_service: AirflowService, doors: Doors, run: Run
):
    path = f"/data/run?id={run.run_id}"
    first = ask(airflow_service, path, doors.tokens["viewer"])
    assert first.json["run_id"] == run.run_id
    assert first.json["can_act"] is False
    again = {"If-None-Match": first.headers["ETag"]}
    assert ask(airflow_service, path, doors.tokens["viewer"], headers=again)[::2] == (304, b"")
    other = ask(airflow_service, path, doors.tokens["user"], headers=again)
    assert (other.status, other.json["can_act"]) == (200, True)


def test_acts_are_done_in_the_name_of_who_asks(
    airflow_service: AirflowService, doors: Doors, run: Run
):
    def act(path: str, **body: object) -> Answer:
        return ask(airflow_service, f"/act/{path}", doors.tokens["op"], body)

    told = act("suite", id=run.run_id, what="pause")
    assert told.json == {"done": "Asked for: pause"}
    (control,) = read_lines(run.folder.controls, Control)
    assert (control.what, control.by) == ("pause", "op in Airflow")
    answer = act("suite", id=run.run_id, what="retry", trials=[7])
    assert (answer.status, answer.json["detail"]["hint"]) == (
        404,
        f"List its trials: headrace suite show {run.run_id}.",
    )
    assert act("suite", id=run.run_id, what="limit").status == 422
    answer = act("cancel", id=run.run_id)
    assert answer.status == 409
    assert answer.json["detail"]["what"] == f"No step of run {run.run_id} is running"
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    run.lease_folder(lease_id).host.unlink()  # it waits for one

    def may_be_closed() -> bool:
        rows = ask(airflow_service, "/data/leases", doors.tokens["op"]).json["rows"]
        return any(row["can_close"] for row in rows if row["lease_id"] == lease_id)

    wait_until(may_be_closed, 60.0, "the lease to be listed")  # an answer is kept for a moment
    assert act("lease", id=lease_id).status == 200
    assert is_there(run.lease_folder(lease_id).closed)


def test_what_is_not_there_is_told_and_paths_are_no_names(
    airflow_service: AirflowService, doors: Doors, run: Run
):
    def refused(path: str, **query: object) -> Answer:
        return ask(airflow_service, f"{path}?{urlencode(query)}", doors.tokens["admin"])

    answer = refused("/data/run", id="digits-2")
    assert (answer.status, answer.json["detail"]["what"]) == (
        404,
        "There is no run 'digits-2' in the ledger",
    )
    for name in ("../../request.json", "/etc/passwd", "..", "", "driver.log", "%2e%2e/spec"):
        answer = refused("/data/run/log", id=run.run_id, step="pack", attempt=1, name=name)
        assert answer.status == 404, name
        assert "has no log" in answer.json["detail"]["what"]
    for name in ("../../etc", "/etc/passwd", "..", "digits/../digits"):
        for path, more in (("/data/dataset", {}), ("/data/sample", {"split": "../.."})):
            answer = refused(path, id=name, **more)
            assert answer.status == 404, name
            assert "No run of the ledger has a dataset" in answer.json["detail"]["what"]
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
        assert ask(airflow_service, path).status == 404, path
    assert refused("/data/runs", limit=0).status == 422
    assert refused("/data/run", dag_id="headrace_train", dag_run_id="x").status == 404


def test_a_report_has_no_rights(airflow_service: AirflowService, doors: Doors):
    with airflow_service.settings():
        made = make_run()
        made.folder.report.mkdir()
        report = made.folder.report / "report.html"
        report.write_text("<script>alert(1)</script>")
        given = {"state": StepState.SUCCEEDED, "outputs": {"report": str(report)}}
        attempt_row_of(made, "evaluate", lease_on_disk(made, "gpu"), **given)
        end_run(made, StepState.SUCCEEDED, "a test")
    told = ask(airflow_service, f"/data/run/report?id={made.run_id}", doors.tokens["viewer"])
    assert (told.status, told.body) == (200, report.read_bytes())
    assert told.headers["Content-Type"].startswith("text/html")
    assert told.headers["X-Content-Type-Options"] == "nosniff"
    policy = told.headers["Content-Security-Policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'self'"} <= set(policy)
