"""Why ranks failed: reports of ranks and nodes, and the verdict over all."""

from __future__ import annotations

import errno
import re
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from headrace.errors import (
    DataError,
    HeadraceError,
    MemoryExhaustedError,
    StepError,
    StorageError,
    StorageFullError,
    UserCodeError,
    UserError,
    WorkerLostError,
    words_of,
)
from headrace.files.machine import is_full, storage_error
from headrace.processes.children import ChildEnd
from headrace.training.launch_records import FailureKind, NodeOutcome, RankFailure

_MACHINE = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.EROFS)

_PEER_WORDS = (
    "connection closed by peer", "connection reset by peer", "connect timeout", "socket timeout",
    "socketpair", "broken pipe", "nccl", "gloo", "tcpstore", "store", "process group",
)  # fmt: skip
_LEFT_ALONE = re.compile(
    r"^(?:\[rank\d+\]: )?(?:RuntimeError|torch\.distributed\.Dist\w+): .*"
    r"(?:gloo|NCCL|(?:closed|reset) by peer)",
    re.MULTILINE,
)
"""Torch's error in the output of a script when another rank has ended."""

_LAST_LINES = 3
_MISSING = re.compile(
    r"(?:FileNotFoundError|can't open file|No such file).*?'([^'\n]+)'"
    r"|(?:FileNotFoundError: |: )([^\s:']+)(?: not found|: No such file or directory)"
)
"""The path in the error of a missing file, as Python, NumPy and shells write it."""

CORRECT = "Correct the code and run again; training goes on from the last checkpoint."
"""Hint after an error of the user's code."""

_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")
_PORT_WORDS = ("eaddrinuse", "address already in use")

_LOADER_KILLED = re.compile(r"DataLoader worker \(pid[^)]*\) is killed by signal")
"""Torch's message when a loader process was killed, as by the kernel or an operator."""

_NOT_THE_USERS = {"__main__", "headrace", "lightning", "torch", "site", *sys.stdlib_module_names}
_NAMED_IN_RECIPES = ("headrace.examples", "headrace.data.transforms")

_STEPS = ("training_step", "validation_step")
"""Steps of a model; a batch is their first argument."""

_PRECEDENCE = tuple(FailureKind)

_ERRORS: dict[FailureKind, type[HeadraceError]] = {
    FailureKind.USER_ERROR: UserError,
    FailureKind.DATA_ERROR: DataError,
    FailureKind.OUT_OF_MEMORY: MemoryExhaustedError,
    FailureKind.NO_SPACE: StorageFullError,
}
_FROM_CLASS = {error.failure_class: kind for kind, error in _ERRORS.items()}


class PortTakenError(WorkerLostError):
    """Another process took the port that was chosen for the rendezvous."""


