"""Open leases are entered again after the ledger was lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.clusters.lease_records import Ending, LeaseInfo
from headrace.execution.reap import adopt
from headrace.files.atomic import write_record
from headrace.files.layout import SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepSpec
from support.runs import lease_on_disk, make_run

DONE = StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2)


def test_leases_with_their_states_and_steps(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, here = make_run(), ProcessIdentity.of()
    starting, ready = lease_on_disk(run, "gpu", here), lease_on_disk(run, "cpu", here)
    info = LeaseInfo(
        lease_id=ready, backend="local", host=here, scheduler_address="", dashboard_url="http://d",
        nodes=1, ready_at=5.0, job_ids=("7",),
    )  # fmt: skip
    write_record(run.lease_folder(ready).info, info)
    over = run.lease_folder(f"{run.run_id}-cpu-2")
    spec = run.lease_folder(ready).spec.read_text().replace(ready, over.lease_id)
    over.path.mkdir()
    over.spec.write_text(spec)
    for attempt, (lease, result) in enumerate([(over, None), (run.lease_folder(ready), DONE)], 1):
        step = StepSpec(
            key=f"k{attempt}", kind="pack", run_id=run.run_id, name="pack", attempt=attempt,
            run_folder=str(run.folder.path),
        )  # fmt: skip
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
