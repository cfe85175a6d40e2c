"""Airflow's notifiers send real mails; what a user ends by hand is stopped in the user's name."""

from __future__ import annotations

import base64
import copy
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.files.layout import RunFolder
from headrace.informing import failures_of
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps import mailbox
from headrace_airflow import listener, run_operators
from headrace_airflow.airflow_api import DagRunAddress
from headrace_airflow.eta_changes import EtaChange
from headrace_airflow.run_operators import ReapOperator
from support.factories import step_spec
from support.mail_server import mail_server
from support.runs import attempt_row_of, lease_on_disk, make_run

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-under-airflow.md"
_NOW = {"dag_run": SimpleNamespace(start_date=datetime.now(timezone.utc))}
_DAG_IDS = ("headrace_pack", "headrace_suite", "headrace_train")


@pytest.fixture
def mails(monkeypatch):
    """The mails that arrived at the server of connection `smtp_default`."""
    with mail_server() as (connection, arrived):
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", connection)
        yield arrived


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
    url = "http://127.0.0.1/dags/headrace_train/runs/manual%201"
    context = {
        "dag": finish.dag,
        "params": {"recipe": "digits", "site": "laptop"},
        "dag_run": SimpleNamespace(triggering_user_name="ann"),
        "ti": SimpleNamespace(xcom_pull=lambda task: f"run-of-{task}", log_url=f"{url}/tasks/x"),
        "exception": "Run digits-1 failed: train is failed (Cancelled: by bob in Airflow)",
    }
    for callback in (*finish.on_failure_callback, *finish.on_success_callback):
        callback(context)
    failed, done = mails
    assert "Subject: Failed: digits on laptop, of ann" in failed
    assert "by bob in Airflow" in _text(failed)
    assert "Subject: Done: digits on laptop, of ann" in done
    assert _text(done) == f"Run run-of-prepare: {url}/plugin/headrace-run"
    assert _text(failed).endswith(f" {url}/plugin/headrace-run")


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
    reap.poke({"dag": reap.dag, **_NOW})
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
    assert not reap.poke(_NOW)
    assert [each["change"] for each in sent] == [change]
    assert failures_of(RunFolder(tmp_path)).last == "notice 1: ConnectionError: the hook is down"


ADDRESS = DagRunAddress(dag_id="headrace_train", run_id="manual")
ENDS = (listener.on_task_instance_failed, listener.on_task_instance_success)


@pytest.fixture
def cancelled(headrace_home, monkeypatch):
    """A step at work, whose file tells who has cancelled it."""
    monkeypatch.setattr(listener, "_user", lambda _: "ann")
    run: Run = make_run(key=str(ADDRESS), owner=str(ADDRESS))
    lease_id = lease_on_disk(run, "gpu")
    spec = step_spec(run.folder, "train")
    folder = mailbox.submit(run.lease_folder(lease_id), spec)
    attempt_row_of(run, "train", lease_id, number=1, state=StepState.RUNNING)
    return folder.cancel


def task(task_id: str = "train", run_id: str = ADDRESS.run_id) -> SimpleNamespace:
    return SimpleNamespace(dag_id=ADDRESS.dag_id, run_id=run_id, task_id=task_id, try_number=2)


@pytest.mark.parametrize("ends", ENDS)
def test_a_task_that_is_marked_is_stopped(cancelled, ends):
    ends(previous_state=None, task_instance=task())
    told = "by ann in Airflow, ending task train (try 2) of headrace_train manual"
    assert cancelled.read_text() == told
    act, start = open_ledger().acts()
    assert (act.user, act.through, act.what, act.run_id) == (
        "ann",
        "Airflow",
        "cancel",
        start.run_id,
    )


@pytest.mark.parametrize("ends", ENDS)
def test_a_task_that_ends_by_itself_and_others_are_left_alone(cancelled, ends):
    ends(previous_state="running", task_instance=task())
    ends(previous_state=None, task_instance=task("stage"))
    ends(previous_state=None, task_instance=task(run_id="another"))
    assert not cancelled.exists()
    assert open_ledger().run_by_key(str(ADDRESS)) is not None


def failed(monkeypatch, why: str, before: SimpleNamespace | None) -> SimpleNamespace:
    monkeypatch.setattr(listener, "_first_why", lambda _: why)
    dag_run = SimpleNamespace(dag_run_note=before, note=None)
    listener.on_dag_run_failed(dag_run=dag_run)
    return dag_run


def a_note(content: str | None, user_id: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(content=content, user_id=user_id)


def test_the_note_of_a_failed_dag_run_says_why_and_keeps_what_a_user_wrote(monkeypatch):
    why = "No such key\n  Did you mean 'seed'?"
    assert failed(monkeypatch, why, None).note == (why, "headrace")
    assert failed(monkeypatch, "y" * 2000, None).note == ("y" * 1000, "headrace")
    ours, users = a_note("Another", "headrace"), a_note("For the paper")
    assert failed(monkeypatch, why, ours).dag_run_note.content == why
    for _ in range(2):
        assert failed(monkeypatch, why, users).dag_run_note.content == f"For the paper\n\n{why}"
    assert users.user_id is None
    for before in (None, users):
        assert failed(monkeypatch, "", before).note is None
    assert users.content == f"For the paper\n\n{why}"


def test_what_went_well_in_the_end_has_no_note_of_a_failure(monkeypatch):
    for before, kept in ((a_note("x", "headrace"), False), (a_note("x"), True), (None, False)):
        dag_run = SimpleNamespace(dag_run_note=before)
        listener.on_dag_run_success(dag_run=dag_run)
        assert (dag_run.dag_run_note is not None) is kept
