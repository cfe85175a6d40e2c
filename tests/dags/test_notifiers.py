"""Airflow's notifiers, hung on the DAGs as the documentation shows it, send real mails."""

from __future__ import annotations

import base64
import copy
import socketserver
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.files.layout import RunFolder
from headrace.informing import failures_of
from headrace_airflow import run_operators
from headrace_airflow.eta_changes import EtaChange
from headrace_airflow.run_operators import ReapOperator

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-under-airflow.md"
_DAG_IDS = ("headrace_pack", "headrace_suite", "headrace_train")


class _Mailbox(socketserver.StreamRequestHandler):
    """As much of SMTP as `smtplib` needs; messages go to `server.messages`."""

    def handle(self) -> None:
        self._say("220 ready")
        for line in iter(self.rfile.readline, b""):
            command = line.split()[0].upper()
            if command == b"DATA":
                self._say("354 go on")
                self.server.messages.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            self._say("221 bye" if command == b"QUIT" else "250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@pytest.fixture
def mails(monkeypatch):
    """The mails that arrived at the server of connection `smtp_default`."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mailbox) as server:
        server.messages = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"smtp://127.0.0.1:{server.server_address[1]}?disable_ssl=true&disable_tls=true"
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", uri)
        yield server.messages
        server.shutdown()


@pytest.fixture
def task_policy():
    """The function of the example."""
    (code,) = [
        block for block in _PAGE.read_text().split("```python\n") if "def task_policy" in block
    ]
    names: dict[str, object] = {}
    exec(code.partition("```")[0], names)
    return names["task_policy"]


def test_the_example_hangs_notifiers_on_the_tasks_that_tell_of_ends(dag_bag, task_policy, mails):
    for dag_id in (*_DAG_IDS, "headrace_reaper"):
        for task in map(copy.copy, dag_bag.dags[dag_id].tasks):
            task_policy(task)
            assert hasattr(task, "on_eta_change") == (dag_id == "headrace_reaper")
            is_told = dag_id != "headrace_reaper" and task.task_id in ("prepare", "finish")
            assert bool(task.on_failure_callback) == is_told
            assert bool(task.on_success_callback) == (is_told and task.task_id == "finish")
    finish = copy.copy(dag_bag.dags["headrace_train"].get_task("finish"))
    task_policy(finish)
    context = {
        "dag": finish.dag,
        "params": {"recipe": "digits", "site": "laptop"},
        "dag_run": SimpleNamespace(triggering_user_name="ann"),
        "ti": SimpleNamespace(xcom_pull=lambda task: f"run-of-{task}"),
        "exception": "Run digits-1 failed: train is failed (Cancelled: by bob in Airflow)",
    }
    for callback in (*finish.on_failure_callback, *finish.on_success_callback):
        callback(context)
    failed, done = mails
    assert "Subject: Failed: digits on laptop, of ann" in failed
    assert "by bob in Airflow" in _text(failed)
    assert "Subject: Done: digits on laptop, of ann" in done
    assert _text(done) == "Run run-of-prepare"


def _text(mail: str) -> str:
    body = mail.partition("base64\r\n\r\n")[2].partition("\r\n\r\n")[0]
    return base64.b64decode(body).decode()


def test_the_reaper_tells_of_each_end_that_has_moved(
    dag_bag, task_policy, mails, monkeypatch, tmp_path
):
    one, two = ({"run_id": name, "folder": str(tmp_path / name)} for name in ("one", "two"))
    changes = [
        EtaChange(**one, recipe="digits", site="laptop", before=0.0, now=5400.0),
        EtaChange(**two, recipe="scans", site="cluster", before=7200.0, now=3600.0),
    ]
    monkeypatch.setattr(run_operators, "reap", lambda *_: ())
    monkeypatch.setattr(run_operators, "eta_changes", lambda: iter(changes))
    reap = copy.copy(dag_bag.dags["headrace_reaper"].get_task("reap"))
    task_policy(reap)
    reap.execute({"dag": reap.dag})
    first, second = mails
    assert "Subject: digits ends at another time" in first
    assert "digits on laptop ends 90 min later than expected" in _text(first)
    assert "scans on cluster ends 60 min earlier than expected" in _text(second)


def test_a_notice_that_fails_ends_neither_the_reaper_nor_other_notices(tmp_path, monkeypatch):
    change = EtaChange(
        run_id="one", folder=str(tmp_path), recipe="digits", site="laptop", before=0.0, now=5400.0
    )
    sent = []

    def failing(_context):
        raise ConnectionError("the hook is down")

    monkeypatch.setattr(run_operators, "reap", lambda *_: ("a line",))
    monkeypatch.setattr(run_operators, "eta_changes", lambda: iter([change]))
    reap = ReapOperator(task_id="reap", on_eta_change=[failing, sent.append])
    assert reap.execute({}) == ["a line"]
    assert [each["change"] for each in sent] == [change]
    assert failures_of(RunFolder(tmp_path)).last == "notice 1: ConnectionError: the hook is down"
