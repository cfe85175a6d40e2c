"""What works on a node for the evaluate step: `python -m headrace.evaluation.predict`.

A trained model and its data, which are kept for the next shard.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningModule
from numpy.typing import NDArray

from headrace.data.checkpoint_content import read_checkpoint
from headrace.data.dataset import Reading, SampleReader, reading_of
from headrace.data.targets import Allowed, instantiate, instantiate_all
from headrace.data.transforms import Batch, Transform, apply
from headrace.errors import (
    HeadraceError,
    MemoryExhaustedError,
    RecipeError,
    ShardError,
    StepError,
    UserCodeError,
)
from headrace.evaluation.conclude import conclude, split_on_node
from headrace.evaluation.metrics import Predictions, write_predictions
from headrace.evaluation.plan import Job, ShardTask, read_inputs
from headrace.files.layout import RunFolder, StepFolder
from headrace.processes import begin_child
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.shards.dataset import ShardedDataset
from headrace.staging.cache import Soundness
from headrace.staging.peers import PeerGroup
from headrace.staging.staged_folder import StagedFolder
from headrace.steps.context import resolved
from headrace.steps.model_process import answer_calls
from headrace.steps.run import open_context

logger = logging.getLogger(__name__)

_NUM_TRIES = 3
_USING = ExitStack()
"""The staged copy that the predictor reads, which is not evicted meanwhile."""


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

    def predict(self, first: int, num_samples: int) -> Predictions:
        """Score consecutive samples of the split."""
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
    """Make model and transforms of a recipe and give the model its trained weights."""
    if recipe.model is None:
        raise RecipeError(f"Recipe '{recipe.name}' has no model to evaluate", "Set evaluate: null.")
    allowed = Allowed.of(recipe, site)
    torch.manual_seed(recipe.seed)
    model: LightningModule = instantiate(recipe.model, allowed, "model")
    _load_weights(model, read_checkpoint(checkpoint, pickled=site.pickled_checkpoints == "allow"))
    return model.eval(), instantiate_all(recipe.data.transforms, allowed, "data.transforms")


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


def score(job: Job, task: ShardTask) -> tuple[int, str]:
    """Score the samples of one shard and write the predictions, atomically.

    Model and data are loaded once and kept for the next shard. A staged shard that is no longer
    what was staged is staged anew, and scored again. Gives the number of samples, and why they were
    scored again, empty when they were not.
    """
    context = open_context(StepFolder(Path(job.step_folder)))
    inputs = read_inputs(context)
    checkpoint = inputs.checkpoint
    if not checkpoint.is_file():
        raise StepError(f"The checkpoint {checkpoint} is missing", "Run the train step again.")
    why, written_ns = "", checkpoint.stat().st_mtime_ns
    for _ in range(_NUM_TRIES):
        predictor, sound = _loaded(
            context.run_folder.path, inputs.dataset, checkpoint, written_ns, job.group
        )
        predictions = _scored(predictor, sound, task)
        if predictions is not None:
            write_predictions(context.folder.parts / task.part_name, predictions)
            return len(predictions.sample_id), why
        why = f"The staged {task.file} on {platform.node()} changed since it was verified"
        logger.warning(why)
        StagedFolder(predictor.dataset.folder, "").take_out([task.file])
        forget()
    raise ShardError(
        f"The staged shard {task.file} on {platform.node()} changes again and again",
        "Look at the node's memory and disk; resume the run on another one.",
    )


def forget() -> None:
    """Let go of model and data; the next call loads them anew."""
    _loaded.cache_clear()
    _USING.close()


def _scored(predictor: Predictor, sound: Soundness, task: ShardTask) -> Predictions | None:
    """Predictions of a shard, whose bytes are compared beside; None when they are wrong."""
    with ThreadPoolExecutor(1, "recheck") as pool:
        looking = pool.submit(sound.damaged, only=[task.file])
        try:
            predictions = predictor.predict(task.first, task.num_samples)
        except HeadraceError:  # such as of a model that was given damaged samples
            if not looking.result():
                raise
    if not looking.result() and not sound.changed([task.file]):
        return predictions
    return None


@lru_cache(maxsize=1)
def _loaded(
    run_folder: Path, dataset: str, checkpoint: Path, _: int, group: PeerGroup | None
) -> tuple[Predictor, Soundness]:
    recipe, site = resolved(RunFolder(run_folder))
    if recipe.evaluate is None:
        raise StepError(f"{run_folder} holds no recipe with 'evaluate'")
    torch.set_num_threads(site.roles[recipe.train.role].threads_per_rank)
    torch.use_deterministic_algorithms(recipe.trainer.deterministic, warn_only=True)
    _USING.close()
    split = _USING.enter_context(split_on_node(recipe, site, dataset, recipe.evaluate.split, group))
    sound = Soundness(split.folder, split.shards if recipe.stage.verify else ())
    model, transforms = load_model(recipe, site, checkpoint)
    device = choose_device(recipe.trainer.accelerator)
    logger.info("Evaluating %s on %s from %s", checkpoint, device, split.folder)
    predictor = Predictor(
        model=model.to(device),
        transforms=transforms,
        dataset=split,
        spec=recipe.evaluate,
        device=device,
        reading=reading_of(recipe.data, Allowed.of(recipe, site)),
    )
    return predictor, sound


def _answer(job: Job) -> object:
    return conclude(job) if job.task is None else score(job, job.task)


def main(_: list[str]) -> int:
    """Entry point."""
    begin_child()
    faulthandler.enable()
    answer_calls(_answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
