"""This machine's Airflow: calls to it, its one user's password, and what a demo leaves behind."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from headrace.cli import airflow, airflow_server
from headrace.cli.airflow import words_for
from headrace.cli.airflow_server import (
    AirflowApi,
    AirflowBusyError,
    AirflowError,
    Credentials,
    Server,
    log_file,
    login,
    make_login,
    passwords_file,
    read_login,
    record_file,
)
from headrace.cli.console import open_console
from headrace.errors import StepError, UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.unix_accounts import account
from headrace.states import StepState
from support.command_line import headrace, refusal
from support.runs import make_run

LOGIN = Credentials(user="ada", password="secret", file=Path("passwords.json"))


class Answers(BaseHTTPRequestHandler):
    """A token for who logs in, a refusal, an unknown DAG, a run."""

    def do_GET(self):
        if self.headers["Authorization"] != "Bearer t":
            self._answer(401, {"detail": "Not authenticated"})
        else:
            self._answer(404 if "nothing" in self.path else 200, {"state": "running"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            is_known = body == {"username": "ada", "password": "secret"}
            self._answer(201 if is_known else 401, {"access_token": "t"})
        else:
            self._answer(400, {"detail": "Invalid input for param site"})

    def _answer(self, code, content):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def url(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_who_has_another_password_is_told_so(url):
    other = Credentials(user="ada", password="guessed", file=LOGIN.file)
    with pytest.raises(StepError, match="401"):
        AirflowApi(url, other).run_state("dag", "run")


def test_proxies_are_passed_by(url):
    assert AirflowApi(url, LOGIN).run_state("dag", "manual__2026-01-01T00:00:00+00:00") == "running"


def test_refusals_carry_airflows_reason(url):
    with pytest.raises(StepError, match=r"400.*Invalid input for param site"):
        AirflowApi(url, LOGIN).trigger("dag", {"site": "nowhere"})


def test_what_airflow_does_not_know(url):
    with pytest.raises(UnknownNameError, match="404"):
        AirflowApi(url, LOGIN).run_state("nothing", "r")


def test_a_server_that_does_not_answer(free_port):
    with pytest.raises(AirflowBusyError, match="did not answer POST"):
        AirflowApi(f"http://127.0.0.1:{free_port}", LOGIN).run_state("dag", "run")


def test_pages_of_runs_are_quoted():
    page = AirflowApi("http://127.0.0.1:1/", LOGIN).run_url(
        "dag", "manual__2026-01-01T00:00:00+00:00"
    )
    assert page == "http://127.0.0.1:1/dags/dag/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"


def test_the_first_login_has_a_password_that_its_owner_alone_can_read(tmp_path: Path):
    made = make_login(tmp_path)
    assert made.is_new
    assert len(made.password) >= 24
    assert made.password not in repr(made)
    assert passwords_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert read_login(tmp_path).password == made.password


def test_a_password_that_was_chosen_stays_and_becomes_private(tmp_path: Path):
    passwords_file(tmp_path).write_text(json.dumps({account(): "mine"}))
    passwords_file(tmp_path).chmod(0o644)
    made = make_login(tmp_path)
    assert (made.user, made.password, made.is_new) == (account(), "mine", False)
    assert passwords_file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [None, "", '{"somebody": "else"}'])
def test_without_a_password_nobody_logs_in(tmp_path: Path, content: str | None):
    if content is not None:
        passwords_file(tmp_path).write_text(content)
    with pytest.raises(UserError, match=f"has no password of the user '{account()}'"):
        read_login(tmp_path)


def test_the_password_is_shown_once_and_only_to_its_owner(tmp_path: Path):
    first, later = make_login(tmp_path), make_login(tmp_path)
    assert first.password in words_for(first, shows_password=True)
    for words in (words_for(first, shows_password=False), words_for(later, shows_password=True)):
        assert first.password not in words
        assert "headrace password" in words
        assert str(first.file) in words
        assert account() in words


def test_the_command_prints_the_password_and_nothing_else(headrace_home, monkeypatch):
    assert "Run: headrace up" in str(refusal("password"))
    made = login()
    assert headrace("password").stdout == f"{made.password}\n"

    def denied(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(airflow_server, "read_text", denied)
    assert "is readable by its owner only" in str(refusal("password"))


KEY = f"airflow:{airflow.DAG_ID}:manual"


def leave(stop_airflow: Callable[[AirflowApi], None]):
    """Press Ctrl-C while the DAG run `manual` is followed."""
    api = create_autospec(AirflowApi, instance=True)
    dag_run = airflow._DagRun(api, "manual")
    left = airflow._cancelled_when_left(dag_run, lambda: stop_airflow(api), open_console())
    with pytest.raises(KeyboardInterrupt), left:
        raise KeyboardInterrupt


def test_a_run_left_by_ctrl_c_is_cancelled_though_its_dag_run_tells_it_as_failed(headrace_home):
    run = make_run(key=KEY)

    def stop(api: AirflowApi):  # by then Airflow may have carried out the last task
        api.fail_run.assert_called_once_with(airflow.DAG_ID, "manual")
        end_run(run, StepState.FAILED)

    leave(stop)
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED


def test_a_run_is_ended_that_was_made_while_airflow_was_stopped(headrace_home):
    leave(lambda _: make_run(key=KEY) and None)
    record = open_ledger().run_by_key(KEY)
    assert record is not None
    assert record.state is StepState.CANCELLED


def test_a_wait_ends_by_ctrl_c_or_when_nothing_goes_on():
    goes_on = iter([True, False])
    assert not airflow._interrupted(lambda: next(goes_on))

    def left() -> bool:
        raise KeyboardInterrupt

    assert airflow._interrupted(left)


def test_an_airflow_that_is_killed_fails_the_command_in_the_foreground(headrace_home):
    """By that exit code systemd restarts the unit; a stop takes the record away first."""
    login()
    log_file().parent.mkdir()
    log_file().write_text("healthy")
    for is_stopped in (False, True):
        process = subprocess.Popen(["sleep", "1"])
        server = Server(process=ProcessIdentity.of(process.pid), url="", folder="", environment={})
        write_record(record_file(), server)
        if is_stopped:
            threading.Timer(0.5, record_file().unlink).start()
            assert headrace("up", "--foreground").exit_code == 0
        else:
            with pytest.raises(AirflowError, match=r"(?s)Airflow has ended.*healthy"):
                headrace("up", "--foreground")
        process.wait()
