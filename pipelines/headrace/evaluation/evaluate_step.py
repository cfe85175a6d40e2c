"""The evaluate step: predictions on all workers, then metrics and a report on one of them.

The nodes of a gang pass shards on to each other, as in training. Beside a training the step
evaluates new checkpoints, the newest first.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.clusters.cancellable_call import check_wanted, node_name, wanted
from headrace.clusters.fleet import Fleet
from headrace.clusters.node_calls import NodeCalls
from headrace.errors import LeaseEndsError, RecipeError, WorkerLostError
from headrace.evaluation.evaluation_plan import (
    Inputs,
    NodeTask,
    ShardTask,
    evaluated_step,
    plan_evaluation,
    read_inputs,
    require,
    variants_of,
)
from headrace.files.atomic import is_there
from headrace.files.layout import RunFolder, StepFolder
from headrace.files.lines import append_line
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.processes.call_server import CallServer
from headrace.processes.children import Child
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.dataset import packed_split
from headrace.recipe.site import Role
from headrace.staging.peers import PeerGroup, groups_of
from headrace.staging.staged import staged
from headrace.staging.tier_choice import StagingOptions
from headrace.steps.context import StepContext, resolved
from headrace.steps.history import (
    EvaluatedRow,
    History,
    evaluated_file,
    read_evaluated,
    read_history,
)
from headrace.steps.model_process import model_environment, python_module, start_forked

logger = logging.getLogger(__name__)

_PREDICTOR = ContextVar("predictor", default=CallServer(start_forked))  # noqa: B039  one a node
"""The predictor of this node; it keeps model and data for the next shard."""

_NUM_TRIES = 3
_PATIENCE_S = 60.0
"""Longest wait for the nodes to serve; later nodes serve from then on."""

_LOOK_S = 0.2
_WATCH_S = 1.0

Evaluate = Callable[[int, str], dict[str, Any]]
"""Evaluates a variant of the recipe with a checkpoint, by its path; returns its outputs."""


def run(context: StepContext) -> dict[str, Any]:
    """Evaluate the input `checkpoint` on a split of the input `dataset`, and what goes with it.

    Returns:
        `metrics` by name, `num_samples`, and the paths `report` and `predictions`; `also` has the
        same of the other checkpoints and splits that the recipe names. A step that watches another
        run gives those of its newest checkpoint, and all their `steps`.

    Raises:
        RecipeError: A checkpoint is not there; the others are evaluated before.
        EvaluationError: The model misses `evaluate.min_metrics` or `max_metrics`; the report is
            written before.
        StepError: Samples were not counted exactly once, or an input is missing.
    """
    watched = context.spec.inputs.get("watched")
    if isinstance(watched, str):
        with Fleet.open(context.lease_folder) as fleet:
            return watch(context, RunFolder(Path(watched)), partial(_evaluate, context, fleet))
    planned = _planned(context)
    with Fleet.open(context.lease_folder) as fleet:
        return _judged(context, fleet, *planned)


def evaluate(context: StepContext, fleet: NodeCalls) -> dict[str, Any]:
    """Evaluate on the nodes of a lease; return and raise as `run`."""
    return _judged(context, fleet, *_planned(context))


@contextmanager
def _counted(context: StepContext, role: Role) -> Iterator[None]:
    """Add the time of the block to the attempt's usage, also after a failure."""
    began_s = time.monotonic()
    nodes = role.nodes if role.kind == "gang" else 1
    used = context.usage or AttemptUsage(nodes=nodes, cpus=float(nodes * role.cpus_per_node))
    try:
        yield
    finally:
        context.usage = used.model_copy(update={"evaluate_s": time.monotonic() - began_s})


@contextmanager
def own_predictor() -> Iterator[None]:
    """Let a process of its own do this thread's evaluations; it ends with the block."""
    predictor = CallServer(start_forked)
    token = _PREDICTOR.set(predictor)
    try:
        yield
    finally:
        _PREDICTOR.reset(token)
        predictor.end()


def _judged(
    context: StepContext, fleet: NodeCalls, inputs: dict[int, Inputs], missing: RecipeError | None
) -> dict[str, Any]:
    also: list[dict[str, Any]] = []
    with _counted(context, fleet.role):
        # the first one comes last: its report shows what the others gave
        for variant in sorted(inputs, reverse=True):
            also.insert(0, _evaluate(context, fleet, variant))
    if missing is not None:
        reports = ", ".join(each["report"] for each in also) or "none"
        raise RecipeError(missing.what, f"{missing.hint} Reports of the others: {reports}.")
    outputs = {**also.pop(0), **({"also": also} if also else {})}
    require(outputs["metrics"], inputs[0].spec, outputs["report"])
    return outputs


