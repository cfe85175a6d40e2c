"""Calls to this machine's Airflow: never by way of a proxy; a server that stalls is told apart."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headrace.cli.airflow_server import AirflowApi, AirflowBusyError, Credentials
from headrace.errors import StepError, UnknownNameError

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
