"""Which weights are kept as the best ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headrace.checkpoints.files import best_of
from headrace.errors import RecipeError
from headrace.recipe.train import TrainerSpec
from headrace.training.checkpoint_callbacks import KeepBest, StepCheckpoints
from headrace.training.checkpoint_writer import CheckpointWriter

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