def _planned(context: StepContext) -> tuple[dict[int, Inputs], RecipeError | None]:
    """Return the inputs by variant, and the error of a variant without any, if there is one."""
    found: dict[int, Inputs] = {}
    missing = None
    for variant in range(len(variants_of(context))):
        try:
            found[variant] = read_inputs(context, variant)
        except RecipeError as error:
            missing = missing or error
    for each in found.values():
        plan_evaluation(context, each)
    return found, missing


def _evaluate(
    context: StepContext, fleet: NodeCalls, variant: int, checkpoint: str = ""
) -> dict[str, Any]:
    """Score a variant's split with its checkpoint, or another one, and write the report."""
    inputs = read_inputs(context, variant, checkpoint)
    env = model_environment(context.site.roles[context.recipe.train.role])
    with _serving(context, fleet, inputs.dataset, inputs.spec.split) as groups:
        job = NodeTask(
            step_folder=str(context.folder.path),
            env=env,
            groups=groups,
            variant=variant,
            checkpoint=checkpoint,
        )
        tasks = plan_evaluation(context, inputs, job.label)
        total = sum(task.num_samples for task in tasks)
        started = time.perf_counter()
        _predict(context, fleet, job, tasks)
        predict_s = time.perf_counter() - started
        context.progress(total, total, "samples", "writing the report")
        outputs: dict[str, Any]
        ((_, outputs),) = fleet.map(answer, [job], check=context.check)
    context.report(**outputs["metrics"], samples_per_s=total / predict_s)
    context.event("evaluated", **outputs)
    return outputs


def answer(job: NodeTask) -> Any:
    """Have this node's process of `headrace.evaluation.predict` do a job.

    It is forked from one that has imported PyTorch. One that dies is replaced, twice.
    """
    place = ProcessIdentity.of()
    child = Child(
        name="predictor",
        command=python_module("headrace.evaluation.predict"),
        log=StepFolder(Path(job.step_folder)).logs / f"predictor-{place.host}-{place.pid}.log",
        env=job.env,
    )
    if job.groups:
        job = replace(job, group=job.groups.get(node_name()))
    predictor = _PREDICTOR.get()
    for _ in range(_NUM_TRIES - 1):
        try:
            return predictor.call(child, job, wanted)
        except WorkerLostError as error:
            logger.warning("Trying again: %s", error)
    return predictor.call(child, job, wanted)


def _predict(
    context: StepContext, fleet: NodeCalls, job: NodeTask, tasks: Sequence[ShardTask]
) -> None:
    parts, kept = context.folder.parts, context.run_folder.predicted
    for each in kept.glob("*.pt"):  # of an attempt whose lease ended
        shutil.move(each, parts)
    jobs = [replace(job, task=task) for task in tasks if not (parts / task.part_name).exists()]
    total = sum(task.num_samples for task in tasks)
    done = total - sum(each.task.num_samples for each in jobs if each.task)
    context.progress(done, total, "samples", "predicting")
    try:
        results = fleet.map(answer, jobs, check=context.check, left_s=context.left_s)
        for _, (num_samples, why_again) in results:
            if why_again:
                context.restarted(why_again)
            done += num_samples
            context.progress(done, total, "samples", "predicting")
    except LeaseEndsError:
        kept.mkdir(exist_ok=True)
        for each in parts.glob("*.pt"):
            shutil.move(each, kept)
        raise


@contextmanager
def _serving(
    context: StepContext, fleet: NodeCalls, dataset: str, split: str
) -> Iterator[Mapping[str, PeerGroup]]:
    """Have the nodes of a gang serve what they hold of a split while the block runs.

    Yields the group as each node sees it, by its name; empty when nodes read by themselves: in a
    pool, with `stage.peers: never`, and where nodes share a host.
    """
    groups = _groups(context, fleet)
    if not groups:
        yield groups
        return
    nodes = fleet.nodes(len(groups), fleet.role.start_timeout, check=context.check)
    run_folder = str(context.run_folder.path)
    jobs = [(run_folder, dataset, split, group) for group in groups.values()]
    with fleet.beside(serve_node, jobs, nodes) as has_ended:
        _wait(tuple(groups.values()), has_ended, context.check)
        yield groups


