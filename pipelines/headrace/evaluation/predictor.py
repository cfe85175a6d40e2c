"""A trained model and its data on one node, ready to score samples."""

from __future__ import annotations

import math
import pickle
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from numpy.typing import NDArray

from headrace.data.checkpoint_content import refusing
from headrace.data.dataset import Reading, SampleReader
from headrace.data.samples import Batch
from headrace.data.targets import Allowed, instantiate, instantiate_all
from headrace.data.transforms import Transform, apply
from headrace.errors import (
    HeadraceError,
    MemoryExhaustedError,
    RecipeError,
    ShardError,
    StepError,
    UserCodeError,
)
from headrace.evaluation.metrics import Predictions
from headrace.recipe.dataset import packed_split
from headrace.recipe.recipe import EvaluateSpec, Recipe
from headrace.recipe.site import Site
from headrace.shards import format as names
from headrace.shards.dataset import ShardedDataset
from headrace.shards.places import DEFAULT_ROOM
from headrace.staging.gang_store import Traffic, node_source
from headrace.staging.peer_group import PeerGroup
from headrace.staging.soundness import Soundness, all_threads
from headrace.staging.staged import staged
from headrace.staging.staged_copy import StagingOptions
from headrace.staging.staged_folder import StagedFolder


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

        Raises:
            UserCodeError: A transform or the model raised, or gave scores of a wrong shape.
        """
        parts = [self._score(batch) for batch in self._batches(first, num_samples)]
        return Predictions.joined(parts)

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

    def _checked(self, scores: object, batch: Batch) -> NDArray[Any]:
        num_samples = len(batch["sample_id"])
        num_classes = len(self.dataset.manifest.classes)
        shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else ()
        if self.spec.task == "regression":
            wanted = f"({num_samples},)"
            fits = math.prod(shape) == num_samples
        else:
            wanted = f"({num_samples}, {num_classes or 'classes'})"
            fits = shape[:1] == (num_samples,) and len(shape) == 2 and num_classes in (0, shape[1])
        if not isinstance(scores, torch.Tensor) or not fits:
            got = shape if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise UserCodeError(
                f"predict_step gave {got}, the task {self.spec.task} needs a tensor {wanted}",
                "Return one score a class and sample, or set `evaluate.task`.",
            )
        shaped = scores.reshape(num_samples) if self.spec.task == "regression" else scores
        values: NDArray[Any] = shaped.detach().to("cpu", torch.float32).numpy()
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
    """Read a checkpoint of Lightning; with `pickled`, objects of any class, which may run any code.

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


@contextmanager
def split_on_node(
    recipe: Recipe, site: Site, dataset: str, split: str, group: PeerGroup | None
) -> Iterator[ShardedDataset]:
    """Put a split onto this node, where it stays while the block runs.

    Of a group of nodes each has staged its part (`serving`): this one takes from the others what
    it lacks, and they fetch for all what none holds. Without a group this call stages, and what
    there is no room for is read where the dataset lies.

    Raises:
        HeadraceError: It cannot be staged.
        ShardError: The block raised another error, and staged shards are damaged; the next stage
            brings them anew.
    """
    stage, fold = recipe.stage, recipe.data.fold
    nothing_more = None if group is None else frozenset[str]()
    options = StagingOptions(partial=stage.partial, s3=site.s3, only=nothing_more)
    splits = (packed_split(split, fold),)
    with staged(dataset, site.tiers, splits, stage.verify, options=options) as copy:
        source = node_source(dataset, site.s3, DEFAULT_ROOM, group, Traffic())
        held = ShardedDataset(copy.folder, split, source, fold)
        sound = Soundness(copy.folder, held.shards if stage.verify else ())
        try:
            yield held
        except HeadraceError as error:
            damaged = sound.damaged(all_threads())
            if not damaged:
                raise
            StagedFolder(copy.folder, copy.tier).take_out(damaged)
            raise ShardError(
                f"Staged shards in {copy.folder} changed since they were verified "
                f"({', '.join(damaged)}); {error.what}",
                "Resume the run: they are staged anew.",
            ) from error


def sample_ids(dataset: ShardedDataset) -> NDArray[np.int64]:
    """Ids of all samples in the order of the split, `(num_samples,) int64`.

    Takes one shard after the other, as not many are held at once of those that lie elsewhere.
    """
    ends = np.cumsum([shard.num_samples for shard in dataset.shards])
    return np.concatenate(
        [
            dataset.gather(names.SAMPLE_ID, np.arange(end - shard.num_samples, end))
            for shard, end in zip(dataset.shards, ends, strict=True)
        ]
    )
