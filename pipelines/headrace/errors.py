"""The one exception tree of headrace.

Every error states what is wrong, the value, the valid choices and the next step. Its failure class
decides whether the work is tried again.
"""

from __future__ import annotations

import difflib
import logging
import re
import signal
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import ClassVar

from headrace.states import BY_HAND, FailureClass, Removal

logger = logging.getLogger(__name__)

_SECRETS = re.compile(
    r"(?<=://)(?![^/\s@]*:\*\*\*@)(?:[^/\s'\"@]*@|[^/\s'\"@:]*:(?!\d+/)[^\s'\"@]*@)"
)
"""User and password before the host of a URL. AWS keys may contain slashes.

Masked ones stay as they are."""

_WORDS = re.compile(r"(?<![^\s'\"])([^\s'\"]*@)([^\s'\"@]*)")
"""A word up to its last `@` (no password follows it), and the rest of the word."""


_LINKS = re.compile(r"\s*For further information visit https://errors\.pydantic\.dev/\S*")
"""Links that pydantic adds to each problem: pages about its own code."""

MAX_CHARS = 8000
"""Longest of the two parts of an error, in characters."""


def without_secrets(text: str) -> str:
    """Return a text with `***` in place of users and passwords in its URLs."""
    if "@" not in text or "://" not in text:
        return text
    return _WORDS.sub(lambda word: _SECRETS.sub("***@", word[1]) + word[2], text)


def words_of(error: BaseException | str) -> str:
    """Return an error's text for users and records: without pydantic's links, escaped for UTF-8."""
    return _LINKS.sub("", str(error)).encode(errors="backslashreplace").decode()


def shortened(text: str, most: int = 200) -> str:
    """Return at most `most` characters of a text, with `…` for the rest."""
    return text if len(text) <= most else f"{text[:most]}…"


class HeadraceError(Exception):
    """Base of all errors that headrace raises on purpose; the text masks secrets in URLs.

    Args:
        what: One sentence: what was wrong, with the value.
        hint: The next step for the reader, or the valid choices.
    """

    failure_class: ClassVar[FailureClass] = FailureClass.INFRASTRUCTURE
    exit_code = 0  # of the process that it is about, or minus the number of a signal

    def __init__(self, what: str, hint: str = "") -> None:
        what, hint = (
            shortened(without_secrets(words_of(part)), MAX_CHARS) for part in (what, hint)
        )
        super().__init__(f"{what}\n  {hint}" if hint else what)
        self.what = what
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.hint)


class UserError(HeadraceError):
    """The input is wrong, not the machine: trying again cannot help."""

    failure_class = FailureClass.USER_ERROR


class RecipeError(UserError):
    """A recipe or an override of it cannot be used."""


class UnclearNamesError(RecipeError):
    """Names of folders, splits or classes in the source are ambiguous."""


class SiteError(UserError):
    """A site file cannot be used."""


class AccessError(UserError):
    """The user has no access to the site."""


class SecretError(UserError):
    """A secret that a site names is not available."""


class TargetError(UserError):
    """A `_target_` does not exist, or the site does not allow it."""


class UserCodeError(UserError):
    """User code (model, transform, script) raised.

    Args:
        what: What the user's code was doing, and the last line of the trace.
        hint: The next step.
        trace: The whole trace, shown once.
        where: Rank, worker or node it happened on.
    """

    def __init__(self, what: str, hint: str = "", *, trace: str = "", where: str = "") -> None:
        super().__init__(what, hint)
        self.trace = words_of(trace)
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return partial(type(self), trace=self.trace, where=self.where), (self.what, self.hint)


@contextmanager
def blaming_user_code(name: str, hint: str, where: str = "") -> Iterator[None]:
    """Re-raise what the user's code in the block raises as a `UserCodeError`.

    Errors of headrace, lack of memory and Ctrl-C at a terminal pass as they are. `name` is that of
    what is called.
    """
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        handler = signal.getsignal(signal.SIGINT)
        if isinstance(error, KeyboardInterrupt) and handler is signal.default_int_handler:
            raise
        at, own = error.__traceback__, f"{__package__}."
        while at and at.tb_next and at.tb_frame.f_globals.get("__name__", "").startswith(own):
            at = at.tb_next  # up to what is called
        raise UserCodeError(
            f"{name} raised {type(error).__name__}: {error}",
            hint,
            trace="".join(traceback.format_exception(type(error), error, at)),
            where=where,
        ) from error


class PickledCheckpointError(UserError):
    """The site forbids to unpickle the objects in a checkpoint."""


class NotFiniteLossError(UserError):
    """The loss became NaN or infinite, and the recipe says to stop in this case."""


class UnknownNameError(UserError):
    """No run, lease, dataset or step has that name."""


class DataError(HeadraceError):
    """Samples, shards or manifests are wrong."""

    failure_class = FailureClass.DATA_ERROR


