"""Parts of the DAG files: parameters and their checks, defaults of tasks.

Users who trigger DAGs must not be able to read the host's files or environment: recipes and sites
are given by name, never by path, and overrides are plain values without interpolation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, get_args

from airflow.sdk import Param

from headrace.errors import RecipeError, SiteError, UserError, nearest, shortened
from headrace.recipe.base import MAX_COUNT
from headrace.recipe.load import available, written
from headrace.recipe.overrides import as_override, check_size
from headrace.recipe.suite import MAX_TRIALS, SuiteSpec
from headrace.recipe.untrusted_overrides import check_from_outside
from headrace.suites import values as sweep_values

TAGS = ["headrace"]

POOL_VARIABLE = "HEADRACE_POOL"
"""Environment variable: Airflow pool of the tasks. The pool must exist; with `include_deferred` it
also limits waiting tasks. By default only the site's `limits.max_leases` limits them."""

_MAIN_KEYS: dict[str, dict[str, Any]] = {
    "trainer.max_epochs": {
        "title": "Epochs",
        "description": "passes over the training split",
        "type": ["null", "integer"],
        "minimum": 1,
        "maximum": MAX_COUNT,
    },
    "data.global_batch_size": {
        "title": "Batch size",
        "description": "samples per optimizer step, over all ranks",
        "type": ["null", "integer"],
        "minimum": 1,
        "maximum": MAX_COUNT,
    },
    "model.learning_rate": {
        "title": "Learning rate",
        "description": "for models with an argument of this name",
        "type": ["null", "number"],
        "exclusiveMinimum": 0,
    },
    "seed": {
        "title": "Seed",
        "description": "of weights and the order of samples",
        "type": ["null", "integer"],
        "minimum": 0,
        "maximum": 2**32 - 1,
    },
}
"""Keys of recipes with their own field in the form, as JSON schemas."""

_OF_SUITE: dict[str, dict[str, Any]] = {
    "policy": {
        "title": "Policy",
        "description": "Which of them are used: own ones and others only if the deadline needs "
        "them, the cheapest, or all at once.",
        "type": ["null", "string"],
        "enum": [None, *get_args(SuiteSpec.model_fields["policy"].annotation)],
        "values_display": {"null": "as the recipe"},
    },
    "deadline": {
        "title": "Deadline",
        "description": "Time from the start to the end that it should have, as in 90min or 2d.",
        "type": ["null", "string"],
        "pattern": r"^\d{1,9}(\.\d{1,3})? ?(s|min|m|h|d)$",
    },
    "budget": {
        "title": "Budget",
        "description": "Most US dollars that the suite may cost.",
        "type": ["null", "number"],
        "exclusiveMinimum": 0,
        "maximum": MAX_COUNT,
    },
}
"""Keys of `suite` with their own field in the form, as JSON schemas; empty: the recipe's value."""

_OWN_PARAMS = frozenset({"recipe", "site", "overrides", "trials"})
_SEVERAL = "Several sites, deadline, budget"
_MOST_SHOWN = 5
_MOST_SITES = 20

_KEY = r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"

OVERRIDE_PATTERN = rf"^(?!code[.=]){_KEY}=(?!.*\$\{{)[^\r\n]*$"
"""An override, as the trigger form and the REST API check it."""


def task_defaults() -> dict[str, Any]:
    """Return default arguments of the tasks: quick retries, because a retry finds the running work.

    After a restart on a busy machine, Airflow needs minutes until tasks reach it.
    """
    return {
        "owner": "headrace",
        "pool": os.environ.get(POOL_VARIABLE, "default_pool"),
        "retries": 4,
        "retry_delay": timedelta(seconds=3),
        "retry_exponential_backoff": 4,
        "max_retry_delay": timedelta(minutes=2),
    }


def params() -> dict[str, Param]:
    """Return parameters of the DAGs, with the JSON schema that the form and the REST API check."""
    return {
        "recipe": choice("recipes", "Recipe", "What is done to which data."),
        "site": choice("sites", "Site", "Where: the machines and the storage."),
        "overrides": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": OVERRIDE_PATTERN},
            title="Overrides",
            description="Optional: changes to the recipe, one key=value a line, as in "
            "trainer.max_epochs=3.",
        ),
    }


