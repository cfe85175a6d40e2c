"""What the time of training steps goes to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from headrace.files.layout import RunFolder
from headrace.training import step_parts
from headrace.training.history import KeepHistory
from headrace.training.step_parts import StepParts

pytestmark = [  # of Lightning: where there is a Slurm that this is no job of, and for PyTorch
    pytest.mark.filterwarnings("ignore:The `srun` command is available:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]


class Clock:
    """A step's parts take as long as they say."""

    now_s = 0.0

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


class Model(LightningModule):
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
    monkeypatch.setattr(step_parts, "time", clock)
    monkeypatch.setattr("headrace.training.history._LEAST_S", 1e9)  # no row restarts the parts
    waited = iter((3.0, 3.0, 8.0))
    launch: Any = SimpleNamespace(node_index=0, node_name="here")
    loader: Any = SimpleNamespace(num_samples=0, wait_s=0.0)
    history = KeepHistory(RunFolder(tmp_path), launch, loader, 1, lambda: next(waited))
    parts = history._parts
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=accumulated, callbacks=[history],
    )  # fmt: skip
    trainer.fit(Model(clock, optimizers), DataLoader([0.0] * 4))
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
    monkeypatch.setattr(step_parts, "time", clock)
    monkeypatch.setattr(step_parts, "DistributedDataParallel", Wrapped)
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
