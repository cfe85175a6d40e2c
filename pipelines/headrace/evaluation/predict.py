"""Process on a node for the evaluate step: `python -m headrace.evaluation.predict`.

It keeps a trained model and its data for the next shard.
"""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import torch

from headrace.data.dataset import reading_of
from headrace.data.device_decode import DeviceDecoder, note_change
from headrace.data.instantiate import Allowed
from headrace.errors import HeadraceError, ShardError, StepError
from headrace.evaluation.evaluation_plan import NodeTask, ShardTask, read_inputs
from headrace.evaluation.merge import ScoredSamples, write_part
from headrace.evaluation.own_results import make_metrics
from headrace.evaluation.predictor import Predictor, choose_device, load_model
from headrace.evaluation.write_report import conclude, draw_training, split_on_node
from headrace.files.layout import RunFolder, StepFolder
from headrace.processes.call_server import answer_calls
from headrace.processes.identity import begin_child, die_with_parent
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.shards.dataset import ShardedDataset
from headrace.staging.cache import Soundness
from headrace.staging.peers import PeerGroup
from headrace.staging.staged_folder import StagedFolder
from headrace.steps.context import append_event, resolved
from headrace.steps.run import open_context

logger = logging.getLogger(__name__)

_NUM_TRIES = 3
_USING = ExitStack()
"""The staged copy that the predictor reads; it is not evicted while in use."""


def score(job: NodeTask, task: ShardTask) -> tuple[int, str]:
    """Score the samples of a shard and write the results, atomically.

    Model and data are loaded once and kept for the next shard. A staged shard that has changed is
    staged and scored again. Returns the number of samples, and why they were scored again, or ''.
    """
    context = open_context(StepFolder(Path(job.step_folder)))
    inputs = read_inputs(context, job.variant, job.checkpoint)
    checkpoint = inputs.checkpoint
    if not checkpoint.exists():
        raise StepError(f"The checkpoint {checkpoint} is missing", "Run the train step again.")
    why, written_ns = "", checkpoint.stat().st_mtime_ns
    for _ in range(_NUM_TRIES):
        predictor, sound = _loaded(
            context.run_folder.path, inputs.dataset, checkpoint, written_ns, job.variant, job.group
        )
        if predictor.notes:
            append_event(context.folder.events, "notes", **predictor.notes)
            predictor.notes.clear()
        part = _scored(predictor, sound, task)
        if part is not None:
            write_part(context.folder.parts / task.part_name, part)
            return len(part.sample_id), why
        why = f"The staged {task.file} on {platform.node()} changed since it was verified"
        logger.warning(why)
        StagedFolder(predictor.dataset.folder, "").take_out([task.file])
        forget()
    raise ShardError(
        f"The staged shard {task.file} on {platform.node()} changes again and again",
        "Look at the node's memory and disk; resume the run on another one.",
    )


def forget() -> None:
    """Release model and data; the next call loads them again."""
    _loaded.cache_clear()
    _USING.close()


def _scored(predictor: Predictor, sound: Soundness, task: ShardTask) -> ScoredSamples | None:
    """Return the results of a shard, whose bytes are verified meanwhile; None if they are wrong."""
    with ThreadPoolExecutor(1, "recheck") as pool:
        looking = pool.submit(sound.damaged, only=[task.file])
        try:
            part = predictor.predict(task.first, task.num_samples)
        except HeadraceError:  # such as of a model that was given damaged samples
            if not looking.result():
                raise
    if not looking.result() and not sound.changed([task.file]):
        return part
    return None


@lru_cache(maxsize=1)
def _loaded(
    run_folder: Path, dataset: str, checkpoint: Path, _: int, variant: int, group: PeerGroup | None
) -> tuple[Predictor, Soundness]:
    recipe, site = resolved(RunFolder(run_folder))
    if recipe.evaluate is None:
        raise StepError(f"{run_folder} holds no recipe with 'evaluate'")
    spec = recipe.evaluate.variants[variant]
    _USING.close()
    split = _USING.enter_context(split_on_node(recipe, site, dataset, spec.split, group))
    sound = Soundness(split.folder, split.shards if recipe.stage.verify else ())
    return predictor_of(recipe, site, checkpoint, split, spec), sound


def predictor_of(
    recipe: Recipe, site: Site, checkpoint: Path, split: ShardedDataset, spec: EvaluateSpec
) -> Predictor:
    """Return the model of a checkpoint with the samples of a split, to be scored as `spec` says."""
    torch.set_num_threads(site.roles[recipe.train.role].threads_per_rank)
    torch.use_deterministic_algorithms(recipe.trainer.deterministic, warn_only=True)
    model, transforms, state = load_model(recipe, site, checkpoint)
    allowed = Allowed.of(recipe, site)
    device = choose_device(recipe.trainer.accelerator)
    logger.info("Evaluating %s on %s from %s", checkpoint, device, split.folder)
    reading, notes = reading_of(recipe.data, allowed), dict[str, str]()
    if isinstance(reading.decoder, DeviceDecoder):
        reading.decoder.open(device, notes)
    note_change(notes, state)
    return Predictor(
        model=model.to(device),
        transforms=transforms,
        dataset=split,
        spec=spec,
        device=device,
        reading=reading,
        notes=notes,
        form=recipe.data.batch,
        metrics=make_metrics(spec, allowed),
    )


@lru_cache(maxsize=1)
def _drawn(step_folder: str, variant: int, checkpoint: str) -> Callable[[], dict[str, bytes]]:
    """Start to draw the training's figures in a fork; return a function that waits for them."""
    beside = ProcessPoolExecutor(1, get_context("fork"), die_with_parent)
    drawn = beside.submit(draw_training, step_folder, variant, checkpoint)
    beside.shutdown(wait=False)

    def figures() -> dict[str, bytes]:
        try:
            return drawn.result()
        except BrokenProcessPool:  # the fork was killed, for memory perhaps
            return draw_training(step_folder, variant, checkpoint)

    return figures


def _answer(job: NodeTask) -> object:
    task = job.task
    if task is not None and task.first:
        return score(job, task)
    # before the model is loaded, on the node that will most likely write the report
    training = _drawn(job.step_folder, job.variant, job.checkpoint)
    return conclude(job, training) if task is None else score(job, task)


def main(_: list[str]) -> int:
    """Entry point."""
    begin_child()
    answer_calls(_answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
