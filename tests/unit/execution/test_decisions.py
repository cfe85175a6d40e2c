"""What a step needs next: pure, as a table and as properties."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import (
    BatchError,
    CapacityError,
    LeaseLostError,
    OwnLeasesError,
    QueueFullError,
    SilentError,
    StepNotEndedError,
)
from headrace.execution.decisions import (
    Action,
    Attach,
    Collect,
    End,
    Memory,
    RunningAttempt,
    Situation,
    Submit,
    Wait,
    WriteOff,
    decide,
)
from headrace.files.layout import StepFolder
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.recipe import RetryPolicy
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.lease import LeaseView, Look
from headrace.steps.mailbox import Failure, StepResult, StepStatus

TICKET = RunningAttempt(step="train", attempt=1, folder=StepFolder(Path("/l/l-1/steps/000001")))
FOLLOWED = Memory(ticket=TICKET)
ENDING = Memory(is_ending=True)
DONE = StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)


def row(attempt: int, state: StepState, cause: FailureClass | None = None) -> AttemptRecord:
    return AttemptRecord(
        run_id="r", step="train", kind="train", attempt=attempt, key=f"r/train/{attempt}",
        lease_id=f"l-{attempt}", state=state, failure_class=cause, created_at=1.0, outputs={},
        started_at=1.0, finished_at=2.0, message="why",
    )  # fmt: skip


def look(*, final: bool = False, url: str = "", queue: str = "") -> Look:
    lease = LeaseView(
        lease_id="l-1", folder="/l/l-1", state=LeaseState.READY, dashboard_url=url, waits_for=queue
    )
    return Look(final=final, status=StepStatus(state=StepState.RUNNING), lease=lease)


def failed(
    cause: FailureClass, state: StepState = StepState.FAILED, why: str = "why"
) -> StepResult:
    failure = Failure(failure_class=cause, error="E", message=why)
    return DONE.model_copy(update={"state": state, "failure": failure})


def situation(*attempts: AttemptRecord, **seen: object) -> Situation:
    return replace(Situation(policy=RetryPolicy(), attempts=attempts), **seen)


def running(*attempts: AttemptRecord, **seen: object) -> Situation:
    return situation(*attempts, ticket=TICKET, look=look(**seen))


LOST = row(1, StepState.LOST, FailureClass.LOST)
RUNNING = row(1, StepState.RUNNING)
SUCCEEDED = row(1, StepState.SUCCEEDED)
MISTAKE = failed(FailureClass.USER_ERROR)
STOPPED = failed(FailureClass.CANCELLED, StepState.CANCELLED, "Cancelled: its task was cleared")
UNOPENED = LeaseLostError("sbatch failed")


@pytest.mark.parametrize(
    ("now", "memory", "expected"),
    [
        # find, collect, re-attach, and only then submit
        (situation(), Memory(), Submit(attempt=1)),
        (situation(LOST), Memory(num_before=1), Submit(attempt=2)),
        (situation(RUNNING, is_open=True), Memory(), Submit(attempt=1, row=RUNNING)),
        (situation(RUNNING), Memory(), WriteOff(row=RUNNING)),
        (running(RUNNING), Memory(), Attach(ticket=TICKET)),
        (running(RUNNING, final=True), Memory(), Collect(ticket=TICKET, counts=False)),
        (situation(SUCCEEDED, has_more_to_do=True), Memory(), Submit(attempt=2)),
        # follow
        (running(), FOLLOWED, Wait(on="step", then=FOLLOWED)),
        (running(queue="job 7"), FOLLOWED, Wait(on="step", then=FOLLOWED, why="job 7")),
        (running(url="http://d"), FOLLOWED, Attach(ticket=TICKET, is_ready=True)),
        (running(url="http://d", final=True), FOLLOWED, Attach(ticket=TICKET, is_ready=True)),
        (
            running(url="http://d", final=True),
            replace(FOLLOWED, is_ready=True),
            Collect(ticket=TICKET, counts=True),
        ),
        (running(final=True), FOLLOWED, Collect(ticket=TICKET, counts=True)),
        # what was not possible
        (
            situation(),
            replace(FOLLOWED, error=StepNotEndedError("it runs")),
            Wait(on="step", then=FOLLOWED, why="it runs"),
        ),
        (
            situation(),
            Memory(error=SilentError("EC2 says 503")),
            Wait(on="queue", then=Memory(), why="EC2 says 503", pause_s=10.0),
        ),
        (
            situation(),
            Memory(error=QueueFullError("no more jobs")),
            Wait(on="queue", then=Memory(), why="no more jobs", pause_s=1.0),
        ),
        (
            situation(),
            Memory(error=OwnLeasesError("site is full")),
            Wait(on="room", then=Memory(), why="site is full", pause_s=1.0),
        ),
        (
            situation(),
            Memory(error=UNOPENED),
            Wait(
                on="retry",
                then=Memory(unopened=(UNOPENED.failure_class,)),
                why="sbatch failed",
                pause_s=3.0,
            ),
        ),
        (
            situation(),
            Memory(error=UNOPENED, unopened=(UNOPENED.failure_class,) * 4),
            End(why="sbatch failed", cause=UNOPENED),
        ),
        # its end
        (situation(), Memory(result=DONE), End(cause=DONE)),
        (
            situation(row(1, StepState.FAILED, FailureClass.USER_ERROR)),
            Memory(result=MISTAKE),
            End(why="why", cause=MISTAKE),
        ),
        (
            situation(LOST),
            Memory(result=failed(FailureClass.LOST), unopened=(FailureClass.LOST,)),
            Wait(on="retry", then=Memory(), why="why", pause_s=3.0),
        ),
        (
            situation(LOST),
            Memory(result=failed(FailureClass.LOST), is_revived=True),
            Wait(on="retry", then=Memory(), why="why", pause_s=3.0),
        ),
        (
            situation(*(row(each, StepState.LOST, FailureClass.LOST) for each in range(1, 6))),
            Memory(result=failed(FailureClass.LOST)),
            End(why="why", cause=failed(FailureClass.LOST)),
        ),
        (
            situation(*(row(each, StepState.LOST, FailureClass.LOST) for each in range(1, 6))),
            Memory(result=failed(FailureClass.LOST), num_before=1),
            Wait(on="retry", then=Memory(num_before=1), why="why", pause_s=3.0),
        ),
        # its run ends: what it has left is recorded, and nothing is submitted
        (situation(RUNNING, is_open=True), ENDING, WriteOff(row=RUNNING)),
        (situation(RUNNING, row(2, StepState.LOST)), ENDING, WriteOff(row=RUNNING)),
        (
            situation(LOST),
            ENDING,
            End(why="why", cause=DONE.model_copy(update={"state": StepState.LOST})),
        ),
        # a task that was cleared cancels its attempt: once another one follows
        (
            situation(row(1, StepState.CANCELLED, FailureClass.CANCELLED)),
            Memory(result=STOPPED, revived_after=("was cleared",)),
            Wait(
                on="retry",
                then=Memory(revived_after=("was cleared",), is_revived=True),
                why="Cancelled: its task was cleared",
            ),
        ),
        (
            situation(row(1, StepState.CANCELLED, FailureClass.CANCELLED)),
            Memory(result=STOPPED, revived_after=("was cleared",), is_revived=True),
            End(why="Cancelled: its task was cleared", cause=STOPPED),
        ),
        (
            situation(row(1, StepState.CANCELLED, FailureClass.CANCELLED)),
            Memory(result=STOPPED),
            End(why="Cancelled: its task was cleared", cause=STOPPED),
        ),
    ],
)
def test_what_is_next(now: Situation, memory: Memory, expected: Action):
    assert decide(now, memory) == expected


def test_a_step_that_has_succeeded_is_collected():
    action = decide(situation(LOST, row(2, StepState.SUCCEEDED)), Memory())
    assert isinstance(action, End)
    assert action.cause.state is StepState.SUCCEEDED


def test_two_leases_that_were_too_short_are_explained_in_the_ledger():
    rows = [row(each, StepState.TIMED_OUT, FailureClass.TIMED_OUT) for each in (1, 2)]
    timed_out = failed(FailureClass.TIMED_OUT, StepState.TIMED_OUT)
    action = decide(situation(*rows), Memory(result=timed_out))
    assert isinstance(action, End)
    assert action.explained == 2
    assert action.why.startswith("why\n  Two leases in a row")
    assert isinstance(action.cause, StepResult)
    assert action.cause.failure.message == action.why
    grows = decide(situation(*rows, can_grow=True), Memory(result=timed_out))
    assert isinstance(grows, Wait)


ROWS = st.lists(
    st.tuples(st.sampled_from(StepState), st.sampled_from([None, *FailureClass])), max_size=7
).map(lambda given: tuple(row(number, *each) for number, each in enumerate(given, 1)))
ERRORS = st.sampled_from(
    [None, UNOPENED, CapacityError("c"), SilentError("s"), BatchError("b"), StepNotEndedError("n")]
)
FAILURES = st.builds(failed, st.sampled_from(FailureClass), why=st.sampled_from(["why", ""]))
RESULTS = st.none() | FAILURES | st.just(DONE)
SITUATIONS = st.builds(
    Situation,
    policy=st.builds(RetryPolicy, max_failures=st.integers(1, 5)),
    attempts=ROWS,
    has_more_to_do=st.booleans(),
    can_grow=st.booleans(),
    is_open=st.booleans(),
)
MEMORIES = st.builds(
    Memory,
    num_before=st.integers(0, 3),
    is_ready=st.booleans(),
    unopened=st.lists(st.sampled_from(FailureClass), max_size=5).map(tuple),
    revived_after=st.sampled_from([(), ("why",)]),
    is_revived=st.booleans(),
    is_ending=st.booleans(),
    result=RESULTS,
    error=ERRORS,
)


@given(
    now=SITUATIONS, memory=MEMORIES, final=st.none() | st.booleans(), url=st.sampled_from(["", "u"])
)
def test_each_situation_has_an_action_and_no_attempt_is_doubled(now, memory, final, url):
    """`final` is None where the newest attempt is in no mailbox."""
    newest = now.attempts[-1] if now.attempts else None
    if final is not None and newest is not None and not newest.state.is_final:
        now = replace(now, ticket=TICKET, look=look(final=final, url=url))
    action = decide(now, memory)
    assert isinstance(action, Action)
    if isinstance(action, Submit):
        assert not memory.is_ending
        assert now.look is None  # else it may be running
        assert (memory.error, memory.result) == (None, None)
        is_entered = newest is not None and not newest.state.is_final
        assert action.row is (newest if is_entered else None)
        number = 0 if newest is None else newest.attempt
        assert action.attempt == (number if is_entered else number + 1)
    if isinstance(action, WriteOff):
        assert memory.is_ending or not now.is_open
        assert not action.row.state.is_final
    if isinstance(action, End):
        is_well = isinstance(action.cause, StepResult) and action.cause.state is StepState.SUCCEEDED
        assert bool(action.why) is not is_well
    if isinstance(action, Wait):
        assert action.then.error is None
        assert action.then.num_before == memory.num_before


@given(now=SITUATIONS, memory=MEMORIES, outcome=st.none() | FAILURES)
def test_a_step_that_fails_again_and_again_is_given_up(now, memory, outcome):
    """Whatever a driver remembers, a step without progress ends."""
    memory = replace(memory, error=None, num_before=0, unopened=(), is_ending=False)
    for number in range(1, 9):
        cause = outcome.failure.failure_class if outcome is not None else None
        memory = (
            replace(memory, error=UNOPENED) if outcome is None else replace(memory, result=outcome)
        )
        rows = tuple(row(each, StepState.FAILED, cause) for each in range(1, number + 1))
        action = decide(replace(now, attempts=rows, can_grow=False), memory)
        if isinstance(action, End):
            return
        memory = action.then
    pytest.fail("it goes on for ever")