def serve_node(run_folder: str, dataset: str, split: str, group: PeerGroup) -> None:
    """Stage the split on this node, and serve its shards until the evaluation ends."""
    recipe, site = resolved(RunFolder(Path(run_folder)))
    stage, splits = recipe.stage, (packed_split(split, recipe.data.fold),)
    options = StagingOptions(partial=stage.partial, s3=site.s3, group=group, serves_readers=True)
    with staged(dataset, site.tiers, splits, stage.verify, check_wanted, options):
        while wanted():
            time.sleep(_LOOK_S)


def _groups(context: StepContext, fleet: NodeCalls) -> dict[str, PeerGroup]:
    role, mode = fleet.role, context.recipe.stage.peers
    if role.kind != "gang" or role.nodes < 2 or mode == "never":
        return {}
    nodes = fleet.nodes(role.nodes, role.start_timeout, check=context.check)
    found = groups_of(context.folder.parts, [node.host for node in nodes], mode)
    return {node.name: group for node, group in zip(nodes, found, strict=True) if group}


def _wait(
    groups: tuple[PeerGroup, ...], has_ended: Callable[[int], bool], check: Callable[[], None]
) -> None:
    """Wait until each node has reported its shards, or has failed."""
    deadline = time.monotonic() + _PATIENCE_S
    for group in groups:
        while group.held_by(group.index) is None and not has_ended(group.index):
            check()
            if time.monotonic() > deadline:
                logger.warning("Node %d does not serve its shards yet", group.index)
                break
            time.sleep(_LOOK_S)


def watch(context: StepContext, watched: RunFolder, evaluate: Evaluate) -> dict[str, Any]:
    """Evaluate each checkpoint on the recipe's splits until no more come; gives the outputs.

    What this run has evaluated before an interruption is not evaluated again.
    """
    variants = variants_of(context)
    first = variants[0]
    splits = {n: one.split for n, one in enumerate(variants) if one.checkpoint == first.checkpoint}
    while True:
        is_over = is_there(context.run_folder.enough)  # before the last look
        rows = _evaluated(context, watched)
        done = {(row.step, row.split) for row in rows}
        left = {
            step: path
            for step, path in _checkpoints(watched).items()
            if any((step, split) not in done for split in splits.values())
        }
        context.progress(len({row.step for row in rows}), None, "checkpoints", "evaluated")
        if left:
            step = max(left)
            with _held(context, left[step]) as path:
                for place, split in splits.items():
                    if path is not None and (step, split) not in done:
                        _note(context, watched, step, evaluate(place, str(path)))
        elif is_over:
            return _outputs(rows, first.split)
        else:
            time.sleep(_WATCH_S)


def _evaluated(context: StepContext, watched: RunFolder) -> list[EvaluatedRow]:
    rows = read_evaluated(watched)
    return [row for row in rows if row.run_id == context.spec.run_id]


def _checkpoints(watched: RunFolder) -> dict[int, Path]:
    """Those that are there, by optimizer steps."""
    paths = sorted(watched.checkpoints.glob("*.ckpt"))
    has_ended = any(path.name == "final.ckpt" for path in paths)
    history = read_history(watched) if has_ended else History(())
    steps = ((evaluated_step(path, history), path) for path in paths)
    return {step: path for step, path in steps if step is not None}


@contextmanager
def _held(context: StepContext, path: Path) -> Iterator[Path | None]:
    """A checkpoint under another name, as training may remove its own; None when it has already."""
    folder = context.run_folder.checkpoints
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed
    folder.mkdir()
    held = folder / path.name
    try:
        if path.is_dir():
            shutil.copytree(path, held, copy_function=os.link)
        else:
            os.link(path, held)
    except (FileNotFoundError, shutil.Error):
        yield None
    except OSError as error:
        logger.info("%s is used where it lies: %s", path, error)
        yield path
    else:
        yield held
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _note(context: StepContext, watched: RunFolder, step: int, outputs: dict[str, Any]) -> None:
    metrics = outputs["metrics"].items()
    row = EvaluatedRow(
        at=time.time(),
        run_id=context.spec.run_id,
        step=step,
        split=outputs["split"],
        metrics={name: value for name, value in metrics if isinstance(value, float)},
        report=outputs["report"],
    )
    watched.history.mkdir(exist_ok=True)
    append_line(evaluated_file(watched), row.model_dump_json())


def _outputs(rows: list[EvaluatedRow], split: str) -> dict[str, Any]:
    mine = (row for row in rows if row.split == split)
    newest = max(mine, key=lambda row: row.step, default=None)
    return {
        "split": split,
        "metrics": newest.metrics if newest else {},
        "report": newest.report if newest else "",
        "steps": sorted({row.step for row in rows}),
    }
