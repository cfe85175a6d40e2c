"""`headrace lease list --watch`: open leases, what runs on them, how busy their nodes are."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.leases import _in_use
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from headrace.status.lease import leases_in_use
from headrace.steps.history import NodeRow, usage_file
from headrace.steps.mailbox import StepSpec
from headrace.suites.records import RunningTrial, SuiteSummary
from support.command_line import headrace
from support.runs import lease_on_disk, make_run
from support.suite_journal import make_suite

pytestmark = pytest.mark.usefixtures("headrace_home")


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
