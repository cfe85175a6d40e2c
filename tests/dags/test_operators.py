"""Operators: what each decides, with real runs and a real ledger, and a scripted control side."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace

import pytest
import structlog
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from structlog.testing import capture_logs

from headrace.errors import (
    CapacityError,
    LeaseError,
    QueueFullError,
    RecipeError,
    SecretError,
    SilentError,
    StepError,
)
from headrace.execution import decisions, step_attempts
from headrace.execution.decisions import End, RunningAttempt
from headrace.execution.reap import ABANDONED
from headrace.leases.run_leases import RELEASED
from headrace.ledger.ledger import open_ledger
from headrace.recipe.base import Target
from headrace.runs.audit import refused_requests
from headrace.runs.owners import user_of
from headrace.runs.planned_steps import steps_of
from headrace.runs.runs import open_run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.lease import LeaseView, Look
from headrace.steps.mailbox import Failure, StepResult, StepStatus
from headrace_airflow import airflow_api as owners
from headrace_airflow import assets, operators, preview, run_operators
from headrace_airflow.airflow_api import DagRunAddress, stopped
from headrace_airflow.assets import DATASETS, MODELS, dataset_asset, model_asset
from headrace_airflow.operators import PackOperator, StepOperator
from headrace_airflow.run_operators import (
    DaskDashboardLink,
    FinishRunOperator,
    PrepareRunOperator,
    ReapOperator,
    told_to_airflow,
)
from headrace_airflow.triggers import RoomTrigger, StepTrigger
from headrace_probes.operator import PrepareProbeOperator
from headrace_probes.probe_records import ProbeOptions
from support.runs import attempt_row_of, lease_on_disk
from support.suite_journal import AWS, LAB, over_sites


class Outlets(dict):
    """Records what is published."""

    def __missing__(self, key):
        self[key] = accessor = SimpleNamespace(added=[])
        accessor.add = lambda asset, extra: accessor.added.append((asset, extra))
        return accessor


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """What is not over at once is deferred at once."""
    monkeypatch.setattr(operators, "PATIENCE_S", 0.0)


@pytest.fixture
def context(headrace_home):
    pushed = {}
    ti = SimpleNamespace(
        dag_id="headrace_train",
        run_id="manual__2026-01-02T03:04:05",
        task_id="train",
        try_number=1,
        max_tries=4,
        pushed=pushed,
        xcom_push=pushed.__setitem__,
        xcom_pull=lambda *, key: pushed.get(key),
    )
    params = {"recipe": "digits", "site": "laptop", "overrides": []}
    begun = {"start_date": datetime.now(timezone.utc), "triggering_user_name": "ann"}
    dag_run = SimpleNamespace(dag_id=ti.dag_id, run_id=ti.run_id, **begun)
    return {"ti": ti, "params": params, "dag_run": dag_run, "outlet_events": Outlets()}


def prepare(context, **params):
    context["params"].update(params)
    return PrepareRunOperator(task_id="prepare", kind="train").execute(context)


@pytest.fixture
def run(context):
    return open_run(prepare(context))


def result(state, cause=None, message="why", **more):
    failure = Failure(failure_class=cause, error="E", message=message, **more) if cause else None
    outputs = {} if cause else {"metrics": {"accuracy": 0.98}}
    return StepResult(state=state, failure=failure, outputs=outputs, started_at=0, finished_at=1)


SUCCEEDED = result(StepState.SUCCEEDED)


def cancelled(reason):
    return result(StepState.CANCELLED, FailureClass.CANCELLED, f"Cancelled: {reason}")


@pytest.fixture
def ticket(run):
    lease = run.lease_folder(f"{run.run_id}-gpu-1")
    return RunningAttempt(step="train", attempt=1, folder=lease.step(1))


@pytest.fixture
def script(monkeypatch):
    """Scripts an answer of the control side: a value to return or an error to raise.

    `start` is what comes of a step's next attempt: a ticket, or its result if it succeeds at once.
    """
    monkeypatch.setattr(decisions, "_RETRY_PAUSE_S", 0.0)

    def put(name, answer, calls=None):
        def scripted(*arguments, **_):
            if calls is not None:
                calls.append(arguments)
            if isinstance(answer, Exception):
                raise answer
            return answer

        if name == "start" and isinstance(answer, StepResult):
            found = End(cause=answer)
            monkeypatch.setattr(operators, "decide", lambda *_: found)
            return
        if name in ("start", "collect"):
            monkeypatch.setattr(step_attempts, {"start": "_submit"}.get(name, name), scripted)
            return
        target = operators
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        monkeypatch.setattr(target, last, scripted)

    return put


# prepare


def test_prepare_makes_one_run_however_often_it_is_tried(context):
    first = prepare(context)
    context["ti"].try_number = 2
    assert prepare(context) == first
    assert [record.run_id for record in open_ledger().runs()] == [first]
    run = open_run(first)
    assert run.request.owner == "airflow:headrace_train:manual__2026-01-02T03:04:05"
    assert user_of(run.folder, "nobody told") == "ann"


def test_the_id_of_a_dag_run_that_was_deleted_does_not_give_its_run_to_another(context):
    first = prepare(context)
    with pytest.raises(AirflowFailException, match=rf"{first}\n.*under another id"):
        prepare(context, seed=8)
    assert [record.run_id for record in open_ledger().runs()] == [first]


def test_prepare_takes_keys_of_the_recipe_besides_overrides(context):
    keys = {"trainer.max_epochs": 3, "model.learning_rate": 1e-5, "seed": None}
    run = open_run(prepare(context, overrides=["data.global_batch_size=8"], **keys))
    assert run.request.overrides[:2] == ("trainer.max_epochs=3", "model.learning_rate=1e-05")
    assert run.recipe.trainer.max_epochs == 3
    assert run.recipe.model.as_config()["learning_rate"] == 1e-5
    assert run.recipe.data.global_batch_size == 8
    assert run.recipe.seed == 7


def test_prepare_shows_the_plan_and_the_resolved_recipe(context, headrace_home):
    operator = PrepareRunOperator(task_id="prepare", kind="train")
    context["params"]["trainer.max_epochs"] = 3
    run = open_run(operator.execute(context))
    source = f"source: {headrace_home}/examples/digits"
    for line in ("max_epochs: 3", "learning_rate: 0.003", source):
        assert line in operator.resolved_recipe
    assert "gpu: gang of 1 node" in operator.plan
    assert "stage, train, evaluate" in operator.plan
    assert "no earlier run shows" in operator.plan
    assert max(map(len, operator.plan.splitlines())) <= 50  # Airflow's pages cut longer ones
    model = Target.model_validate({"_target_": "a.B", "api_key": "hush"})
    secretive = replace(run, recipe=run.recipe.model_copy(update={"model": model}))
    assert "api_key: '***'" in preview.recipe_text(secretive)


def test_prepare_makes_a_suite_over_several_sites(context, headrace_home):
    (headrace_home / "sites").mkdir(parents=True)
    for name in ("lab", "box"):
        role, folder = {"backend": "local", "kind": "pool"}, str(headrace_home / name)
        tiers = [{"name": "disk", "folder": folder, "reserve": 0}]
        site = {"name": name, "folder": folder, "tiers": tiers, "roles": {"cpu": role, "gpu": role}}
        (headrace_home / "sites" / f"{name}.yaml").write_text(json.dumps(site))
    operator = PrepareRunOperator(task_id="prepare", kind="suite")
    given = {"policy": "spread", "deadline": "2h", "budget": None, "trials": None}
    context["params"] |= {**given, "sites": ["lab", "box"], "overrides": ["seed=1,2"]}
    run = open_run(operator.execute(context))
    suite = run.recipe.suite
    assert (run.request.site, suite.sites) == ("lab", ("lab", "box"))
    assert (suite.policy, suite.deadline, suite.budget) == ("spread", 7200.0, None)
    planned = {each.name: each.role for each in steps_of(run.recipe, "suite")}
    assert planned == {"pack": "cpu", "suite": "driver"}
    assert "driver: " in operator.plan
    for sites, words in ((["lab", "mars"], "no site 'mars'"), (["lab", "lab"], "named twice")):
        context["ti"].run_id = context["dag_run"].run_id = words
        context["params"]["sites"] = sites
        with pytest.raises(AirflowFailException, match=words):
            operator.execute(context)


def test_prepare_makes_a_probe_of_what_the_form_says(context):
    context["params"] = {"site": "laptop", "role": None, "nodes": None, "parts": None}
    context["params"]["quick"] = False
    operator = PrepareProbeOperator(task_id="prepare")
    run = open_run(operator.execute(context))
    assert (run.recipe.train.role, run.recipe.train.nodes) == ("gpu", 1)
    assert ProbeOptions.model_validate(run.request.options) == ProbeOptions()
    assert "gpu: gang of 1 node" in operator.plan
    context["ti"].run_id = context["dag_run"].run_id = "another"
    context["params"] |= {"role": "cpu", "nodes": 1, "parts": ["gemm"], "quick": True}
    run = open_run(operator.execute(context))
    assert (run.recipe.train.role, run.recipe.train.nodes) == ("cpu", 1)
    asked = ProbeOptions(only=("gemm",), role="cpu", nodes=1, quick=True)
    assert ProbeOptions.model_validate(run.request.options) == asked
    context["ti"].run_id = context["dag_run"].run_id = "a third"
    context["params"]["role"] = "gpuu"
    with pytest.raises(AirflowFailException, match="has no role 'gpuu'"):
        operator.execute(context)
    for nodes, words in ((10**9, "nodes: give an integer"), (0, "nodes: give"), (3, "3 nodes are")):
        context["params"] |= {"role": "cpu", "nodes": nodes}
        with pytest.raises(AirflowFailException, match=words):
            operator.execute(context)


def test_a_silent_queue_leaves_the_plan_out(context, monkeypatch):
    def silent(*_):
        raise SilentError("Slurm is silent")

    monkeypatch.setattr(preview, "previews", silent)
    operator = PrepareRunOperator(task_id="prepare", kind="train")
    operator.execute(context)
    assert "Slurm is silent" in operator.plan


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"trainer.max_epoch": 3}, "max_epochs"),
        ({"recipes": "digits"}, "recipe"),
        ({"code": ["/tmp"]}, "sets 'code'"),
        ({"dataset.name": "${oc.env:HOME}"}, "interpolation"),
        ({"seed": 1, "overrides": ["seed=2"]}, "seed is given twice"),
        ({"recipe": "digitz"}, "Did you mean 'digits'"),
        ({"recipe": "/etc/hosts.yaml"}, "no recipe"),
        ({"site": "mars"}, "Valid: laptop"),
        ({"overrides": ["trainer.max_epoch=3"]}, "max_epochs"),
        ({"overrides": ["dataset.name='${oc.env:HOME}'"]}, "interpolation"),
    ],
)
def test_a_mistake_in_the_request_fails_at_once_in_words(context, params, words):
    with pytest.raises(AirflowFailException, match=words) as caught:
        prepare(context, **params)
    assert caught.value.__suppress_context__  # no trace for a user's mistake
    assert context["ti"].pushed == {"why": str(caught.value)}
    assert not open_ledger().runs()
    (act,) = refused_requests()
    assert act.run_id == str(DagRunAddress.of(context))
    assert act.refused == str(caught.value)


def test_the_log_tells_a_mistake_without_a_trace_and_a_fault_with_one(context):
    """As Airflow's task runner logs what a task raises."""
    with capture_logs() as logged:
        for error in (RecipeError("No such key", "Valid: seed."), StepError("A node is gone")):
            try:
                with told_to_airflow(context):
                    raise error
            except AirflowException:
                structlog.get_logger("task").exception("Task failed with exception")
    mistake, fault = logged
    assert mistake["event"] == "No such key\n  Valid: seed."
    assert "exc_info" not in mistake
    assert (fault["event"], fault["exc_info"]) == ("Task failed with exception", True)
    assert context["ti"].pushed == {"why": mistake["event"]}


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_the_log_has_no_trace_of_a_failing_disk(context, tmp_path, code):
    error = OSError(code, os.strerror(code), str(tmp_path / "x"))
    with capture_logs() as logged:
        try:
            with told_to_airflow(context):
                raise error
        except AirflowException as raised:
            structlog.get_logger("task").exception("Task failed with exception")
            assert type(raised) is AirflowException  # noqa: PT017  a retry may help
    (line,) = logged
    assert "exc_info" not in line
    assert str(tmp_path) in line["event"]
    assert "\n  " in line["event"]  # the next step


