"""The suite step: all trials of a recipe on the nodes of a lease, and a trial on its node.

A trial trains and evaluates in processes of its own. It runs in a thread of the node's Dask worker,
beside those of other trials; what the recipe names runs in children only, which get their part of
the node by their environment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from headrace.clusters.cancellable_call import wanted
from headrace.clusters.gpus import Gpu
from headrace.clusters.node_calls import NodeCalls, OneNode
from headrace.clusters.shared_calls import SharedCalls
from headrace.errors import HeadraceError, StepCancelledError, StepError, SuiteFailedError
from headrace.evaluation.evaluate_step import evaluate, own_predictor
from headrace.files.atomic import is_there, read_record, read_text, write_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.informing import inform
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.states import StepState
from headrace.steps.context import StepContext
from headrace.steps.mailbox import StepResult, StepSpec
from headrace.steps.node_facts import environment
from headrace.steps.run import refused, run_step
from headrace.suites.driver import AGAIN
from headrace.suites.event_log import Journal
from headrace.suites.lease_driver import LeaseDriver, Work
from headrace.suites.node_slots import SHARED_GPUS, capacity, gpus_at, part_of
from headrace.suites.points import AssignedTrials, PointSource, trial_recipe
from headrace.suites.records import PRUNED, TrialJob
from headrace.suites.suite_state import SuiteState
from headrace.training.data_on_node import manifest_of
from headrace.training.function import call_function
from headrace.training.train_step import completed, train

_FROM_TRAINING = ("checkpoint", "best_checkpoint")
_USELESS = {
    state.value for state in StepState if state.is_final and state is not StepState.SUCCEEDED
}


def run(context: StepContext) -> dict[str, Any]:
    """Run the trials of the recipe's suite on the dataset of the input `dataset`, if it has one.

    Trials that ended in an earlier attempt of this step are not run again.

    Returns:
        `total`, `counts` of trials by state, and `best` and `best_value` where one is best.

    Raises:
        RecipeError: The suite cannot be used.
        SuiteFailedError: All trials have failed, or so many that it does not go on.
        StepCancelledError: The step or all of its trials were cancelled.
        LeaseEndsError: The lease ends first; another one goes on with it.
    """
    work = Work(dataset=context.dataset, run_trial=run_trial, capacity=capacity)
    return run_suite(context, source_of(context), work)


def source_of(context: StepContext) -> PointSource:
    """Return the source of a suite's trials."""
    recipe = context.recipe
    if is_there(context.run_folder.part):
        return AssignedTrials(recipe)
    if recipe.suite is None or recipe.suite.search is None:
        return PointSource(recipe)
    from headrace.data.instantiate import Allowed
    from headrace.suites.search import Search

    allowed = Allowed.of(recipe, context.site)
    return Search(recipe, recipe.suite.search, allowed, context.run_folder)


def run_suite(context: StepContext, source: PointSource, work: Work) -> dict[str, Any]:
    """Run the trials of a source; return and raise as `run`."""
    with (
        SharedCalls.open(context.lease_folder) as calls,
        Journal(context.run_folder, owner_of(context)) as journal,
    ):
        driver = LeaseDriver(context, calls, journal, source, work)
        driver.run()
    return {} if isinstance(source, AssignedTrials) else outputs_of(driver.suite_state)


def owner_of(context: StepContext) -> str:
    """Return the name of a step as the writer of its suite's journal."""
    return f"{context.spec.key} in {context.lease_folder.lease_id}"


def outputs_of(suite_state: SuiteState) -> dict[str, Any]:
    """Return the outputs; raise if all were cancelled at once, none is left, or none succeeded."""
    counts = {state: count for state, count in suite_state.counts.items() if count}
    num_cancelled = counts.get(StepState.CANCELLED.value, 0)
    if num_cancelled and (suite_state.is_cancelled or len(counts) == 1):
        what = f"{num_cancelled} of {len(suite_state.rows)} trials were cancelled"
        raise StepCancelledError(what, AGAIN)
    if suite_state.rows and not counts.keys() - _USELESS:
        raise SuiteFailedError(
            f"All {suite_state.num_failed} trials have failed; {suite_state.commonest_failure}",
            f"See them all: headrace suite show. Correct the cause. {AGAIN}",
        )
    best = suite_state.shown_best
    found = {"best": best.trial.number, "best_value": best.objectives[0]} if best else {}
    return {"total": len(suite_state.rows), "counts": counts, **found}


def run_trial(job: TrialJob, fleet: NodeCalls | None = None) -> StepResult:
    """Run an attempt of a trial; its result is in its folder when this returns.

    An attempt with a result is not run again. A further attempt resumes from the checkpoints of
    earlier ones.

    Args:
        job: The attempt.
        fleet: The lease's nodes for a trial on several of them; None: this node.

    Returns:
        The result, also of a failure. Its outputs are `metrics` of training and evaluation, other
        outputs of these steps such as `checkpoint` and `report`, and `pruned` if a pruner ended it.
    """
    folder = RunFolder(Path(job.run_folder)).trial(job.trial.number).step(job.attempt)
    existing = read_record(folder.result, StepResult)
    if existing is not None:
        return existing
    with ExitStack() as stack:
        try:
            _prepare(job, folder, None if fleet is not None else stack)
        except HeadraceError as error:
            return refused(folder, error)
        return run_step(folder, partial(_run, job, fleet))


