"""Loaded by every Dask worker before it starts."""

from __future__ import annotations

from headrace.processes import die_with_parent


def dask_setup(worker: object) -> None:
    """Let the kernel end the worker with its host, even while the worker holds the GIL.

    Args:
        worker: The Dask worker.
    """
    die_with_parent()