def describe(error: BaseException, rank: int) -> RankFailure:
    """Return what a rank reports about its own end."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
        error = error.__context__  # Lightning exits when the user's code raises it
    kind = _kind(error)
    what, hint, trace = words_of(error), "", ""
    if isinstance(error, HeadraceError):
        what, hint = error.what, error.hint
        trace = error.trace if isinstance(error, UserCodeError) else ""
    elif kind is FailureKind.INTERNAL:
        what = f"a fault of headrace itself: {type(error).__name__}: {what}"
        hint = "Training goes on from the last checkpoint; please report it with this trace:\n"
        hint += words_of("".join(traceback.format_exception(error)))
    elif kind is FailureKind.USER_ERROR:
        first = _first_of_user(error.__traceback__)
        place = first.tb_frame.f_code.co_name if first is not None else "Training"
        what = f"{place} raised {type(error).__name__}: {what}"
        hint = f"{_batch_of(error.__traceback__)}{CORRECT}"
        trace = user_trace(error)
    elif named := storage_error(error, Path()):
        what, hint = named.what, named.hint
    else:
        what = f"{type(error).__name__}: {what}"
    return RankFailure(rank=rank, kind=kind, what=what, hint=hint, trace=trace, at=time.time())


def script_failure(rank: int, end: ChildEnd, log: str, folder: str = ".") -> RankFailure:
    """Return the failure of a script that ended with an exit code other than 0.

    `log` is the end of its output, `folder` its working folder.
    """
    kind = FailureKind.SCRIPT_FAILED
    if _contains(log.lower(), _PORT_WORDS):
        kind = FailureKind.PORT_TAKEN
    elif _LOADER_KILLED.search(log):
        kind = FailureKind.KILLED
    elif _LEFT_ALONE.search(log):
        kind = FailureKind.PEER_LOST
    return RankFailure(
        rank=rank,
        kind=kind,
        what=f"the script ended with {end.cause}",
        hint=f"{_missing(log, folder)}Correct the script and run again.",
        trace=log,
        at=end.at,
    )


def _missing(log: str, folder: str) -> str:
    """Return where a relative path that a script did not find was looked for; empty if it did."""
    last = "\n".join(log.splitlines()[-_LAST_LINES:])
    for quoted, plain in reversed(_MISSING.findall(last)):
        path = (quoted or plain).removeprefix(f"{folder}/")
        if path and not path.startswith("/"):
            return (
                f"'{path}' is looked for in the script's working folder, {folder}. To start it "
                "where the run is started, set train.folder: '${oc.env:PWD}'; or give it the whole "
                f"path, as '${{oc.env:PWD}}/{path}' in train.args. "
            )
    return ""


def user_trace(error: BaseException) -> str:
    """Return the trace of an error from the first frame of user code on; empty without any."""
    start = _first_of_user(error.__traceback__)
    lines = [] if start is None else traceback.format_exception(type(error), error, start)
    return words_of("".join(lines))


def verdict(outcomes: Sequence[NodeOutcome]) -> HeadraceError | None:
    """Return the error of a launch; None if all ranks succeeded.

    Faults of users and data come first, because other ranks fail as a consequence; of equal kinds
    the first in time. A rank that hung has fewer signs of life than those that wait for it.
    """
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    if not failures:
        return None
    beats = {rank: count for outcome in outcomes for rank, count in outcome.beats.items()}
    failures.sort(key=lambda f: (_PRECEDENCE.index(f.kind), _behind(f, beats), f.at))
    first = failures[0]
    if first.kind is FailureKind.HUNG:
        return _hung_error([f for f in failures if _behind(f, beats) == _behind(first, beats)])
    return to_error(first)


def to_error(failure: RankFailure, where: str | None = None) -> HeadraceError:
    """Return the error for a rank's failure; `where` is the rank by default."""
    if where is None:
        where = f"rank {failure.rank}" + (f" on {failure.node}" if failure.node else "")
    what = f"{where[0].upper()}{where[1:]}: {failure.what}" if where else failure.what
    if failure.kind in (FailureKind.USER_ERROR, FailureKind.SCRIPT_FAILED):
        if not failure.trace:
            return UserError(what, failure.hint)
        return UserCodeError(what, failure.hint, trace=failure.trace, where=where)
    own = {FailureKind.PORT_TAKEN: PortTakenError, FailureKind.STORAGE: StorageError}
    errors = _ERRORS | own | {FailureKind.INTERNAL: StepError}
    return errors.get(failure.kind, WorkerLostError)(what, failure.hint)


def _hung_error(failures: Sequence[RankFailure]) -> HeadraceError:
    """Return one error for ranks that are equally far behind."""
    hung = [failure for failure in failures if failure.kind is FailureKind.HUNG]
    if len(hung) == 1:
        return to_error(hung[0])
    ranks = ", ".join(str(failure.rank) for failure in hung)
    return WorkerLostError(f"Ranks {ranks}: {hung[0].what}", hung[0].hint)