def _prepare(job: TrialJob, folder: StepFolder, holding: ExitStack | None) -> None:
    """Make the folders of the trial and of the attempt, with the trial's recipe and site.

    A trial on one node waits here for its part of the node, and holds it while `holding` is open;
    None for a trial on several nodes.
    """
    suite = RunFolder(Path(job.run_folder))
    trial = suite.trial(job.trial.number)
    for each in (trial.path, folder.logs, folder.parts):
        each.mkdir(parents=True, exist_ok=True)
    site = read_record(suite.site, Site)
    if site is None:
        raise StepError(f"{suite.path} holds no site.json")
    recipe = trial_recipe(json.loads(suite.source.read_bytes()), job.trial.values)
    if holding is not None:
        role = site.roles[recipe.train.role]
        gpus = holding.enter_context(_gpus(job, folder, role))
        site = _site_of(site, recipe, job, gpus)
    limits = (job.time_limit_s, recipe.train.timeout)
    spec = StepSpec(
        key=f"{suite.run_id}/{job.trial.number}/{job.attempt}",
        kind="trial",
        run_id=suite.run_id,
        name=f"trial {job.trial.name}",
        attempt=job.attempt,
        run_folder=str(trial.path),
        lease_folder=job.lease_folder,
        inputs={"dataset": job.dataset},
        timeout_s=min((each for each in limits if each is not None), default=None),
    )
    write_record(folder.spec, spec)
    write_record(trial.recipe, recipe)
    write_record(trial.site, site)


def _gpus(job: TrialJob, folder: StepFolder, role: Role) -> AbstractContextManager[tuple[Gpu, ...]]:
    """Hold the GPUs of a trial; on machines without a queue it waits for them."""
    node = capacity()
    if not role.shares_machines:
        return nullcontext(gpus_at(node, job.gpus))
    run_id = RunFolder(Path(job.run_folder)).run_id

    def keep_on() -> bool:
        return wanted() and not is_there(folder.cancel)

    return SHARED_GPUS.gpus(node, job.gpus, run_id, folder, keep_on)


def _site_of(site: Site, recipe: Recipe, job: TrialJob, gpus: Sequence[Gpu]) -> Site:
    """Return the site for a trial on one node: a node of the size of the trial's part.

    A trial has one rank unless its recipe sets more: the role's number is for a whole node.
    """
    role = site.roles[recipe.train.role]
    num_ranks = recipe.train.ranks_per_node or 1
    threads = max(len(job.cpus) // num_ranks, 1) if job.cpus else role.threads_per_rank
    part = {
        "nodes": 1,
        "ranks_per_node": 1,
        "threads_per_rank": threads,
        "launcher": None,
        "launcher_options": (),
        "env": {**role.env, **part_of(capacity(), gpus, job.cpus)},
    }
    roles = {**site.roles, recipe.train.role: role.model_copy(update=part)}
    return site.model_copy(update={"roles": roles})


def _run(job: TrialJob, fleet: NodeCalls | None, context: StepContext) -> dict[str, Any]:
    fleet = fleet or OneNode(context.site.roles[context.recipe.train.role])
    asked = partial(_environment, job, fleet)
    found = {"environment": inform(context.run_folder, "environment", asked, str) or ""}
    try:
        return {**_trained_and_judged(context, fleet, job.dataset), **found}
    except StepCancelledError:
        if not (read_text(context.folder.cancel) or "").startswith(PRUNED):
            raise
        return {"metrics": _numbers(context.metrics), "pruned": True, **found}
    finally:
        _share_energy(context, job.share)


def _environment(job: TrialJob, fleet: NodeCalls) -> str:
    """Return hardware, software and threads that the numbers of a trial may depend on."""
    role = fleet.role
    found = fleet.call(
        fleet.nodes(1, role.start_timeout)[0], environment, "gpu" if job.gpus else "cpu"
    )
    return f"{found}; {role.threads_per_rank} threads"


def _trained(context: StepContext, fleet: NodeCalls, dataset: str) -> dict[str, Any]:
    if context.recipe.train.function is not None:
        return call_function(context, fleet, dataset)
    manifest = manifest_of(dataset, context.site)
    done = completed(context, manifest)
    return train(context, fleet, dataset, manifest) if done is None else done.outputs(())


def _trained_and_judged(context: StepContext, fleet: NodeCalls, dataset: str) -> dict[str, Any]:
    outputs = _trained(context, fleet, dataset)
    metrics = _numbers(outputs["metrics"])
    if context.recipe.evaluate is not None:
        given = {name: outputs[name] for name in _FROM_TRAINING}
        inputs = {**context.spec.inputs, **given}
        context.spec = context.spec.model_copy(update={"inputs": inputs})
        write_record(context.folder.spec, context.spec)  # the predictor reads it
        with own_predictor():
            judged = evaluate(context, fleet)
        metrics |= _numbers(judged["metrics"])
        outputs = {**outputs, **judged}
    return {**outputs, "metrics": metrics}


def _share_energy(context: StepContext, share: float) -> None:
    """Scale the energy of shared GPUs to the attempt's share."""
    used = context.usage
    if used is not None and used.energy_wh is not None:
        context.usage = used.model_copy(update={"energy_wh": used.energy_wh * share})


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers, which can be compared."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
