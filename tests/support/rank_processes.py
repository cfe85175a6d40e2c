"""Ranks of a training among the processes of a machine, and the worker that they belong to."""

from __future__ import annotations

import psutil

SERVER = "headrace.steps.model_process"
"""In the command line of what the ranks of a node are forked from, and so in theirs."""


def is_rank(process: psutil.Process) -> bool:
    """Whether a process is a rank, not what it was forked from; one that has ended is none."""
    try:
        return process.name().startswith("rank ")
    except psutil.NoSuchProcess:
        return False


def worker_of(rank: psutil.Process) -> psutil.Process | None:
    """The Dask worker of a rank; None when it has ended."""
    try:
        server = rank.parent()
        return None if server is None else server.parent()
    except psutil.NoSuchProcess:
        return None


def end_idle_servers() -> None:
    """End what ranks were forked from in this process, as the end of a Dask worker does.

    They end by themselves a while after their last rank.
    """
    for child in psutil.Process().children():
        try:
            if SERVER in child.cmdline() and not child.children():
                child.kill()
        except psutil.NoSuchProcess:
            continue
