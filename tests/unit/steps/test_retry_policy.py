"""Whether a step is tried again, from its attempts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.recipe.recipe import RetryPolicy
from headrace.states import FailureClass
from headrace.steps.retry_policy import Attempt, Decision, decide, num_failures

F, DEFAULT = FailureClass, RetryPolicy()
MAX_FAILURES = DEFAULT.max_failures
NO, AGAIN = Decision(again=False), Decision(again=True)


def attempts(*ends: tuple[FailureClass, float], seconds: float = 60.0) -> list[Attempt]:
    """Attempts from their failure classes and what each has kept for the next."""
    return [
        Attempt(failure_class=failure_class, kept=kept, machines="lease", seconds=seconds)
        for failure_class, kept in ends
    ]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(F.USER_ERROR, 10)], NO),
        ([(F.DATA_ERROR, 10)], NO),
        ([(F.CANCELLED, 10)], NO),
        # the machines were taken away, and the step came further each time
        ([(F.TIMED_OUT, step) for step in range(1, 20)], AGAIN),
        ([(F.PREEMPTED, step) for step in range(1, 20)], AGAIN),
        ([(F.TIMED_OUT, 10), (F.LOST, 20)], AGAIN),
        # the first lease was nearly over when the step began
        ([(F.TIMED_OUT, 0)], AGAIN),
        ([(F.TIMED_OUT, 0), (F.TIMED_OUT, 10)], AGAIN),
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
    assert decide(attempts(*ends), DEFAULT) == expected


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
    decision = decide(attempts(*ends), DEFAULT)
    assert not decision.again
    assert words in decision.why_not


def test_the_steps_own_limit_is_no_shortage_of_machines() -> None:
    ends = attempts(*[(F.TIMED_OUT, step) for step in range(1, MAX_FAILURES + 1)])
    assert decide(ends, DEFAULT, timeout_s=60.0) == NO
    assert decide(ends[:-1], DEFAULT, timeout_s=60.0) == AGAIN
    assert decide(ends, DEFAULT, timeout_s=61.0) == AGAIN


def test_an_attempt_of_unknown_length_did_not_reach_the_steps_limit() -> None:
    ends = [replace(each, seconds=None) for each in attempts((F.TIMED_OUT, 10))]
    assert decide(ends, DEFAULT, timeout_s=60.0) == AGAIN


def test_a_lease_that_grows_is_given_its_time() -> None:
    """But not past the step's own limit, against which no lease helps."""
    ends = attempts(*[(F.TIMED_OUT, 0)] * MAX_FAILURES)
    assert decide(ends, DEFAULT, grows=True) == AGAIN
    assert decide(ends, DEFAULT, timeout_s=60.0, grows=True) == NO
    lost = attempts(*[(F.LOST, 0)] * MAX_FAILURES)
    assert decide(lost, DEFAULT, grows=True) == NO


MISSING = {
    "error": "StepError", "message": "a fault of headrace itself: no version_1/epoch=0-step=10.ckpt"
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_fault"),
    [
        ({}, True),
        ({"message": MISSING["message"].replace("version_1", "version_55")}, True),
        ({"message": "something else"}, False),
        ({"machines": "another lease"}, False),
        ({"kept": 10.0}, False),
        ({"error": "StoreError"}, False),
        ({"error": "StorageError"}, False),
        ({"error": ""}, False),
        ({"failure_class": F.LOST}, False),
    ],
)
def test_the_same_error_again_is_a_fault_of_the_program(
    changes: dict[str, object], is_fault: bool
) -> None:
    """As a callback that looks for a file which is gone: numbered folders differ each time."""
    (first,) = (replace(each, **MISSING) for each in attempts((F.INFRASTRUCTURE, 0)))
    decision = decide([first, replace(first, **changes)], DEFAULT)
    assert decision.is_programs_fault is is_fault
    assert decision.again is not is_fault
    assert ("the same way" in decision.why_not) is is_fault


def test_errors_of_services_are_tried_as_often_as_others() -> None:
    ends = [replace(each, error="StoreError") for each in attempts(*[(F.INFRASTRUCTURE, 0)] * 5)]
    assert decide(ends[:-1], DEFAULT) == AGAIN
    assert decide(ends, DEFAULT) == NO


def test_a_policy_says_how_many_failures_there_may_be() -> None:
    ends = attempts(*[(F.LOST, 0)] * 2)
    assert decide(ends, RetryPolicy(max_failures=3)) == AGAIN
    assert decide(ends, RetryPolicy(max_failures=2)) == NO


@pytest.mark.parametrize("cause", [F.OUT_OF_MEMORY, F.CAPACITY, F.TIMED_OUT])
def test_elsewhere_there_may_be_more_room(cause: FailureClass) -> None:
    """Trials of a suite: the next attempt gets another machine, if there is one."""
    ends = attempts(*[(cause, 0)] * 2)
    assert not decide(ends, DEFAULT).again
    assert decide(ends, DEFAULT, elsewhere=True) == AGAIN
    assert decide(ends, RetryPolicy(max_failures=2), elsewhere=True) == NO


@pytest.mark.parametrize(("kept", "expected"), [((0, 0), 2), ((10, 10, 10), 2), ((0, 10), 0)])
def test_failures_are_counted_from_the_last_progress_on(
    kept: tuple[float, ...], expected: int
) -> None:
    assert num_failures(attempts(*[(F.LOST, each) for each in kept])) == expected
