"""Whether a step that failed is tried again: a pure decision over its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.ledger.records import AttemptRecord
from headrace.states import FailureClass

MAX_FAILURES = 5
"""Failures in a row without progress between them before a run gives up on a step."""

KEPT = "kept"
"""Output of an attempt that failed: how much of its work the next one need not do again."""

TOTAL = "total"
"""Output of a training that failed: optimizer steps in all, where they are known."""

_TAKEN_AWAY = (FailureClass.TIMED_OUT, FailureClass.PREEMPTED)
_TOO_SHORT = (
    "Two leases in a row ended before the step got any further. Raise `lifetime` of the role in "
    "the site (with `auto`: `lifetime_max`), or save checkpoints more often "
    "(trainer.checkpoint_every_steps)."
)
_TOO_LITTLE_MEMORY = (
    "It would fail again at the same place. Give the role more memory, or lower "
    "data.global_batch_size."
)
_NO_ROOM = "There was no room twice in a row, so it is not tried again before somebody makes some."


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What becomes of a step whose newest attempt has failed."""

    again: bool
    """Whether there is another attempt."""
    free: bool = False
    """Whether this one does not count as a failure: the machines were taken away, and the step
    had come further."""
    why_not: str = ""
    """Why not again, where the failure's class alone does not say; for the user."""


def decide(
    attempts: Sequence[AttemptRecord], timeout_s: float | None = None, *, grows: bool = False
) -> Decision:
    """What becomes of a step.

    Args:
        attempts: Its attempts that count, the first one first; the last one has failed.
        timeout_s: The step's own limit for one attempt; another lease does not help against that.
        grows: Whether the next lease has more time than the last one had.
    """
    last = attempts[-1]
    if last.failure_class is None or not last.failure_class.is_retried:
        return Decision(again=False)
    own_limit = [_is_own_limit(each, timeout_s) for each in attempts]
    further = [more and not own for more, own in zip(_further(attempts), own_limit, strict=True)]
    if further[-1]:
        return Decision(again=True, free=last.failure_class in _TAKEN_AWAY)
    if last.failure_class is FailureClass.OUT_OF_MEMORY:
        return Decision(again=False, why_not=_TOO_LITTLE_MEMORY)
    if grows and last.failure_class is FailureClass.TIMED_OUT and not own_limit[-1]:
        return Decision(again=True, free=True)
    # the first of two may have begun late in its lease, the second had one of its own
    ends = [each.failure_class for each in attempts[-2:]]
    if ends == [FailureClass.TIMED_OUT] * 2 and not any(further[-2:] + own_limit[-2:]):
        return Decision(again=False, why_not=_TOO_SHORT)
    if ends == [FailureClass.CAPACITY] * 2:
        return Decision(again=False, why_not=_NO_ROOM)
    num_failures = further[::-1].index(True) if any(further) else len(further)
    return Decision(again=num_failures < MAX_FAILURES)


def _further(attempts: Sequence[AttemptRecord]) -> list[bool]:
    """Whether each attempt came further than all before it, so far that the next one keeps it."""
    most = 0.0
    further = []
    for attempt in attempts:
        kept = float(attempt.outputs.get(KEPT) or 0.0)
        further.append(kept > most)
        most = max(most, kept)
    return further


def _is_own_limit(attempt: AttemptRecord, timeout_s: float | None) -> bool:
    if timeout_s is None or attempt.started_at is None or attempt.finished_at is None:
        return False
    is_late = attempt.finished_at - attempt.started_at >= timeout_s
    return is_late and attempt.failure_class is FailureClass.TIMED_OUT
