"""Whether failed work is retried: a pure decision over its attempts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace import errors
from headrace.states import FailureClass

if TYPE_CHECKING:  # lists of runs read no recipes
    from headrace.recipe.recipe import RetryPolicy

PROGRESS = "kept"
"""Output of a failed attempt: how much of its work the next one need not repeat."""

TOTAL = "total"
"""Output of a failed training: total optimizer steps, if known."""

ERROR = "error"
"""Output of a failed attempt: class name of its error; empty if none was recorded."""

_SERVICES = (errors.BatchError, errors.LeaseError, errors.LoginError, errors.StoreError)
_ELSEWHERE = (
    "",
    *(each.__name__ for each in (*_SERVICES, errors.LedgerError, errors.StorageError)),
)
"""Errors of services and disks that the program uses: a repetition is not the program's fault."""

_TOO_SHORT = (
    "Two leases in a row ended before the step made any progress. Raise `lifetime` of the role in "
    "the site (with `auto`: `lifetime_max`), or save checkpoints more often "
    "(trainer.checkpoint_every_steps)."
)
_TOO_LITTLE_MEMORY = (
    "It would fail again at the same point. Give the role more memory, or lower "
    "data.global_batch_size."
)
_NO_ROOM = "There was no room twice in a row, so it is not retried before space is freed."
_SAME_FAULT = (
    "It failed in the same way at the same point twice in a row, on the same machines: this is a "
    "fault of the program, and it is not retried."
)
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One failed attempt."""

    failure_class: FailureClass | None
    """Its failure class; None if unknown: it is not retried."""
    error: str = ""
    """Class name of the error; empty if none was recorded."""
    message: str = ""
    """Its message."""
    kept: float = 0.0
    """How much of its work the next attempt need not repeat."""
    machines: str = ""
    """Its machines: the lease."""
    seconds: float | None = None
    """Its duration; None if unknown."""

    def is_fault_again(self, before: Attempt) -> bool:
        """Whether the program failed as in the previous attempt, except for numbers."""
        return (
            self.failure_class is FailureClass.INFRASTRUCTURE
            and self.error not in _ELSEWHERE
            and self._identity == before._identity
        )

    @property
    def _identity(self) -> tuple[object, ...]:
        """Features of errors of the same origin: paths and ids differ in numbers."""
        line = _NUMBERS.sub("#", self.message.partition("\n")[0])
        return self.failure_class, self.error, line, self.machines


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision about work whose newest attempt has failed."""

    again: bool
    """Whether there is another attempt."""
    why_not: str = ""
    """Why there is none, for the user; empty if the failure class explains it."""
    is_programs_fault: bool = False
    """Whether the failure has proved to be the program's fault, whatever its class."""


def decide(
    attempts: Sequence[Attempt],
    policy: RetryPolicy,
    *,
    timeout_s: float | None = None,
    grows: bool = False,
    elsewhere: bool = False,
) -> Decision:
    """Decide about failed work, by its attempts that count, the first one first.

    `timeout_s` is the step's own limit for one attempt: another lease does not help against it.
    With `grows` the next lease has more time than the last; `elsewhere`: the next attempt gets
    other machines, if there are any, which may have more disk, memory and time.
    """
    last = attempts[-1]
    if last.failure_class is None or not last.failure_class.is_retried:
        return Decision(again=False)
    own_limit = [_is_own_limit(each, timeout_s) for each in attempts]
    further = [more and not own for more, own in zip(_further(attempts), own_limit, strict=True)]
    if further[-1]:
        return Decision(again=True)
    if len(attempts) > 1 and last.is_fault_again(attempts[-2]) and not further[-2]:
        return Decision(again=False, why_not=_SAME_FAULT, is_programs_fault=True)
    if grows and last.failure_class is FailureClass.TIMED_OUT and not own_limit[-1]:
        return Decision(again=True)
    is_excused = any(further[-2:] + own_limit[-2:])
    why_not = "" if elsewhere else _why_no_such_machines(attempts, is_excused=is_excused)
    return Decision(again=not why_not and _streak(further) < policy.max_failures, why_not=why_not)


def num_failures(attempts: Sequence[Attempt]) -> int:
    """Return how many attempts in a row failed without more progress than those before."""
    return _streak(_further(attempts))


def _streak(further: Sequence[bool]) -> int:
    return further[::-1].index(True) if any(further) else len(further)


def _why_no_such_machines(attempts: Sequence[Attempt], *, is_excused: bool) -> str:
    """Return why attempts on equal machines fail in the same way again; empty if they may not."""
    # the first of two may have begun late in its lease; the second had a lease of its own
    ends = [each.failure_class for each in attempts[-2:]]
    if ends[-1] is FailureClass.OUT_OF_MEMORY:
        return _TOO_LITTLE_MEMORY
    if ends == [FailureClass.TIMED_OUT] * 2 and not is_excused:
        return _TOO_SHORT
    return _NO_ROOM if ends == [FailureClass.CAPACITY] * 2 else ""


def _further(attempts: Sequence[Attempt]) -> list[bool]:
    """Return for each attempt whether it made more lasting progress than all before it."""
    most = 0.0
    further = []
    for attempt in attempts:
        further.append(attempt.kept > most)
        most = max(most, attempt.kept)
    return further


def _is_own_limit(attempt: Attempt, timeout_s: float | None) -> bool:
    if timeout_s is None or attempt.seconds is None:
        return False
    return attempt.seconds >= timeout_s and attempt.failure_class is FailureClass.TIMED_OUT
