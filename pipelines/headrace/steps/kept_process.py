"""A process of its own that answers calls, one after the other, and is kept for the next ones.

What it loads for one call it has for the others, and what it runs cannot harm its caller.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from headrace.steps.children import Child, ChildEnd, ChildGroup, Process, log_size, tail
from headrace.steps.oom import KILLED, NEXT_STEP, num_memory_kills

IDLE_S = 10.0
"""Seconds without a call after which a process ends."""

_GRACE_S = 3.0
_LOOK_S = 0.25


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What came of a call."""

    value: Any = None
    error: Exception | None = None


class KeptProcess:
    """The caller's side; any thread may call, others wait for their turn.

    Args:
        start: Starts the process, whose `main` calls `answer_calls`.
    """

    def __init__(self, start: Callable[[Child], Process]) -> None:
        self._start = start
        self._turn = threading.Lock()
        self._running: _Running | None = None

    def call(self, child: Child, request: object, keep_on: Callable[[], bool]) -> Any:
        """Have the process answer a request.

        Args:
            child: The process; it is started unless it is the one that answered last.
            request: What it is asked; can be pickled.
            keep_on: Asked a few times a second; false ends the process.

        Returns:
            The answer.

        Raises:
            WorkerLostError: The process ended instead of answering.
            MemoryExhaustedError: The kernel killed it for memory.
            StepCancelledError: Nobody waits for the answer any more.
            Exception: Whatever the process raised.
        """
        with self._my_turn(keep_on):
            answer = self._answer(child, request, keep_on)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def end(self) -> None:
        """End the process, if there is one."""
        with self._turn:
            if self._running is not None:
                self._end(self._running)

    @contextmanager
    def _my_turn(self, keep_on: Callable[[], bool]) -> Iterator[None]:
        while not self._turn.acquire(timeout=_LOOK_S):
            _check(keep_on)
        try:
            yield
        finally:
            self._turn.release()

    def _answer(self, child: Child, request: object, keep_on: Callable[[], bool]) -> _Answer:
        if self._running is not None and self._running.child == child:
            said = self._asked(self._running, request, keep_on)
            if said is not None:
                return said
        if self._running is not None:
            self._end(self._running)
        self._running = _Running(child, self._start)
        said = self._asked(self._running, request, keep_on)
        if said is None:
            raise WorkerLostError(
                f"{child.name} ended before its first answer", f"See {child.log}."
            )
        return said

    def _asked(
        self, running: _Running, request: object, keep_on: Callable[[], bool]
    ) -> _Answer | None:
        """The answer; None when the process has ended well, as nothing had come for a while."""
        try:
            return running.ask(request, keep_on)
        except (EOFError, OSError) as error:
            end = self._end(running, _GRACE_S)
            if end.code != 0:
                raise running.lost(end) from error
            return None
        except StepCancelledError:
            self._end(running)
            raise

    def _end(self, running: _Running, wait_s: float = 0) -> ChildEnd:
        self._running = None
        return running.end(wait_s)


class _Running:
    """A process that was started.

    Args:
        child: What to start.
        start: Starts it.
    """

    def __init__(self, child: Child, start: Callable[[Child], Process]) -> None:
        self.child = child
        self._log_start = log_size(child.log)
        self._memory_kills = num_memory_kills()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            self._group = ChildGroup([replace(child, input=theirs.fileno())], _GRACE_S, start)
            self._group.__enter__()

    def ask(self, request: object, keep_on: Callable[[], bool]) -> _Answer:
        """Send a request and wait for its answer.

        Raises:
            EOFError: The process has ended; OSError tells the same.
            StepCancelledError: Nobody waits any more.
        """
        self._connection.send(request)
        while not self._connection.poll(_LOOK_S):
            _check(keep_on)
            self._group.ends()
            if not self._group.running and not self._connection.poll(0):
                raise EOFError  # although something that it has started keeps the line open
        answer: _Answer = self._connection.recv()
        return answer

    def end(self, wait_s: float) -> ChildEnd:
        """End it; it has some seconds to do so by itself."""
        deadline = time.monotonic() + wait_s
        with self._connection:
            self._group.supervise(lambda: time.monotonic() < deadline)
            (end,) = self._group.stop()
        return end

    def lost(self, end: ChildEnd) -> HeadraceError:
        """The error for a process that ended instead of answering."""
        what = f"The {self.child.name} ended by {end.cause}"
        log, last_words = f"See {self.child.log}.", tail(self.child.log, self._log_start)
        was_killed = end.code == -signal.SIGKILL
        if was_killed and num_memory_kills() > self._memory_kills:
            return MemoryExhaustedError(f"{what}: {KILLED}", f"{NEXT_STEP} {log}\n{last_words}")
        more = " It may need more memory than the node has." if was_killed else ""
        return WorkerLostError(what, f"{log}{more}\n{last_words}")


def answer_calls(answer: Callable[[Any], object], idle_s: float = IDLE_S) -> None:
    """Answer the calls of a `KeptProcess`, which come by standard input, until there are no more.

    Args:
        answer: Makes the answer to a request; what it raises is raised in the caller.
        idle_s: Seconds without a call after which there are no more.
    """
    with Connection(os.dup(0)) as connection, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        while connection.poll(idle_s):
            try:
                request = connection.recv()
            except EOFError:  # the caller has ended, or wants no more
                return
            connection.send(_answered(answer, request))


def _answered(answer: Callable[[Any], object], request: object) -> _Answer:
    try:
        return _Answer(value=answer(request))
    except SystemExit as error:
        return _Answer(error=_left(error))
    except Exception as error:  # noqa: BLE001  raised again by `call`
        return _Answer(error=_sendable(error))


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
