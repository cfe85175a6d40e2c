"""What a run is about to do, for its first task to show: the resolved recipe, and the plan.

Tasks import it when they need it: it brings what `headrace plan` is made of.
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
"""Characters in a line that Airflow's pages show whole in a window of 900 pixels."""


def recipe_text(run: Run) -> str:
    """The resolved recipe as YAML, without what has its default.

    Airflow shows it to whoever may read the DAG run: values whose keys look like those of secrets
    are masked as in Airflow's logs.
    """
    content = run.recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(redact(content), sort_keys=False, allow_unicode=True)


def plan_text(run: Run) -> str:
    """The leases that a run will ask for, and what it will take; the queue may be asked for it."""
    try:
        leases = previews(run.recipe, run.site, run.request.kind)
    except HeadraceError as error:  # as of a queue that is silent just now; the run waits for it
        return f"Nothing can be told of its machines: {error.what}"
    lines = [line for lease in leases for line in lease_words(lease)]
    prediction = read_record(run.folder.prediction, Prediction)
    lines += [] if prediction is None else plan_words(run.recipe, prediction, leases)
    wrapped = textwrap.TextWrapper(_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(map(wrapped.fill, lines))
