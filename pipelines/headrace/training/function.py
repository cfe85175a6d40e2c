"""Training by the user's function (`train.function`): called once, in a process of its own.

`call_function` runs in the driver, `function_on_node` on a node. The function's process is forked
from one that has imported its module: see `headrace.training.function_process`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.checkpoints import files as checkpoints
from headrace.clusters.node_calls import Node, NodeCalls
from headrace.errors import StepError, UserCodeError, WorkerLostError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder, StepFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.processes.call_server import CallServer
from headrace.processes.children import Child
from headrace.processes.fork_server import ForkServers
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.steps.context import StepContext, resolved
from headrace.steps.model_process import VARYING, model_environment, python_module
from headrace.training.launch import profiler_environment, script_environment
from headrace.training.launch_records import NodeLaunch, NodeReady, Paused, TrainingProgress
from headrace.training.own_gpus import own_gpus
from headrace.training.progress import Follower
from headrace.training.restarts import Restarts
from headrace.training.watch_ranks import is_obsolete

_STOPPING_S = 5.0
_FOLLOW_EVERY_S = 0.5
PRELOAD = "HEADRACE_FUNCTION_OF"
"""Environment variable: folder of the run whose function a fork server imports."""

_VARIABLES = frozenset(
    f"HEADRACE_{name}"
    for name in ("CHECKPOINTS", "RUN_FOLDER", "SEED", "LAUNCH", "RESUME", "STOP_AT", "NOTICE")
)
_PROCESS = "headrace.training.function_process"
_SERVERS = ForkServers(_PROCESS, VARYING | _VARIABLES)
_first_folders: dict[tuple[str, str], str] = {}
_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Called:
    """Metrics and usage of a call."""

    metrics: dict[str, float]
    began_at: float
    """Time of the call, seconds since the epoch."""
    seconds: float
    cpu_s: float
    """CPU time, with that of child processes it has waited for."""
    memory_bytes: int
    gpu_memory_bytes: int | None
    """Most memory that PyTorch held on a GPU; None without a GPU."""


def call_function(context: StepContext, fleet: NodeCalls, dataset: str) -> dict[str, Any]:
    """Have a node call the recipe's function, and again if its process is killed.

    Returns:
        `metrics` of the function, its newest `checkpoint` or an empty text, and the number and
        causes of further calls, `restarts` and `restart_causes`.

    Raises:
        UserCodeError: The function raised, or returned something else than metrics.
        WorkerLostError: Its processes were killed too often.
    """
    restarts = Restarts(context)
    while True:
        try:
            called = _called(context, fleet, dataset, len(restarts.causes) + 1)
            break
        except WorkerLostError as error:
            if not restarts.may_follow(error):
                raise
    context.report(**called.metrics)
    folder = context.run_folder.checkpoints
    newest = next(iter(checkpoints.of_script(folder)), None) if folder.exists() else None
    return {
        "metrics": called.metrics,
        "checkpoint": str(newest) if newest is not None else "",
        "restarts": len(restarts.causes),
        "restart_causes": restarts.causes,
    }


def _called(context: StepContext, fleet: NodeCalls, dataset: str, number: int) -> Called:
    role = context.site.roles[context.recipe.train.role]
    (node,) = fleet.nodes(1, role.start_timeout, check=context.check)
    launch = _launch(context, node, dataset, number)
    launch.folder.path.mkdir(parents=True, exist_ok=True)
    follower = Follower(context, None, 1)
    looked_s = asked_s = time.monotonic()
    asked_at = time.time()

    def check() -> None:
        nonlocal looked_s
        context.check()
        if time.monotonic() - looked_s >= _FOLLOW_EVERY_S:
            looked_s = time.monotonic()
            follower(read_record(launch.folder.progress, TrainingProgress))

    try:
        (called,) = fleet.on_nodes(function_on_node, [(launch,)], [node], check=check)
    except UserCodeError:
        paused = read_record(launch.folder.paused, Paused)
        if paused is None:
            raise
        raise context.lease_over(f"The function stopped after step {paused.step}") from None
    finally:
        context.usage = AttemptUsage(node=node.name, train_s=time.monotonic() - asked_s)
    last = read_record(launch.folder.progress, TrainingProgress)
    if last is not None:
        follower(last)
    context.usage = AttemptUsage(
        node=node.name,
        cpus=float(role.cpus_per_node),
        start_s=max(called.began_at - asked_at, 0.0),
        train_s=called.seconds,
        cpu_use=min(called.cpu_s / max(called.seconds, 1e-6) / role.cpus_per_node, 1.0),
        memory_bytes=called.memory_bytes,
        gpus=0.0 if called.gpu_memory_bytes is None else 1.0,
        gpu_memory_bytes=called.gpu_memory_bytes,
    )
    return called


def _launch(context: StepContext, node: Node, dataset: str, number: int) -> NodeLaunch:
    folder, ends_at = context.run_folder.checkpoints, context.ends_at
    resume = checkpoints.newest_of_script(folder) if folder.exists() else None
    return NodeLaunch(
        run_folder=str(context.run_folder.path),
        step_folder=str(context.folder.path),
        dataset=dataset,
        number=number,
        node_name=node.name,
        host=node.host,
        master_address=node.host,
        resume=None if resume is None else str(resume),
        stop_at=None if ends_at is None else ends_at - _STOPPING_S,
        notice=str(context.lease_folder.notice),
    )


def function_on_node(launch: NodeLaunch) -> Called:
    """Call the function of a recipe on this node; its process ends before this returns or raises.

    The process is ended within a second if the step was cancelled or has ended.
    """
    recipe, site = resolved(RunFolder(Path(launch.run_folder)))
    if recipe.train.function is None:
        raise StepError(f"{launch.run_folder} holds no recipe with 'train.function'")
    role = site.roles[recipe.train.role]
    with own_gpus(launch, recipe, role) as role:
        child = _child(launch, recipe, recipe.train.function.target, role)
        process = CallServer(_SERVERS.start)
        try:
            called: Called = process.call(child, (recipe, site), lambda: not is_obsolete(launch))
        finally:
            process.end()
    return called


def _child(launch: NodeLaunch, recipe: Recipe, target: str, role: Role) -> Child:
    node = NodeReady(launch=launch, dataset="", fingerprint="")  # staged when it asks for it
    return Child(
        name="function",
        command=python_module(_PROCESS),
        log=StepFolder(Path(launch.step_folder)).logs / "function.log",
        env={
            **model_environment(role),
            **script_environment(node, recipe),
            **profiler_environment(launch, role, 0),
            "HEADRACE_LAUNCH": node.model_dump_json(),
            PRELOAD: f"{_first_folder(launch, target)}:{_newest(recipe.code, target)}",
        },
    )


def _first_folder(launch: NodeLaunch, target: str) -> str:
    """Return the folder of the first run, or the first trial of a suite, that calls a function.

    Trials share the process that imported it. A later run imports it again: it may have changed.
    """
    whole = RunFolder(Path(launch.run_folder)).whole
    with _lock:
        return _first_folders.setdefault((str(whole.path), target), launch.run_folder)


def _newest(code: Sequence[str], target: str) -> int:
    """Return the newest change of the files beside a function's module, in ns; 0 without files."""
    package = target.partition(".")[0]
    folders = [Path(folder).expanduser() for folder in code]
    patterns = ("*.py", f"{package}/**/*.py")
    files = (file for folder in folders for pattern in patterns for file in folder.glob(pattern))
    return max((file.stat().st_mtime_ns for file in files), default=0)
