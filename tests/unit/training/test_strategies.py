"""How a model computes: as the recipe asks, and with several optimizers that it steps itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headrace.errors import NotFiniteLossError, RecipeError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.recipe.train import TrainerSpec
from headrace.training import history_writer
from headrace.training.history_writer import KeepHistory
from headrace.training.launch_records import TrainingProgress
from headrace.training.progress import Follower
from headrace.training.strategies import form
from headrace.training.trainer import LossGuard
from headrace.training.training_plan import TrainPlan

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]
STEPS = 5


class Twins(LightningModule):
    """Steps two optimizers a batch, and logs a loss for each; the second is NaN at `nan_at`."""

    def __init__(self, nan_at: int = -1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.nan_at = nan_at

    def training_step(self, batch, index):
        for number, optimizer in enumerate(self.optimizers()):
            loss = (self.weight - 1) ** 2
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            value = math.nan if number and index == self.nan_at else 0.25 + number
            self.log(f"loss_{number}", value, batch_size=2)

    def validation_step(self, batch, index):
        self.log("val_loss", math.nan, batch_size=2)

    def configure_optimizers(self):
        return [torch.optim.SGD([self.weight], 0.0) for _ in range(2)]


def fit(model: Twins, *callbacks: Any) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(model, DataLoader(torch.zeros(2 * STEPS), 2), DataLoader(torch.zeros(2), 2))
    return trainer


def test_a_logged_loss_that_is_not_finite_ends_training() -> None:
    """`training_step` returns none; what a validation logs is not looked at."""
    with pytest.raises(NotFiniteLossError, match=r"in step 8 \(epoch 1\)"):
        fit(Twins(nan_at=3), LossGuard(enabled=True))
    fit(Twins(nan_at=3), LossGuard(enabled=False))
    fit(Twins(), LossGuard(enabled=True))


def test_progress_counts_the_steps_of_all_optimizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "_PROGRESS_S", 0.0)
    loader: Any = SimpleNamespace(wait_s=0.0, num_samples=0, notes={})
    files: Any = SimpleNamespace(progress=tmp_path / "progress.json")
    launch: Any = SimpleNamespace(node_index=0, node_name="here", folder=files)
    fit(Twins(), KeepHistory(RunFolder(tmp_path), launch, loader, 1, lambda: 0.0))
    told = read_record(tmp_path / "progress.json", TrainingProgress)
    assert (told.step, told.steps_per_batch, told.loss) == (4 * STEPS, 2, 1.5)
    shown: list[tuple[Any, ...]] = []
    context: Any = SimpleNamespace(
        report=lambda **_: None,
        progress=lambda *what: shown.append(what),
        run_folder=RunFolder(tmp_path),
    )
    plan = TrainPlan(
        num_nodes=1, ranks_per_node=1, batch_per_rank=2, batches_per_epoch=STEPS,
        steps_per_epoch=STEPS, epochs=2, total_steps=2 * STEPS, max_steps=-1, num_left_out=0,
        batch_bytes=0,
    )  # fmt: skip
    for limit, total in ((-1, 4 * STEPS), (3 * STEPS, 3 * STEPS)):
        Follower(context, replace(plan, max_steps=limit), 1)(told)
        assert shown.pop() == (4 * STEPS, total, "steps", "epoch 2/2")


class Own(nn.Module):
    """A class of a user."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values).relu()


@pytest.fixture(autouse=True)
def _compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "part", [Own, lambda: nn.Linear(4, 4), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Own())]
)
def test_every_part_of_a_model_is_compiled(part: Callable[[], nn.Module]) -> None:
    """Also one of a class of PyTorch's: `Module.compile` passes those over without a word."""
    graphs: list[Any] = []

    def backend(graph: Any, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    model = nn.Module()
    model.network = part()
    names, values = set(model.state_dict()), torch.rand(2, 4)
    plain = model.network(values)
    form(model, TrainerSpec(compile={"backend": backend}))
    assert torch.equal(model.network(values), plain)
    assert len(graphs) == 1
    assert set(model.state_dict()) == names
    other = copy.deepcopy(model.network)
    for weight in other.parameters():
        nn.init.ones_(weight)
    assert not torch.equal(other(values), plain)
    assert torch.equal(model.network(values), plain)


def test_a_class_that_the_model_has_not_is_refused() -> None:
    model = nn.Sequential(Own())
    form(model, TrainerSpec(activation_checkpointing=("Own",)))
    with pytest.raises(RecipeError, match="activation_checkpointing names Owm") as caught:
        form(model, TrainerSpec(activation_checkpointing=("Owm",)))
    assert "Did you mean 'Own'?" in caught.value.hint
