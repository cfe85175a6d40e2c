"""A recipe's own checkpoints beside those of headrace, and the plain values that these hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoints.content import read_checkpoint
from headrace.checkpoints.weights import weights_hash
from headrace.errors import UserError, WorkerLostError
from headrace.steps.context import StepContext
from headrace.steps.history import read_history
from support.training import blob_step, train_here, write_blobs

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


BEFORE = Path(__file__).parent / "checkpoints_before"
"""After step 7, by the release that still loaded any pickle."""


@pytest.fixture(scope="module")
def odd_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blobs") / "odd_dataset"
    write_blobs(folder, train_samples=83)
    return folder


def start_plain(folder: Path, trainer: dict[str, Any] | None = None, **site: Any) -> StepContext:
    return blob_step(
        folder,
        site={"ranks": 1, **site},
        trainer={"checkpoint_every_steps": 7, **(trainer or {})},
        train={"max_restarts": 0},
    )


def steps(folder: Path) -> list[int]:
    lines = (folder / "notes/rank-0.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_checkpoint_of_the_release_before_resumes(tmp_path: Path, odd_dataset: Path) -> None:
    context = start_plain(tmp_path)
    checkpoints = Path(context.spec.run_folder) / "checkpoints"
    checkpoints.mkdir()
    shutil.copy(BEFORE / "step-000000007.ckpt", checkpoints)
    assert train_here(context, odd_dataset)["steps"] == 20
    assert steps(tmp_path) == list(range(8, 21))
    written = (tmp_path / "notes/left-open-0").read_text().split()
    assert written == [str(step) for step in range(8, 21)]  # Python's own end, see `end_quickly`


def test_state_that_could_not_be_loaded_ends_training_at_its_first_checkpoint(
    tmp_path: Path, odd_dataset: Path
) -> None:
    trainer = {"callbacks": [{"_target_": "blob_callbacks.KeepsADate"}]}
    with pytest.raises(UserError, match=r"'datetime\.date' at callbacks\.KeepsADate\.day") as error:
        train_here(start_plain(tmp_path, trainer), odd_dataset)
    assert "pickled_checkpoints: allow" in error.value.hint
    assert steps(tmp_path)[-1] == 7
    assert list((tmp_path / "runs/run/checkpoints").glob("*.ckpt")) == []


def test_a_site_may_allow_it(tmp_path: Path, odd_dataset: Path) -> None:
    """And one that does not anymore says so at the resume, with the file and the key."""
    trainer = {"callbacks": [{"_target_": "blob_callbacks.KeepsADate"}]}
    train_here(start_plain(tmp_path, trainer, pickled_checkpoints="allow"), odd_dataset)
    checkpoints = tmp_path / "runs/run/checkpoints"
    (checkpoints / "final.json").unlink()
    (checkpoints / "final.ckpt").unlink()
    with pytest.raises(UserError, match=r"step-000000014\.ckpt holds 'datetime\.date'") as error:
        train_here(start_plain(tmp_path, trainer), odd_dataset)
    assert "pickled_checkpoints: allow" in error.value.hint
    assert steps(tmp_path) == list(range(1, 21))