class UnreadableError(DataError):
    """The bytes of one sample cannot be packed or decoded; `what` is the reason."""


class ShardError(DataError):
    """A shard is damaged or differs from its manifest."""


class ManifestError(DataError):
    """A manifest is missing, damaged or of a version this release cannot read."""


class NoDatasetError(ManifestError):
    """A folder holds no manifest, so it is not a dataset."""


class EvaluationError(DataError):
    """Predictions cannot be evaluated."""


class MetricsError(EvaluationError):
    """The model misses `evaluate.min_metrics` or `max_metrics`."""


class StoreError(HeadraceError):
    """S3 is unreachable or kept failing, after several attempts."""


class StoreAccessError(UserError):
    """Credentials, permissions or the bucket's name are wrong: trying again cannot help."""


class StoreMissingError(DataError):
    """A folder or bucket holds no file of that name."""


class StoreChangedError(DataError):
    """A file was replaced after it was listed."""


class StorageError(HeadraceError):
    """A file or folder is unusable: its file system, permissions or removal are the cause."""


class StorageFullError(StorageError):
    """No tier has room for the requested bytes."""

    failure_class = FailureClass.CAPACITY


class TargetFullError(StorageFullError):
    """The only folder that a dataset may be packed into is full: another attempt cannot help."""

    failure_class = FailureClass.USER_ERROR


class MemoryExhaustedError(HeadraceError):
    """Memory of a node or an accelerator is not enough."""

    failure_class = FailureClass.OUT_OF_MEMORY


class CapacityError(HeadraceError):
    """The site has no room for another lease at present."""

    failure_class = FailureClass.CAPACITY


class OwnLeasesError(CapacityError):
    """A user has the most leases that a site allows each user."""


class QueueFullError(CapacityError):
    """No further job may be submitted at present: a limit or the pace of a queue is reached."""


class SubmitLimitError(QueueFullError):
    """A batch system refuses a job until others of its user have ended."""


class LeaseError(HeadraceError):
    """A lease could not be opened, reached or closed."""


class LeaseLostError(LeaseError):
    """A lease that should be alive is gone."""

    failure_class = FailureClass.LOST


class BatchError(LeaseError):
    """The batch system cannot be queried, or does not answer."""


class SilentError(BatchError):
    """The batch system does not answer at present; it may have done the request."""


class LoginError(BatchError):
    """The login node of a batch system cannot be reached."""


class AmbiguousSubmitError(BatchError):
    """A job was submitted without a clear answer: it may exist."""


class JobRefusedError(UserError):
    """The batch system refuses a job, or can never start it."""


class EndedRunError(UserError):
    """A run has ended, and gets no lease unless it is resumed."""


class BudgetError(UserError):
    """A run has spent its budget, or its costs are unknown: it gets no further lease."""


class WorkerLostError(HeadraceError):
    """A worker or rank died during its work."""


class StepError(HeadraceError):
    """A step ended without a result."""


class RemovedError(UnknownNameError, StepError):
    """A run's files were removed, as if there were no such run, or its folder were damaged."""


class StepNotEndedError(StepError):
    """A step's outcome was requested while it may still end by itself."""


class StepCancelledError(HeadraceError):
    """The step was cancelled by a user."""

    failure_class = FailureClass.CANCELLED


class StepTimedOutError(HeadraceError):
    """A step ran past its deadline."""

    failure_class = FailureClass.TIMED_OUT


class LeaseEndsError(StepTimedOutError):
    """The lease's time ended before the step did; another lease may continue it."""


class LeaseTakenError(LeaseEndsError):
    """The machines of a lease are about to be reclaimed; another lease may continue."""

    failure_class = FailureClass.PREEMPTED


class SuiteFailedError(UserError):
    """Too many trials of a suite have failed to continue; the next ones would fail, too."""


class LedgerError(HeadraceError):
    """The ledger cannot be reached or refuses an entry."""


@lru_cache(maxsize=64)
def warn_once(text: str) -> None:
    """Log a warning, unless this process has done so."""
    logger.warning("%s", text)


def removed(name: str, removal: Removal) -> RemovedError:
    """Return the error for a request that needs the files of a removed run, or trial of one."""
    run_id, is_by_hand = name.partition(":")[0], removal.by == BY_HAND
    way = "To leave it out of lists: headrace clean" if is_by_hand else "Repeat it: headrace rerun"
    hint = f"Its metrics and cost are kept. {way} {run_id}"
    return RemovedError(f"Run {name} was {removal.words}", hint)


def nearest(value: str, choices: Iterable[str]) -> str:
    """Return a hint that names the nearest valid choice and lists all of them.

    Args:
        value: What the user wrote.
        choices: The valid values.
    """
    names = sorted(choices)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    listed = ", ".join(names) if names else "none"
    start = f"Did you mean '{close[0]}'? " if close else ""
    return f"{start}Valid: {listed}."
