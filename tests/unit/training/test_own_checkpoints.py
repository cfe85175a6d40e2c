"""Which folder a `ModelCheckpoint` gets, and what of its state still holds in a later launch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from headrace.training.own_checkpoints import OwnCheckpoints


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
