"""A process that is kept, and answers calls, one after the other.

What it loads for one call it has for the next ones, and what it runs cannot harm its caller. It
serves the model of an evaluation, functions of users, and whoever wants to see a sample.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from headrace.errors import (
    HeadraceError,
    MemoryExhaustedError,
    StepCancelledError,
    StepError,
    UserCodeError,
    WorkerLostError,
)
from headrace.processes.children import GRACE_S, Child, ChildEnd, ChildGroup, Process

IDLE_S = 10.0
"""Seconds without a call after which a process ends."""

_LOOK_S = 0.25

_Answer = tuple[Any, Exception | None]
"""What a call gave, or raised."""


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
    error = kind(f"The {end.name} ended by {end.cause}", hint)
    error.exit_code = end.code
    return error


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
