"""What a user ends by hand is stopped in the user's name; what ends by itself is left alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec
from headrace_airflow import listener
from headrace_airflow.airflow_api import DagRunAddress
from support.runs import attempt_row_of, lease_on_disk, make_run

ADDRESS = DagRunAddress(dag_id="headrace_train", run_id="manual")
ENDS = (listener.on_task_instance_failed, listener.on_task_instance_success)


@pytest.fixture
def cancelled(headrace_home, monkeypatch):
    """A step at work, whose file tells who has cancelled it."""
    monkeypatch.setattr(listener, "_user", lambda _: "ann")
    run: Run = make_run(key=str(ADDRESS), owner=str(ADDRESS))
    lease_id = lease_on_disk(run, "gpu")
    spec = StepSpec(
        key=f"{run.run_id}/train/1", kind="train", run_id=run.run_id, name="train", attempt=1,
        run_folder=str(run.folder.path),
    )  # fmt: skip
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
