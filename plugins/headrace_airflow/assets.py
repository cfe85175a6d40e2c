"""Assets: published by packing and training, with figures; DAGs can be scheduled on them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias

from headrace.runs.planned_steps import run_metrics
from headrace_airflow.airflow_api import published_extras

SCHEDULE_VARIABLE = "HEADRACE_TRAIN_SCHEDULE"
"""Environment variable: name of the dataset whose publication starts `headrace_train`."""

DATASETS = AssetAlias("headrace-datasets")
"""Outlet of packing tasks; the dataset's own asset is known only when the recipe is."""

MODELS = AssetAlias("headrace-models")
"""Outlet of the task that ends a training run; the model's asset is named after the recipe."""

_OF_DATASET = (
    "dataset", "fingerprint", "num_samples", "num_shards", "num_bytes", "num_quarantined",
)  # fmt: skip
_OF_MODEL = ("checkpoint", "best_checkpoint", "steps")

Outputs = Mapping[str, Any]


def dataset_asset(name: str) -> Asset:
    """Return the asset of a packed dataset, by `dataset.name` of the recipe."""
    return Asset(name=f"headrace-dataset-{name}", uri=f"headrace://dataset/{name}")


def model_asset(name: str) -> Asset:
    """Return the asset of trained models, by the name of the recipe."""
    return Asset(name=f"headrace-model-{name}", uri=f"headrace://model/{name}")


def publish_dataset(context: Mapping[str, Any], run_id: str, name: str, outputs: Outputs) -> None:
    """Publish to Airflow what a packing task, with the outlet `DATASETS`, packed or found.

    A found dataset is published only if no event has it yet, for example after it was packed from a
    terminal: DAGs that are scheduled on a dataset run once for each version of it.
    """
    asset = dataset_asset(name)
    extra = {"run": run_id} | {key: outputs[key] for key in _OF_DATASET if key in outputs}
    if outputs.get("reused"):
        known = {event.get("fingerprint") for event in published_extras(asset)}
        if outputs.get("fingerprint") in known:
            return
    context["outlet_events"][DATASETS].add(asset, extra=extra)


def publish_model(
    context: Mapping[str, Any], run_id: str, name: str, outputs: Mapping[str, Outputs]
) -> None:
    """Publish to Airflow what a run, whose last task has the outlet `MODELS`, has trained.

    Metrics of the evaluation replace metrics of the training with the same name.
    """
    train, metrics = outputs["train"], run_metrics(outputs)
    extra = {
        "run": run_id,
        "dataset": outputs.get("pack", {}).get("fingerprint"),
        **{key: train[key] for key in _OF_MODEL if train.get(key) is not None},
        "metrics": {key: value for key, value in metrics.items() if math.isfinite(value)},
    }
    context["outlet_events"][MODELS].add(model_asset(name), extra=extra)


def train_schedule() -> list[Asset] | None:
    """Return the schedule of `headrace_train`: the dataset in the environment, or none."""
    name = os.environ.get(SCHEDULE_VARIABLE)
    return [dataset_asset(name)] if name else None
