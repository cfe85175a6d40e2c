"""Keeps Airflow's settings out of what outlives Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PREFIXES = ("AIRFLOW", "_AIRFLOW", "HEADRACE_AIRFLOW")


@contextmanager
def without_airflow_environment() -> Iterator[None]:
    """Start leases without Airflow's environment variables.

    A lease runs user code: it must not see Airflow's database address and secrets, nor carry the
    mark by which `headrace down` finds the processes of Airflow.
    """
    hidden = {name: os.environ[name] for name in os.environ if name.startswith(_PREFIXES)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
