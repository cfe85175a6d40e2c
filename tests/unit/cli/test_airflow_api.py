"""Calls to this machine's Airflow: never by way of a proxy; a server that stalls is told apart."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headrace.cli.airflow_api import AirflowApi, AirflowBusyError
from headrace.errors import StepError, UnknownNameError


class Answers(BaseHTTPRequestHandler):
    """A token for everybody, a refusal, an unknown DAG, a run."""

    def do_GET(self):
        found = {"/auth/token": {"access_token": "t"}}.get(self.path, {"state": "running"})
        self._answer(404 if "nothing" in self.path else 200, found)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
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


def test_proxies_are_passed_by(url):
    assert AirflowApi(url).run_state("dag", "manual__2026-01-01T00:00:00+00:00") == "running"


def test_refusals_carry_airflows_reason(url):
    with pytest.raises(StepError, match=r"400.*Invalid input for param site"):
        AirflowApi(url).trigger("dag", {"site": "nowhere"})


def test_what_airflow_does_not_know(url):
    with pytest.raises(UnknownNameError, match="404"):
        AirflowApi(url).run_state("nothing", "r")


def test_a_server_that_does_not_answer(free_port):
    with pytest.raises(AirflowBusyError, match="did not answer GET"):
        AirflowApi(f"http://127.0.0.1:{free_port}").run_state("dag", "run")


def test_pages_of_runs_are_quoted():
    page = AirflowApi("http://127.0.0.1:1/").run_url("dag", "manual__2026-01-01T00:00:00+00:00")
    assert page == "http://127.0.0.1:1/dags/dag/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"
