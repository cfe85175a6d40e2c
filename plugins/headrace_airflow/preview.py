"""Preview of a run for its first task: the resolved recipe, and the plan.

Tasks import it only when they need it, because it imports the modules of `headrace plan`.
"""

from __future__ import annotations

import textwrap

import yaml
from airflow.sdk.log import redact

from headrace.cli.plan import lease_words, plan_words
from headrace.errors import HeadraceError
from headrace.execution.execute import previews
from headrace.files.atomic import read_record
from headrace.runs.prediction import Prediction
from headrace.runs.runs import Run

_WIDTH = 50
"""Characters in a line that Airflow's pages show completely in a window of 900 pixels."""


def recipe_text(run: Run) -> str:
    """Return the resolved recipe as YAML, without default values.

    Airflow shows it to all users who may read the DAG run: values whose keys look like those of
    secrets are masked as in Airflow's logs.
    """
    content = run.recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(redact(content), sort_keys=False, allow_unicode=True)


def plan_text(run: Run) -> str:
    """Return the leases that a run will request, and what it will take; may query the queue."""
    try:
        leases = previews(run.recipe, run.site, run.request.kind)
    except HeadraceError as error:  # such as a queue without an answer; the run waits for it
        return f"Its machines are unknown: {error.what}"
    lines = [line for lease in leases for line in lease_words(lease)]
    prediction = read_record(run.folder.prediction, Prediction)
    lines += [] if prediction is None else plan_words(run.recipe, prediction, leases)
    wrapped = textwrap.TextWrapper(_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(map(wrapped.fill, lines))
