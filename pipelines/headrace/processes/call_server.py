"""A warm process that answers calls, one at a time.

What it loads for one call it keeps for the next, and its faults cannot harm the caller. It runs the
model of an evaluation, functions of users, and the display of samples.
"""

from __future__ import annotations

import pickle
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from headrace import errors
from headrace.processes.children import GRACE_S, Child, ChildEnd, ChildGroup, Process
from headrace.processes.identity import take_input

IDLE_S = 10.0
"""Seconds without a call after which the process ends."""

_POLL_S = 0.25

_Answer = tuple[Any, Exception | None]
"""Result of a call, or its error."""


class CallServer:
    """The caller's side of a process that runs `answer_calls`; threads may share it."""

    def __init__(self, start: Callable[[Child], Process]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._child: Child | None = None

    def call(self, child: Child, request: object, keep_on: Callable[[], bool]) -> Any:
        """Send a request, which must be picklable, to the process; return its answer.

        The process is started unless it answered the last call. It is ended when `keep_on`, which
        is called a few times a second, returns false.

        Raises:
            WorkerLostError: The process ended instead of answering.
            MemoryExhaustedError: The kernel killed it for memory.
            StepCancelledError: The answer is not needed any more.
            Exception: Error of the process.
        """
        while not self._lock.acquire(timeout=_POLL_S):
            _check(keep_on)
        try:
            answer = self._asked(request, keep_on) if self._child == child else None
            if answer is None:
                self._begin(child)
                answer = self._asked(request, keep_on)
        finally:
            self._lock.release()
        if answer is None:
            raise errors.WorkerLostError(
                f"{child.name} ended before its first answer", f"See {child.log}."
            )
        value, error = answer
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """End the process, if it runs."""
        with self._lock:
            if self._child is not None:
                self._end()

    def _begin(self, child: Child) -> None:
        if self._child is not None:
            self._end()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            self._group = ChildGroup([replace(child, input=theirs.fileno())], start=self._start)
            self._group.__enter__()
        self._child = child

    def _asked(self, request: object, keep_on: Callable[[], bool]) -> _Answer | None:
        """Return the answer; None if the process had ended because it was idle."""
        try:
            self._connection.send(request)
            return self._received(keep_on)
        except (EOFError, OSError) as error:
            end = self._end(GRACE_S)
            if end.code != 0:
                raise _lost(end) from error
            return None
        except BaseException:  # a later answer must not be that of the next call
            self._end()
            raise

    def _received(self, keep_on: Callable[[], bool]) -> _Answer:
        while not self._connection.poll(_POLL_S):
            _check(keep_on)
            self._group.ends()
            if not self._group.running and not self._connection.poll(0):
                raise EOFError  # one of its children may still hold the connection open
        answer: _Answer = self._connection.recv()
        return answer

    def _end(self, wait_s: float = 0) -> ChildEnd:
        """End the process; wait up to `wait_s` for it to end by itself."""
        self._child = None
        with self._connection:
            self._group.wait(wait_s)
            (end,) = self._group.stop()
        return end


def _lost(end: ChildEnd) -> errors.HeadraceError:
    """Return the error for a process that ended instead of answering."""
    kind = errors.MemoryExhaustedError if end.out_of_memory else errors.WorkerLostError
    is_unclear = end.code == -signal.SIGKILL and not end.out_of_memory
    more = " It may need more memory than the node has." if is_unclear else ""
    hint = f"{end.advice}See {end.log}.{more}\n{end.last_words}"
    error = kind(f"The {end.name} ended by {end.cause}", hint)
    error.exit_code = end.code
    return error


def answer_calls(answer: Callable[[Any], object], idle_s: float = IDLE_S) -> None:
    """Answer the calls of a `CallServer`, which arrive on standard input, until there are no more.

    Errors of `answer` are raised in the caller. It ends after `idle_s` seconds without a call.
    """
    # at the end, the caller has ended, or closed the connection
    with Connection(take_input()) as connection, suppress(EOFError):
        while connection.poll(idle_s):
            connection.send(_answered(answer, connection.recv()))


def _answered(answer: Callable[[Any], object], request: object) -> _Answer:
    try:
        return answer(request), None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, _left(error)
    except Exception as error:  # noqa: BLE001  raised again by `call`
        return None, _sendable(error)


def _left(error: SystemExit | KeyboardInterrupt) -> errors.UserCodeError:
    trace = traceback.extract_tb(error.__traceback__)[-1]
    act = (
        f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
    )
    return errors.UserCodeError(
        f"{trace.name} in {trace.filename}, line {trace.lineno}, {act}",
        "Raise an error of your own instead, or return.",
        trace="".join(traceback.format_exception(error)),
    )


def _sendable(error: Exception) -> Exception:
    """Return the error, with its trace unless it is headrace's own."""
    if isinstance(error, errors.HeadraceError):
        return error
    trace = "".join(traceback.format_exception(error))
    substitute = errors.StepError(f"{type(error).__name__}: {error}", trace)
    if not hasattr(error, "add_note"):  # before Python 3.11
        return substitute
    error.add_note(f"In the process that raised it:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  any class of a user
        return substitute
    return error


def _check(keep_on: Callable[[], bool]) -> None:
    if not keep_on():
        raise errors.StepCancelledError("The step was cancelled, or its driver has gone")
