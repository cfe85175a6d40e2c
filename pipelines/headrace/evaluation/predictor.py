"""A trained model that scores samples of a split."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from torchmetrics import Metric

from headrace.checkpoints.content import read_checkpoint
from headrace.data.batch_form import description, first_of, formed, transformed
from headrace.data.dataset import Reading, SampleReader, check_each_once
from headrace.data.instantiate import Allowed, instantiate, instantiate_all
from headrace.data.model_steps import check_model, has_own
from headrace.data.transforms import WHOLE, Batch, Transform
from headrace.errors import MemoryExhaustedError, RecipeError, UserCodeError, blaming_user_code
from headrace.evaluation.batch_outputs import TARGET, Log, kept, named, update
from headrace.evaluation.merge import LABEL, Column, ScoredSamples, joined_columns, state_of
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.shards.dataset import ShardedDataset


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Scores samples; deterministic for a given batch size, number of threads and device."""

    model: LightningModule
    """With trained weights, in evaluation mode."""
    transforms: tuple[Transform, ...]
    """Applied to every batch, on the model's device."""
    dataset: ShardedDataset
    spec: EvaluateSpec
    device: torch.device
    reading: Reading = field(default_factory=Reading)
    form: str | tuple[str, ...] | None = None
    """The recipe's `data.batch`."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Further metrics by name; copies of them are updated."""
    notes: dict[str, str] = field(default_factory=dict)
    """What users should know about the reading, by subject."""

    def predict(self, first: int, num_samples: int) -> ScoredSamples:
        """Score or test consecutive samples of the split."""
        log = Log(self.model) if self.spec.step == "test" else None
        metrics = {name: deepcopy(each).to(self.device) for name, each in self.metrics.items()}
        ids, columns = [], []
        for batch in self.batches(first, num_samples):
            ids.append(batch["sample_id"].numpy())
            columns.append(self._score(batch, metrics, log))
        states = {name: state_of(name, metric) for name, metric in metrics.items()}
        if log is not None:
            states |= log.states()
        return ScoredSamples(np.concatenate(ids), joined_columns(columns), states)

    def batches(self, first: int, num_samples: int) -> Iterator[Batch]:
        """Yield consecutive samples of the split as batches, before `transforms`."""
        reader = SampleReader(self.dataset, self.reading)
        check_each_once(reader.own, self.dataset)
        has_label = reader.own is None and LABEL in [info.name for info in reader.fixed]
        for start in range(first, first + num_samples, self.spec.batch_size):
            end = min(start + self.spec.batch_size, first + num_samples)
            batch = reader.read(np.arange(start, end))
            if WHOLE in batch and has_label:
                batch[LABEL] = torch.from_numpy(self.dataset.gather(LABEL, np.arange(start, end)))
            yield batch

    def _score(
        self, batch: Batch, metrics: Mapping[str, Metric], log: Log | None
    ) -> dict[str, Column]:
        num_classes, num_samples = len(self.dataset.manifest.classes), len(batch["sample_id"])
        with self._named_errors(batch), torch.inference_mode():
            moved = transformed(move_data_to_device(batch, self.device), self.transforms)
            found = self._stepped(moved, log, num_samples)
        given = named(found, num_samples, self.spec, num_classes)
        label = {TARGET: moved[LABEL]} if LABEL in moved else {}
        with torch.inference_mode():
            update(metrics, {**label, **given})
        columns = kept(given, num_samples)
        return {**columns, LABEL: batch[LABEL]} if LABEL in batch else columns

    @contextmanager
    def _named_errors(self, batch: Batch) -> Iterator[None]:
        """Raise errors of the model's step as errors that name the samples and the batch."""
        step = f"{self.spec.step}_step"
        hint = (
            f"Evaluation calls `model.{step}(batch, 0)` after `data.transforms`; without a "
            "`predict_step` of its own, the model itself with the first field of a tuple. "
            f"{description(formed(batch, self.form))}"
        )
        where = f"samples {int(batch['sample_id'][0])} and following"
        with blaming_user_code(step, hint, where):
            try:
                yield
            except torch.cuda.OutOfMemoryError as error:
                raise MemoryExhaustedError(
                    f"{len(batch['sample_id'])} samples at once do not fit into the accelerator: "
                    f"{error}",
                    "Lower `evaluate.batch_size`.",
                ) from error

    def outputs(self, batch: Batch) -> object:
        """Return what the model gives for a batch of stored samples."""
        return self._stepped(transformed(batch, self.transforms))

    def _stepped(self, batch: Batch, log: Log | None = None, num_samples: int = 0) -> object:
        """Return the result of the model's step for a batch; logged values go to `log`."""
        made = formed(batch, self.form)
        if log is None and not has_own(self.model, "predict_step"):
            return self.model(first_of(made))
        if log is None:
            return self.model.predict_step(made, 0)
        log.num_samples = num_samples
        found = self.model.test_step(made, 0)
        return found if isinstance(found, Mapping) else {}


def load_model(
    recipe: Recipe, site: Site, checkpoint: Path
) -> tuple[LightningModule, tuple[Transform, ...], Mapping[str, Any]]:
    """Return model and transforms of a recipe, the model trained; and the data module's state."""
    allowed = Allowed.of(recipe, site)
    model = make_model(recipe, allowed)
    content = read_checkpoint(checkpoint, pickled=site.pickled_checkpoints == "allow")
    _load_weights(model, content)
    transforms = instantiate_all(recipe.data.transforms, allowed, "data.transforms")
    return model.eval(), transforms, content.get("HeadraceDataModule", {})


def make_model(recipe: Recipe, allowed: Allowed) -> LightningModule:
    """Return the untrained model of a recipe."""
    if recipe.model is None:
        raise RecipeError(f"Recipe '{recipe.name}' has no model to evaluate", "Set evaluate: null.")
    torch.manual_seed(recipe.seed)
    model: LightningModule = instantiate(recipe.model, allowed, "model")
    check_model(model, recipe, trains=False)
    return model


def choose_device(accelerator: str) -> torch.device:
    """Return the device for the recipe's `trainer.accelerator`; `auto` is a GPU if there is one."""
    if accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available()):
        return torch.device("cuda")
    return torch.device("cpu")


def _load_weights(model: LightningModule, content: Mapping[str, Any]) -> None:
    try:
        model.configure_model()
        model.on_load_checkpoint(content)
        model.load_state_dict(content["state_dict"], strict=model.strict_loading)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise UserCodeError(
            f"The checkpoint does not fit {type(model).__name__}: {error}",
            "Evaluate with the model settings that the checkpoint was trained with.",
            trace="".join(traceback.format_exception(error)),
        ) from error
