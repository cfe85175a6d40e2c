"""The one exception tree of headrace.

Every error says what was wrong, the value, the valid choices and the next step, and carries the
failure class that decides whether the work is tried again.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from headrace.states import FailureClass

_SECRETS = re.compile(
    r"(?<=://)(?![^/\s@]*:\*\*\*@)(?:[^/\s'\"@]*@|[^/\s'\"@:]*:(?!\d+/)[^\s'\"@]*@)"
)
"""User and password before the host of a URL; keys of AWS may hold slashes.

What is masked already stays as it is."""

_WORDS = re.compile(r"(?<![^\s'\"])([^\s'\"]*@)([^\s'\"@]*)")
"""A word up to its last `@`, behind which there is no password, and the rest of it."""


_LINKS = re.compile(r"\s*For further information visit https://errors\.pydantic\.dev/\S*")
"""What pydantic adds to each problem: pages about its own code."""

MAX_CHARS = 8000
"""Longest of the two parts of an error, in characters."""


def without_secrets(text: str) -> str:
    """A text with `***` for users and passwords in its URLs."""
    if "@" not in text or "://" not in text:
        return text
    return _WORDS.sub(lambda word: _SECRETS.sub("***@", word[1]) + word[2], text)


def words_of(error: BaseException | str) -> str:
    """The text of an error as users get it: without links to pydantic's pages."""
    return _LINKS.sub("", str(error))


def shortened(text: str, most: int = 200) -> str:
    """A text of at most so many characters, and `…` for what is left out."""
    return text if len(text) <= most else f"{text[:most]}…"


class HeadraceError(Exception):
    """Base of all errors that headrace raises on purpose; their text shows no secret of a URL.

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
    """The input, not the machine, is wrong; trying again cannot help."""

    failure_class = FailureClass.USER_ERROR


class RecipeError(UserError):
    """A recipe or an override of it cannot be used."""


class UnclearNamesError(RecipeError):
    """Names of folders, splits or classes in the source may mean two things."""


class SiteError(UserError):
    """A site file cannot be used."""


class AccessError(UserError):
    """A site is not for the user who asks."""


class SecretError(UserError):
    """A secret that a site names cannot be had."""


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
    """Raise what the block, which calls the user's code, raises as a `UserCodeError`.

    Errors of headrace and lack of memory pass as they are. `name` is that of what is called.
    """
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
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
    """A checkpoint holds objects that the site does not let unpickle."""


class NotFiniteLossError(UserError):
    """The loss became NaN or infinite, and the recipe says to stop then."""


class UnknownNameError(UserError):
    """A run, lease, dataset or step of that name does not exist."""


class DataError(HeadraceError):
    """Samples, shards or manifests are wrong."""

    failure_class = FailureClass.DATA_ERROR


class UnreadableError(DataError):
    """The bytes of one sample cannot be packed or decoded; `what` is the reason."""


class ShardError(DataError):
    """A shard is damaged or not what its manifest says."""


class ManifestError(DataError):
    """A manifest is missing, damaged or of a version this release cannot read."""


class NoDatasetError(ManifestError):
    """A place holds no manifest, so that it is no dataset."""


class EvaluationError(DataError):
    """Predictions cannot be judged, or the model is judged as not good enough."""


class StoreError(HeadraceError):
    """S3 could not be reached or kept failing, after several attempts."""


class StoreAccessError(UserError):
    """Credentials, permissions or the name of a bucket are wrong: nothing to try again."""


class StoreMissingError(DataError):
    """A folder or bucket holds no file of that name."""


class StoreChangedError(DataError):
    """A file is not the one that was listed: somebody replaced it."""


class StorageError(HeadraceError):
    """A file or folder cannot be used: its file system, its rights or its removal are the cause."""


class StorageFullError(StorageError):
    """No tier has room for the bytes asked for."""

    failure_class = FailureClass.CAPACITY


class TargetFullError(StorageFullError):
    """The one place that a dataset may be packed into has no room: no other attempt has more."""

    failure_class = FailureClass.USER_ERROR


class MemoryExhaustedError(HeadraceError):
    """Memory of a node or an accelerator is not enough."""

    failure_class = FailureClass.OUT_OF_MEMORY


class CapacityError(HeadraceError):
    """The site has no room for another lease just now."""

    failure_class = FailureClass.CAPACITY


class OwnLeasesError(CapacityError):
    """A user has as many leases open on a site as each may have."""


class QueueFullError(CapacityError):
    """No further job may be submitted just now: limits, or the pace, of a queue are reached."""


class SubmitLimitError(QueueFullError):
    """A batch system refuses a job until others of its user have ended."""


class LeaseError(HeadraceError):
    """A lease could not be opened, reached or closed."""


class LeaseLostError(LeaseError):
    """A lease that should be alive is gone."""

    failure_class = FailureClass.LOST


class BatchError(LeaseError):
    """The batch system cannot be asked, or does not answer."""


class SilentError(BatchError):
    """The batch system gives no answer just now; it may have done what it was asked."""


class LoginError(BatchError):
    """The login node of a batch system cannot be reached."""


class AmbiguousSubmitError(BatchError):
    """A job was submitted without a clear answer: it may be there."""


class JobRefusedError(UserError):
    """The batch system refuses a job, or can never start it."""


class EndedRunError(UserError):
    """A run has ended, and gets no lease unless somebody goes on with it."""


class BudgetError(UserError):
    """A run has cost what it may, or nobody knows what it costs: it gets no further lease."""


class WorkerLostError(HeadraceError):
    """A worker or rank died under the work it did."""


class StepError(HeadraceError):
    """A step ended without the result it owes."""


class StepNotEndedError(StepError):
    """A step was asked for its outcome while it may still end by itself."""


class StepCancelledError(HeadraceError):
    """Somebody asked the step to stop."""

    failure_class = FailureClass.CANCELLED


class StepTimedOutError(HeadraceError):
    """A step ran past its deadline."""

    failure_class = FailureClass.TIMED_OUT


class LeaseEndsError(StepTimedOutError):
    """The lease's time was over before the step was done; another lease may go on with it."""


class LeaseTakenError(LeaseEndsError):
    """The machines of a lease are about to be taken away; another lease may go on."""

    failure_class = FailureClass.PREEMPTED


class SuiteFailedError(UserError):
    """So many trials of a suite have failed that it does not go on; the same would happen again."""


class LedgerError(HeadraceError):
    """The ledger cannot be reached or refuses an entry."""


def nearest(value: str, choices: Iterable[str]) -> str:
    """Hint that names the nearest valid choice and lists all of them.

    Args:
        value: What the user wrote.
        choices: What would have been valid.
    """
    names = sorted(choices)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    listed = ", ".join(names) if names else "none"
    start = f"Did you mean '{close[0]}'? " if close else ""
    return f"{start}Valid: {listed}."
