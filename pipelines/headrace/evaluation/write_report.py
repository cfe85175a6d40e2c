"""Conclusion of an evaluation after the predictions: metrics and report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.data.instantiate import Allowed
from headrace.errors import HeadraceError, ShardError
from headrace.evaluation.batch_outputs import logged_metrics
from headrace.evaluation.evaluation_plan import (
    NodeTask,
    evaluated_step,
    plan_evaluation,
    read_inputs,
    report_folder,
    shortfalls,
    trained_in,
    variants_of,
)
from headrace.evaluation.merge import (
    FILE_NAME,
    ScoredSamples,
    merge,
    read_part,
    results_of,
    write_results,
)
from headrace.evaluation.model_origin import changes_tables, provenance_table
from headrace.evaluation.own_results import make_metrics, own_figures, own_values
from headrace.evaluation.predictor import make_model
from headrace.evaluation.results import Judgement, judge
from headrace.evaluation.training_figures import training_figures
from headrace.files.atomic import write_json, write_text
from headrace.files.layout import StepFolder
from headrace.informing import AFTERWARDS_S, inform
from headrace.loggers import log_evaluation
from headrace.objects.store import is_remote
from headrace.recipe.dataset import packed_split
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.report.html import Card, Report, Table, columns, render
from headrace.shards import format as names
from headrace.shards.dataset import ShardedDataset
from headrace.shards.shard_locations import DEFAULT_ROOM
from headrace.staging.cache import Soundness, all_threads
from headrace.staging.gang_store import Traffic, node_source
from headrace.staging.peers import PeerGroup
from headrace.staging.staged import staged
from headrace.staging.staged_folder import StagedFolder
from headrace.staging.tier_choice import StagingOptions
from headrace.steps.context import StepContext
from headrace.steps.history import read_history, read_ranks, read_usage
from headrace.steps.run import open_context

METRICS, REPORT = "metrics.json", "report.html"
_SHOWN = 5
"""Metrics of other checkpoints and splits in the report."""


def conclude(job: NodeTask, training: Callable[[], dict[str, bytes]]) -> dict[str, Any]:
    """Merge the predictions, compute metrics, write the report; return the outputs of the step.

    `training` waits for the figures of `draw_training`.
    """
    context = open_context(StepFolder(Path(job.step_folder)))
    inputs = read_inputs(context, job.variant, job.checkpoint)
    tasks = plan_evaluation(context, inputs, job.label)
    folder = report_folder(context, inputs.spec, is_first=not job.label)
    parts = [read_part(context.folder.parts / task.part_name) for task in tasks]
    trained = trained_in(context, inputs.checkpoint)
    history = read_history(trained)
    with _opened(context, inputs.dataset, inputs.spec.split, job.group) as dataset:
        ids, fingerprint = sample_ids(dataset), dataset.manifest.fingerprint
        whole = merge(parts, ids)
        results = results_of(whole, _sources(dataset, ids), inputs.spec.split)
        write_results(folder / FILE_NAME, results)
        found = Judgement()
        if inputs.spec.task != "custom":
            found = judge(whole.predictions, dataset, ids, inputs.spec)
        own = _own_metrics(context, inputs.spec, parts, dataset.manifest.classes)
        drawn = own_figures(inputs.spec, Allowed.of(context.recipe, context.site), results)
        others = () if job.label else _others(context)
        judgement = Judgement(
            metrics={**found.metrics, **own.metrics},
            figures={**found.figures, **drawn.figures},
            tables=(
                *others,
                *own.tables,
                *found.tables,
                *changes_tables(context),
                provenance_table(context, inputs, fingerprint, len(ids), history),
            ),
            pages=drawn.pages,
        )
        made = _report(context, inputs.spec, len(ids), judgement, dataset.manifest.name, training())
    metrics = judgement.metrics
    write_json(folder / METRICS, {"metrics": metrics, "num_samples": len(ids)})
    write_text(folder / REPORT, render(made))
    step = evaluated_step(inputs.checkpoint, history)
    sent = {f"{inputs.spec.split}/{name}": value for name, value in metrics.items()}
    log = partial(log_evaluation, context, trained, fingerprint, sent, step)
    inform(context.run_folder, "loggers", log, within_s=AFTERWARDS_S)
    return {
        "split": inputs.spec.split,
        "evaluated": str(inputs.checkpoint),
        "metrics": metrics,
        "num_samples": len(ids),
        "report": str(folder / REPORT),
        "predictions": str(folder / FILE_NAME),
    }


def _others(context: StepContext) -> tuple[Table, ...]:
    """Return a table with a row for each other checkpoint and split."""
    variants = variants_of(context)[1:]
    if not variants:
        return ()
    files = [report_folder(context, each, is_first=False) / METRICS for each in variants]
    found = [json.loads(file.read_bytes()) if file.exists() else None for file in files]
    names = list(dict.fromkeys(name for each in found if each for name in each["metrics"]))[:_SHOWN]
    rows = []
    for each, result in zip(variants, found, strict=True):
        values = [result["metrics"].get(name) for name in names] if result else ()
        shown = ["undefined" if value is None else f"{value:.4f}" for value in values]
        made = [str(result["num_samples"]), *shown] if result else [""] * (1 + len(names))
        place = f"{each.label}/{REPORT}" if result else "none: the checkpoint is missing"
        rows.append((each.split, str(each.checkpoint), *made, place))
    numbers = columns("Samples", *names, kind="number")
    heads = (*columns("Split", "Checkpoint"), *numbers, *columns("Report"))
    return (Table(title="Other checkpoints and splits", columns=heads, rows=rows),)


def _opened(
    context: StepContext, dataset: str, split: str, group: PeerGroup | None
) -> AbstractContextManager[ShardedDataset]:
    """Return the split in its place, since little of it is read; if remote, the nodes' copy."""
    recipe = context.recipe
    if is_remote(dataset):
        return split_on_node(recipe, context.site, dataset, split, group)
    return nullcontext(ShardedDataset(Path(dataset), split, fold=recipe.data.fold))


