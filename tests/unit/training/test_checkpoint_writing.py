"""Writing checkpoints where there is no room for them."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from traceback import StackSummary
from types import SimpleNamespace

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.sharded import one_failure
from headrace.errors import StorageFullError
from headrace.training.checkpoint_callbacks import StepCheckpoints
from headrace.training.checkpoint_writer import CheckpointWriter
from support.small_disk import small_disk


def _writing(num_bytes: int) -> SimpleNamespace:
    """In place of a Trainer: writes so many bytes where a checkpoint is asked for."""

    def save(path: Path, *, weights_only: bool) -> None:
        del weights_only
        path.write_bytes(bytes(num_bytes))

    return SimpleNamespace(
        global_step=5,
        callback_metrics={},
        is_global_zero=True,
        save_checkpoint=save,
        strategy=SimpleNamespace(checkpoint_io=None),
    )


def test_what_a_full_disk_holds_of_a_checkpoint_is_removed_and_told(tmp_path: Path) -> None:
    """Its room is what the step's own records need to tell how it ended; the last one stays."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        writer = StepCheckpoints(
            disk,
            every_steps=5,
            prune=partial(checkpoints.prune, disk, 1),
            writer=CheckpointWriter(token="t", before=lambda: None, plain=False),
        )
        writer.save(_writing(20_000))
        with pytest.raises(StorageFullError, match=r"final\.ckpt could not be written") as caught:
            writer.on_train_end(_writing(60_000), None)
        assert "goes on from the checkpoint before it" in caught.value.hint
        assert [path.name for path in disk.iterdir()] == ["step-000000005.ckpt"]


def test_a_full_disk_of_one_rank_is_told_on_all(tmp_path: Path) -> None:
    """PyTorch's error is neither an `Exception` nor has it a cause."""
    full, follows = OSError(errno.ENOSPC, "full"), RuntimeError("another rank failed")

    def save(path: Path, *, weights_only: bool) -> None:
        del weights_only
        path.mkdir()
        with one_failure():
            raise CheckpointException(
                "save", {0: (follows, StackSummary()), 1: (full, StackSummary())}
            )

    trainer = _writing(0)
    trainer.save_checkpoint = save
    writer = CheckpointWriter(token="t", before=lambda: None)
    with pytest.raises(StorageFullError, match=r"a\.ckpt could not be written"):
        writer.write(trainer, tmp_path / "a.ckpt")
    assert list(tmp_path.iterdir()) == []
