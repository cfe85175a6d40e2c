"""Runs: made once, taken over by one, refused before anything is written."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.clusters.lease_records import Ending
from headrace.errors import (
    AccessError,
    HeadraceError,
    RecipeError,
    SiteError,
    StepError,
    TargetError,
    UserError,
)
from headrace.execution.reap import adopt
from headrace.execution.resume import take_over_run
from headrace.files.atomic import write_record
from headrace.files.layout import SiteFolder
from headrace.leases.run_leases import acquire
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.unix_accounts import account
from headrace.runs.lifecycle import create_run, finish_run
from headrace.runs.owners import process_owner
from headrace.runs.runs import RunRequest, open_run
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult
from support.access import write_site
from support.factories import demo_info, step_spec
from support.runs import ended_owner, lease_on_disk, make_run

AIRFLOW = "airflow:headrace_train:manual"


def test_asking_twice_with_one_key_gives_one_run(headrace_home):
    first, second = make_run(key="k"), make_run(key="k", recipe="gone.yaml")
    assert first == second
    assert len(list((headrace_home / "runs").iterdir())) == 1


def test_two_that_ask_at_once_get_one_run(headrace_home, monkeypatch):
    """Without `make_run`: of two threads one would undo the other's environment."""
    monkeypatch.setenv("GIT_DIR", os.devnull)
    request = RunRequest(recipe="digits", site="laptop", key="k", owner=process_owner())
    both = threading.Barrier(2)

    def ask(_: int) -> str:
        both.wait()
        return create_run(request).run_id

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(ask, range(2)))) == 1
    assert len(open_ledger().runs()) == 1


def test_the_ledger_is_opened_once():
    """Not a pool of connections for each look at it."""
    assert open_ledger() is open_ledger()


def test_an_ended_run_that_is_asked_for_again_belongs_to_who_asks(headrace_home):
    """As after `headrace resume` of a run whose task is then cleared in Airflow."""
    run = make_run(key="k", owner=ended_owner())
    finish_run(run, StepState.FAILED)
    assert make_run(key="k", owner=AIRFLOW).request.owner == AIRFLOW
    record = open_ledger().run(run.run_id)
    assert (record.owner, record.state) == (AIRFLOW, StepState.RUNNING)
    assert open_run(run.run_id).request.owner == AIRFLOW


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        (("train.role=tpu",), SiteError, "asks by train.role for the role 'tpu'"),
        (("pack_role=big",), SiteError, "asks by pack_role for the role 'big'"),
        (("data.global_batch_size=63",), UserError, "63, which 2 ranks cannot share equally"),
        (("model._target_=os.system",), TargetError, "does not allow the target 'os.system'"),
        (
            ("trainer.callbacks=[{_target_: lightning.pytorch.Callback, x: {_target_: os.kill}}]",),
            TargetError,
            "'os.kill'",
        ),
        (("model._target_=torch.nnx.Linear",), TargetError, "'torch.nnx.Linear'"),
        (("model.learning_rat=1",), TargetError, "has no argument 'learning_rat'"),
        (("code=[/etc]",), TargetError, "does not allow code from /etc"),
        (
            ("model=null", "evaluate=null", "train.script=/etc/x.py"),
            RecipeError,
            "train.script leads to /etc/x.py",
        ),
    ],
)
def test_what_does_not_fit_the_site_is_refused_at_once(headrace_home, overrides, error, words):
    with pytest.raises(error) as caught:
        make_run(overrides=overrides, owner=AIRFLOW)
    assert words in caught.value.what
    assert caught.value.hint
    assert open_ledger().runs() == ()
    assert not (headrace_home / "runs").exists()


def test_a_run_that_only_packs_needs_no_role_that_trains(headrace_home):
    assert make_run(overrides=("train.role=tpu",), kind="pack").request.kind == "pack"


