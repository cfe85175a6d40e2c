"""A recipe's and a model's own `ModelCheckpoint` beside headrace's checkpoints, over kills."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoints.content import read_checkpoint
from headrace.checkpoints.weights import weights_hash
from headrace.errors import WorkerLostError
from headrace.steps.context import StepContext
from headrace.steps.history import read_history
from support.training import blob_step, train_here

pytestmark = pytest.mark.slow

MONITOR = {"monitor": "val/accuracy", "mode": "max"}
OWN = {"_target_": "blob_models.OwnBest", "save_top_k": 2, **MONITOR}
OTHERS = [
    {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "patience": 9, **MONITOR},
    {"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"},
]


def start(folder: Path, *, restarts: int = 3, **model: Any) -> StepContext:
    notes = folder.parent / f"notes-of-{folder.name.split('-')[0]}"
    notes.mkdir(exist_ok=True)
    return blob_step(
        folder,
        {"_target_": "blob_models.KeepingModel", "notes": str(notes), **model},
        trainer={
            "max_epochs": 4, "monitor": "val/accuracy", "monitor_mode": "max",
            "loggers": ("csv",), "callbacks": [OWN, *OTHERS],
        },
        train={"max_restarts": restarts},
    )  # fmt: skip


def kept(run: Path) -> dict[str, str]:
    """Hash of the weights in each file that the callbacks have left, by name."""
    found = sorted((run / "callbacks").rglob("*.ckpt"))
    return {
        str(path.relative_to(run)): weights_hash(read_checkpoint(path)["state_dict"])
        for path in found
    }


def test_own_checkpoints_live_beside_headraces_over_kills_and_in_a_moved_folder(
    dataset, tmp_path, no_leftover_processes
):
    """Killed just after a validation, whose files the checkpoint gone on from does not know."""
    alone = start(tmp_path / "alone")
    outputs = train_here(alone, dataset)
    undisturbed = kept(alone.run_folder.path)
    values = {
        row.step: row.metrics["val/accuracy"] for row in read_history(alone.run_folder).metrics
    }
    best = sorted(values, key=lambda step: (-values[step], step))
    folders = sorted(path.name for path in (alone.run_folder.path / "callbacks").iterdir())
    assert folders == ["ModelCheckpoint", "OwnBest"]
    first, second = (f"epoch={step // 10 - 1}-step={step}.ckpt" for step in best[:2])
    theirs = (f"ModelCheckpoint/{first}", "ModelCheckpoint/last.ckpt", f"OwnBest/{first}")
    assert set(undisturbed) == {f"callbacks/{name}" for name in (*theirs, f"OwnBest/{second}")}

    dies = [[0, 11], [1, 22]]
    killed = start(tmp_path / "killed", dies=dies, restarts=0)
    with pytest.raises(WorkerLostError, match="after 0 restarts"):
        train_here(killed, dataset)
    shutil.move(tmp_path / "killed", tmp_path / "killed-moved")
    moved = start(tmp_path / "killed-moved", dies=dies)
    again = train_here(moved, dataset)
    assert again["restarts"] >= 1
    assert again["weights_xxh3"] == outputs["weights_xxh3"]
    found = kept(moved.run_folder.path)
    last = "callbacks/ModelCheckpoint/last.ckpt"  # of a launch without a better one: at its end
    assert found.keys() == undisturbed.keys()
    assert {**found, last: ""} == {**undisturbed, last: ""}
