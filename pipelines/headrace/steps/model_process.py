"""Processes of a node that run a model; all are forked from one that has imported what they need.

That one is `python -m headrace.steps.model_process FD`. It knows the siblings above by their names,
as `headrace.steps.run` does. A `KeptProcess` answers calls, one after the other: what it loads for
one it has for the next ones, and what it runs cannot harm its caller.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.children import GRACE_S, Child, ChildEnd, ChildGroup, Process
from headrace.errors import (
    HeadraceError,
    MemoryExhaustedError,
    StepCancelledError,
    StepError,
    UserCodeError,
    WorkerLostError,
)
from headrace.fork_server import ForkServers, forked
from headrace.processes import CPUS, MEMORY, die_with_parent
from headrace.recipe.site import Role

IDLE_S = 10.0
"""Seconds without a call after which a process ends."""

_LOOK_S = 0.25

_Answer = tuple[Any, Exception | None]
"""What a call gave, or raised."""

_IMPORTED = ("headrace.training.rank", "headrace.evaluation.predict")

VARYING = frozenset(
    (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
        "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", CPUS, MEMORY,
    )
)  # fmt: skip
"""Names of the variables that tell a rank its place, network and part of the node; nothing that is
imported depends on them, but Lightning's `rank_zero_only`."""

_SERVERS = ForkServers("headrace.steps.model_process", VARYING)
"""Shared by all trainings and evaluations on this node: a restart or the next step imports nothing.
"""


def dask_setup(worker: object) -> None:
    """Begin the imports as a worker starts, which Dask tells modules of a lease's `preload`."""
    del worker
    _SERVERS.warm_up()


def start_forked(child: Child) -> Process:
    """Start `python -u -m MODULE ARGUMENT…` as a fork that calls the module's `main(arguments)`."""
    return _SERVERS.start(child)


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that does the same as a program of its own."""
    return (sys.executable, "-u", "-m", module, *arguments)


def model_environment(role: Role) -> dict[str, str]:
    """Environment variables of a process that runs a model, on top of the worker's."""
    return {**role.env, "OMP_NUM_THREADS": str(role.threads_per_rank)}


class KeptProcess:
    """The caller's side of a process that calls `answer_calls`; any thread may call, in turn."""

    def __init__(self, start: Callable[[Child], Process]) -> None:
        self._start = start
        self._turn = threading.Lock()
        self._running: _Running | None = None

    def call(self, child: Child, request: object, keep_on: Callable[[], bool]) -> Any:
        """Have the process answer a request, which can be pickled.

        It is started unless it is the one that answered last, and ended when `keep_on`, which is
        asked a few times a second, is false.

        Raises:
            WorkerLostError: The process ended instead of answering.
            MemoryExhaustedError: The kernel killed it for memory.
            StepCancelledError: Nobody waits for the answer any more.
            Exception: Whatever the process raised.
        """
        while not self._turn.acquire(timeout=_LOOK_S):
            _check(keep_on)
        try:
            value, error = self._answer(child, request, keep_on)
        finally:
            self._turn.release()
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """End the process, if there is one."""
        with self._turn:
            self._drop()

    def _answer(self, child: Child, request: object, keep_on: Callable[[], bool]) -> _Answer:
        if self._running is not None and self._running.child == child:
            answer = self._asked(self._running, request, keep_on)
            if answer is not None:
                return answer
        self._drop()
        self._running = _Running(child, self._start)
        answer = self._asked(self._running, request, keep_on)
        if answer is None:
            raise WorkerLostError(
                f"{child.name} ended before its first answer", f"See {child.log}."
            )
        return answer

    def _asked(
        self, running: _Running, request: object, keep_on: Callable[[], bool]
    ) -> _Answer | None:
        """The answer; None when the process has ended well, as nothing had come for a while."""
        try:
            return running.ask(request, keep_on)
        except (EOFError, OSError) as error:
            self._running = None
            end = running.end(GRACE_S)
            if end.code != 0:
                raise _lost(end) from error
            return None
        except StepCancelledError:
            self._drop()
            raise

    def _drop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()


