"""Ranks of a training among the processes of a machine, and the worker that they belong to."""

from __future__ import annotations

import psutil

from headrace.clusters.local import marked
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.processes.fork_server import ForkServers
from headrace.processes.identity import _PARENT
from headrace.steps import model_process

SERVER = "headrace.steps.model_process"
"""In the command line of what the ranks of a node are forked from, and so in theirs."""

DRIVERS = "headrace.steps.run"
"""The same of what the step drivers of a lease are forked from."""

FUNCTIONS = "headrace.training.function_process"
"""The same of what the functions of a node are forked from."""


def process_name(process: psutil.Process) -> str:
    """Name of a process; empty if it has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def is_rank(process: psutil.Process) -> bool:
    """Whether a process is a rank, not what it was forked from; one that has ended is none."""
    return process_name(process).startswith("rank ")


def drivers_of(step: StepFolder) -> list[psutil.Process]:
    """The living driver of a step of a lease on this machine, if there is one."""
    lease = LeaseFolder(step.path.parent.parent)
    (found,) = marked([lease]).values()
    return [each for each in found if process_name(each) == f"driver {step.number}"]


def worker_of(rank: psutil.Process) -> psutil.Process | None:
    """The Dask worker of a rank, or of what predicts; None when it has ended.

    It has told what the rank is forked from, whoever has started that.
    """
    try:
        return psutil.Process(int(rank.environ()[_PARENT]))
    except psutil.NoSuchProcess:
        return None


def share_servers() -> None:
    """Fork the ranks of all tests of this process from one server, which imports PyTorch once.

    A server is for one environment, in which pytest names each test.
    """
    varying = model_process.VARYING | {"PYTEST_CURRENT_TEST"}
    model_process._SERVERS = ForkServers(SERVER, varying)


def idle_servers(*kinds: str) -> list[psutil.Process]:
    """What this process forks ranks, drivers or functions from, and has forked none of now.

    They end by themselves a while after the last of these.
    """
    return [each for each in psutil.Process().children() if _is_idle(each, set(kinds))]


def _is_idle(process: psutil.Process, kinds: set[str]) -> bool:
    try:
        return bool(kinds & set(process.cmdline())) and not process.children()
    except psutil.NoSuchProcess:
        return False