def test_shards_are_as_many_as_readers_of_the_role_that_trains():
    reads = "data.collate={_target_: torch.utils.data.default_collate}"
    words = ("pack.shards_multiple_of=auto", "train.ranks_per_node=2", reads, "data.workers=3")
    for kind in ("train", "pack"):
        assert make_run(overrides=words, kind=kind).recipe.pack.shards_multiple_of == 6
    assert make_run(overrides=words[:2]).recipe.pack.shards_multiple_of == 2


def test_a_rehearsal_has_all_steps_with_few_samples_on_one_rank():
    words = (
        "trainer.max_epochs=9",
        "evaluate.min_metrics={accuracy: 0.9}",
        "train.ranks_per_node=2",
    )
    run = make_run(rehearses=True, overrides=words)
    recipe, role = run.recipe, run.site.roles[run.recipe.train.role]
    assert (recipe.name, recipe.pack.max_samples) == ("digits-rehearsal", 64)
    assert recipe.pack.target == str(run.folder.rehearsed)
    assert (role.nodes, role.ranks_per_node, recipe.train.ranks_per_node) == (1, 1, None)
    assert role.lifetime_s <= 1800
    assert (recipe.trainer.max_epochs, recipe.trainer.extra["limit_train_batches"]) == (1, 2)
    assert recipe.data.global_batch_size == 32
    assert recipe.evaluate is not None
    assert not recipe.evaluate.min_metrics
    assert run.request.words[-1] == "--rehearse-only"
    own = ("~model", "train.command=[ls]", "evaluate=null")
    with pytest.raises(RecipeError, match="cannot be shortened"):
        make_run(rehearses=True, overrides=own)
    assert make_run(overrides=(*own, "train.args=[--short]")).recipe.train.args


