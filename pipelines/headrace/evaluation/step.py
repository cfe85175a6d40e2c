"""The evaluate step: predictions on all workers, then metrics and a report.

The libraries for metrics and figures take seconds to load; the driver loads them while the workers
predict.
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

from headrace.evaluation.inputs import Inputs, read_inputs
from headrace.evaluation.job import PredictJob, predict_shard
from headrace.evaluation.plan import EvaluationPlan, plan
from headrace.leases.fleet import Fleet
from headrace.steps.context import StepContext
from headrace.storage.packed import read_manifest_at

_CONCLUSION = "headrace.evaluation.conclude"


def run(context: StepContext) -> dict[str, Any]:
    """Evaluate the input `checkpoint` on a split of the input `dataset`.

    Returns:
        `metrics` by name, `num_samples`, and the paths `report` and `predictions`.

    Raises:
        EvaluationError: The model misses `evaluate.min_metrics`; the report is written before.
        StepError: Samples were not counted exactly once, or an input is missing.
    """
    inputs = read_inputs(context)
    manifest = read_manifest_at(inputs.dataset, context.site.s3)
    planned = plan(manifest.with_fold(context.recipe.data.fold), inputs.spec)
    loading = threading.Thread(target=importlib.import_module, args=(_CONCLUSION,), daemon=True)
    loading.start()
    started = time.perf_counter()
    _predict(context, inputs, planned)
    predict_s = time.perf_counter() - started
    total = planned.num_samples
    context.progress(total, total, "samples", "writing the report")
    loading.join()
    conclusion = importlib.import_module(_CONCLUSION)
    outputs: dict[str, Any] = conclusion.conclude(context, inputs, planned, predict_s)
    return outputs


def _predict(context: StepContext, inputs: Inputs, planned: EvaluationPlan) -> None:
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
    done, total = 0, planned.num_samples
    context.progress(done, total, "samples", "predicting")
    with Fleet.open(context.lease_folder) as fleet:
        for _, num_samples in fleet.map(predict_shard, jobs, check=context.check):
            done += num_samples
            context.progress(done, total, "samples", "predicting")
