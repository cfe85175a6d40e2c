"""What a training on one rank leaves behind of how it went."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from headrace.files.layout import RunFolder
from headrace.steps.history import newest_use, read_history, read_ranks, read_usage
from headrace.training import usage
from headrace.training.history import KeepHistory
from headrace.training.usage import RankUsage, Usage

pytestmark = [  # of Lightning: where there is a Slurm that this is no job of, and for PyTorch
    pytest.mark.filterwarnings("ignore:The `srun` command is available:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

STEPS = 4
LAUNCH: Any = SimpleNamespace(node_index=0, node_name="here")


class Loader(list[torch.Tensor]):
    """Batches of two samples, counted as headrace's loader counts them."""

    num_samples = 0
    wait_s = 0.0

    def __iter__(self):
        for batch in super().__iter__():
            self.num_samples += 2
            yield batch


class Model(LightningModule):
    """Its loss in step `s`, from 1, is `s`; it logs a metric of validation and one of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.num_batches = 0

    def training_step(self, batch, index):
        self.num_batches += 1
        self.log("epoch_loss", float(self.num_batches), on_step=False, on_epoch=True, batch_size=2)
        return self.weight * 0 + self.num_batches

    def validation_step(self, batch, index):
        self.log("val_loss", 10.0 - self.current_epoch, batch_size=2)

    def configure_optimizers(self):
        groups = [{"params": [self.weight], "lr": 0.5}, {"params": [], "lr": 0.25}]
        return torch.optim.SGD(groups)


def fit(folder: Path, **options: Any) -> None:
    loader = Loader([torch.zeros(2)] * STEPS)
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[KeepHistory(RunFolder(folder), LAUNCH, loader, 1, lambda: 0.0)], **options,
    )  # fmt: skip
    trainer.fit(Model(), loader, [torch.zeros(2)])


def test_losses_metrics_and_rates_of_each_epoch_are_kept(tmp_path: Path) -> None:
    """Every row holds the mean of the losses since the one before; sanity checks are not kept."""
    fit(tmp_path, num_sanity_val_steps=1)
    found = read_history(RunFolder(tmp_path))
    assert [(each.step, each.epoch) for each in found.starts] == [(0, 0)]
    kept = {each.step: each for each in found.metrics}
    assert list(kept) == [STEPS, 2 * STEPS]
    first, second = kept.values()
    assert first.metrics == {"val_loss": 10.0, "epoch_loss": 2.5}
    assert second.metrics == {"val_loss": 9.0, "epoch_loss": 6.5}
    whole = [each for each in found.told if each.loss is not None and not each.metrics]
    assert whole == [] or whole[0].step < STEPS  # a slow machine has rows in between
    if not whole:
        assert (first.loss, second.loss) == (2.5, 6.5)
    assert first.learning_rates == (0.5,)
    assert first.samples_per_s is not None
    assert first.samples_per_s > 0
    assert first.data_wait == 0.0


def test_the_loss_of_accumulated_batches_is_told_whole(tmp_path: Path) -> None:
    """Lightning hands callbacks the loss divided by the number of batches."""
    fit(tmp_path, accumulate_grad_batches=2)
    found = read_history(RunFolder(tmp_path))
    assert 1.0 <= (found.rows[0].loss or 0) <= 2.5
    assert found.metrics[-1].step == STEPS
    assert 6.0 <= (found.metrics[-1].loss or 0) <= 8.0


class Nvml(SimpleNamespace):
    """Stands in for `pynvml` with two devices."""

    class NVMLError(Exception):
        """As NVML's."""

    fails = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails:
            raise self.NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMigMode(self, _: int) -> list[int]:  # noqa: N802
        raise self.NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid != "GPU-b":
            raise self.NVMLError
        return 1

    def nvmlDeviceGetUtilizationRates(self, index: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=40 + 20 * index)

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=1 + index, total=6)

    def nvmlDeviceGetPowerUsage(self, index: int) -> int:  # noqa: N802
        return 1500 + index


def test_how_busy_a_node_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs count where NVML can be asked: the mean of their use, the sum of their power."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    row = Usage("here").look()
    assert (row.node, row.gpu) == ("here", None)
    assert 0 <= row.cpu <= 1
    assert 0 < row.memory < 1
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    row = Usage("here").look()
    assert (row.gpu, row.gpu_memory, row.gpu_power_w) == (0.5, 0.25, 3.001)
    for mask, gpu in (("1", 0.6), ("GPU-b", 0.6), ("1,0", 0.5), ("", None), ("-1", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        assert Usage("here").look().gpu == gpu
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml.fails = True
    assert Usage("here").look().gpu is None


def test_usage_is_kept_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.training.history._LEAST_USAGE_S", 0.0)
    fit(tmp_path)
    run = RunFolder(tmp_path)
    rows, ranks = read_usage(run)["node-0"], read_ranks(run)[0]
    assert len(rows) == len(ranks) == 2 * STEPS + 1  # the last one as training ends
    assert {each.node for each in (*rows, *ranks)} == {"here"}
    assert newest_use(run).nodes == (rows[-1],)
    assert newest_use(run).ranks == (ranks[-1],)


def test_what_a_rank_takes_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    row = RankUsage(3, "here").look()
    assert (row.rank, row.node, row.gpu_bytes) == (3, "here", None)
    assert row.rss_bytes > 2**20
    for name, value in (
        ("is_initialized", True),
        ("memory_reserved", 7),
        ("max_memory_allocated", 5),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    row = RankUsage(3, "here").look()
    assert (row.gpu_bytes, row.gpu_peak_bytes) == (7, 5)


def test_disks_and_network_are_rates_without_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 1000

    def net(pernic: bool) -> dict[str, Any]:
        assert pernic
        eth = SimpleNamespace(bytes_recv=moved, bytes_sent=2 * moved)
        return {"lo": SimpleNamespace(bytes_recv=moved * 99, bytes_sent=0), "eth0": eth}

    now_s = iter((10.0, 12.0, 13.0))
    monkeypatch.setattr(usage, "time", SimpleNamespace(time=float, monotonic=lambda: next(now_s)))
    monkeypatch.setattr(psutil, "net_io_counters", net)
    disks = SimpleNamespace(read_bytes=0, write_bytes=50)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: disks)
    looks = Usage("here")
    moved, disks.read_bytes = 5000, 600
    row = looks.look()
    assert (row.network_in_bytes_per_s, row.network_out_bytes_per_s) == (2000, 4000)
    assert (row.disk_read_bytes_per_s, row.disk_write_bytes_per_s) == (300, 0)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    assert looks.look().disk_read_bytes_per_s is None
