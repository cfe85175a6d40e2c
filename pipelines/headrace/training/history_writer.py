"""Writes how a training goes while it goes on: progress for its status, and rows of its history.

See `headrace.steps.history` for the rows. How busy a node and its ranks are is asked of psutil, and
of NVML where nvidia-ml-py is installed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import psutil
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from headrace.clusters.gpus import handles
from headrace.data.loader import BatchLoader
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.informing import inform, shielded
from headrace.steps.history import HistoryRow, NodeRow, RankRow, RowWriter, rank_file, usage_file
from headrace.training.cpu_power import CpuPackages
from headrace.training.launch_records import NodeLaunch, TrainingProgress
from headrace.training.learning_rates import rate_factor
from headrace.training.machine_facts import machine_facts
from headrace.training.own_loaders import OwnLoaders
from headrace.training.progress import AttemptMeter, finite, training_rows

_LEAST_S = 0.1
_LEAST_USAGE_S = 1.0
_PROGRESS_S = 1.0
_DIGITS = 4
_NUM_LOSSES = 100


class KeepHistory(Callback):  # type: ignore[misc]
    """Each rank writes its usage, the first of a node also the node's, rank 0 the progress.

    Every validation and every end of an epoch adds a row with all metrics that the model logged.
    All ranks take part in it, because each may log its own; `metrics` are the last means.
    Checkpoints have the losses whose mean is `loss`, so that no end of a process changes it.

    `data_ranks` is the number of ranks with samples of their own; `checkpoint_s` returns the
    seconds that training has waited for checkpoints so far.
    """

    def __init__(
        self,
        run: RunFolder,
        launch: NodeLaunch,
        loader: BatchLoader | OwnLoaders,
        data_ranks: int,
        checkpoint_s: Callable[[], float],
    ) -> None:
        self._run, self._launch, self.notes = run, launch, loader.notes

        def counted() -> tuple[int, float]:
            return loader.num_samples * data_ranks, loader.wait_s

        self._of_launch, self._of_progress, self._of_row = (AttemptMeter(counted) for _ in range(3))
        self._parts = StepParts(checkpoint_s)
        self._rows: RowWriter[HistoryRow] | None = None
        self._usage: tuple[RowWriter[NodeRow], Usage] | None = None
        self._rank: tuple[RowWriter[RankRow], RankUsage] | None = None
        self._number = 1
        self._losses: Tensor | None = None
        self._num_losses = 0
        self._row: HistoryRow | None = None
        self._epoch, self._last_losses = 0, deque[Tensor | float](maxlen=_NUM_LOSSES)
        self.metrics: dict[str, float] = {}
        for name in ("on_train_start", "on_train_batch_end", "on_validation_start", "_write"):
            setattr(self, name, shielded(run, "history", getattr(self, name)))

    @property
    def data_wait(self) -> float:
        """Share of the time since the start of training that this rank has waited for batches."""
        return self._of_launch.figures()["data_wait"]

    @property
    def loss(self) -> float | None:
        """Mean loss of this rank's last 100 batches of the last epoch; None without losses."""
        losses = self.state_dict()["losses"]
        return math.fsum(losses) / len(losses) if losses else None

    def state_dict(self) -> dict[str, Any]:
        """Losses of the last batches, and their epoch."""
        return {"epoch": self._epoch, "losses": [float(each) for each in self._last_losses]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the losses of the interrupted run."""
        self._epoch = state_dict["epoch"]
        self._last_losses.extend(state_dict["losses"])

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Start the clocks and write the step at which training starts or resumes."""
        self._of_launch.restart()
        self._restart_clock()
        self._parts.start(trainer)
        node, rank = self._launch.node_name, trainer.global_rank
        ranks = RowWriter(rank_file(self._run, rank), RankRow, _LEAST_USAGE_S)
        self._rank = (ranks, RankUsage(rank, node))
        if trainer.local_rank == 0:
            file = usage_file(self._run, self._launch.node_index)
            if usage := inform(self._run, Usage.__name__, partial(Usage, node)):
                self._usage = (RowWriter(file, NodeRow, _LEAST_USAGE_S), usage)
        if trainer.is_global_zero:
            self._rows, self._number = training_rows(self._run, _LEAST_S)
            self._rows.append(self._now(trainer).model_copy(update={"starts": True}))
            self._tell_progress(trainer, None)

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the clock of a step: its batch is there."""
        self._parts.begin()

    def on_before_backward(self, *_: Any) -> None:
        """Note the end of the forward pass."""
        self._parts.note("forward")

    def on_after_backward(self, *_: Any) -> None:
        """Note the end of the backward pass, in which DDP also reduces gradients."""
        self._parts.note("backward")

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Add up the loss on its device, and write the rows that are due."""
        if self._rows is not None:
            loss = whole_loss(trainer, module, outputs)
            if loss is not None:
                self._losses = loss.float() if self._losses is None else self._losses + loss
                self._num_losses += 1
                self._keep(trainer.current_epoch, loss.float().clone())  # graphs write it anew
            if self._rows.is_due:
                self._rows.append(self._measure(trainer))
            if self._of_progress.seconds >= _PROGRESS_S:
                self._tell_progress(trainer, loss)
        for written in (self._rank, self._usage):
            if written is not None and written[0].is_due:
                self._look(written)

    def _keep(self, epoch: int, loss: Tensor) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._last_losses.clear()
        self._last_losses.append(loss)

    def on_train_end(self, *_: Any) -> None:
        """Write the usage at least once, also of a short training."""
        for written in (self._rank, self._usage):
            if written is not None:
                self._look(written)

    def _look(self, written: tuple[RowWriter[Any], Usage | RankUsage]) -> None:
        """Write the usage of the node or rank; the libraries that measure it may hang."""
        rows, usage = written
        inform(self._run, type(usage).__name__, lambda: rows.append(usage.look()))

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        """Measure training before the time of validation counts."""
        if self._rows is not None:
            self._measure(trainer)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the metrics that the model logged."""
        if not trainer.sanity_checking:
            self.on_train_epoch_end(trainer)
            self._restart_clock()

    def _tell_progress(self, trainer: Trainer, loss: Tensor | None) -> None:
        progress = TrainingProgress(
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            steps_per_batch=_steps_per_batch(trainer),
            loss=finite(loss),
            metrics=self.metrics,
            notes=self.notes,
            **self._of_progress.figures(),
        )
        inform(self._run, "progress", partial(write_record, self._launch.folder.progress, progress))
        self._of_progress.restart()

    def _measure(self, trainer: Trainer) -> HistoryRow:
        """Return a row of the time since the last row; the last row if no step was made."""
        if self._row is not None and self._row.step == trainer.global_step:
            return self._row
        seconds = self._of_row.seconds
        measured = {
            "loss": finite(None if self._losses is None else self._losses / self._num_losses),
            "parts": self._parts.shares(trainer.strategy.model, seconds),
            **self._of_row.figures(),
        }
        self._row = self._now(trainer).model_copy(update=measured)
        self._restart_clock()
        return self._row

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the metrics that the model logged so far, also for the whole epoch."""
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.metrics = mean_over_ranks(logged)
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        if self._rows is None or not self.metrics or not self._rows.has_room:
            return
        row = self._measure(trainer)
        if row.metrics != self.metrics:
            self._row = row.model_copy(update={"at": time.time(), "metrics": self.metrics})
            self._rows.append(self._row)

    def _now(self, trainer: Trainer) -> HistoryRow:
        return HistoryRow(
            at=time.time(),
            launch=self._number,
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            learning_rates=tuple(
                max(rates) * rate_factor(trainer)
                for optimizer in trainer.optimizers  # Lightning's for None has no groups
                if (rates := [float(each["lr"]) for each in optimizer.param_groups if "lr" in each])
            ),
        )

    def _restart_clock(self) -> None:
        self._of_row.restart()
        self._losses, self._num_losses = None, 0
        self._parts.restart()


def mean_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Return the mean of each value over the ranks that have it; the same on all ranks."""
    if not torch.distributed.is_initialized():
        return values
    gathered: list[dict[str, float]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, values)
    names = sorted({name for each in gathered for name in each})
    found = {name: [each[name] for each in gathered if name in each] for name in names}
    return {name: sum(each) / len(each) for name, each in found.items()}


def _steps_per_batch(trainer: Trainer) -> int:
    """Return optimizer steps per batch: a model in manual optimization may step several."""
    batches = int(trainer.fit_loop.epoch_loop.total_batch_idx) + 1
    if trainer.lightning_module.automatic_optimization or batches < 1:
        return 1
    return max(round(int(trainer.global_step) / batches), 1)


def whole_loss(trainer: Trainer, module: LightningModule, outputs: Any) -> Tensor | None:
    """Return the loss as the training step returned it; None if it did not.

    In automatic optimization Lightning passes it to callbacks divided by the number of accumulated
    batches. If the step returns none, as with several optimizers, logged losses are added up.
    """
    given = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    batches = trainer.accumulate_grad_batches if module.automatic_optimization else 1
    if isinstance(given, Tensor):
        return given.detach() if batches == 1 else given.detach() * batches
    logged = [
        value.detach()
        for name, value in trainer.callback_metrics.items()
        if "loss" in name and not name.startswith(("val", "test"))
    ]
    return torch.stack(logged).sum() * batches if logged else None


class StepParts:
    """Adds up the seconds of this rank's steps by part, as a callback notes them.

    The clock is the host's. An accelerator works asynchronously, so forward, backward and optimizer
    are not reported there.
    """

    def __init__(self, checkpoint_s: Callable[[], float]) -> None:
        self._checkpoint_s = checkpoint_s
        self._is_host = False
        self._at_s = 0.0
        self.restart()

    def start(self, trainer: Trainer) -> None:
        """Note the end of optimizer steps by hooks; forward and backward run within the step."""
        self._is_host = trainer.strategy.root_device.type == "cpu"
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(lambda *_: self.note("optimizer"))

    def begin(self) -> None:
        """Start the clock of a step."""
        self._at_s = time.perf_counter()

    def note(self, part: str) -> None:
        """Add the time since the last note to a part of the step."""
        now_s = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now_s - self._at_s
        self._at_s = now_s

    def shares(self, model: Any, seconds: float) -> dict[str, float]:
        """Return shares of the seconds since `restart`; `model` is the strategy's wrapper."""
        found = dict(self._seconds) if self._is_host else {}
        if found and (waiting := _waiting(model)) is not None:
            found["communication"] = found.get("backward", 0.0) * waiting
            found["backward"] = found.get("backward", 0.0) - found["communication"]
        found["checkpoint"] = self._checkpoint_s() - self._since_checkpoint_s
        return {name: round(min(each / seconds, 1.0), _DIGITS) for name, each in found.items()}

    def restart(self) -> None:
        """Count from now on."""
        self._seconds: dict[str, float] = {}
        self._since_checkpoint_s = self._checkpoint_s()


def _waiting(model: Any) -> float | None:
    """Return the share of DDP's backward passes without computation; None if not reported.

    DDP measures its first ten passes and each hundredth, and reports the means. The wait for other
    ranks is its communication time minus the overlap with computation.
    """
    if not isinstance(model, DistributedDataParallel):
        return None
    means = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001
    if not means.get("avg_backward_comm_time"):
        return None
    waiting = means["avg_backward_comm_time"] - means["avg_backward_compute_comm_overlap_time"]
    return float(waiting / (waiting + means["avg_backward_compute_time"]))


class Usage:
    """Measures this node's usage since the last look."""

    def __init__(self, node: str) -> None:
        self._node = node
        found = handles()
        self._gpus = None if found is None else _Gpus(*found)
        self._traffic, self._packages = _Traffic(), CpuPackages()
        self._busy_s, self._cpu_s = _cpu_s()
        self._machine = machine_facts()

    def look(self) -> NodeRow:
        """Return all figures; `docs/how-to/watch-training.md` says what that costs."""
        gpus = {} if self._gpus is None else self._gpus.look()
        before, (self._busy_s, self._cpu_s) = (self._busy_s, self._cpu_s), _cpu_s()
        machine, self._machine = self._machine, {}
        return NodeRow(
            machine=machine,
            at=time.time(),
            node=self._node,
            cpu=max(self._busy_s - before[0], 0.0) / max(self._cpu_s - before[1], 1e-2),
            memory=psutil.virtual_memory().percent / 100,
            cpu_power_w=self._packages.power_w(),
            **self._traffic.look(),
            **gpus,
        )


def _cpu_s() -> tuple[float, float]:
    """Return seconds of all CPUs so far, busy and total: `psutil.cpu_percent` counts by thread."""
    times = psutil.cpu_times()
    whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return whole - times.idle - getattr(times, "iowait", 0.0), whole


class RankUsage:
    """Measures the usage of this process, a rank, since the last look."""

    def __init__(self, rank: int, node: str) -> None:
        self._rank, self._node = rank, node
        self._process = psutil.Process()
        self._process.cpu_percent()
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._device = torch.cuda.current_device() if has_gpu else 0  # another thread has its own

    def look(self) -> RankRow:
        """Return all figures."""
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return RankRow(
            at=time.time(),
            rank=self._rank,
            node=self._node,
            cores=self._process.cpu_percent() / 100,
            rss_bytes=self._process.memory_info().rss,
            gpu_bytes=torch.cuda.memory_reserved(self._device) if has_gpu else None,
            gpu_peak_bytes=torch.cuda.max_memory_allocated(self._device) if has_gpu else None,
        )


class _Traffic:
    """Bytes per second of all disks, and of the network without the loopback."""

    def __init__(self) -> None:
        self._at_s, self._before = time.monotonic(), _moved_bytes()

    def look(self) -> dict[str, float]:
        now_s, now = time.monotonic(), _moved_bytes()
        seconds, before = max(now_s - self._at_s, 1e-9), self._before
        self._at_s, self._before = now_s, now
        return {
            f"{name}_bytes_per_s": max(count - before[name], 0) / seconds
            for name, count in now.items()
            if name in before
        }


def _moved_bytes() -> dict[str, int]:
    """Return bytes so far; without disks if there are none, as in some containers."""
    links = psutil.net_io_counters(pernic=True)
    others = [counts for name, counts in links.items() if name != "lo"]
    disks = psutil.disk_io_counters()
    moved = {
        "network_in": sum(each.bytes_recv for each in others),
        "network_out": sum(each.bytes_sent for each in others),
    }
    if disks is not None:
        moved |= {"disk_read": disks.read_bytes, "disk_write": disks.write_bytes}
    return moved


class _Gpus:
    """The GPUs that this process may use, as NVML shows them."""

    def __init__(self, nvml: ModuleType, handles: list[Any]) -> None:
        self._nvml, self._handles = nvml, handles

    def look(self) -> dict[str, float]:
        """Return use and memory as shares, power in watts; empty if a device reports none."""
        nvml = self._nvml
        try:
            rates = [nvml.nvmlDeviceGetUtilizationRates(each).gpu for each in self._handles]
            memory = [nvml.nvmlDeviceGetMemoryInfo(each) for each in self._handles]
            power = [nvml.nvmlDeviceGetPowerUsage(each) for each in self._handles]
        except nvml.NVMLError:
            return {}
        return {
            "gpu": sum(rates) / len(rates) / 100,
            "gpu_memory": sum(each.used for each in memory) / sum(each.total for each in memory),
            "gpu_power_w": sum(power) / 1000,
        }
