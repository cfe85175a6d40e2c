"""Calls in Dask workers that end when their caller no longer waits for them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.builds import build_environment
from headrace.errors import StepCancelledError
from headrace.processes.identity import die_with_parent

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

GRACE_S = 15.0
"""Seconds that an abandoned call has to return before its worker process is killed."""

_CHECK_EVERY_S = 1.0
_WANTED_STATES = ("executing", "long-running")

_current = threading.local()


def dask_setup(worker: Any) -> None:
    """End the worker with its host, even while it holds the GIL; Dask preloads this module.

    Closes its port for pages, which has no pages and checks no key; sets the folders of builds.
    """
    die_with_parent()
    os.environ.update(build_environment())
    worker.http_server.stop()


def wanted() -> bool:
    """Whether the call in this thread is still needed: always true outside of calls.

    Long calls check every second or so; if false, they end their children and return.
    """
    is_wanted: Callable[[], bool] = getattr(_current, "is_wanted", lambda: True)
    return is_wanted()


def check_wanted(done_bytes: int, total_bytes: int) -> None:
    """Raise `StepCancelledError` if the staged bytes are not needed any more."""
    if not wanted():
        raise StepCancelledError(
            f"Staging was stopped after {done_bytes} of {total_bytes} bytes: "
            "its step was cancelled or has ended"
        )


def node_name() -> str:
    """Return the name of this node, as `Node.name`; only in a call of a fleet."""
    from distributed import get_worker

    return str(get_worker().name)


def run(
    function: Callable[..., Result],
    arguments: tuple[Any, ...],
    key: str,
    grace_s: float,
    aside: bool = False,
) -> Result:
    """Run a call on this node; kill the worker if the call continues although abandoned.

    Hanging code cannot be stopped from outside its process: the kernel ends its children with the
    worker, and a new one is started. `key` is that of the Dask task. With `aside` it leaves the
    worker's thread pool, so that other calls do not wait.
    """
    from distributed import get_worker, secede

    if aside:
        secede()
    tasks = get_worker().state.tasks

    def is_wanted() -> bool:
        task = tasks.get(key)
        return task is not None and task.state in _WANTED_STATES

    done = threading.Event()
    name = getattr(function, "__name__", str(function))
    threading.Thread(target=_watch, args=(is_wanted, done, name, grace_s), daemon=True).start()
    try:
        return call_while(is_wanted, function, *arguments)
    finally:
        done.set()


def timed(function: Callable[..., Result], *arguments: Any) -> tuple[float, Result]:
    """Return the seconds of a call, and its result."""
    began_s = time.monotonic()
    result = function(*arguments)
    return time.monotonic() - began_s, result


def call_while(
    is_wanted: Callable[[], bool], function: Callable[..., Result], *arguments: Any
) -> Result:
    """Call a function in this thread; in it, `wanted` returns the result of `is_wanted`."""
    _current.is_wanted = is_wanted
    try:
        return function(*arguments)
    finally:
        del _current.is_wanted


def _watch(is_wanted: Callable[[], bool], done: threading.Event, name: str, grace_s: float) -> None:
    wanted_s = time.monotonic()
    while not done.wait(_CHECK_EVERY_S):
        if is_wanted():
            wanted_s = time.monotonic()
        elif time.monotonic() - wanted_s > grace_s + _CHECK_EVERY_S:
            logger.error("%s runs although its caller has gone; ending this worker", name)
            os.kill(os.getpid(), signal.SIGKILL)
