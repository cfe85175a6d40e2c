"""headrace: from raw samples to evaluated models on a laptop, a Slurm cluster or EC2."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_FUNCTIONS = ("check", "list_runs", "plan", "result", "run", "sweep")


def __getattr__(name: str) -> Any:
    """Return a function of `headrace.api`, which takes a second to import."""
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    return getattr(importlib.import_module("headrace.api"), name)
