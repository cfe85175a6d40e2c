"""What may be asked for from Airflow: the parameters of the DAGs and their checks.

Whoever may trigger a DAG must not be able to read files or the environment of the host: recipes and
sites are named, never given by path, and overrides are plain values without interpolation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from airflow.sdk import Param

from headrace.errors import RecipeError, SiteError, UserError, nearest
from headrace.recipe.load import available, check_from_outside

_KEY = r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"

OVERRIDE_PATTERN = rf"^(?!code[.=]){_KEY}=(?!.*\$\{{)[^\r\n]*$"
"""An override as the trigger form and the REST API check it."""


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


def check_choice(kind: str, name: str) -> str:
    """A recipe or site that is named and known.

    Args:
        kind: `recipes` or `sites`.
        name: What was asked for.

    Raises:
        RecipeError: There is no recipe of that name.
        SiteError: There is no site of that name.
    """
    names = available(kind)
    if name not in names:
        error: type[UserError] = RecipeError if kind == "recipes" else SiteError
        raise error(f"There is no {kind.removesuffix('s')} '{name}'", nearest(name, names))
    return name


def check_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Overrides that are safe to take from whoever may trigger a DAG.

    Raises:
        RecipeError: One is malformed, sets `code`, or holds an interpolation in any spelling.
    """
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or re.fullmatch(_KEY, key) is None or "\n" in text or "\r" in text:
            raise RecipeError(
                f"The override '{override}' is not one line of the form key=value",
                "Write for example trainer.max_epochs=3.",
            )
    check_from_outside(overrides)
    return tuple(overrides)


def _choice(kind: str, title: str, description: str) -> Param:
    names = sorted(available(kind))
    singular = kind.removesuffix("s")
    wanted = os.environ.get(f"HEADRACE_DEFAULT_{singular.upper()}")
    preferred = [name for name in (wanted, "digits", "laptop") if name in names]
    default = (preferred or names)[0]
    return Param(default, type="string", enum=names, title=title, description=description)