def _behind(failure: RankFailure, beats: dict[int, int]) -> int:
    return beats.get(failure.rank, 0) if failure.kind is FailureKind.HUNG else 0


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, HeadraceError):
        default = FailureKind.STORAGE if isinstance(error, StorageError) else FailureKind.PEER_LOST
        default = FailureKind.KILLED if isinstance(error, WorkerLostError) else default
        return _FROM_CLASS.get(error.failure_class, default)
    if _is_loader_killed(error):
        return FailureKind.KILLED
    text = str(error).lower()
    if isinstance(error, OSError) and (is_full(error) or error.errno in _MACHINE):
        return FailureKind.NO_SPACE if is_full(error) else FailureKind.STORAGE
    is_named = type(error).__name__ == "OutOfMemoryError"
    says_so = isinstance(error, RuntimeError) and _contains(text, _MEMORY_WORDS)
    if isinstance(error, MemoryError) or is_named or says_so:
        return FailureKind.OUT_OF_MEMORY
    by_store = isinstance(error, OSError) and _is_internal(error)  # its port is headrace's choice
    if (isinstance(error, RuntimeError) or by_store) and _contains(text, _PORT_WORDS):
        return FailureKind.PORT_TAKEN
    if _is_distributed(error, text):
        return FailureKind.PEER_LOST
    if isinstance(error, SystemExit) and _first_of_user(error.__traceback__) is None:
        return FailureKind.CRASHED  # as Lightning leaves when it is interrupted
    if not _is_internal(error):
        return FailureKind.USER_ERROR
    return FailureKind.STORAGE if storage_error(error, Path()) else FailureKind.INTERNAL


def _is_loader_killed(error: BaseException) -> bool:
    """Whether torch raised the error, or its cause, because a signal ended a loader process.

    A process that announced a batch may end before it hands over the memory: that fails instead.
    """
    if isinstance(error, OSError | EOFError):
        modules = map(_module, _frames(error.__traceback__))
        return "multiprocessing.resource_sharer" in modules
    chain = (error, error.__cause__, error.__context__)
    return isinstance(error, RuntimeError) and any(
        _LOADER_KILLED.search(str(each)) for each in chain
    )


def _is_distributed(error: BaseException, text: str) -> bool:
    if type(error).__name__.startswith("Dist"):
        return True
    return (
        isinstance(error, RuntimeError) and _raised_in_torch(error) and _contains(text, _PEER_WORDS)
    )


def _raised_in_torch(error: BaseException) -> bool:
    """Whether torch's or Lightning's code raised the error, not the user's."""
    frames = list(_frames(error.__traceback__))
    if not frames:
        return True
    return _package(_module(frames[-1])) in ("torch", "lightning")


def _contains(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)


def _frames(trace: TracebackType | None) -> Iterable[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _first_of_user(trace: TracebackType | None) -> TracebackType | None:
    return next((frame for frame in _frames(trace) if _is_users(_module(frame))), None)


def _batch_of(trace: TracebackType | None) -> str:
    """Return what the batch holds that a step of the model failed with; empty if none did."""
    for frame in _frames(trace):
        code = frame.tb_frame.f_code
        if code.co_name in _STEPS and code.co_argcount > 1 and _is_users(_module(frame)):
            from headrace.data.batch_form import description  # PyTorch: nodes do without it

            batch = frame.tb_frame.f_locals.get(code.co_varnames[1])
            return "" if batch is None else f"{description(batch)} "
    return ""


def _is_users(module: str) -> bool:
    """Whether a module is the user's; modules of headrace that a recipe names count as such."""
    return module.startswith(_NAMED_IN_RECIPES) or _package(module) not in _NOT_THE_USERS


def _is_internal(error: BaseException) -> bool:
    """Whether headrace, or a library call of its own, raised the error without user code."""
    modules = [_module(frame) for frame in _frames(error.__traceback__)]
    if any(_is_users(module) for module in modules):
        return False
    own = [name for name in modules if _package(name) not in sys.stdlib_module_names]
    return bool(own) and _package(own[-1]) == "headrace"


def _module(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", ""))


def _package(module: str) -> str:
    return module.partition(".")[0]
