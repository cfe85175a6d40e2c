"""What is told of a training while it goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.checkpoints.files import BestCheckpoint
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.steps.history import EvaluatedRow, evaluated_file
from headrace.training import progress
from headrace.training.launch_records import TrainingProgress
from headrace.training.progress import AttemptMeter, Follower


def test_the_share_of_time_that_batches_were_waited_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    loader = SimpleNamespace(wait_s=5.0, num_samples=64)
    told, whole = (AttemptMeter(lambda: (2 * loader.num_samples, loader.wait_s)) for _ in range(2))
    clock.now_s, loader.wait_s, loader.num_samples = 104.0, 6.0, 96
    assert told.figures() == {"samples_per_s": 16.0, "data_wait": 0.25}
    told.restart()
    clock.now_s, loader.wait_s = 106.0, 8.0
    assert told.figures()["data_wait"] == 1.0  # since the last report
    assert whole.figures()["data_wait"] == 0.5  # of all


def reported_of(told: TrainingProgress, folder: Path) -> dict[str, float]:
    """What the status is told, of a run in a folder."""
    reported: dict[str, float] = {}
    context: Any = SimpleNamespace(
        report=lambda **figures: reported.update(figures),
        progress=lambda *_: None,
        run_folder=RunFolder(folder),
    )
    Follower(context, None, 2)(told)
    return reported


def test_what_is_waited_for_and_a_problem_that_ends_no_training_are_told(tmp_path: Path) -> None:
    phases: list[str] = []
    context: Any = SimpleNamespace(
        report=lambda **_: None,
        progress=lambda *told: phases.append(told[3]),
        folder=StepFolder(tmp_path),
        run_folder=RunFolder(tmp_path),
    )
    follower = Follower(context, None, 2)
    context.folder.waits.write_text("waits for 2 GPUs of box: ann holds 1")
    follower(None)
    context.folder.waits.unlink()
    follower(None)
    follower(TrainingProgress(epoch=0, step=3))
    follower.problem = "checkpoints are not copied to /full: no space"
    follower(TrainingProgress(epoch=0, step=4))
    assert phases[:2] == ["waits for 2 GPUs of box: ann holds 1", "running 2 ranks"]
    assert phases[2:] == ["epoch 1", "epoch 1; checkpoints are not copied to /full: no space"]


def test_the_figures_of_a_step_are_what_was_measured(tmp_path: Path) -> None:
    """No figure is told that nobody has measured, such as how busy an accelerator is."""
    measured = TrainingProgress(epoch=0, step=3, loss=0.5, samples_per_s=16.0, data_wait=0.25)
    told = reported_of(measured, tmp_path)
    assert told == {"samples_per_s": 16.0, "data_wait": 0.25, "loss": 0.5}


def test_the_newest_metrics_and_the_best_one_are_told_and_not_too_many(tmp_path: Path) -> None:
    best = BestCheckpoint(file="best-000000002.ckpt", metric="m0", value=0.9, epoch=0, step=2)
    folder = RunFolder(tmp_path).checkpoints
    write_record(folder / "best.json", best)
    (folder / best.file).touch()
    metrics = {"nan": float("nan"), **{f"m{index}": float(index) for index in range(30)}}
    told = reported_of(TrainingProgress(epoch=0, step=3, metrics=metrics), tmp_path)
    assert told["best m0"] == 0.9
    assert [name for name in told if name.startswith("m")] == [f"m{index}" for index in range(12)]


def test_what_the_newest_checkpoint_was_judged_to_be_is_told(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.history.mkdir()
    for step in (9, 6):
        metrics = {f"m{index}": step + index / 10 for index in range(5)}
        row = EvaluatedRow(at=1.0, run_id="r", step=step, split="val", metrics=metrics, report="")
        append_line(evaluated_file(run), row.model_dump_json())
    told = reported_of(TrainingProgress(epoch=0, step=10), tmp_path)
    judged = {name: value for name, value in told.items() if name.startswith("evaluated")}
    assert judged == {"evaluated step": 9.0} | {
        f"evaluated val/m{index}": 9 + index / 10 for index in range(3)
    }
