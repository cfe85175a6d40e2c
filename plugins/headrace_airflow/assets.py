"""Packed datasets as Airflow assets: packing publishes them, training can be scheduled on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias

DATASETS = AssetAlias("headrace-datasets")
"""Outlet of packing tasks; the dataset's own asset is known only when the recipe is."""

SCHEDULE_VARIABLE = "HEADRACE_TRAIN_SCHEDULE"
"""Environment variable: name of the dataset whose publication starts `headrace_train`."""


def dataset_asset(name: str) -> Asset:
    """The asset of a packed dataset.

    Args:
        name: `dataset.name` of the recipe.
    """
    return Asset(name=f"headrace-dataset-{name}", uri=f"headrace://dataset/{name}")


def publish(context: Mapping[str, Any], name: str, outputs: Mapping[str, Any]) -> None:
    """Tell Airflow that a dataset was packed; one that was there already is not told again.

    Args:
        context: Context of the task, whose outlet is `DATASETS`.
        name: Name of the dataset.
        outputs: What the step gave.
    """
    if outputs.get("reused"):
        return
    kept = ("dataset", "fingerprint", "num_samples", "num_shards", "num_bytes")
    extra = {key: outputs[key] for key in kept if key in outputs}
    context["outlet_events"][DATASETS].add(dataset_asset(name), extra=extra)


def train_schedule() -> list[Asset] | None:
    """Schedule of `headrace_train`: the dataset named by the environment, or none."""
    name = os.environ.get(SCHEDULE_VARIABLE)
    return [dataset_asset(name)] if name else None