def test_an_error_of_a_socket_is_none_of_a_disk(context):
    with pytest.raises(ConnectionError), told_to_airflow(context):
        raise ConnectionError("not of a file")


# leases


def test_the_run_is_that_of_the_dag_run(run, context):
    operator = StepOperator(task_id="train", step="train")
    operator.pre_execute(context)
    assert operator.run_id == run.run_id
    context["dag_run"].run_id = "another"
    with pytest.raises(AirflowFailException, match=r"another .* has no run .*\n.*`prepare`"):
        StepOperator(task_id="train", step="train").pre_execute(context)


def test_a_full_site_is_waited_for_without_using_up_a_try(run, context, script):
    script("start", CapacityError("Site 'laptop' has 2 leases open (limits.max_leases)."))
    with pytest.raises(TaskDeferred) as deferred:
        step(run).execute(context)
    assert isinstance(deferred.value.trigger, RoomTrigger)
    assert deferred.value.method_name == "execute_complete"
    assert "has 2 leases open" in context["ti"].pushed["machines"]
    asked = deferred.value.trigger.serialize()[1]
    assert asked["key"] == f"{run.run_id}/gpu"
    assert (asked["max_active"], asked["max_owner"]) == (run.site.limits.max_leases, None)


def test_secrets_are_those_of_airflows_connections_and_of_who_triggered(
    run, context, script, monkeypatch
):
    extra = {"token": "t0ken", "none": None}
    told = json.dumps({"conn_type": "http", "login": "me", "password": "hunter2", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_TRACKER", told)
    asked = []
    script("start", LeaseError("enough seen"), asked)
    with pytest.raises(AirflowException, match="enough seen"):
        step(run).execute(context)
    seen, *_ = asked[0]
    assert seen.asker.user == "ann"
    ask = partial(seen.asker.connection, "tracker")
    assert [ask(field) for field in ("login", "password", "token")] == ["me", "hunter2", "t0ken"]
    for field in ("host", "none", "conn_id", "get_uri"):
        with pytest.raises(SecretError, match=f"'tracker' has no {field}\n.*password, token") as no:
            ask(field)
        assert "hunter" not in str(no.value)
    with pytest.raises(SecretError, match="has no connection 'other'"):
        seen.asker.connection("other", "password")
    context["dag_run"].triggering_user_name = None
    with pytest.raises(AirflowException, match="enough seen"):
        step(run).execute(context)
    assert asked[-1][0].asker.user == ""  # of nobody, and not of this account


# steps


class Looks:
    """What looks at a step see: that it has ended, or not; that its lease is ready, or not yet."""

    def __init__(self):
        self.ends = []
        self.is_ready = False
        self.waits_for = ""
        self.num = 0

    def __call__(self, lease, step, lost_after_s):
        url = "http://127.0.0.1:8787" if self.is_ready else ""
        state = LeaseState.READY if self.is_ready else LeaseState.STARTING
        view = LeaseView(
            lease_id=lease.lease_id, folder=str(lease.path), state=state, dashboard_url=url,
            waits_for=self.waits_for,
        )  # fmt: skip
        self.num += 1
        final = bool(self.ends) and self.ends.pop(0)
        return Look(final=final, status=StepStatus(state=StepState.RUNNING), lease=view)


@pytest.fixture(autouse=True)
def looks(monkeypatch):
    """The step has not ended, its lease is not ready."""
    found = Looks()
    monkeypatch.setattr(step_attempts, "look", found)
    return found


def step(run, name="train"):
    return StepOperator(task_id=name, step=name, run_id=run.run_id)


def memory_of(ticket, **changes):
    """What a deferred task remembers."""
    blank = {"num_before": 0, "is_ready": False, "unopened": [], "is_revived": False}
    place = [ticket.step, ticket.attempt, str(ticket.folder.path)]
    return {**blank, "ticket": place, **changes}


def complete(run, context, ticket, **changes):
    """As after its trigger has seen the attempt end."""
    step_attempts.look.ends.append(True)
    memory = memory_of(ticket, **changes)
    return step(run).execute_complete(context, event={}, memory=memory)


def test_a_step_defers_without_a_time_limit(run, context, script, ticket):
    script("start", ticket)
    operator = step(run)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    trigger = deferred.value.trigger
    assert isinstance(trigger, StepTrigger)
    assert deferred.value.timeout is None
    assert trigger.step_folder == ticket.folder
    assert deferred.value.kwargs == {"memory": memory_of(ticket)}
    assert operator.lease_id == ticket.lease.lease_id


def test_a_lease_that_is_ready_is_written_down_and_its_dashboard_shown(
    run, context, script, ticket, looks, monkeypatch
):
    """Its step goes on; the next look is for its end alone."""
    lease_on_disk(run, "gpu")
    noted = []
    script("start", ticket)
    script("run_leases.note_ready", None, noted)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow")
    operator = step(run)
    link = partial(DaskDashboardLink().get_link, operator, ti_key=None)
    assert link() == ""
    with pytest.raises(TaskDeferred) as first:
        operator.execute(context)
    assert (first.value.trigger.is_ready, noted) == (False, [])
    assert link() == f"http://airflow/plugin/headrace/headrace/dask/?id={ticket.lease.lease_id}"
    looks.is_ready = True
    with pytest.raises(TaskDeferred) as second:
        operator.execute_complete(context, {}, **first.value.kwargs)
    assert (second.value.trigger.is_ready, len(noted)) == (True, 1)
    open_ledger().set_lease_state(ticket.lease.lease_id, LeaseState.READY, ready_at=1.0)
    with pytest.raises(TaskDeferred):
        operator.execute_complete(context, {}, **second.value.kwargs)
    assert len(noted) == 1


def test_a_step_that_waits_in_a_queue_holds_no_worker(
    run, context, script, ticket, looks, monkeypatch
):
    monkeypatch.setattr(operators, "PATIENCE_S", 60.0)
    looks.waits_for = "Slurm job 7 is pending: Priority"
    script("start", ticket)
    with pytest.raises(TaskDeferred):
        step(run).execute(context)
    assert looks.num == 1


def test_a_suite_over_several_sites_leaves_a_table_of_them(run, context, script):
    lease_on_disk(run, "gpu")
    sites = (LAB.model_copy(update={"run_id": run.run_id}), AWS)
    over_sites(run, *sites)
    script("start", SUCCEEDED)
    script("run_leases.release", None)
    step(run).execute(context)
    lab, aws = context["ti"].pushed["sites"]
    assert lab == {
        "site": "lab", "run_id": run.run_id, "state": "open", "ended": 5, "usd": 0.0,
        "leases": [f"{run.run_id}-gpu-1"],
    }  # fmt: skip
    assert (aws["site"], aws["leases"]) == ("aws", [])


@pytest.mark.parametrize(("pack_role", "released"), [("cpu", ["cpu", "gpu"]), ("gpu", ["gpu"])])
def test_the_last_step_on_a_lease_releases_it(context, script, pack_role, released):
    run = open_run(prepare(context, overrides=[f"pack_role={pack_role}"]))
    calls = []
    script("start", SUCCEEDED)
    script("run_leases.release", None, calls)
    for name in STEPS:
        step(run, name).execute(context)
    assert [role for _, role, _ in calls] == released


def test_a_short_step_is_collected_without_deferring(
    run, context, script, ticket, looks, monkeypatch
):
    monkeypatch.setattr(operators, "PATIENCE_S", 60.0)
    script("start", ticket)
    script("collect", SUCCEEDED)
    looks.ends = [False, True]
    operator = step(run)
    assert operator.execute(context) == SUCCEEDED.outputs
    assert operator.lease_id == ticket.lease.lease_id


def test_a_task_that_is_cleared_or_tried_again_by_airflow_counts_anew(run, context, script, ticket):
    """As `headrace resume` does: failures before this try do not count."""
    lease_id, most = lease_on_disk(run, "gpu"), run.recipe.retry.max_failures
    for number in range(1, most + 1):
        attempt_row_of(
            run, "train", lease_id, attempt=number, key=f"{run.run_id}/train/{number}",
            state=StepState.LOST, failure_class=FailureClass.LOST, started_at=0.0, finished_at=60.0,
        )  # fmt: skip
    script("start", ticket)
    with pytest.raises(TaskDeferred) as deferred:
        step(run).execute(context)
    assert deferred.value.kwargs == {"memory": memory_of(ticket, num_before=most)}


QUEUES = [
    ("start", QueueFullError("waiting: EC2 has no capacity for m5")),
    ("start", SilentError("EC2 says 503: no")),
    ("collect", SilentError("EC2 says 503: no")),
]


@pytest.mark.parametrize(("asked", "error"), QUEUES)
def test_a_queue_is_waited_for_without_using_up_a_try(run, context, script, ticket, asked, error):
    """Its lease has its place in the site: it would wait for itself if it waited for room."""
    script(asked, error)
    with pytest.raises(TaskDeferred) as deferred:
        step(run).execute(context) if asked == "start" else complete(run, context, ticket)
    assert isinstance(deferred.value.trigger, RoomTrigger)
    assert open_ledger().num_before(deferred.value.trigger.serialize()[1]["key"], 1) == 0
    assert deferred.value.trigger.waiting.poll_s == run.site.roles["gpu"].batch.poll
    assert context["ti"].pushed["machines"] == error.what


def test_a_lease_that_cannot_be_asked_for_is_asked_for_as_often_as_from_a_terminal(
    run, context, script
):
    asked = []
    script("start", LeaseError("sbatch does not answer"), asked)
    with pytest.raises(AirflowFailException, match="sbatch does not answer"):
        step(run).execute(context)
    assert len(asked) == run.recipe.retry.max_failures


@pytest.mark.parametrize("cause", [FailureClass.USER_ERROR, FailureClass.DATA_ERROR])
def test_a_users_mistake_is_not_tried_again(run, context, script, ticket, cause):
    failed = result(StepState.FAILED, cause, trace="Traceback: line 7", where="rank 1")
    script("collect", failed)
    with pytest.raises(AirflowFailException, match=r"why \(rank 1\)"):
        complete(run, context, ticket)


@pytest.mark.parametrize("reason", [stopped("task train (try 1)"), ABANDONED, RELEASED])
def test_an_attempt_cancelled_for_an_earlier_try_is_replaced_once(
    run, context, script, ticket, reason
):
    """Clear: the new try may re-attach just before the old trigger cancels the attempt."""
    script("collect", cancelled(reason))
    script("start", ticket)
    with pytest.raises(TaskDeferred) as deferred:
        complete(run, context, ticket)
    assert deferred.value.kwargs == {"memory": memory_of(ticket, is_revived=True)}
    with pytest.raises(AirflowFailException, match="cancelled"):
        complete(run, context, ticket, is_revived=True)


@pytest.mark.parametrize(
    ("try_number", "max_tries", "is_cleared"),
    [
        (1, 4, False),
        (2, 4, False),  # a retry
        (2, 5, True),  # cleared in its first try
        (3, 5, False),  # a retry after that
        (6, 9, True),  # cleared after all five tries
    ],
)
def test_only_the_first_try_since_a_clear_stops_the_attempt_it_finds(
    run, context, script, ticket, try_number, max_tries, is_cleared
):
    """Airflow counts the tries that are left from the last clear on (pains 9).

    Where only what had failed is cleared, `prepare` does not set the run to running.
    """
    open_ledger().finish_run(run.run_id, StepState.FAILED, 1.0)
    context["ti"].try_number, context["ti"].max_tries = try_number, max_tries
    asked = []
    script("cancel_steps", (), asked)
    script("start", ticket)
    operator = StepOperator(task_id="train", step="train", run_id=run.run_id, retries=4)
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    reasons = [stopped(f"try {try_number - 1} of task train by clearing it")]
    assert [arguments[2:] for arguments in asked] == ([(*reasons,)] if is_cleared else [])
    assert open_ledger().run(run.run_id).state.is_final is not is_cleared


def test_a_step_that_the_recipe_leaves_out_is_skipped(context):
    run = open_run(prepare(context, overrides=["evaluate=null"]))
    with pytest.raises(AirflowSkipException, match="evaluate"):
        step(run, "evaluate").execute(context)


@pytest.mark.parametrize(
    ("reused", "known", "num_events"),
    [
        (False, ["f"], 1),
        (True, [], 1),  # packed from a terminal: the first task that finds it tells of it
        (True, ["f"], 0),
        (True, ["g", "f"], 0),  # not the newest version, but one that was told of
        (True, ["g"], 1),
    ],
)
def test_packing_publishes_each_version_once(
    run, context, script, monkeypatch, reused, known, num_events
):
    """Else a DAG that packs and is scheduled on the dataset would start itself for ever."""
    outputs = {"dataset": "/d", "fingerprint": "f", "num_samples": 3, "reused": reused}
    script("start", SUCCEEDED.model_copy(update={"outputs": outputs}))
    told = [{"fingerprint": fingerprint} for fingerprint in known]
    monkeypatch.setattr(assets, "published_extras", lambda _: told)
    PackOperator(task_id="pack", run_id=run.run_id).execute(context)
    added = context["outlet_events"][DATASETS].added
    assert len(added) == num_events
    for asset, extra in added:
        assert asset == dataset_asset("digits")
        assert asset.uri == "headrace://dataset/digits"
        figures = {"dataset": "/d", "fingerprint": "f", "num_samples": 3}
        assert extra == {"run": run.run_id, **figures}


# finish


STEPS = ("pack", "stage", "train", "evaluate")


def test_a_run_whose_tasks_were_marked_success_without_a_result_is_cancelled(
    run, context, monkeypatch
):
    """A step that a user has marked as succeeded leaves its lease, and training no model."""
    lease_id = lease_on_disk(run, "gpu")
    monkeypatch.setattr(run_operators, "task_states", lambda *_: dict.fromkeys(STEPS, "success"))
    finish = FinishRunOperator(task_id="finish", run_id=run.run_id, outlets=[MODELS])
    assert finish.execute(context) == "cancelled"
    assert not context["outlet_events"]
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED
    assert not open_ledger().lease(lease_id).state.is_active


def test_finish_publishes_the_model_with_its_metrics(run, context, monkeypatch):
    outputs = {
        "stage": {},
        "pack": {"fingerprint": "f"},
        "train": {
            "checkpoint": "/c/100",
            "best_checkpoint": None,
            "steps": 100,
            "metrics": {"loss": 0.5, "accuracy": 0.9, "broken": math.nan},
        },
        "evaluate": {"metrics": {"accuracy": 0.8, "per_class": [0.7, 0.9]}},
    }
    monkeypatch.setattr(run_operators, "task_states", lambda *_: dict.fromkeys(STEPS, "success"))
    monkeypatch.setattr(run_operators, "outputs_of", lambda _: outputs)
    finish = FinishRunOperator(task_id="finish", run_id=run.run_id, outlets=[MODELS])
    finish.execute(context)
    ((asset, extra),) = context["outlet_events"][MODELS].added
    assert asset == model_asset("digits")
    assert extra == {
        "run": run.run_id,
        "dataset": "f",
        "checkpoint": "/c/100",
        "steps": 100,
        "metrics": {"loss": 0.5, "accuracy": 0.8},
    }


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (stopped("task train", "ann"), StepState.CANCELLED),
        ("asked by ann in Airflow", StepState.CANCELLED),
        (ABANDONED, StepState.FAILED),
    ],
)
def test_finish_tells_why_a_step_has_ended(run, context, monkeypatch, reason, state):
    """What a user stops is cancelled, by Airflow's buttons and by headrace's."""
    attempt_row_of(
        run, "train", lease_on_disk(run, "gpu"), state=StepState.CANCELLED,
        message=f"Cancelled: {reason}\n  more", started_at=0.0, finished_at=1.0,
    )  # fmt: skip
    states = {**dict.fromkeys(STEPS, "success"), "train": "failed"}
    monkeypatch.setattr(run_operators, "outputs_of", lambda _: {step: {} for step in STEPS})
    monkeypatch.setattr(run_operators, "task_states", lambda *_: states)
    told = rf"{state.value}: train is failed \(Cancelled: {reason.partition('(')[0]}"
    with pytest.raises(AirflowFailException, match=told):
        FinishRunOperator(task_id="finish", run_id=run.run_id).execute(context)
    assert open_ledger().run(run.run_id).state is state


