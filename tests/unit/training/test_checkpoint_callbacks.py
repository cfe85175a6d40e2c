"""Which weights are kept as the best ones, and the folders of a recipe's own checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from headrace.checkpoints.files import best_of
from headrace.errors import RecipeError
from headrace.recipe.train import TrainerSpec
from headrace.training.checkpoint_callbacks import KeepBest, StepCheckpoints
from headrace.training.checkpoint_writer import CheckpointWriter
from headrace.training.own_checkpoints import OwnCheckpoints

STEPS_PER_EPOCH = 10


class Training:
    """Goes through epochs with these values of a metric, as a Trainer would."""

    def __init__(self, folder: Path, mode: str = "min", metric: str = "loss") -> None:
        self.folder = folder
        writer = CheckpointWriter(token="t", before=lambda: None, plain=False)
        saving = StepCheckpoints(folder, every_steps=5, prune=lambda: None, writer=writer)
        spec = TrainerSpec(monitor=metric, monitor_mode=mode)  # type: ignore[arg-type]
        self._keeping = KeepBest(saving, spec)

    def __call__(self, values: list[float], first_epoch: int = 0) -> list[int]:
        """Gives the steps at which weights were kept."""
        written: list[int] = []

        def save(path: Path, *, weights_only: bool) -> None:
            assert weights_only
            written.append(trainer.global_step)
            path.write_text(str(trainer.global_step))

        strategy = SimpleNamespace(
            checkpoint_io=None,
            broadcast=lambda value, _: value,
            reduce=lambda value, reduce_op: value,
        )
        trainer = SimpleNamespace(
            _checkpoint_connector=SimpleNamespace(dump_checkpoint=dict),
            global_step=first_epoch * STEPS_PER_EPOCH,
            current_epoch=first_epoch,
            callback_metrics={},
            check_val_every_n_epoch=1,
            is_global_zero=True,
            save_checkpoint=save,
            strategy=strategy,
        )
        self._keeping.on_train_start(trainer, None)
        for epoch, value in enumerate(values, first_epoch):
            trainer.current_epoch, trainer.global_step = epoch, (epoch + 1) * STEPS_PER_EPOCH
            trainer.callback_metrics["loss"] = torch.tensor(value)
            self._keeping.on_validation_end(trainer, None)
            self._keeping.on_train_epoch_end(trainer, None)
        return written


@pytest.mark.parametrize(("mode", "kept"), [("min", [10, 30, 50]), ("max", [10, 20])])
def test_better_ones_replace_it_and_ties_and_nan_do_not(tmp_path: Path, mode: str, kept: list[int]):
    written = Training(tmp_path, mode)([3.0, 4.0, 2.0, float("nan"), 1.0, 1.0])
    assert written == kept
    best = best_of(tmp_path)
    assert (best.step, best.epoch) == (kept[-1], kept[-1] // STEPS_PER_EPOCH - 1)
    assert [path.name for path in tmp_path.glob("best-*")] == [f"best-{kept[-1]:09d}.ckpt"]


def test_what_was_better_before_an_interruption_stays(tmp_path: Path):
    Training(tmp_path)([3.0, 1.0])
    assert Training(tmp_path)([2.0, 0.5], first_epoch=1) == [30]


def test_a_training_that_begins_anew_has_no_best(tmp_path: Path):
    Training(tmp_path)([1.0])
    assert Training(tmp_path)([2.0]) == [10]
    assert best_of(tmp_path).value == 2.0


def test_a_metric_that_is_not_logged_is_named(tmp_path: Path):
    with pytest.raises(RecipeError, match="'los', which the model does not log") as caught:
        Training(tmp_path, metric="los")([1.0])
    assert "loss" in caught.value.hint


def trainer_of(*callbacks: Any) -> Any:
    strategy = SimpleNamespace(broadcast=lambda value, _: value)
    return SimpleNamespace(callbacks=list(callbacks), is_global_zero=True, strategy=strategy)


def housed(folder: Path, *callbacks: Any) -> tuple[OwnCheckpoints, Any]:
    own = OwnCheckpoints(folder, last=())
    trainer = trainer_of(own, *callbacks)
    own.setup(trainer, None, "fit")
    return own, trainer


def state_in(folder: Path, accuracies: dict[str, float], **others: str) -> dict[str, Any]:
    best = max(accuracies, key=accuracies.__getitem__)
    return {
        "monitor": "accuracy",
        "current_score": None,
        "kth_value": torch.tensor(min(accuracies.values())),
        "dirpath": str(folder),
        "best_k_models": {str(folder / n): torch.tensor(v) for n, v in accuracies.items()},
        "best_model_path": str(folder / best),
        "best_model_score": torch.tensor(accuracies[best]),
        "kth_best_model_path": str(folder / min(accuracies, key=accuracies.__getitem__)),
        "last_model_path": "",
    } | others


def test_each_has_a_folder_of_its_own_unless_it_names_one(tmp_path):
    named = ModelCheckpoint(dirpath=tmp_path / "named")
    first, second = ModelCheckpoint(), ModelCheckpoint(monitor="loss")
    housed(tmp_path / "run", first, named, second)
    assert first.dirpath == str(tmp_path / "run" / "ModelCheckpoint")
    assert second.dirpath == str(tmp_path / "run" / "ModelCheckpoint-2")
    assert named.dirpath == str((tmp_path / "named").resolve())


def test_the_checkpoints_of_headrace_come_after_those_of_the_model(tmp_path):
    """Lightning appends a model's callbacks: a state without their last file would lose it."""
    saving, of_model, stopping = ModelCheckpoint(), ModelCheckpoint(), EarlyStopping("loss")
    own = OwnCheckpoints(tmp_path, last=(saving,))
    trainer = trainer_of(own, stopping, saving, of_model)
    own.setup(trainer, None, "fit")
    assert trainer.callbacks == [own, stopping, of_model, saving]


def test_a_state_names_files_that_are_there_where_the_folder_is_now(tmp_path):
    callback = ModelCheckpoint(monitor="accuracy", mode="max", save_top_k=3)
    own, trainer = housed(tmp_path / "now", callback)
    folder = Path(callback.dirpath)
    (folder / "deep").mkdir(parents=True)
    for name in ("a.ckpt", "deep/b.ckpt", "unknown.ckpt"):
        (folder / name).touch()
    before = tmp_path / "before" / folder.name
    state = state_in(before, {"a.ckpt": 0.5, "deep/b.ckpt": 0.7, "gone.ckpt": 0.9})
    checkpoint = {"callbacks": {callback.state_key: state}}
    own.on_load_checkpoint(trainer, None, checkpoint)
    callback.load_state_dict(checkpoint["callbacks"][callback.state_key])
    assert set(callback.best_k_models) == {str(folder / "a.ckpt"), str(folder / "deep/b.ckpt")}
    assert callback.best_model_path == str(folder / "deep/b.ckpt")
    assert float(callback.best_model_score) == torch.tensor(0.7)
    own.on_fit_start(trainer)
    assert (folder / "a.ckpt").exists()
    assert (folder / "earlier/unknown.ckpt").exists()
    own.on_train_end(trainer)
    assert not (folder / "earlier").exists()


def test_what_a_callback_does_not_keep_account_of_stays(tmp_path):
    callback = ModelCheckpoint(save_top_k=-1)
    own, trainer = housed(tmp_path, callback)
    Path(callback.dirpath).mkdir()
    (Path(callback.dirpath) / "epoch=0.ckpt").touch()
    own.on_fit_start(trainer)
    assert (Path(callback.dirpath) / "epoch=0.ckpt").exists()
