"""What works on a node for the evaluate step: `python -m headrace.evaluation.predict`."""

from __future__ import annotations

import faulthandler
import logging
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import torch

from headrace.data.dataset import reading_of
from headrace.data.targets import Allowed
from headrace.errors import HeadraceError, ShardError, StepError
from headrace.evaluation.conclude import conclude
from headrace.evaluation.job import ConcludeJob, PredictJob
from headrace.evaluation.metrics import Predictions, write_predictions
from headrace.evaluation.plan import ShardTask
from headrace.evaluation.predictor import (
    Predictor,
    choose_device,
    load_model,
    split_on_node,
)
from headrace.files.layout import RunFolder
from headrace.processes import begin_child
from headrace.staging.peer_group import PeerGroup
from headrace.staging.soundness import Soundness
from headrace.staging.staged_folder import StagedFolder
from headrace.steps.context import resolved
from headrace.steps.kept_process import answer_calls

logger = logging.getLogger(__name__)

_NUM_TRIES = 3
_USING = ExitStack()
"""The staged copy that the predictor reads, which is not evicted meanwhile."""


def score(job: PredictJob) -> tuple[int, str]:
    """Score the samples of one shard and write the predictions, atomically.

    Model and data are loaded once and kept for the next shard. A staged shard that is no longer
    what was staged is staged anew, and scored again.

    Returns:
        Number of samples; and why they were scored again, empty when they were not.

    Raises:
        StepError: The checkpoint is missing.
        ShardError: The shard changes each time that it was staged.
    """
    checkpoint = Path(job.checkpoint)
    if not checkpoint.is_file():
        raise StepError(f"The checkpoint {checkpoint} is missing", "Run the train step again.")
    why = ""
    for _ in range(_NUM_TRIES):
        predictor, sound = _loaded(
            job.run_folder, job.dataset, job.checkpoint, checkpoint.stat().st_mtime_ns, job.group
        )
        predictions = _scored(predictor, sound, job.task)
        if predictions is not None:
            write_predictions(Path(job.part), predictions)
            return len(predictions.sample_id), why
        why = f"The staged {job.task.file} on {platform.node()} changed since it was verified"
        logger.warning(why)
        StagedFolder(predictor.dataset.folder, "").take_out([job.task.file])
        forget()
    raise ShardError(
        f"The staged shard {job.task.file} on {platform.node()} changes again and again",
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
    run_folder: str, dataset: str, checkpoint: str, _: int, group: PeerGroup | None
) -> tuple[Predictor, Soundness]:
    recipe, site = resolved(RunFolder(Path(run_folder)))
    if recipe.evaluate is None:
        raise StepError(f"{run_folder} holds no recipe with 'evaluate'")
    torch.set_num_threads(site.roles[recipe.train.role].threads_per_rank)
    torch.use_deterministic_algorithms(recipe.trainer.deterministic, warn_only=True)
    _USING.close()
    split = _USING.enter_context(split_on_node(recipe, site, dataset, recipe.evaluate.split, group))
    sound = Soundness(split.folder, split.shards if recipe.stage.verify else ())
    model, transforms = load_model(recipe, site, Path(checkpoint))
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


def _answer(job: PredictJob | ConcludeJob) -> object:
    if isinstance(job, PredictJob):
        return score(job)
    return conclude(job)


def main(_: list[str]) -> int:
    """Entry point."""
    begin_child()
    faulthandler.enable()
    answer_calls(_answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