@pytest.mark.parametrize("evaluate", ["success", "skipped"])
def test_a_step_marked_as_success_while_it_runs_cancels_the_run(
    run, context, monkeypatch, evaluate
):
    """The DAG run keeps the success of its user; the ledger claims no weights."""
    attempt_row_of(
        run, "train", lease_on_disk(run, "gpu"), state=StepState.CANCELLED,
        message=f"Cancelled: {stopped('task train', 'ann')}", started_at=0.0, finished_at=1.0,
    )  # fmt: skip
    states = {**dict.fromkeys(STEPS, "success"), "evaluate": evaluate}
    monkeypatch.setattr(run_operators, "task_states", lambda *_: states)
    finish = FinishRunOperator(task_id="finish", run_id=run.run_id, outlets=[MODELS])
    assert finish.execute(context) == "cancelled"
    assert not context["outlet_events"]
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED
    monkeypatch.setattr(run_operators, "task_states", lambda *_: states | {"evaluate": "failed"})
    with pytest.raises(AirflowFailException, match="cancelled: evaluate is failed"):
        finish.execute(context)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({**dict.fromkeys(STEPS, "success"), "evaluate": "failed"}, "failed: evaluate is failed"),
        ({"pack": "failed", "stage": "upstream_failed"}, "stage is upstream_failed"),
        ({**dict.fromkeys(STEPS, "success"), "evaluate": "skipped"}, "evaluate is skipped"),
    ],
)
def test_finish_fails_with_its_run(run, context, monkeypatch, states, words):
    """A step is skipped in a DAG run that is marked failed; the DAG run is to stay failed."""
    monkeypatch.setattr(run_operators, "outputs_of", lambda _: {step: {} for step in STEPS})
    monkeypatch.setattr(run_operators, "task_states", lambda *_: states)
    with pytest.raises(AirflowFailException, match=words):
        FinishRunOperator(task_id="finish", run_id=run.run_id).execute(context)
    assert open_ledger().run(run.run_id).state is StepState.FAILED


