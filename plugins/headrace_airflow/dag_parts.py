"""What the DAG files are made of: parameters and their checks, defaults of tasks, assets.

Whoever may trigger a DAG must not be able to read files or the environment of the host: recipes and
sites are named, never given by path, and overrides are plain values without interpolation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, Param

from headrace.errors import RecipeError, SiteError, UserError, nearest
from headrace.recipe.load import available
from headrace.recipe.overrides import check_from_outside
from headrace.recipe.suite import MAX_TRIALS
from headrace.suites import sweep_words

TAGS = ["headrace"]

POOL_VARIABLE = "HEADRACE_POOL"
"""Environment variable: Airflow pool of the tasks. The pool must exist; give it `include_deferred`
to cap the tasks that wait. By default the site's `limits.max_leases` is the only cap."""

SCHEDULE_VARIABLE = "HEADRACE_TRAIN_SCHEDULE"
"""Environment variable: name of the dataset whose publication starts `headrace_train`."""

DATASETS = AssetAlias("headrace-datasets")
"""Outlet of packing tasks; the dataset's own asset is known only when the recipe is."""

_KEY = r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"

OVERRIDE_PATTERN = rf"^(?!code[.=]){_KEY}=(?!.*\$\{{)[^\r\n]*$"
"""An override as the trigger form and the REST API check it."""


def task_defaults() -> dict[str, Any]:
    """Default arguments of the tasks: quick retries, as a retry finds the work under way."""
    return {
        "owner": "headrace",
        "pool": os.environ.get(POOL_VARIABLE, "default_pool"),
        "retries": 4,
        "retry_delay": timedelta(seconds=3),
    }


def params() -> dict[str, Param]:
    """Parameters of the DAGs, with the JSON schema that the form and the REST API check."""
    return {
        "recipe": _choice("recipes", "Recipe", "What is done to which data."),
        "site": _choice("sites", "Site", "Where: the machines and the storage."),
        "overrides": Param(
            [],
            type="array",
            items={"type": "string", "pattern": OVERRIDE_PATTERN},
            title="Overrides",
            description="Changes to the recipe, one `key=value` a line: `trainer.max_epochs=3`.",
        ),
    }


def suite_params() -> dict[str, Param]:
    """Parameters of the DAG of suites."""
    trials = Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=MAX_TRIALS,
        title="Trials",
        description="Points that a sampler proposes; empty: all combinations, or as the recipe.",
    )
    return {**params(), "trials": trials}


def check_choice(kind: str, name: str) -> str:
    """The name of one of the known `recipes` or `sites`, which is the kind."""
    names = available(kind)
    if name not in names:
        error: type[UserError] = RecipeError if kind == "recipes" else SiteError
        raise error(f"There is no {kind.removesuffix('s')} '{name}'", nearest(name, names))
    return name


def check_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides that are safe to take from whoever may trigger a DAG."""
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or re.fullmatch(_KEY, key) is None or "\n" in text or "\r" in text:
            raise RecipeError(
                f"The override '{override}' is not one line of the form key=value",
                "Write for example trainer.max_epochs=3.",
            )
    check_from_outside(overrides)
    return tuple(overrides)


def check_sweep(words: Sequence[str], trials: int | None) -> tuple[str, ...]:
    """Overrides of which some name several values, as overrides that are safe to take."""
    overrides, update = sweep_words.parse(words, trials=trials)
    return check_overrides((*overrides, *sweep_words.as_overrides(update)))


def _choice(kind: str, title: str, description: str) -> Param:
    names = sorted(available(kind))
    singular = kind.removesuffix("s")
    wanted = os.environ.get(f"HEADRACE_DEFAULT_{singular.upper()}")
    preferred = [name for name in (wanted, "digits", "laptop") if name in names]
    default = (preferred or names)[0]
    return Param(default, type="string", enum=names, title=title, description=description)


def dataset_asset(name: str) -> Asset:
    """The asset of a packed dataset, by `dataset.name` of the recipe."""
    return Asset(name=f"headrace-dataset-{name}", uri=f"headrace://dataset/{name}")


def publish(context: Mapping[str, Any], name: str, outputs: Mapping[str, Any]) -> None:
    """Tell Airflow what a packing task, with the outlet `DATASETS`, gave; not what was there."""
    if outputs.get("reused"):
        return
    kept = ("dataset", "fingerprint", "num_samples", "num_shards", "num_bytes")
    extra = {key: outputs[key] for key in kept if key in outputs}
    context["outlet_events"][DATASETS].add(dataset_asset(name), extra=extra)


def train_schedule() -> list[Asset] | None:
    """Schedule of `headrace_train`: the dataset named by the environment, or none."""
    name = os.environ.get(SCHEDULE_VARIABLE)
    return [dataset_asset(name)] if name else None
