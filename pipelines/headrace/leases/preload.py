"""Loaded by every Dask worker before it starts."""

from __future__ import annotations

from distributed import Worker

from headrace.processes import die_with_parent


def dask_setup(worker: Worker) -> None:
    """Let the kernel end the worker with its host, even while the worker holds the GIL.

    Side effects: closes the worker's port for pages, which has none and asks for no key.

    Args:
        worker: The Dask worker.
    """
    die_with_parent()
    worker.http_server.stop()