# reaper


@pytest.fixture
def airflow_knows(monkeypatch):
    """Scripts what Airflow's API server answers."""

    def put(*, active, tasks=None):
        monkeypatch.setattr(owners, "dag_runs_are_active", lambda *_: active)
        monkeypatch.setattr(
            owners, "tasks_of_runs", lambda _, run_ids: dict.fromkeys(run_ids, tasks or {})
        )

    return put


@pytest.mark.parametrize(
    ("tasks", "state"), [({"train": "failed"}, StepState.LOST), ({}, StepState.CANCELLED)]
)
def test_a_run_whose_dag_run_has_ended_is_put_right(run, context, airflow_knows, tasks, state):
    """Timeouts and killed teardowns leave nothing behind (pains 9); a user deletes."""
    airflow_knows(active=False, tasks=tasks)
    assert not ReapOperator(task_id="reap").poke(context)
    assert open_ledger().run(run.run_id).state is state


def test_a_run_whose_dag_run_lives_is_left_alone(run, context, airflow_knows):
    airflow_knows(active=True)
    context["dag_run"].start_date -= timedelta(hours=2)
    assert ReapOperator(task_id="reap").poke(context)
    assert open_ledger().run(run.run_id).state is StepState.RUNNING


@pytest.mark.parametrize(
    ("state", "abandoned"),
    [
        ("failed", True),
        ("success", True),
        ("upstream_failed", True),
        ("deferred", False),
        ("up_for_retry", False),
        ("running", False),
        (None, False),
    ],
)
def test_a_step_is_abandoned_when_its_task_has_ended(run, airflow_knows, state, abandoned):
    airflow_knows(active=True, tasks={"train": state})
    assert owners.Owners([]).has_left(open_ledger().run(run.run_id), "train") is abandoned


