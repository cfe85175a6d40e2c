"""A trained model and its data on one node, ready to score samples."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule

from headrace.data.checkpoint_content import refusing
from headrace.data.dataset import Reading, SampleReader
from headrace.data.samples import Batch
from headrace.data.targets import Allowed, instantiate, instantiate_all
from headrace.data.transforms import Transform, apply
from headrace.errors import (
    HeadraceError,
    MemoryExhaustedError,
    RecipeError,
    StepError,
    UserCodeError,
)
from headrace.evaluation.merge import Predictions
from headrace.recipe.recipe import EvaluateSpec, Recipe
from headrace.recipe.site import Site
from headrace.shards.dataset import ShardedDataset


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Scores samples; deterministic for a given batch size, number of threads and device."""

    model: LightningModule
    """Model with trained weights, in evaluation mode."""
    transforms: tuple[Transform, ...]
    """Applied to every batch, on the model's device."""
    dataset: ShardedDataset
    """The split, on this node."""
    spec: EvaluateSpec
    """The recipe's `evaluate`."""
    device: torch.device
    """Where the model runs."""
    reading: Reading = field(default_factory=Reading)
    """How samples become batches."""

    def predict(self, first: int, num_samples: int) -> Predictions:
        """Score consecutive samples of the split.

        Args:
            first: Place of the first one in the split.
            num_samples: How many.

        Raises:
            UserCodeError: A transform or the model raised, or gave scores of a wrong shape.
        """
        parts = [self._score(batch) for batch in self._batches(first, num_samples)]
        return Predictions(
            sample_id=np.concatenate([part.sample_id for part in parts]),
            label=np.concatenate([part.label for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
        )

    def _batches(self, first: int, num_samples: int) -> Iterator[Batch]:
        reader = SampleReader(self.dataset, self.reading)
        for start in range(first, first + num_samples, self.spec.batch_size):
            end = min(start + self.spec.batch_size, first + num_samples)
            yield reader.read(np.arange(start, end))

    def _score(self, batch: Batch) -> Predictions:
        label, sample_id = batch["label"].numpy(), batch["sample_id"].numpy()
        try:
            scores = self._forward(batch)
        except (HeadraceError, MemoryError):
            raise
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryExhaustedError(
                f"{len(sample_id)} samples at once do not fit into the accelerator: {error}",
                "Lower `evaluate.batch_size`.",
            ) from error
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"predict_step raised {type(error).__name__}: {error}",
                "Evaluation calls `model.predict_step(batch, 0)` after `data.transforms`.",
                trace="".join(traceback.format_exception(error)),
                where=f"samples {sample_id[0]} and following",
            ) from error
        return Predictions(sample_id=sample_id, label=label, scores=self._checked(scores, batch))

    def _forward(self, batch: Batch) -> Any:
        on_device = move_data_to_device(batch, self.device)
        with torch.inference_mode():
            return self.model.predict_step(apply(self.transforms, on_device), 0)

    def _checked(self, scores: object, batch: Batch) -> np.ndarray[Any, Any]:
        num_samples = len(batch["sample_id"])
        num_classes = len(self.dataset.manifest.classes)
        if self.spec.task == "regression":
            wanted = f"({num_samples},)"
            fits = isinstance(scores, torch.Tensor) and scores.numel() == num_samples
        else:
            wanted = f"({num_samples}, {num_classes or 'classes'})"
            fits = (
                isinstance(scores, torch.Tensor)
                and scores.ndim == 2
                and len(scores) == num_samples
                and num_classes in (0, scores.shape[1])
            )
        if not isinstance(scores, torch.Tensor) or not fits:
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise UserCodeError(
                f"predict_step gave {got}, the task {self.spec.task} needs a tensor {wanted}",
                "Return one score a class and sample, or set `evaluate.task`.",
            )
        shaped = scores.reshape(num_samples) if self.spec.task == "regression" else scores
        values: np.ndarray[Any, Any] = shaped.detach().to("cpu", torch.float32).numpy()
        return values


def load_model(
    recipe: Recipe, site: Site, checkpoint: Path
) -> tuple[LightningModule, tuple[Transform, ...]]:
    """Make model and transforms of a recipe and give the model its trained weights.

    Raises:
        RecipeError: The recipe has no model.
        TargetError: The site does not allow a target.
        StepError: The checkpoint is missing or damaged.
        PickledCheckpointError: It holds what the site does not let unpickle.
        UserCodeError: The model cannot be made, or the weights do not fit it.
    """
    if recipe.model is None:
        raise RecipeError(f"Recipe '{recipe.name}' has no model to evaluate", "Set evaluate: null.")
    allowed = Allowed.of(recipe, site)
    torch.manual_seed(recipe.seed)
    model: LightningModule = instantiate(recipe.model, allowed, "model")
    _load_weights(model, read_checkpoint(checkpoint, pickled=site.pickled_checkpoints == "allow"))
    return model.eval(), instantiate_all(recipe.data.transforms, allowed, "data.transforms")


def read_checkpoint(path: Path, *, pickled: bool = False) -> Mapping[str, Any]:
    """Read a checkpoint of Lightning.

    Args:
        path: The checkpoint.
        pickled: Load objects of any class from it, which may run any code.

    Raises:
        PickledCheckpointError: It holds such objects.
        StepError: It is missing or damaged.
    """
    try:
        with refusing(path):
            content = torch.load(path, map_location="cpu", weights_only=not pickled)
    except FileNotFoundError:
        raise StepError(f"The checkpoint {path} is missing", "Run the train step again.") from None
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise StepError(
            f"The checkpoint {path} is damaged: {error}", "Run the train step again."
        ) from error
    if not isinstance(content, Mapping) or "state_dict" not in content:
        raise StepError(f"{path} is no checkpoint of Lightning: it has no 'state_dict'")
    return content


def choose_device(accelerator: str) -> torch.device:
    """Where to run: the recipe's `trainer.accelerator`, `auto` takes a GPU when there is one."""
    if accelerator == "gpu" or (accelerator == "auto" and torch.cuda.is_available()):
        return torch.device("cuda")
    return torch.device("cpu")


def _load_weights(model: LightningModule, content: Mapping[str, Any]) -> None:
    try:
        model.configure_model()
        model.on_load_checkpoint(content)
        model.load_state_dict(content["state_dict"], strict=model.strict_loading)
    except (Exception, SystemExit) as error:
        raise UserCodeError(
            f"The checkpoint does not fit {type(model).__name__}: {error}",
            "Evaluate with the model settings that the checkpoint was trained with.",
            trace="".join(traceback.format_exception(error)),
        ) from error
