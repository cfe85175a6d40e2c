"""The evaluate step: predictions on all workers, then metrics and a report on one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.evaluation.inputs import Inputs, plan_evaluation, read_inputs
from headrace.evaluation.job import (
    ConcludeJob,
    PredictJob,
    PredictorSpec,
    conclude_split,
    predict_shard,
)
from headrace.evaluation.plan import EvaluationPlan
from headrace.evaluation.serving import serving
from headrace.evaluation.shortfalls import require
from headrace.leases.fleet import Fleet
from headrace.staging.peer_group import PeerGroup
from headrace.steps.context import StepContext
from headrace.steps.model_process import model_environment


def run(context: StepContext) -> dict[str, Any]:
    """Evaluate the input `checkpoint` on a split of the input `dataset`.

    Returns:
        `metrics` by name, `num_samples`, and the paths `report` and `predictions`.

    Raises:
        EvaluationError: The model misses `evaluate.min_metrics`; the report is written before.
        StepError: Samples were not counted exactly once, or an input is missing.
    """
    inputs = read_inputs(context)
    planned = plan_evaluation(context, inputs)
    total = planned.num_samples
    with (
        Fleet.open(context.lease_folder) as fleet,
        serving(context, fleet, inputs.dataset, planned.split) as groups,
    ):
        predictor = _predictor(context, groups)
        started = time.perf_counter()
        _predict(context, fleet, predictor, inputs, planned)
        predict_s = time.perf_counter() - started
        context.progress(total, total, "samples", "writing the report")
        job = ConcludeJob(step_folder=str(context.folder.path))
        ((_, outputs),) = fleet.map(conclude_split, [(predictor, job)], check=context.check)
    context.report(**outputs["metrics"], samples_per_s=total / predict_s)
    context.event("evaluated", **outputs)
    require(outputs["metrics"], inputs.spec.min_metrics, outputs["report"])
    return outputs


def _predictor(context: StepContext, groups: Mapping[str, PeerGroup]) -> PredictorSpec:
    role = context.site.roles[context.recipe.train.role]
    env = model_environment(role)
    return PredictorSpec(
        logs=str(context.folder.logs), env=tuple(sorted(env.items())), groups=groups
    )


def _predict(
    context: StepContext,
    fleet: Fleet,
    predictor: PredictorSpec,
    inputs: Inputs,
    planned: EvaluationPlan,
) -> None:
    jobs = [
        PredictJob(
            run_folder=str(context.run_folder.path),
            dataset=inputs.dataset,
            checkpoint=str(inputs.checkpoint),
            task=task,
            part=str(context.folder.parts / task.part_name),
        )
        for task in planned.tasks
    ]
    asked = [(predictor, job) for job in jobs]
    done, total = 0, planned.num_samples
    context.progress(done, total, "samples", "predicting")
    for _, (num_samples, why_again) in fleet.map(predict_shard, asked, check=context.check):
        if why_again:
            context.restarted(why_again)
        done += num_samples
        context.progress(done, total, "samples", "predicting")
