"""Who asked for what: each act leaves one line with a name, whichever way it came."""

from __future__ import annotations

import json
import socket

import pytest

from headrace.errors import AccessError, StepError, UserError
from headrace.execution.reap import ask_to_stop, end_run
from headrace.execution.resume import take_over_changed, take_over_run
from headrace.ledger.ledger import open_ledger
from headrace.recipe.unix_accounts import account
from headrace.runs import audit
from headrace.runs.audit import AIRFLOW, Actor
from headrace.runs.owners import process_owner
from headrace.states import LeaseState, StepState
from support.access import write_site
from support.command_line import headrace
from support.runs import ended_owner, lease_on_disk, make_run
from support.suite_journal import added, journal, make_suite

HERE = (account(), socket.gethostname())


@pytest.fixture(autouse=True)
def _noted(headrace_home):
    """Each test has a list of its own."""


def lines(**asked):
    """Who, through what, what and details of each act, the oldest first."""
    rows = reversed(open_ledger().acts(**asked))
    return [(row.user, row.through, row.what, row.details) for row in rows]


def test_a_run_is_started_once_and_resumed(monkeypatch):
    monkeypatch.setenv("USER", "eve")
    monkeypatch.setenv("LOGNAME", "eve")
    run = make_run(overrides=("seed=3",), owner=ended_owner())
    make_run(key=run.request.key)  # as a task that is tried again
    take_over_run(run.run_id, process_owner())
    end_run(run, StepState.FAILED)
    make_run(key=run.request.key)
    assert lines(run_id=run.run_id) == [
        (*HERE, "start", "run digits seed=3 --site laptop"),
        (*HERE, "resume", ""),
        (*HERE, "resume", ""),
    ]  # fmt: skip


def test_a_run_that_goes_on_with_changes_tells_them():
    run = make_run(owner=ended_owner())
    take_over_changed(run.run_id, process_owner(), ["train.ranks_per_node=1"], "")
    (_, resumed) = lines()
    assert resumed[:3] == (*HERE, "resume")
    assert "train.ranks_per_node" in resumed[3]


def test_who_clears_a_task_is_not_who_triggered_it():
    asked = {"key": "airflow:headrace_train:x", "owner": "airflow:headrace_train:x", "user": "ada"}
    run = make_run(**asked)
    end_run(run, StepState.FAILED)
    make_run(**asked)
    told = [("ada", AIRFLOW, "start", "run digits --site laptop"), ("", AIRFLOW, "resume", "")]
    assert lines() == told
    assert "unknown in Airflow" in headrace("audit").stdout


EVES = "airflow:headrace_train:eves"


def test_what_is_refused_is_noted_with_the_reason(headrace_home):
    write_site(headrace_home, [account()])
    run = make_run(site="club", owner=ended_owner())
    write_site(headrace_home, ["ada"])
    for asked in (
        lambda: make_run(site="club", owner=EVES, user="eve"),
        lambda: take_over_run(run.run_id, process_owner()),
    ):
        with pytest.raises(AccessError):
            asked()
    resumed, started, _ = open_ledger().acts()
    assert (started.user, started.what, started.run_id) == ("eve", "start", EVES)
    assert (resumed.user, resumed.what, resumed.run_id) == (account(), "resume", run.run_id)
    for row in (started, resumed):
        told = f"User {row.user} may not use site 'club' (`allowed_users`)"
        assert row.refused.startswith(f"{told}\n  Sites for {row.user}: ")


def test_what_was_not_done_for_another_reason_is_no_act():
    run = make_run()
    with pytest.raises(StepError, match="No step"):
        ask_to_stop(run, Actor.here(), "pack")
    with pytest.raises(UserError):
        make_run(overrides=("trainer.max_epochs=none",))
    assert [what for _, _, what, _ in lines()] == ["start"]


def test_every_refusal_of_a_request_in_airflow_is_noted_once_with_its_dag_run():
    """Nobody reads a terminal there; what another try may heal is no refusal."""
    make_run()
    with pytest.raises(UserError) as told:
        make_run(owner=EVES, key=EVES, user="eve", overrides=("trainer.max_epoch=3",))
    with pytest.raises(StepError), audit.noting_refusals(Actor("eve", AIRFLOW), "start", EVES, ""):
        raise StepError("The node is gone")
    (row,) = open_ledger().acts(refused=True)
    assert (row.user, row.through, row.what, row.run_id) == ("eve", AIRFLOW, "start", EVES)
    assert row.details == "run digits trainer.max_epoch=3 --site laptop"
    assert row.refused == str(told.value)
    assert [row] == audit.refused_requests()
    assert not audit.refused_requests("ada")
    shown = " ".join(headrace("audit", "--refused").stdout.split())
    assert "unknown key 'trainer.max_epoch' Did you mean 'max_epochs'?" in shown


def test_what_is_noted_of_a_hostile_request_is_short():
    with pytest.raises(UserError):
        make_run(owner=EVES, key=EVES, overrides=(f"trainer.{'x' * 50_000}=1",))
    (row,) = open_ledger().acts()
    assert len(row.details) <= 4000


def test_each_command_of_a_suite_leaves_one_line():
    suite = make_suite(overrides=("suite.points=[{}]",))
    journal(suite.folder, added(1), added(2))
    for words in ("pause", "resume --limit 4", "cancel 1 2", "prioritize 2", "add seed=9"):
        headrace("suite", *words.split())
    assert lines(run_id=suite.run_id)[1:] == [
        (*HERE, "pause", ""), (*HERE, "limit", "to 4"), (*HERE, "resume", ""),
        (*HERE, "cancel", "trials 1, 2"), (*HERE, "prioritize", "trial 2: priority 1"),
        (*HERE, "add", "seed=9"),
    ]  # fmt: skip


def test_a_lease_is_closed_in_the_name_of_who_did():
    run = make_run()
    lease_id = lease_on_disk(run)
    told = headrace("lease", "close", lease_id, "--reason", "wrong data").stdout
    assert f"wrong data (closed by {account()}@" in told or LeaseState.LOST.value in told
    assert lines(run_id=run.run_id)[-1] == (*HERE, "close", f"{lease_id} wrong data")


def test_the_command_lists_chooses_and_masks():
    run = make_run()
    audit.note(Actor("ada", AIRFLOW), "start", "r", "a on b source=s3://me:pass@bucket", "no")
    told = headrace("audit").stdout
    assert told.index("ada in Airflow") < told.index("@".join(HERE))
    assert "s3://***@bucket; refused: no" in " ".join(told.split())
    for words in (("--user", "ada"), ("--run", "r"), ("--limit", "1")):
        (row,) = json.loads(headrace("audit", *words, "--json").stdout)
        assert (row["user"], row["refused"], row["details"][-6:]) == ("ada", "no", "bucket")
    assert run.run_id in headrace("audit", "--since", "1d").stdout
    assert "No actions" in headrace("audit", "--since", "2999-01").stdout
