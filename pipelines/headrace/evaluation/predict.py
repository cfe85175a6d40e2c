"""What works on a node for the evaluate step: `python -m headrace.evaluation.predict`."""

from __future__ import annotations

import faulthandler
import logging
import sys
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import torch

from headrace.data.reading import reading_of
from headrace.data.targets import Allowed
from headrace.errors import StepError
from headrace.evaluation.conclude import conclude
from headrace.evaluation.job import ConcludeJob, PredictJob
from headrace.evaluation.merge import write_predictions
from headrace.evaluation.predictor import Predictor, choose_device, load_model
from headrace.evaluation.split import split_on_node
from headrace.processes import die_with_parent
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.steps.kept_process import answer_calls
from headrace.storage.atomic import read_record
from headrace.storage.layout import RunFolder
from headrace.storage.peer_group import PeerGroup

logger = logging.getLogger(__name__)

_USING = ExitStack()
"""The staged copy that the predictor reads, which is not evicted meanwhile."""


def score(job: PredictJob) -> int:
    """Score the samples of one shard and write the predictions, atomically.

    Model and data are loaded once and kept for the next shard.

    Returns:
        Number of samples.
    """
    checkpoint = Path(job.checkpoint)
    if not checkpoint.is_file():
        raise StepError(f"The checkpoint {checkpoint} is missing", "Run the train step again.")
    predictor = _predictor(
        job.run_folder, job.dataset, job.checkpoint, checkpoint.stat().st_mtime_ns, job.group
    )
    predictions = predictor.predict(job.task.first, job.task.num_samples)
    write_predictions(Path(job.part), predictions)
    return len(predictions.sample_id)


@lru_cache(maxsize=1)
def _predictor(
    run_folder: str, dataset: str, checkpoint: str, _: int, group: PeerGroup | None
) -> Predictor:
    run = RunFolder(Path(run_folder))
    recipe, site = read_record(run.recipe, Recipe), read_record(run.site, Site)
    if recipe is None or site is None or recipe.evaluate is None:
        raise StepError(f"{run.path} holds no recipe with 'evaluate' or no site")
    torch.set_num_threads(site.roles[recipe.train.role].threads_per_rank)
    torch.use_deterministic_algorithms(recipe.trainer.deterministic, warn_only=True)
    _USING.close()
    split = _USING.enter_context(split_on_node(recipe, site, dataset, recipe.evaluate.split, group))
    model, transforms = load_model(recipe, site, Path(checkpoint))
    device = choose_device(recipe.trainer.accelerator)
    logger.info("Evaluating %s on %s from %s", checkpoint, device, split.folder)
    return Predictor(
        model=model.to(device),
        transforms=transforms,
        dataset=split,
        spec=recipe.evaluate,
        device=device,
        reading=reading_of(recipe.data, Allowed.of(recipe, site)),
    )


def _answer(job: PredictJob | ConcludeJob) -> object:
    if isinstance(job, PredictJob):
        return score(job)
    return conclude(job)


def main(_: list[str]) -> int:
    """Entry point."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    die_with_parent()
    faulthandler.enable()
    answer_calls(_answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