def test_airflow_is_asked_of_many_runs_at_once(run, monkeypatch):
    """Of a thousand runs each for itself a pass took longer than its turn."""
    record, asked, ended = open_ledger().run(run.run_id), [], []

    def count(dag_id, run_ids, states):
        asked.append(len(run_ids))
        return len(set(run_ids) - set(ended))

    def states(dag_id, run_ids):
        asked.append(len(run_ids))
        return {each: {"train": "failed" if each in ended else "running"} for each in run_ids}

    monkeypatch.setattr(owners.RuntimeTaskInstance, "get_dr_count", count)
    monkeypatch.setattr(owners.RuntimeTaskInstance, "get_task_states", states)
    records = [replace(record, owner=f"airflow:headrace_train:{n}") for n in range(150)]
    living = owners.Owners([*records, replace(record, owner="cli:host:1:2.0")])
    assert not any(living.ended(each) or living.has_left(each, "train") for each in records)
    assert sorted(asked) == [50, 50, 100, 100]
    ended.append("7")
    some_ended = owners.Owners(records)
    assert [each.owner for each in records if some_ended.ended(each)] == [records[7].owner]
    left = [each.owner for each in records if some_ended.has_left(each, "train")]
    assert left == [records[7].owner]
    ended.clear()  # it was cleared, and goes on: what was seen before does not count
    assert not some_ended.ended(records[7])
    assert not some_ended.has_left(records[7], "train")


def test_runs_of_other_owners_are_not_airflows_to_judge(run, airflow_knows):
    airflow_knows(active=False, tasks={"train": "failed"})
    record = replace(open_ledger().run(run.run_id), owner="cli:host:1:2.0")
    assert not owners.Owners([]).ended(record)
    assert not owners.Owners([]).has_left(record, "train")


def test_dag_run_ids_with_colons_survive_the_ledger():
    owner = "airflow:headrace_train:scheduled__2026-01-02T03:04:05+00:00"
    address = owners.DagRunAddress.parse(owner)
    assert address.run_id == "scheduled__2026-01-02T03:04:05+00:00"
    assert str(address) == owner
