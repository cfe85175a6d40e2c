"""The train step: from a dataset to a final checkpoint, whatever dies on the way."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headrace.checkpoints import files as checkpoints
from headrace.clusters.fleet import Fleet
from headrace.clusters.node_calls import NodeCalls
from headrace.errors import StepError
from headrace.files.atomic import read_record, write_record
from headrace.files.manifest import Manifest
from headrace.recipe.gang_size import gang_size
from headrace.steps.context import Skipped, StepContext, skipped_shards
from headrace.training.checkpoint_copies import CheckpointCopies
from headrace.training.data_on_node import manifest_of
from headrace.training.function import call_function
from headrace.training.gang import Gang
from headrace.training.launch_records import TrainingOutcome, TrainingProgress
from headrace.training.progress import Follower, spent
from headrace.training.training_plan import plan_training, training_fingerprint


def run(context: StepContext) -> dict[str, Any]:
    """Train the recipe's model on the dataset named by the input `dataset`, if it has one.

    A training that the run has completed before is collected, one that was interrupted goes on
    from its newest whole checkpoint.

    Returns:
        `checkpoint`, `epochs`, `steps`, `world_size`, `metrics`, `weights_xxh3`, `data_wait`, and
        how often all ranks were restarted and why, `restarts` and `restart_causes`; with
        `stage.overlap` and `stage.partial` also what nodes fetched from the source and from other
        nodes in the last launch, `streamed`; for damaged shards that were left out `skipped_shards`
        and `skipped_samples`. By a function of the recipe what `call_function` gives.

    Raises:
        UserError: Recipe, model or script is at fault.
        WorkerLostError: Ranks or workers died too often.
    """
    dataset = context.dataset
    if context.recipe.train.function is not None:
        with Fleet.open(context.lease_folder) as fleet:
            return call_function(context, fleet, dataset)
    manifest = manifest_of(dataset, context.site)
    done = completed(context, manifest)
    if done is not None:
        context.event("collected", checkpoint=done.checkpoint)
        return done.outputs(()) | _skipped_outputs(skipped_shards(context, dataset, manifest))
    with Fleet.open(context.lease_folder) as fleet:
        return train(context, fleet, dataset, manifest)


def train(
    context: StepContext, fleet: NodeCalls, dataset: str, manifest: Manifest
) -> dict[str, Any]:
    """Train on the nodes of a lease; returns and raises as `run`."""
    skipped = skipped_shards(context, dataset, manifest)
    follow, size = _follower(context, manifest.without(skipped.files))
    with CheckpointCopies(context) as copies:

        def look(progress: TrainingProgress | None) -> None:
            copies.look()
            follow.problem = copies.problem
            follow(progress)

        gang = Gang(context, fleet, size, dataset, look, skipped.files)
        began_at, began_s = time.time(), time.monotonic()
        try:
            causes = gang.run()
        finally:
            context.usage = spent(context, began_at, time.monotonic() - began_s)
        if context.recipe.train.is_script:
            _complete_script(context, manifest, size[0] * size[1], follow.last)
        elif gang.trained is not None:
            folder = context.run_folder.checkpoints
            write_record(folder / checkpoints.OUTCOME, gang.trained)
            checkpoints.prune(folder, context.recipe.trainer.keep_checkpoints)
            copies.finish()
    outcome = completed(context, manifest)
    if outcome is None:
        raise StepError(
            "All ranks ended well, but rank 0 left no outcome",
            f"See rank-0.log in {context.folder.logs}.",
        )
    streamed = {node: each.model_dump() for node, each in gang.streamed.items()}
    meanwhile = {"streamed": streamed, "problem": copies.problem or gang.problem}
    notable = {name: value for name, value in meanwhile.items() if value}
    return outcome.outputs(causes) | notable | _skipped_outputs(skipped)


def _skipped_outputs(skipped: Skipped) -> dict[str, Any]:
    if not skipped.shards:
        return {}
    return {"skipped_shards": sorted(skipped.files), "skipped_samples": skipped.num_samples}


def completed(context: StepContext, manifest: Manifest) -> TrainingOutcome | None:
    """Return the outcome of the same recipe on the same dataset, if the run has completed it.

    Its checkpoints are those of this folder, which may be a copy of another site's.
    """
    folder = context.run_folder.checkpoints
    outcome = read_record(folder / checkpoints.OUTCOME, TrainingOutcome)
    if outcome is None or outcome.fingerprint != training_fingerprint(context.recipe, manifest):
        return None
    named = {"checkpoint": outcome.checkpoint, "best_checkpoint": outcome.best_checkpoint}
    here = {key: str(folder / Path(file).name) for key, file in named.items() if file}
    gone = outcome.checkpoint and not Path(here["checkpoint"]).exists()
    return None if gone else outcome.model_copy(update=here)


def _follower(context: StepContext, manifest: Manifest) -> tuple[Follower, tuple[int, int]]:
    role = context.site.roles[context.recipe.train.role]
    num_nodes, ranks_per_node = gang_size(context.recipe, role)
    plan = None
    if context.recipe.reads_shards:
        plan = plan_training(context.recipe, role, manifest)
        context.event("plan", **vars(plan))
    return Follower(context, plan, num_nodes * ranks_per_node), (num_nodes, ranks_per_node)


def _complete_script(
    context: StepContext, manifest: Manifest, world_size: int, last: TrainingProgress
) -> None:
    folder = context.run_folder.checkpoints
    newest = next(iter(checkpoints.of_script(folder)), None)
    loss = {} if last.loss is None else {"loss": last.loss}
    outcome = TrainingOutcome(
        fingerprint=training_fingerprint(context.recipe, manifest),
        checkpoint=str(newest) if newest is not None else "",
        epochs=last.epoch + 1 if last.step else 0,
        steps=last.step if last.unit == "steps" else 0,
        world_size=world_size,
        metrics=loss | last.metrics,
        metrics_from=last.source if loss or last.metrics else "",
        data_wait=last.data_wait,
    )
    write_record(folder / checkpoints.OUTCOME, outcome)
