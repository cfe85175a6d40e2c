"""What a training on one rank leaves behind of how it went, and what its steps' time goes to."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from headrace.files.layout import RunFolder
from headrace.recipe.train import ScaleLrSpec
from headrace.steps.history import newest_use, read_history, read_ranks, read_usage
from headrace.training import history_writer
from headrace.training.cpu_power import CpuPackages
from headrace.training.history_writer import KeepHistory, RankUsage, StepParts, Usage
from headrace.training.learning_rates import ScaledRate

pytestmark = [  # of Lightning: where there is a Slurm that this is no job of, and for PyTorch
    pytest.mark.filterwarnings("ignore:The `srun` command is available:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

STEPS = 4


class Loader(list[torch.Tensor]):
    """Batches of two samples, counted as headrace's loader counts them."""

    num_samples = 0
    wait_s = 0.0
    notes: ClassVar[dict[str, str]] = {"gpu_tier": "holds 1.0MiB"}

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


class NoOptimizer(Model):
    """Trains without an optimizer of PyTorch's, as Lightning lets it."""

    def configure_optimizers(self):
        return None


def kept(folder: Path, loader: Any, checkpoint_s: Any = lambda: 0.0, ranks: int = 1) -> KeepHistory:
    files: Any = SimpleNamespace(progress=folder / "progress.json")
    launch: Any = SimpleNamespace(node_index=0, node_name="here", folder=files)
    return KeepHistory(RunFolder(folder), launch, loader, ranks, checkpoint_s)


def trainer_of(history: KeepHistory, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1, callbacks=[history], **options,
    )  # fmt: skip


def fit(folder: Path, **options: Any) -> None:
    loader = Loader([torch.zeros(2)] * STEPS)
    trainer = trainer_of(kept(folder, loader), max_epochs=2, **options)
    trainer.fit(Model(), loader, [torch.zeros(2)])


def test_losses_metrics_and_rates_of_each_epoch_are_kept(tmp_path: Path) -> None:
    """Every row holds the mean of the losses since the one before; sanity checks are not kept."""
    fit(tmp_path, num_sanity_val_steps=1)
    found = read_history(RunFolder(tmp_path))
    assert [(each.step, each.epoch) for each in found.starts] == [(0, 0)]
    by_step = {each.step: each for each in found.metrics}
    assert list(by_step) == [STEPS, 2 * STEPS]
    first, second = by_step.values()
    assert first.metrics == {"val_loss": 10.0, "epoch_loss": 2.5}
    assert second.metrics == {"val_loss": 9.0, "epoch_loss": 6.5}
    whole = [each for each in found.all_rows if each.loss is not None and not each.metrics]
    assert whole == [] or whole[0].step <= STEPS  # a slow machine has rows in between
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


def test_the_loss_is_that_of_the_last_epoch_however_often_rows_are_written(tmp_path: Path) -> None:
    """Else trials that are compared by it would be ranked by the speed of their machines."""
    loader = Loader([torch.zeros(2)] * STEPS)
    history = kept(tmp_path, loader)
    assert history.loss is None
    model = Model()
    trainer_of(history, max_epochs=2).fit(model, loader, [torch.zeros(2)])
    assert history.loss == 6.5
    resumed = kept(tmp_path, loader)
    resumed.load_state_dict(history.state_dict())
    assert resumed.loss == 6.5
    trainer_of(resumed, max_epochs=1).fit(model, Loader([torch.zeros(2)] * 200), [torch.zeros(2)])
    assert resumed.loss == sum(range(109, 209)) / 100  # the last hundred


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


def test_the_power_of_cpus_is_that_of_all_packages_and_unknown_if_one_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 10.0, 20.0, 30.0))
    of_module = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("headrace.training.cpu_power.time", of_module)

    def count(*joules: int) -> None:
        for number, each in enumerate(joules):
            for name in (f"intel-rapl:{number}", f"intel-rapl:{number}:0"):
                (tmp_path / name).mkdir(exist_ok=True)
                kind = "core" if name.count(":") == 2 else f"package-{number}"
                (tmp_path / name / "name").write_text(kind)
                (tmp_path / name / "energy_uj").write_text(f"{each * 10**6}\n")
                (tmp_path / name / "max_energy_range_uj").write_text(f"{10**9 - 1}\n")

    assert CpuPackages(tmp_path / "none").power_w() is None
    count(100, 900)
    packages = CpuPackages(tmp_path)
    count(600, 400)  # the second counter has begun anew
    assert packages.power_w() == (500 + 500) / 10
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("")
    assert packages.power_w() is None


def test_usage_is_kept_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.training.history_writer._LEAST_USAGE_S", 0.0)
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
        ("current_device", 1),
        ("memory_reserved", 7),
        ("max_memory_allocated", 5),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    row = RankUsage(3, "here").look()
    assert (row.gpu_bytes, row.gpu_peak_bytes) == (7, 5)


