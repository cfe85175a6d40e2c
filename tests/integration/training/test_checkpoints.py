"""A recipe's own checkpoints, and what a user learns when training fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoints.content import read_checkpoint
from headrace.checkpoints.weights import weights_hash
from headrace.errors import UserError, WorkerLostError
from headrace.states import FailureClass
from headrace.steps.context import StepContext
from headrace.steps.history import read_history
from headrace.steps.run import failure_of
from support.training import blob_step, failure, train_here, write_blobs

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


def num_launches(context: StepContext) -> int:
    return len(list(context.folder.parts.glob("launch-*")))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises_at", "raised ValueError: the blobs are too round\n"),
        ("exits_at", "raised SystemExit: 0\n"),  # though its process says that all is well
    ],
)
def test_a_model_that_raises_or_exits_is_a_user_error_with_one_trace(
    dataset, tmp_path, no_leftover_processes, fault, words
):
    """Rank 0 fails in its wake; only rank 1, which raised, is named."""
    context = blob_step(tmp_path, {fault: 7})
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.where == "rank 1 on node-0"
    assert told.message.startswith(f"Rank 1 on node-0: training_step {words}")
    lines = told.trace.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "blob_models.py" in lines[1]
    assert told.trace.count("Traceback") == 1
    assert "lightning" not in told.trace
    assert num_launches(context) == 1


def test_a_model_that_cannot_be_evaluated_is_told_before_it_is_trained(dataset, tmp_path):
    evaluate = {"split": "val", "step": "test", "task": "custom"}
    context = blob_step(tmp_path, site={"ranks": 1}, evaluate=evaluate)
    told = failure_of(failure(context, dataset))
    assert told.failure_class is FailureClass.USER_ERROR
    assert told.message.startswith("Rank 0 on node-0: The model BlobModel has no test_step, which")
    assert "evaluate.step: predict" in told.message
    assert told.trace == ""
    assert not list((tmp_path / "notes").iterdir())  # no batch was trained on


def test_a_loss_that_is_not_finite_names_the_step(dataset, tmp_path):
    context = blob_step(tmp_path, {"nan_at": 7}, site={"ranks": 1})
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert error.what == "Rank 0 on node-0: The loss became NaN or infinite in step 7 (epoch 1)"
    assert "trainer.stop_on_nan=false" in error.hint
    assert num_launches(context) == 1


def test_a_training_that_ends_without_a_step_says_so(dataset, tmp_path):
    """Not that rank 0 left no outcome, which nothing in a recipe would heal."""
    timer = {"_target_": "lightning.pytorch.callbacks.Timer", "duration": {"seconds": 0}}
    context = blob_step(tmp_path, site={"ranks": 1}, trainer={"callbacks": [timer]})
    error = failure(context, dataset)
    assert error.failure_class is FailureClass.USER_ERROR
    assert error.what == "Rank 0 on node-0: Training ended without an optimizer step"
    assert num_launches(context) == 1


@pytest.mark.parametrize(("fault", "behind"), [("hangs_at", 1), ("skips_at", 0)])
def test_the_rank_that_is_behind_is_named_and_shows_where(
    fault, behind, dataset, tmp_path, no_leftover_processes
):
    """Pains 34: the ranks that wait for it are not blamed; nor for one that has skipped a
    collective, the rank that stands there alone is told."""
    train = {"hang_timeout": "8s", "max_restarts": 0}
    context = blob_step(tmp_path, {fault: 3}, train=train)
    error = failure(context, dataset)
    assert isinstance(error, WorkerLostError)
    assert error.what.startswith(f"Rank {behind} on node-0: no sign of life for ")
    assert "in misbehave" in (context.folder.logs / f"rank-{behind}.log").read_text()
