"""`headrace lease`: the list, one lease, the load of nodes, what is reaped and kept imported."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.console import Console
from headrace.cli.leases import _COLUMNS, _details, _in_use
from headrace.cli.listing import Listing
from headrace.clusters.lease_records import AvoidedNode
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.processes import zygote
from headrace.processes.children import Child
from headrace.processes.identity import ProcessIdentity
from headrace.processes.working_folder import python_module
from headrace.processes.zygote import KEEP_WARM, fork
from headrace.recipe.site import Role
from headrace.runs.runs import Run
from headrace.states import EndedJob, LeaseState, StepState
from headrace.status.lease import LeaseView, leases_in_use
from headrace.steps.history import NodeRow, usage_file
from headrace.steps.mailbox import StepSpec
from headrace.suites.records import RunningTrial, SuiteSummary
from support.command_line import headrace
from support.factories import write_site
from support.leases import lease_spec
from support.runs import ended_owner, lease_on_disk, make_run
from support.suite_journal import make_suite

pytestmark = pytest.mark.usefixtures("headrace_home")

WAITS = "Slurm job 7 is pending: Resources, expected 14:05 CET"


def test_a_lease_in_a_queue_tells_what_it_waits_for():
    console = Console(file=StringIO(), width=200)
    console.print(Listing.of([lease_of_a_run(waits_for=WAITS)], *_COLUMNS))
    assert WAITS in console.file.getvalue()


def test_ids_and_paths_can_be_copied_from_a_narrow_terminal():
    ids = [f"mnist-20261121-20383{number}-7bd79f6b-gpu-1" for number in range(2)]
    console = Console(file=StringIO(), width=80)
    views = [lease_of_a_run(lease_id=name, why_ended="run ended") for name in ids]
    console.print(Listing.of(views, *_COLUMNS))
    assert all(name in console.file.getvalue() for name in ids)
    folder = "/shared/a-project-with-a-long-name/" + "headrace/" * 6 + ids[0]
    spec = lease_spec(LeaseFolder(Path(folder)), Role())
    console.print(_details(lease_of_a_run(folder=folder), spec, None, ()))
    assert f"{folder}/host.log" in re.sub(r"\s", "", console.file.getvalue())


def test_a_pool_tells_which_nodes_it_avoids_and_how_jobs_ended():
    avoided = AvoidedNode(node="n7", why="2 jobs ended badly there: node failed")
    ended = EndedJob(node="node-0", job_id="11", host="n7", why="Slurm job 11 ended: node failed")
    view = lease_of_a_run(
        kind="pool", bad_nodes=("n7",), avoids=(avoided,), ended=(ended,), takes_all="no"
    )
    console = Console(file=StringIO(), width=200)
    spec = lease_spec(LeaseFolder(Path("/leases/run-gpu-1")), Role(kind="pool"))
    console.print(_details(view, spec, None, ()))
    told = console.file.getvalue()
    assert "n7: 2 jobs ended badly there: node failed" in told
    assert "also bad ones: no" in told
    assert re.search(r"node-0 +11 +n7 +.+ ago +Slurm job 11 ended: node failed", told)


def lease_of_a_run(**changes: Any) -> LeaseView:
    view = LeaseView(
        lease_id="run-gpu-1", run_id="run", role="gpu", kind="gang", state=LeaseState.STARTING,
        nodes=2, created_at=time.time() - 60.0, num_steps=0, num_running=0,
        folder="/leases/run-gpu-1",
    )  # fmt: skip
    return view.model_copy(update=changes)


def test_runs_of_processes_that_have_gone_are_closed():
    """pains 22: nothing stays open for a client that was killed."""
    run = make_run(owner=ended_owner())
    answer = headrace("lease", "reap")
    assert answer.exit_code == 0, answer.output
    assert run.run_id in answer.output
    assert open_ledger().run(run.run_id).state is StepState.LOST
    assert "Nothing to reap" in headrace("lease", "reap").output


def test_runs_of_airflow_are_left_to_its_reaper():
    run = make_run(owner="airflow:dag:run")
    assert "Nothing to reap" in headrace("lease", "reap").output
    assert open_ledger().run(run.run_id).state is StepState.RUNNING


def test_what_is_kept_imported_is_told_and_ended(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("z")))
    assert headrace("lease", "list").stdout.splitlines() == [
        "No open leases; --all lists ended ones, too."
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), KEEP_WARM: "60"}
    module, log = "support.zygote_code", Path(os.devnull)
    command = python_module(module, "show")
    assert fork([module], Child(name="fork", command=command, log=log, env=environment), wait=True)
    told = headrace("lease", "list").stdout
    assert "Imported for the next ones:" in told
    assert "MB; `headrace lease close --kept`" in told
    assert headrace("lease", "close", "--kept").stdout == "No process stays imported.\n"
    assert not zygote.zygotes()


def test_what_to_close_has_to_be_said() -> None:
    assert "Name a lease, or --kept" in headrace("lease", "close").output


def busy(run: RunFolder, node: str, cpu: float, **changes: float) -> None:
    file = usage_file(run, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    row = NodeRow(node=node, cpu=cpu, **{"at": time.time(), "memory": 0.5, **changes})
    append_line(file, row.model_dump_json())


def step_on(run: Run, lease_id: str, kind: str) -> StepFolder:
    folder = run.lease_folder(lease_id).step(1)
    folder.path.mkdir(parents=True)
    spec = StepSpec(
        key=f"{run.run_id}/{kind}/1", kind=kind, run_id=run.run_id, name=kind, attempt=1,
        run_folder=str(run.folder.path),
    )  # fmt: skip
    write_record(folder.spec, spec)
    return folder


def told() -> list[dict]:
    return json.loads(headrace("lease", "list", "--watch", "--json").stdout)


def test_without_leases_it_says_so() -> None:
    assert told() == []
    assert headrace("lease", "list", "--watch").stdout == "No open leases.\n"


def test_the_list_of_a_site_names_other_sites_with_open_leases(tmp_path: Path) -> None:
    other = write_site(tmp_path, "other", folder=str(tmp_path / "other"))
    lease_on_disk(make_run(), host=ProcessIdentity.of())
    assert "Leases of other sites" not in headrace("lease", "list").stdout
    told = headrace("lease", "list", "--site", str(other)).stdout
    assert "Leases of other sites are open: laptop. See --site and --watch." in told


def test_of_a_training_its_nodes_are_told_as_long_as_it_runs() -> None:
    run = make_run(overrides=("name=resnet-50-of-a-name-that-goes-on",))
    lease_id = lease_on_disk(run, "gpu", host=ProcessIdentity.of())
    folder = step_on(run, lease_id, "train")
    assert (told()[0]["running"], told()[0]["use"]) == (["train"], [])
    busy(run.folder, "n0", 0.1, at=time.time() - 3600)  # of an earlier lease
    assert told()[0]["use"] == []
    busy(run.folder, "n0", 0.755, gpu=0.25, gpu_memory=0.125, gpu_power_w=250.4)
    terminal = Console(width=80)
    with terminal.capture() as caught:
        terminal.print(_in_use(leases_in_use()))
    shown = caught.get().splitlines()
    assert shown[0].startswith("1 open lease, 0 of at most 1 nodes are there · ")
    assert shown[2] == lease_id
    assert shown[3].startswith("  gpu on laptop · starting · nodes 0/1 (gang) · train · age ")
    assert [line.split() for line in shown[4:]] == [
        ["node", "CPU", "memory", "GPUs", "their", "memory", "power"],
        ["n0", "76%", "50%", "25%", "12%", "250", "W"],
    ]
    assert max(map(len, shown)) <= 80
    folder.exit.touch()
    assert (told()[0]["running"], told()[0]["use"]) == ([], [])


def test_of_a_suite_the_nodes_of_its_trials_are_told_once_each() -> None:
    suite = make_suite()
    step_on(suite, lease_on_disk(suite, host=ProcessIdentity.of()), "suite")
    running = []
    for number, node in ((1, "n0"), (2, "n1"), (3, "n1")):
        values = {"name": "t", "attempt": 1, "node": node, "started_at": 1.0}
        running.append(RunningTrial(number=number, **values))
        busy(suite.folder.trial(number), node, number / 10)
    write_record(suite.folder.summary, SuiteSummary(total=3, running=tuple(running)))
    (lease,) = told()
    assert [(row["node"], row["cpu"]) for row in lease["use"]] == [("n0", 0.1), ("n1", 0.3)]


def test_a_damaged_file_costs_only_what_it_tells(tmp_path: Path) -> None:
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    write_json(step_on(run, lease_id, "train").spec, {"key": 1})
    other = make_run()
    lease_on_disk(other, host=ProcessIdentity.of())
    damaged, whole = told()
    assert "spec.json" in damaged["damage"]
    assert whole["damage"] == ""
    lost = lease_on_disk(make_run())  # its host has gone: it holds nothing
    assert lost not in headrace("lease", "list", "--watch").stdout