def train_params() -> dict[str, Param]:
    """Return parameters of training DAGs: those above, and the main keys of recipes."""
    contents = written("recipes")
    keys = {
        key: Param(
            None,
            section="Main keys of the recipe",
            **{**schema, "description": _description(key, schema["description"], contents)},
        )
        for key, schema in _MAIN_KEYS.items()
    }
    return {**params(), **keys}


def suite_params() -> dict[str, Param]:
    """Return parameters of the DAG of suites."""
    trials = Param(
        None,
        type=["null", "integer"],
        minimum=1,
        maximum=MAX_TRIALS,
        title="Trials",
        description="Points that a sampler proposes; empty: all combinations, or as the recipe.",
    )
    names = sorted(available("sites"))
    sites = Param(
        None,
        type=["null", "array"],
        items={"type": "string", "enum": names},
        examples=names,
        minItems=1,
        maxItems=_MOST_SITES,
        title="Sites",
        description="Several sites that share the trials, the first packs; Site is not used then.",
        section=_SEVERAL,
    )
    keys = {name: Param(None, section=_SEVERAL, **schema) for name, schema in _OF_SUITE.items()}
    given = {**train_params(), "trials": trials, "sites": sites, **keys}
    given["overrides"].description = (
        "One key=value a line. Several values make trials: model.learning_rate=0.001,0.01 or "
        "seed=range(0,5); intervals need Trials: model.learning_rate=interval(1e-4,1e-1)."
    )
    return given


def overrides_of(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the requested changes besides recipe and site, as `key=value`, unchecked.

    Every parameter that is not one of the DAGs' own is a key of the recipe; empty ones are
    ignored.

    Raises:
        RecipeError: A key has its own parameter and is also among the overrides.
    """
    lines = tuple(params.get("overrides") or ())
    keys = {
        f"suite.{key}" if key in ("sites", *_OF_SUITE) else key: value
        for key, value in params.items()
        if key not in _OWN_PARAMS and value is not None
    }
    twice = sorted(keys.keys() & {line.partition("=")[0] for line in lines})
    if twice:
        raise RecipeError(
            f"{', '.join(twice)} is given twice: by its own field and in the overrides",
            "Leave one of the two empty.",
        )
    overrides = (*(as_override(key, value) for key, value in keys.items()), *lines)
    check_size(overrides)
    return overrides


def check_choice(kind: str, name: str) -> str:
    """Return the name if it is one of the known `recipes` or `sites` (the kind); else raise."""
    names = available(kind)
    if name not in names:
        error: type[UserError] = RecipeError if kind == "recipes" else SiteError
        raise error(f"There is no {kind.removesuffix('s')} '{name}'", nearest(name, names))
    return name


def check_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides if they are safe for any user who may trigger a DAG; else raise."""
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or re.fullmatch(_KEY, key) is None or "\n" in text or "\r" in text:
            raise RecipeError(
                f"The override '{shortened(override)}' is not one line of the form key=value",
                "Write for example trainer.max_epochs=3.",
            )
    check_from_outside(overrides)
    return tuple(overrides)


def check_sweep(words: Sequence[str], trials: int | None) -> tuple[str, ...]:
    """Return a sweep, in which keys may have several values, as safe overrides; else raise."""
    overrides, update = sweep_values.parse(words, trials=trials)
    return check_overrides((*overrides, *sweep_values.as_overrides(update)))


def choice(kind: str, title: str, description: str) -> Param:
    """Return a parameter whose values are the existing `recipes` or `sites`."""
    names = sorted(available(kind))
    singular = kind.removesuffix("s")
    wanted = os.environ.get(f"HEADRACE_DEFAULT_{singular.upper()}")
    preferred = [name for name in (wanted, "digits", "laptop") if name in names]
    default = (preferred or names)[0]
    return Param(default, type="string", enum=names, title=title, description=description)


def _description(key: str, meaning: str, contents: Mapping[str, Mapping[str, Any]]) -> str:
    said = {name: _at(key, content) for name, content in contents.items()}
    shown = [f"{name} {value}" for name, value in said.items() if isinstance(value, int | float)]
    more = ["…"] if len(shown) > _MOST_SHOWN else []
    values = f" ({', '.join([*shown[:_MOST_SHOWN], *more])})" if shown else ""
    return f"{key}: {meaning}. Empty: the recipe's value{values}."


def _at(key: str, content: Any) -> object:
    for part in key.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content
