"""Whether a step is tried again, from its attempts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.ledger.records import AttemptRecord
from headrace.runs.retrying import KEPT, MAX_FAILURES, Decision, decide
from headrace.states import FailureClass, StepState

F = FailureClass
NO, AGAIN, FREE = Decision(again=False), Decision(again=True), Decision(again=True, free=True)


def attempts(*ends: tuple[FailureClass, float], seconds: float = 60.0) -> list[AttemptRecord]:
    """Attempts from their failure classes and what each has kept for the next."""
    return [
        AttemptRecord(
            run_id="run",
            step="train",
            kind="train",
            attempt=number,
            key=f"run/train/{number}",
            lease_id="lease",
            state=StepState.LOST,
            failure_class=failure_class,
            created_at=0.0,
            started_at=0.0,
            finished_at=seconds,
            outputs={KEPT: kept},
        )
        for number, (failure_class, kept) in enumerate(ends, start=1)
    ]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(F.USER_ERROR, 10)], NO),
        ([(F.DATA_ERROR, 10)], NO),
        ([(F.CANCELLED, 10)], NO),
        # the machines were taken away, and the step came further each time
        ([(F.TIMED_OUT, step) for step in range(1, 20)], FREE),
        ([(F.PREEMPTED, step) for step in range(1, 20)], FREE),
        ([(F.TIMED_OUT, 10), (F.LOST, 20)], AGAIN),
        # the first lease was nearly over when the step began
        ([(F.TIMED_OUT, 0)], AGAIN),
        ([(F.TIMED_OUT, 0), (F.TIMED_OUT, 10)], FREE),
        ([(F.PREEMPTED, 0), (F.PREEMPTED, 0)], AGAIN),
        ([(F.LOST, 0)] * (MAX_FAILURES - 1), AGAIN),
        ([(F.LOST, 0)] * MAX_FAILURES, NO),
        ([(F.INFRASTRUCTURE, 0)] * (MAX_FAILURES - 1) + [(F.LOST, 10)], AGAIN),
        ([(F.LOST, 0), (F.LOST, 10)] + [(F.LOST, 10)] * (MAX_FAILURES - 1), AGAIN),
        ([(F.LOST, 0), (F.LOST, 10)] + [(F.LOST, 10)] * MAX_FAILURES, NO),
        ([(F.OUT_OF_MEMORY, 10)], AGAIN),
        ([(F.CAPACITY, 0)], AGAIN),
        ([(F.CAPACITY, 0), (F.CAPACITY, 10)], AGAIN),
    ],
)
def test_decisions(ends: list[tuple[FailureClass, float]], expected: Decision) -> None:
    """pains 31, peers 41: a policy for each cause, and progress uses up no retries."""
    assert decide(attempts(*ends)) == expected


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([(F.TIMED_OUT, 0)] * 2, "Raise `lifetime`"),
        ([(F.TIMED_OUT, 10)] * 3, "Raise `lifetime`"),
        ([(F.OUT_OF_MEMORY, 0)], "Give the role more memory"),
        ([(F.OUT_OF_MEMORY, 10)] * 2, "Give the role more memory"),
        ([(F.CAPACITY, 0)] * 2, "no room twice in a row"),
    ],
)
def test_what_would_end_in_the_same_way_is_not_tried_again(
    ends: list[tuple[FailureClass, float]], words: str
) -> None:
    decision = decide(attempts(*ends))
    assert not decision.again
    assert words in decision.why_not


def test_the_steps_own_limit_is_no_shortage_of_machines() -> None:
    ends = attempts(*[(F.TIMED_OUT, step) for step in range(1, MAX_FAILURES + 1)])
    assert decide(ends, timeout_s=60.0) == NO
    assert decide(ends[:-1], timeout_s=60.0) == AGAIN
    assert decide(ends, timeout_s=61.0) == FREE


@pytest.mark.parametrize("known", [{}, {"started_at": 0.0}, {"finished_at": 99.0}])
def test_an_attempt_of_unknown_length_did_not_reach_the_steps_limit(
    known: dict[str, float],
) -> None:
    changes = {"started_at": None, "finished_at": None, **known}
    ends = [replace(each, **changes) for each in attempts((F.TIMED_OUT, 10))]
    assert decide(ends, timeout_s=60.0) == FREE


def test_a_lease_that_grows_is_given_its_time() -> None:
    """But not past the step's own limit, against which no lease helps."""
    ends = attempts(*[(F.TIMED_OUT, 0)] * MAX_FAILURES)
    assert decide(ends, grows=True) == FREE
    assert decide(ends, timeout_s=60.0, grows=True) == NO
    lost = attempts(*[(F.LOST, 0)] * MAX_FAILURES)
    assert decide(lost, grows=True) == NO
