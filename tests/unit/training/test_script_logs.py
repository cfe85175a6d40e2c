"""Metrics in the logs that a script writes: which files count, and what odd ones do."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.informing import failures_of
from headrace.steps.history import read_history
from headrace.training import script_logs
from headrace.training.launch_records import LIGHTNING, REPORT, TrainingProgress
from headrace.training.script_logs import ScriptLogs
from support.training import make_launch

STATE = {
    "epoch": 2.0,
    "global_step": 20,
    "log_history": [
        {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 0.7, "step": 5},
        {"epoch": 1.0, "eval_loss": 0.6, "eval_runtime": 0.1, "step": 10},
        {"epoch": 2.0, "loss": 0.4, "step": 20},
        {"epoch": 2.0, "eval_loss": 0.5, "eval_accuracy": 0.75, "step": 20},
        {"epoch": 2.0, "total_flos": 1e9, "train_loss": 0.55, "step": 20},
    ],
}
"""As the Trainer of Hugging Face writes `trainer_state.json`."""


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "run")
    for folder in (run.work, run.checkpoints, launch_of(run).folder.path):
        folder.mkdir(parents=True)
    return run


def launch_of(run: RunFolder):
    return make_launch(run.path.parent / "step", run_folder=str(run.path), dataset="")


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def found(run: RunFolder, logs: ScriptLogs | None = None, *, at_end: bool = True):
    (logs or ScriptLogs(launch_of(run))).look(at_end=at_end)
    return read_record(launch_of(run).folder.progress, TrainingProgress)


def rows(run: RunFolder) -> list[tuple[int, float | None, dict[str, float]]]:
    return [(row.step, row.loss, row.metrics) for row in read_history(run).rows]


@pytest.mark.parametrize("folder", ["work", "work/outputs/2026-11-28/tr", "checkpoints/check-20"])
def test_the_state_of_hugging_faces_trainer(run, folder):
    write(run.path / folder / "trainer_state.json", json.dumps(STATE))
    progress = found(run)
    assert (progress.source, progress.step, progress.epoch) == ("trainer_state.json", 20, 1)
    assert (progress.loss, progress.unit) == (0.4, "steps")
    assert progress.metrics["eval_accuracy"] == 0.75
    assert progress.metrics["eval_loss"] == 0.5
    assert [(step, loss) for step, loss, _ in rows(run)] == [(5, 0.7), (10, None), (20, 0.4)]


@pytest.mark.parametrize(
    ("name", "content", "progress", "metrics"),
    [
        # Lightning's CSVLogger: rows of training and validation apart, empty cells
        (
            "lightning_logs/version_0/metrics.csv",
            "epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.6\n1,19,0.3,\n1,19,,0.4\n",
            (19, 1, "steps"),
            {"train_loss": 0.3, "val_loss": 0.4},
        ),
        # Keras' CSVLogger
        (
            "training.log",
            "epoch,accuracy,loss\n0,0.5,0.9\n1,0.6,0.8\n",
            (2, 1, "epochs"),
            {"accuracy": 0.6, "loss": 0.8},
        ),
        # epochs from 1, padded
        (
            "results.csv",
            "   epoch,  train/box\n     1,   1.5\n     2,   1.25\n",
            (2, 1, "epochs"),
            {"train/box": 1.25},
        ),
        ("a.tsv", "Step\tname\tacc\n1\tone\t0.5\n", (1, 0, "steps"), {"acc": 0.5}),
        ("a.csv", "step;acc\r\n1;0.5\r\n2;nan\r\n", (2, 0, "steps"), {"acc": math.nan}),
        ("a.csv", b"\xef\xbb\xbfstep,acc\n1,0.5\n", (1, 0, "steps"), {"acc": 0.5}),
        ("a.csv", "step,t\xe9mp,acc\n1,2,0.5\n".encode("latin-1"), (1, 0, "steps"), {"acc": 0.5}),
        ("a.csv", "step,acc\n1,0.5\nstep,acc\n,\n2,0.6,7,8\n3\n", (3, 0, "steps"), {"acc": 0.6}),
        ("a.csv", "step,acc\ninf,1\nnan,1\n1e400,1\n2,0.5", (2, 0, "steps"), {"acc": 0.5}),
        # appended to by a second training
        ("a.csv", "step,acc\n1,0.1\n2,0.2\n3,0.3\n1,0.4\n2,0.5\n", (2, 0, "steps"), {"acc": 0.5}),
    ],
)  # fmt: skip
def test_tables(run, name, content, progress, metrics):
    write(run.work / name, content)
    now = found(run)
    assert (now.source, now.step, now.epoch, now.unit) == ("CSV", *progress)
    assert {name: now.metrics[name] for name in metrics} == pytest.approx(metrics, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ""),
        ("a.csv", "\n"),
        ("a.csv", "path,label\na.png,3\n"),
        ("a.csv", "step,text\n1,yes\n".encode("utf-16")),
        ("a.csv", b"\x00\x01\x02" * 1000),
        ("a.csv", 'step,acc\n1,"' + "x" * 200_000),
        ("a.csv", "step,acc\n1,yes\n"),
        ("train.log", "INFO step 3, loss 0.5\n"),
        ("a.csv", b"step" + b",x" * 2_000_000),
        ("trainer_state.json", ""),
        ("trainer_state.json", json.dumps(STATE)[:200]),
        ("trainer_state.json", "[" * 100_000),
        ("trainer_state.json", "[1]"),
        ("trainer_state.json", '{"log_history": {"a": 1}}'),
        ("trainer_state.json", '{"log_history": [1, null, [2], {"step": "x"}, {"loss": 1}]}'),
        ("trainer_state.json", b"\xff\xfe\x00"),
        ("events.out.tfevents.1.host.1.0", b"no event\n" * 9),
        ("events.out.tfevents.1.host.1.0", b""),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_files_without_metrics_are_left_out(run, name, content, beside):
    """Nor do they hide a log of the same kind in a folder, or of another kind."""
    write(run.work / "odd" / name, content)
    if beside:
        write(run.work / "log" / "b.csv", "step,acc\n1,0.5\n")
    now = found(run)
    assert (now.metrics if now else None) == ({"acc": 0.5} if beside else None)
    assert failures_of(run).count == 0


def test_links_and_pipes_are_not_read(run, tmp_path):
    outside = write(tmp_path / "outside" / "a.csv", "step,acc\n1,0.5\n")
    (run.work / "linked.csv").symlink_to(outside)
    (run.work / "folder").symlink_to(outside.parent)
    (run.work / "loop").symlink_to(run.work)
    os.mkfifo(run.work / "pipe.csv")
    (run.work / "closed").mkdir(mode=0)
    assert found(run) is None
    assert failures_of(run).count == 0


def test_of_a_large_table_the_end_is_read(run):
    lines = "".join(f"{step},{step / 1000},{'x' * 50}\n" for step in range(100_000))
    write(run.work / "a.csv", f"step,acc,text\n{lines}")
    assert found(run).metrics == {"acc": 99.999}
    assert 100 < len(rows(run)) <= 501


@pytest.mark.parametrize("name", ["a.csv", "trainer_state.json"])
def test_of_many_rows_the_last_are_parsed_and_logs_share_their_number(run, monkeypatch, name):
    monkeypatch.setattr(script_logs, "_MOST_POINTS", 10, raising=False)
    log = [{"epoch": 0, "step": step, "loss": 1.0} for step in range(100)]
    table = "step,loss\n" + "".join(f"{row['step']},1.0\n" for row in log)
    content = table if name == "a.csv" else json.dumps({"log_history": log})
    write(run.work / name, content)
    assert found(run).step == 99
    assert [step for step, *_ in rows(run)] == [*range(90, 100)]
    write(run.work / "b.csv", table.replace(",1.0", ",2.0"))
    numbers = []
    points = script_logs._points
    monkeypatch.setattr(
        script_logs, "_points", lambda rows: points(numbers.append(len(rows)) or rows)
    )
    found(run)
    assert sum(numbers) <= 10


def test_a_half_written_row_waits_for_its_end(run):
    logs, path = ScriptLogs(launch_of(run)), write(run.work / "a.csv", "step,acc\n1,0.5\n2,0.6")
    assert found(run, logs, at_end=False).step == 1
    logs._due_s = 0.0
    write(path, "step,acc\n1,0.5\n2,0.625\n")
    assert found(run, logs, at_end=False).metrics == {"acc": 0.625}
    assert rows(run) == [(1, None, {"acc": 0.5}), (2, None, {"acc": 0.625})]
    assert {row.launch for row in read_history(run).rows} == {1}


def test_events_of_tensorboard(run):
    logs = ScriptLogs(launch_of(run))
    with SummaryWriter(run.work / "runs" / "one") as writer:
        writer.add_scalar("loss", 0.5, 1)
        writer.add_text("note", "words", 1)
        writer.add_histogram("weights", np.ones(2), 1)
        writer.flush()
        assert found(run, logs).metrics == {"loss": 0.5}
        writer.add_scalar("loss", 0.25, 2)
    with SummaryWriter(run.work / "runs" / "one" / "validation") as writer:
        writer.add_scalar("acc", 0.75, 2)
    progress = found(run, logs)
    assert (progress.source, progress.step) == ("TensorBoard", 2)
    assert progress.metrics == {"loss": 0.25, "validation/acc": 0.75}
    assert rows(run) == [(1, 0.5, {}), (2, 0.25, {"validation/acc": 0.75})]


def test_of_many_events_the_last_count(run):
    with SummaryWriter(run.work) as writer:
        for step in range(6_000):
            writer.add_scalar("acc", step, step)
    assert found(run).metrics == {"acc": 5_999.0}


def test_of_two_runs_in_tensorboard_the_older_one_does_not_come_back(run):
    logs = ScriptLogs(launch_of(run))
    for name, step in (("one", 9), ("two", 2)):
        with SummaryWriter(run.work / name) as writer:
            writer.add_scalar("acc", step, step)
    assert found(run, logs).step == 2
    write(run.work / "other.log", "words\n")
    assert found(run, logs).step == 2
    assert [step for step, _, _ in rows(run)] == [2]


def test_the_best_source_wins_and_the_newest_of_a_kind(run):
    logs = ScriptLogs(launch_of(run))
    with SummaryWriter(run.work) as writer:
        writer.add_scalar("acc", 0.125, 1)
    assert found(run, logs).metrics == {"acc": 0.125}
    write(run.work / "v0" / "metrics.csv", "step,acc\n8,0.2\n9,0.3\n")
    assert found(run, logs).metrics["acc"] == 0.3
    write(run.work / "v1" / "metrics.csv", "step,acc\n1,0.4\n")
    assert found(run, logs).step == 1
    write(run.work / "trainer_state.json", json.dumps(STATE))
    assert found(run, logs).source == "trainer_state.json"
    write(run.work / "v2" / "metrics.csv", "step,acc\n99,0.9\n")
    assert found(run, logs).step == 20


@pytest.mark.parametrize("source", [REPORT, LIGHTNING])
def test_a_process_that_reports_wins(run, source):
    file = launch_of(run).folder.progress
    before = TrainingProgress(epoch=0, step=3, metrics={"acc": 1.0}, source=source)
    write_record(file, before)
    write(run.work / "trainer_state.json", json.dumps(STATE))
    assert found(run) == before
    assert rows(run) == []