class _Running:
    """A process that was started."""

    def __init__(self, child: Child, start: Callable[[Child], Process]) -> None:
        self.child = child
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            self._group = ChildGroup([replace(child, input=theirs.fileno())], start=start)
            self._group.__enter__()

    def ask(self, request: object, keep_on: Callable[[], bool]) -> _Answer:
        """Send a request and wait for its answer; EOFError and OSError: the process has ended."""
        self._connection.send(request)
        while not self._connection.poll(_LOOK_S):
            _check(keep_on)
            self._group.ends()
            if not self._group.running and not self._connection.poll(0):
                raise EOFError  # although something that it has started keeps the line open
        answer: _Answer = self._connection.recv()
        return answer

    def end(self, wait_s: float = 0) -> ChildEnd:
        """End it; it has some seconds to do so by itself."""
        deadline = time.monotonic() + wait_s
        with self._connection:
            self._group.supervise(lambda: time.monotonic() < deadline)
            (end,) = self._group.stop()
        return end


def _lost(end: ChildEnd) -> HeadraceError:
    """The error for a process that ended instead of answering."""
    kind = MemoryExhaustedError if end.out_of_memory else WorkerLostError
    is_unclear = end.code == -signal.SIGKILL and not end.out_of_memory
    more = " It may need more memory than the node has." if is_unclear else ""
    hint = f"{end.advice}See {end.log}.{more}\n{end.last_words}"
    return kind(f"The {end.name} ended by {end.cause}", hint)


def answer_calls(answer: Callable[[Any], object], idle_s: float = IDLE_S) -> None:
    """Answer the calls of a `KeptProcess`, which come by standard input, until there are no more.

    What `answer` raises is raised in the caller; `idle_s` seconds without a call are the end.
    """
    with Connection(os.dup(0)) as connection, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        with suppress(EOFError):  # the caller has ended, or wants no more
            while connection.poll(idle_s):
                connection.send(_answered(answer, connection.recv()))


def _answered(answer: Callable[[Any], object], request: object) -> _Answer:
    try:
        return answer(request), None
    except SystemExit as error:
        return None, _left(error)
    except Exception as error:  # noqa: BLE001  raised again by `call`
        return None, _sendable(error)


def _left(error: SystemExit) -> UserCodeError:
    trace = traceback.extract_tb(error.__traceback__)[-1]
    return UserCodeError(
        f"{trace.name} in {trace.filename}, line {trace.lineno}, called sys.exit({error.code!r})",
        "Raise an error of your own instead, or return.",
        trace="".join(traceback.format_exception(error)),
    )


def _sendable(error: Exception) -> Exception:
    """The error, with its trace where it is not headrace's own."""
    if isinstance(error, HeadraceError):
        return error
    trace = "".join(traceback.format_exception(error))
    told = StepError(f"{type(error).__name__}: {error}", trace)
    if not hasattr(error, "add_note"):  # before Python 3.11
        return told
    error.add_note(f"In the process that raised it:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  classes of anybody's
        return told
    return error


def _check(keep_on: Callable[[], bool]) -> None:
    if not keep_on():
        raise StepCancelledError("The step was cancelled, or its driver has gone")


class _ScipySignal(ModuleType):
    """Stands for `scipy.signal` until something of it is used.

    torchmetrics imports it to look for a `hamming`: a tenth of the time of all imports.
    """

    hamming = None

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def main(arguments: list[str]) -> int:
    """Entry point of the server, and of each process forked from it."""
    die_with_parent()
    stand_in = _ScipySignal("scipy.signal")
    sys.modules[stand_in.__name__] = stand_in
    gc.disable()  # what is imported stays: looking for garbage would take a quarter of the time
    for module in _IMPORTED:
        importlib.import_module(module)
    gc.enable()
    stand_in.leave()
    child = forked(socket.socket(fileno=int(arguments[0])))
    if child is None:
        return 0
    _, _, _, module, *rest = child.command
    code: int = importlib.import_module(module).main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
