"""The page of a run: curves, nodes, checkpoints, attempts, logs, report; and runs compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event

from headrace.checkpoints.files import BestCheckpoint
from headrace.errors import UnknownNameError
from headrace.files.atomic import write_json, write_record
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.runs.code_state import UNKNOWN
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from headrace.status.logs import log_page, report_file
from headrace.status.run_details import run_details
from headrace.status.run_page import MOST_POINTS, RunPage, compare_page, curves_page, run_page
from headrace.steps.history import (
    HistoryRow,
    NodeRow,
    RankRow,
    rank_file,
    training_file,
    usage_file,
)
from headrace.steps.mailbox import StepStatus
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.suite_journal import added, journal, make_suite


def training(*rows: HistoryRow) -> Run:
    """A run that trains, after these rows of its history, on a node with a rank."""
    run = make_run(overrides=("trainer.monitor=val_acc", "trainer.monitor_mode=max"))
    lease_id = lease_on_disk(run, "gpu")
    attempt_row_of(run, "train", lease_id, number=1, state=StepState.RUNNING)
    step = run.lease_folder(lease_id).step(1)
    step.logs.mkdir(parents=True)
    write_record(step.status, StepStatus(state=StepState.RUNNING, elapsed_s=10, updated_at=110.0))
    (step.logs / "rank-0.log").write_text("".join(f"line {n}\n" for n in range(1, 501)))
    (step.logs / "driver.log").write_text("ready\n")
    run.folder.history.mkdir(exist_ok=True)
    for row in rows:
        append_line(training_file(run.folder), row.model_dump_json())
    usage = NodeRow(at=100.0, node="node-a", cpu=0.5, memory=0.25, gpu=0.75, gpu_power_w=300.0)
    append_line(usage_file(run.folder, 0), usage.model_dump_json())
    rank = RankRow(at=100.0, rank=0, node="node-a", cores=1.5, rss_bytes=2**30)
    append_line(rank_file(run.folder, 0), rank.model_dump_json())
    return run


def row(step: int, **changes: object) -> HistoryRow:
    return HistoryRow.model_validate(
        {"at": 100.0 + step, "launch": 1, "epoch": step // 10, "step": step, **changes}
    )


def page(run: Run) -> RunPage:
    return run_page(run.run_id, can_act=True)


def test_a_look_at_a_run_opens_the_ledger_once():
    """A terminal looks twice a second."""
    run = training()
    opened: list[object] = []
    event.listen(open_ledger()._database._readers, "connect", lambda *given: opened.append(given))
    assert [step.name for step in run_details(run.run_id).steps][-1] == "evaluate"
    assert len(opened) == 1


@pytest.mark.parametrize("kind", ["train", "suite"])
def test_a_run_without_a_dataset_says_so(kind: str, headrace_home: Path):
    recipe = headrace_home / "recipes" / "own.yaml"
    recipe.parent.mkdir()
    code = "headrace.examples.digits_model.DigitsClassifier"
    recipe.write_text(f"train: {{function: {{_target_: {code}}}}}\nevaluate: null\n")
    words = ("suite.seeds=2",) if kind == "suite" else ()
    own = make_run(recipe="own", kind=kind, overrides=words)
    assert page(own).own_data
    assert not page(make_run()).own_data
    assert not page(make_run(kind="pack")).own_data


def test_a_training_under_way():
    run = training(
        row(0, starts=True),
        row(10, loss=0.5, learning_rates=(0.1,), samples_per_s=900.0, data_wait=0.125),
        row(20, loss=float("nan"), metrics={"val_acc": 0.75}),
        row(30, loss=0.25, metrics={"val_acc": 0.5}, samples_per_s=1000.0, data_wait=0.25),
    )
    told = page(run)
    curves = {curve.name: (curve.kind, curve.x, curve.y) for curve in told.curves.series}
    assert curves["val_acc"] == ("metric", (20, 30), (0.75, 0.5))
    assert curves["loss of training"][:2] == ("loss", (10, 20, 30))
    assert curves["optimizer 1"] == ("lr", (10,), (0.1,))
    assert '"y":[0.5,null,0.25]' in told.model_dump_json()
    assert (told.best.value, told.best.step) == (0.75, 20)
    assert (told.throughput, told.data_wait, told.epoch) == (1000.0, 0.25, 3)
    (node,) = told.use.nodes
    assert (node.node, node.gpu, node.gpu_power_w) == ("node-a", 0.75, 300.0)
    assert [(rank.node, rank.cores) for rank in told.use.ranks] == [("node-a", 1.5)]
    steps = {step.name: step for step in told.steps}
    assert [*steps] == ["pack", "stage", "train", "evaluate"]
    assert (steps["train"].state, steps["train"].started_at) == (StepState.RUNNING, 100.0)
    assert steps["evaluate"].state is None
    assert told.rerun == f"headrace rerun {run.run_id}"
    assert told.can_act


def test_checkpoints_of_one_file_and_of_parts_the_best_is_marked():
    run = training()
    folder = run.folder.checkpoints
    folder.mkdir(exist_ok=True)
    (folder / "best-000000020.ckpt").write_bytes(b"12345")
    (folder / "step-000000030.ckpt").mkdir()
    (folder / "step-000000030.ckpt" / "part").write_bytes(b"123")
    best = BestCheckpoint(
        file="best-000000020.ckpt", metric="val_acc", value=0.75, epoch=2, step=20
    )
    write_record(folder / "best.json", best)
    told = {each.name: (each.step, each.bytes, each.is_best) for each in page(run).checkpoints}
    assert told == {"best-000000020.ckpt": (20, 5, True), "step-000000030.ckpt": (30, 3, False)}


def test_attempts_with_causes():
    run = training()
    open_ledger().set_attempt(
        run.run_id, "train", 1, state=StepState.LOST, failure_class=FailureClass.LOST,
        message="The node vanished", started_at=100.0, finished_at=190.0,
    )  # fmt: skip
    (attempt,) = page(run).attempts
    assert (attempt.failure_class, attempt.message) == (FailureClass.LOST, "The node vanished")


def test_the_end_of_a_log():
    run = training()
    logs = [(each.step, each.name) for each in page(run).logs]
    assert logs == [("train", "driver"), ("train", "rank-0")]
    told = log_page(run.run_id, "train", 1, "rank-0", 3)
    assert (told.lines, told.is_whole) == (("line 498", "line 499", "line 500"), False)
    assert log_page(run.run_id, "train", 1, "driver", 3).is_whole


@pytest.mark.parametrize("name", ["rank-1", "../status", "../../1/logs/driver", "/etc/hosts", ""])
def test_a_log_is_one_of_those_that_are_there(name: str):
    run = training()
    with pytest.raises(UnknownNameError, match="has no log"):
        log_page(run.run_id, "train", 1, name, 10)


def test_a_log_that_is_a_link_elsewhere_is_none(tmp_path: Path):
    run = training()
    (tmp_path / "secret").write_text("secret")
    link = run.lease_folder(f"{run.run_id}-gpu-1").step(1).logs / "rank-7.log"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(UnknownNameError, match="has no log 'rank-7'"):
        log_page(run.run_id, "train", 1, "rank-7", 10)


def test_a_report_lies_in_the_folder_of_the_run(tmp_path: Path):
    run = training()
    run.folder.report.mkdir()
    report, other = run.folder.report / "report.html", tmp_path / "report.html"
    for file in (report, other):
        file.write_text("<p>")
    for file, attempt in ((report, 1), (other, 2)):
        attempt_row_of(
            run, "evaluate", f"{run.run_id}-gpu-1", attempt=attempt, key=f"key {attempt}"
        )
        open_ledger().set_attempt(
            run.run_id, "evaluate", attempt,
            state=StepState.SUCCEEDED, outputs={"report": str(file)},
        )  # fmt: skip
        if file == report:
            assert page(run).report == f"data/run/report?id={run.run_id}"
            assert report_file(run.run_id) == report
    with pytest.raises(UnknownNameError, match="has no report"):
        report_file(run.run_id)


def test_long_curves_keep_their_ends_and_peaks():
    rows = [row(step, loss=1.0) for step in range(1, 9001)]
    rows[4321] = row(4322, loss=7.0)
    run = training(*rows)
    (told,) = curves_page([run.run_id]).runs
    (loss,) = told.series
    assert len(loss.x) <= MOST_POINTS
    assert (loss.x[0], loss.x[-1]) == (1, 9000)
    assert (4322, 7.0) in zip(loss.x, loss.y, strict=True)
    assert list(loss.x) == sorted(loss.x)


def test_curves_of_a_run_and_a_trial_over_each_other():
    run, suite = make_run().folder, make_suite().folder
    for folder, loss in ((run, 1.0), (suite.trial(3), 0.5)):
        training_file(folder).parent.mkdir(parents=True)
        append_line(training_file(folder), row(5, loss=loss).model_dump_json())
    journal(suite, *(added(number) for number in (3, 4)))
    names = [run.run_id, f"{suite.run_id}:3", f"{suite.run_id}:4"]
    told = curves_page(names).runs
    assert [each.run_id for each in told] == names
    assert [[series.y for series in each.series] for each in told] == [[(1.0,)], [(0.5,)], []]
    with pytest.raises(UnknownNameError):
        curves_page([f"{run.run_id}x:3"])


def test_what_three_runs_differ_in():
    """What is the same in all is left out."""
    words = (["trainer.max_epochs=1"], ["trainer.max_epochs=2", "seed=4"], ["seed=4"])
    runs = [make_run(overrides=tuple(each)) for each in words]
    told = compare_page([run.run_id for run in runs])
    assert told.names == tuple(run.run_id for run in runs)
    usual = runs[2].recipe.trainer.max_epochs
    assert [(row.part, row.key, row.values) for row in told.rows] == [
        ("recipe", "seed", (str(runs[0].recipe.seed), "4", "4")),
        ("recipe", "trainer.max_epochs", ("1", "2", str(usual))),
    ]


def test_a_commit_that_one_run_does_not_know_is_no_difference():
    runs = [make_run().folder for _ in range(3)]
    for run, commit in zip(runs, ("a", "b", ""), strict=True):
        git = {"commit": commit, "dirty": False} if commit else None
        write_json(run.provenance, {"git": git})
    names = [run.run_id for run in runs]
    (row,) = compare_page(names).rows
    assert (row.part, row.key, row.values) == ("code", "commit", ("a", "b", UNKNOWN))
    assert compare_page(names[1:]).rows == ()


def test_machines_of_runs_are_compared_unless_one_is_unknown():
    runs = [make_run().folder for _ in range(3)]
    for run, blas in zip(runs, ("openblas 0.3.30", "blis 2.0"), strict=False):
        machine = {"CPU": "a CPU", "NumPy": blas}
        run.history.mkdir(exist_ok=True)
        for each in (machine, {}):
            row = NodeRow(at=100.0, node="node-a", cpu=0.5, memory=0.25, machine=each)
            append_line(usage_file(run, 0), row.model_dump_json())
    names = [run.run_id for run in runs]
    (row,) = compare_page(names[:2]).rows
    found = (row.part, row.key, row.values)
    assert found == ("machine", "NumPy", ("openblas 0.3.30", "blis 2.0"))
    assert compare_page(names[1:]).rows == ()


def test_profiles_that_the_code_wrote_are_listed():
    run = training(row(1))
    run.folder.work.mkdir()
    (run.folder.work / "trace.json").touch()
    (found,) = page(run).traces
    assert found.opened_by == f"https://ui.perfetto.dev opens {run.folder.work / 'trace.json'}"