def test_disks_and_network_are_rates_without_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = 1000

    def net(pernic: bool) -> dict[str, Any]:
        assert pernic
        eth = SimpleNamespace(bytes_recv=moved, bytes_sent=2 * moved)
        return {"lo": SimpleNamespace(bytes_recv=moved * 99, bytes_sent=0), "eth0": eth}

    now_s = iter((10.0, 12.0, 13.0))
    clock = SimpleNamespace(time=float, monotonic=lambda: next(now_s))
    monkeypatch.setattr(history_writer, "time", clock)
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


class Clock:
    """A step's parts take as long as they say."""

    now_s = 0.0
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def perf_counter(self) -> float:
        return self.now_s


class SGD(torch.optim.SGD):
    """Takes a second a step, besides what it runs within."""

    def __init__(self, weight: torch.nn.Parameter, clock: Clock) -> None:
        super().__init__([weight], 0.1)
        self.clock = clock

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.clock.now_s += 1
        return loss


class TimedModel(LightningModule):
    """Forward takes 2 s, backward 4 s; `optimizers` of them by hand, as in a GAN."""

    def __init__(self, clock: Clock, optimizers: int) -> None:
        super().__init__()
        self.clock, self.num_optimizers = clock, optimizers
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.weight.register_hook(lambda _: self.wait(4))
        self.automatic_optimization = optimizers == 1

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def training_step(self, batch, index):
        if self.automatic_optimization:
            self.wait(2)
            return self.weight * 0
        for optimizer in self.optimizers():
            self.wait(2)
            self.manual_backward(self.weight * 0)
            optimizer.step()
        return None

    def on_train_batch_end(self, *_: Any) -> None:
        self.wait(100)

    def configure_optimizers(self):
        return [SGD(self.weight, self.clock) for _ in range(self.num_optimizers)]


@pytest.mark.parametrize(("optimizers", "accumulated"), [(1, 1), (1, 2), (2, 1)])
def test_each_part_has_the_time_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizers: int, accumulated: int
) -> None:
    clock, model_s = Clock(), 1000.0
    monkeypatch.setattr(history_writer, "time", clock)
    monkeypatch.setattr(history_writer, "_LEAST_S", 1e9)  # no row restarts the parts
    waited = iter((3.0, 3.0, 8.0))
    loader: Any = SimpleNamespace(num_samples=0, wait_s=0.0, notes={})
    history = kept(tmp_path, loader, lambda: next(waited))
    parts = history._parts
    trainer = trainer_of(history, max_epochs=1, accumulate_grad_batches=accumulated)
    trainer.fit(TimedModel(clock, optimizers), DataLoader([0.0] * 4))
    steps = 4 * optimizers
    assert parts.shares(None, model_s) == {
        "forward": 2 * steps / model_s,
        "backward": 4 * steps / model_s,
        "optimizer": steps // accumulated / model_s,
        "checkpoint": 5 / model_s,
    }
    waited = iter((8.0, 8.0))
    parts.restart()
    parts.start(_on("cuda"))
    parts.note("forward")
    assert parts.shares(None, model_s) == {"checkpoint": 0.0}


def _on(device: str) -> Any:
    strategy = SimpleNamespace(root_device=torch.device(device))
    return SimpleNamespace(strategy=strategy, optimizers=[])


def test_waiting_for_other_ranks_is_no_part_of_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 of the 25 ns of the mean backward pass went by without any computing."""

    class Wrapped:
        told = {
            "avg_backward_comm_time": 18,
            "avg_backward_compute_comm_overlap_time": 8,
            "avg_backward_compute_time": 15,
        }

        def _get_ddp_logging_data(self) -> dict[str, int]:
            return self.told

    clock = Clock()
    monkeypatch.setattr(history_writer, "time", clock)
    monkeypatch.setattr(history_writer, "DistributedDataParallel", Wrapped)
    parts = StepParts(lambda: 0.0)
    parts.start(_on("cpu"))
    parts.begin()
    clock.now_s = 5.0
    parts.note("backward")
    assert parts.shares(Wrapped(), 10.0) == {
        "backward": 0.3,
        "communication": 0.2,
        "checkpoint": 0.0,
    }
    Wrapped.told = {}
    assert parts.shares(Wrapped(), 10.0) == {"backward": 0.5, "checkpoint": 0.0}


@pytest.mark.filterwarnings("ignore:.*configure_optimizers.* returned .None.")
def test_a_model_without_an_optimizer_has_a_history(tmp_path):
    loader = Loader([torch.zeros(2)] * STEPS)
    scaled = ScaledRate(ScaleLrSpec(base_batch_size=1, warmup_steps=2), 2)
    trainer = trainer_of(kept(tmp_path, loader), max_epochs=2)
    trainer.callbacks.append(scaled)
    trainer.fit(NoOptimizer(), loader, [torch.zeros(2)])
    rows = read_history(RunFolder(tmp_path)).rows
    assert [row.step for row in rows][-1] == 2 * STEPS
    assert rows[-1].metrics["val_loss"] == 9.0
    assert all(row.learning_rates == () for row in rows)