def _own_metrics(
    context: StepContext, spec: EvaluateSpec, parts: Sequence[ScoredSamples], classes: Sequence[str]
) -> Judgement:
    """Return the values of the recipe's metrics, and of those that the model has logged."""
    allowed = Allowed.of(context.recipe, context.site)
    metrics = make_metrics(spec, allowed)
    keys = {key for part in parts for key in part.states} - metrics.keys()
    if keys:
        metrics |= logged_metrics(keys, make_model(context.recipe, allowed))
    return own_values(metrics, [part.states for part in parts], classes)


def _report(
    context: StepContext,
    spec: EvaluateSpec,
    num_samples: int,
    judgement: Judgement,
    dataset: str,
    training: dict[str, bytes],
) -> Report:
    return Report(
        title=f"Evaluation of {context.recipe.name}",
        lead=f"{num_samples:,} samples of {_what(spec.split, context)} of dataset "
        f"'{dataset}', each counted once. Run {context.spec.run_id}.",
        cards=cards(judgement.metrics, spec),
        figures=judgement.figures,
        pages=judgement.pages,
        training=training,
        tables=judgement.tables,
        failures=shortfalls(judgement.metrics, spec),
    )


def draw_training(step_folder: str, variant: int, checkpoint: str) -> dict[str, bytes]:
    """Return the figures of the evaluated model's training, by title."""
    context = open_context(StepFolder(Path(step_folder)))
    inputs = read_inputs(context, variant, checkpoint)
    run = trained_in(context, inputs.checkpoint)
    history = read_history(run)
    evaluated = evaluated_step(inputs.checkpoint, history)
    return training_figures(history, read_usage(run), evaluated, read_ranks(run))


def _what(split: str, context: StepContext) -> str:
    packed = packed_split(split, context.recipe.data.fold)
    if packed == split:
        return f"split '{split}'"
    return f"fold {context.recipe.data.fold} of split '{packed}'"


@contextmanager
def split_on_node(
    recipe: Recipe, site: Site, dataset: str, split: str, group: PeerGroup | None
) -> Iterator[ShardedDataset]:
    """Hold a split on this node while the block runs.

    In a group each node has staged its part (`serving`): this node takes missing shards from the
    others, which fetch those that no node has. Without a group this call stages, and shards without
    room are read from the dataset.

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
    """Return the ids of all samples in the order of the split, `(num_samples,) int64`.

    Reads one shard after the other, because only few remote shards are held at once.
    """
    return np.concatenate(
        [dataset.gather(names.SAMPLE_ID, places) for places in _by_shard(dataset)]
    )


def _sources(dataset: ShardedDataset, ids: NDArray[np.int64]) -> list[str]:
    """Return the sources of the samples, in the order of their ids."""
    found = [source for places in _by_shard(dataset) for source in dataset.sources(places)]
    return [found[place] for place in np.argsort(ids, kind="stable").tolist()]


def _by_shard(dataset: ShardedDataset) -> Iterator[NDArray[np.int64]]:
    first = 0
    for shard in dataset.shards:
        yield np.arange(first, first + shard.num_samples)
        first += shard.num_samples


_TITLES = {"f1": "F1", "auroc": "AUROC", "mae": "MAE", "rmse": "RMSE", "r2": "R²"}

_NOTES = {
    "precision": "mean of the classes",
    "recall": "mean of the classes",
    "f1": "mean of the classes",
    "auroc": "one against the rest, mean",
    "calibration_error": "lower is better",
    "mae": "lower is better",
    "rmse": "lower is better",
}


def cards(metrics: Mapping[str, float], spec: EvaluateSpec) -> tuple[Card, ...]:
    """Return the metrics as cards of the report."""
    return tuple(
        Card(
            name=name
            if name in spec.metrics or "." in name
            else _TITLES.get(name, name.capitalize().replace("_", " ")),
            value=f"{value:.4f}",
            note=_asked_for(name, spec) or _note(name, spec),
            is_bad=value < spec.min_metrics.get(name, -np.inf)
            or value > spec.max_metrics.get(name, np.inf),
        )
        for name, value in metrics.items()
    )


def _note(name: str, spec: EvaluateSpec) -> str:
    note = "" if name in spec.metrics else _NOTES.get(name, "")
    return "of the second class" if note and "mean" in note and spec.task == "binary" else note


def _asked_for(name: str, spec: EvaluateSpec) -> str:
    bounds = (("at least", spec.min_metrics), ("at most", spec.max_metrics))
    known = [f"{word} {bound[name]:g}" for word, bound in bounds if name in bound]
    return f"bound: {', '.join(known)}" if known else ""
