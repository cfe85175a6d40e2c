"""How checkpoints are written: while training goes on, and where there is no room for them."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from traceback import StackSummary
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.utils.data import DataLoader

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.sharded import one_failure
from headrace.errors import PickledCheckpointError, StorageFullError
from headrace.files.layout import checkpoint_name
from headrace.training.checkpoint_callbacks import StepCheckpoints
from headrace.training.checkpoint_writer import CheckpointWriter, host_copy
from support.small_disk import small_disk

pytestmark = pytest.mark.filterwarnings(  # Lightning's hints, and what it still uses
    "ignore::UserWarning", "ignore::FutureWarning"
)
_LONG_S = 60


class Model(LightningModule):
    """Calls `in_step` with the number of the step that it is in; two names for one weight."""

    def __init__(self, in_step: Callable[[int], None] = lambda _: None, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.in_step, self.width = in_step, width

    def training_step(self, batch: Any, index: int) -> Any:
        self.in_step(index + 1)
        return self.second(self.first(batch.expand(-1, self.width))).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def train(folder: Path, model: Model, *, in_background: bool = True, **options: Any) -> None:
    """Seven steps with checkpoints after 2, 4, 6 and at the end."""
    torch.manual_seed(4)
    for layer in (model.first, model.second):
        layer.reset_parameters()
    writer = CheckpointWriter(token="t", before=lambda: None, in_background=in_background)
    prune = partial(checkpoints.prune, folder, 9)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StepCheckpoints(folder, every_steps=2, prune=prune, writer=writer)],
        default_root_dir=folder,
        **options,
    )
    trainer.fit(model, DataLoader(torch.arange(7.0).reshape(7, 1)))


class Gate(TorchCheckpointIO):
    """Writes once it is let; notes which checkpoints there are when it is asked to."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.there: list[list[str]] = []

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.there.append(sorted(each.name for each in Path(path).parent.glob("*.ckpt")))
        assert self.opened.wait(_LONG_S)
        super().save_checkpoint(checkpoint, path)


def assert_same(left: Any, right: Any, place: str = "") -> None:
    """Two contents of checkpoints are the same, tensors bit for bit."""
    assert type(left) is type(right), place
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), place
    elif isinstance(left, dict):
        assert list(left) == list(right), place
        for name in left:
            assert_same(left[name], right[name], f"{place}.{name}")
    elif isinstance(left, list | tuple):
        assert_same(dict(enumerate(left)), dict(enumerate(right)), place)
    else:
        assert left == right, place


@pytest.mark.parametrize("in_background", [False, True])
def test_no_file_is_made_in_memory_first(tmp_path, monkeypatch, in_background):
    """As Lightning does, which also imports what it knows of object stores: half a second."""

    def refuse(*_: object) -> None:
        raise AssertionError("in memory")

    monkeypatch.setattr("lightning.fabric.plugins.io.torch_io._atomic_save", refuse)
    train(tmp_path, Model(), in_background=in_background)
    assert len(list(tmp_path.glob("*.ckpt"))) == 4


def test_training_goes_on_and_the_checkpoint_holds_what_was(tmp_path: Path) -> None:
    """One is written at a time, by the user's own plugin, and gets its name when it is whole."""
    gate, seen = Gate(), {}

    def in_step(step: int) -> None:
        seen[step] = len(gate.there), len(list((tmp_path / "a").glob("*.ckpt")))
        if step == 4:
            gate.opened.set()

    for name in "ab":
        (tmp_path / name).mkdir()
    train(tmp_path / "a", Model(in_step), plugins=[gate])
    train(tmp_path / "b", Model(), in_background=False)
    assert seen[4][1] == 0  # nothing was whole yet, one and a half steps on
    names = [checkpoint_name(step) for step in (2, 4, 6)]
    assert gate.there == [names[:number] for number in range(4)]
    for name in (*names, "final.ckpt"):
        found, wanted = (torch.load(tmp_path / each / name, weights_only=True) for each in "ab")
        assert_same(found, wanted)
        weights = found["state_dict"]
        assert weights["first.weight"].data_ptr() == weights["second.weight"].data_ptr()


def test_a_disk_that_is_full_ends_training(tmp_path: Path) -> None:
    """At the next checkpoint at the latest; nothing is left of the one that did not fit."""
    with small_disk(tmp_path / "disk", "64k") as disk:
        with pytest.raises(
            StorageFullError, match=r"not written: .* full: .*/step-000000002\.ckpt \("
        ):
            train(disk, Model(width=200))
        assert list(disk.iterdir()) == []


def test_what_is_being_written_becomes_whole_when_training_fails(tmp_path: Path) -> None:
    gate = Gate()

    def in_step(step: int) -> None:
        if step == 3:
            gate.opened.set()
            raise ValueError("the numbers are too round")

    with pytest.raises(ValueError, match="too round"):
        train(tmp_path, Model(in_step), plugins=[gate])
    assert checkpoints.newest_whole(tmp_path) == tmp_path / checkpoint_name(2)


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
        _checkpoint_connector=SimpleNamespace(dump_checkpoint=dict),
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
        with pytest.raises(
            StorageFullError, match=r"not written: .* full: .*/final\.ckpt"
        ) as caught:
            writer.on_train_end(_writing(60_000), None)
        assert "Training goes on from the checkpoint before it" in caught.value.hint
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
    with pytest.raises(StorageFullError, match=r"not written: .* full: .*/a\.ckpt"):
        writer.write(trainer, tmp_path / "a.ckpt")
    assert list(tmp_path.iterdir()) == []


class Odd(Model):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["odd"] = threading.Event


def test_what_no_resume_could_load_is_told(tmp_path: Path) -> None:
    with pytest.raises(PickledCheckpointError, match=r"threading\.Event.* at odd"):
        train(tmp_path, Odd())
    assert list(tmp_path.glob("*.ckpt")) == []


def test_a_copy_is_apart_from_what_it_is_of_and_its_memory_is_used_again() -> None:
    weight, rows = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last), [1, 2]
    content = {
        "state_dict": OrderedDict(a=weight, b=weight[:1], c=torch.tensor(2.0), d=weight),
        "others": {"rows": rows, "pair": (torch.ones(2), "x")},
    }
    first = host_copy(content, None)
    assert_same(first, content)
    state = first["state_dict"]
    assert type(state) is OrderedDict
    assert state["a"].stride() == weight.stride()
    assert state["a"] is state["d"]
    place = state["a"].data_ptr()
    weight.zero_()
    rows.append(3)
    assert state["a"].any()
    assert first["others"]["rows"] == [1, 2]
    content["state_dict"]["c"] = torch.zeros(5)  # it has grown
    second = host_copy(content, first)
    assert_same(second, content)
    assert second["state_dict"]["a"].data_ptr() == place