def test_code_of_an_allowed_folder_may_be_named(headrace_home, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("def Model(**_): ...\n")
    site = tmp_path / "site.yaml"
    site.write_text(
        f"folder: {headrace_home}\nroles: {{cpu: {{}}, gpu: {{kind: gang}}}}\n"
        f"tiers: [{{name: disk, folder: {tmp_path}}}]\nallowed_code: [{code}]\n"
    )
    named = {"site": str(site), "overrides": (f"code=[{code}]", "model._target_=mine.Model")}
    assert make_run(**named).recipe.model is not None
    wrong = {**named, "overrides": (f"code=[{code}]", "model._target_=theirs.Model")}
    with pytest.raises(TargetError, match="no module is called 'theirs'"):
        make_run(**wrong)
    with pytest.raises(TargetError, match=f"'theirs.Model' at model\n.*modules in {code}"):
        make_run(**wrong, owner=AIRFLOW)


def test_a_site_folder_that_cannot_be_written_is_named(headrace_home, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    (headrace_home / "runs").write_text("in the way")
    with pytest.raises(SiteError) as caught:
        make_run()
    assert str(headrace_home) in caught.value.what
    assert "HEADRACE_HOME" in caught.value.hint
    assert open_ledger().runs() == ()


def test_a_run_that_is_worked_on_is_not_taken_over():
    run = make_run()
    with pytest.raises(StepError, match=r"worked on by process \d+") as caught:
        take_over_run(run.run_id, process_owner())
    assert f"headrace status {run.run_id} --watch" in caught.value.hint


def test_a_run_of_airflow_is_taken_over_only_when_it_has_ended():
    run = make_run(owner=AIRFLOW)
    with pytest.raises(StepError, match="has not ended and belongs to airflow:headrace_train"):
        take_over_run(run.run_id, process_owner())
    finish_run(run, StepState.FAILED)
    assert take_over_run(run.run_id, process_owner()).request.owner == process_owner()


def test_of_two_that_take_over_at_once_one_is_refused():
    run = make_run(owner=ended_owner())
    both = threading.Barrier(2)

    def take(name: str) -> str:
        both.wait()
        try:
            return take_over_run(run.run_id, name).request.owner
        except HeadraceError as error:
            return error.what

    with ThreadPoolExecutor(2) as pool:
        told = sorted(pool.map(take, ["airflow:one", "airflow:two"]))
    winner = open_ledger().run(run.run_id).owner
    assert winner in told
    refused = next(text for text in told if text != winner)
    assert winner in refused


def test_a_site_that_is_not_for_who_asks_makes_no_run(headrace_home, monkeypatch):
    """By the account, not by what the environment calls it; also of a run that is there already."""
    write_site(headrace_home, ["ada", account()])
    monkeypatch.setenv("LOGNAME", "ada")
    run = make_run(key="k", site="club", owner=ended_owner())
    assert run.user == account() != "ada"
    write_site(headrace_home, ["ada"])
    for refused in (
        lambda: make_run(site="club"),
        lambda: make_run(site="club", user="eve"),
        lambda: make_run(key="k", site="club"),
        lambda: take_over_run(run.run_id, process_owner()),
        lambda: acquire(run, "cpu"),
    ):
        with pytest.raises(AccessError, match="may not use site 'club'"):
            refused()
    assert len(open_ledger().runs()) == len(list((headrace_home / "runs").iterdir())) == 1
    assert open_ledger().leases() == ()
    assert make_run(site="club", user="ada").user == "ada"


DONE = StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2)


def test_leases_with_their_states_and_steps(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, here = make_run(), ProcessIdentity.of()
    starting, ready = lease_on_disk(run, "gpu", here), lease_on_disk(run, "cpu", here)
    info = demo_info(ready, host=here, dashboard_url="http://d", ready_at=5.0, job_ids=("7",))
    write_record(run.lease_folder(ready).info, info)
    over = run.lease_folder(f"{run.run_id}-cpu-2")
    spec = run.lease_folder(ready).spec.read_text().replace(ready, over.lease_id)
    over.path.mkdir()
    over.spec.write_text(spec)
    for attempt, (lease, result) in enumerate([(over, None), (run.lease_folder(ready), DONE)], 1):
        step = step_spec(run.folder, "pack", key=f"k{attempt}", attempt=attempt)
        folder = mailbox.submit(lease, step)
        if result is not None:
            write_record(folder.result, result)
    write_record(over.closed, Ending(state=LeaseState.CLOSED, reason="done"))

    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{headrace_home}/new.db")
    site = SiteFolder(headrace_home)
    told = adopt(site)
    assert sorted(told) == [
        f"lease {ready}: ready, run {run.run_id}",
        f"lease {starting}: starting, run {run.run_id}",
    ]
    rows = {each.lease_id: each for each in open_ledger().leases(run_id=run.run_id)}
    assert rows[starting].state is LeaseState.STARTING
    assert (rows[ready].state, rows[ready].job_ids) == (LeaseState.READY, ("7",))
    assert (rows[ready].dashboard_url, rows[ready].ready_at) == ("http://d", 5.0)
    ended = rows[over.lease_id]
    assert (ended.state, ended.why_ended) == (LeaseState.CLOSED, "done")
    attempts = open_ledger().attempts(run.run_id)
    assert [each.state for each in attempts] == [StepState.LOST, StepState.SUCCEEDED]
    assert adopt(site) == ()

    for lease in (ready, starting):
        ending = Ending(state=LeaseState.CLOSED, reason="done")
        write_record(run.lease_folder(lease).closed, ending)
    shutil.rmtree(run.lease_folder(starting).path)  # so that no step but pack was asked for
    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{headrace_home}/newer.db")
    (told_of_run,) = adopt(site)
    assert told_of_run.endswith(f"headrace resume {run.run_id}")
    assert open_ledger().run(run.run_id).state is StepState.RUNNING
    packs = run.request.model_copy(update={"kind": "pack"})
    write_record(run.folder.request, packs)
    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{headrace_home}/newest.db")
    assert adopt(site) == (f"run {run.run_id}: succeeded",)
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED
    assert adopt(site) == ()
