"""Settings that all DAGs of headrace share."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

TAGS = ["headrace"]

POOL_VARIABLE = "HEADRACE_POOL"
"""Environment variable: Airflow pool of the tasks. The pool must exist; give it `include_deferred`
to cap the tasks that wait. By default the site's `limits.max_leases` is the only cap."""


def task_defaults() -> dict[str, Any]:
    """Default arguments of the tasks: quick retries, as a retry finds the work under way."""
    return {
        "owner": "headrace",
        "pool": os.environ.get(POOL_VARIABLE, "default_pool"),
        "retries": 4,
        "retry_delay": timedelta(seconds=3),
    }
