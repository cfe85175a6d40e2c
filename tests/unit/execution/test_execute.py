"""Running a job from this process: waiting for room, leases that fail, being interrupted."""

from __future__ import annotations

import errno
import time

import pytest

from headrace.clusters.lease_files import write_heartbeat
from headrace.errors import LeaseError, LeaseLostError, LedgerError, StorageFullError
from headrace.execution import execute as module
from headrace.execution.execute import execute
from headrace.files.atomic import write_record, write_text
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.planned_steps import steps_of
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace.steps.retry_policy import KEPT
from support.runs import attempt_row_of, lease_on_disk, make_run


def nothing() -> None:
    """Somebody who watches and does not interfere."""


def test_a_run_that_is_interrupted_while_it_waits_for_room_is_cancelled_and_leaves_nothing():
    run = make_run()
    others = [make_run() for _ in range(run.site.limits.max_leases)]
    held = [lease_on_disk(other, host=ProcessIdentity.of()) for other in others]

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(run, interrupted)
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED
    assert open_ledger().attempts(run.run_id) == ()
    assert [row.lease_id for row in open_ledger().active_leases()] == held


def test_an_interrupted_run_has_no_open_attempt_in_the_ledger():
    run = make_run()
    attempt_row_of(run, "pack", lease_on_disk(run, host=ProcessIdentity.of()))
    open_ledger().set_lease_state(f"{run.run_id}-cpu-1", LeaseState.CLOSED, ended_at=1.0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    run.lease_folder(f"{run.run_id}-cpu-1").close.touch()
    others = [make_run() for _ in range(run.site.limits.max_leases)]
    for other in others:
        lease_on_disk(other, host=ProcessIdentity.of())
    with pytest.raises(KeyboardInterrupt):
        execute(run, interrupted)
    (row,) = open_ledger().attempts(run.run_id)
    assert row.state is StepState.LOST


def test_a_full_disk_ends_the_run_with_the_file_and_the_way_on(monkeypatch):
    run = make_run()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/shared/steps/000001")

    monkeypatch.setattr(module, "start_step", full)
    with pytest.raises(
        StorageFullError, match=r"quota is full: /shared/steps/000001 \([\d,]+ bytes free on /"
    ) as caught:
        execute(run, nothing)
    assert caught.value.hint.endswith(f"headrace resume {run.run_id}")
    assert open_ledger().run(run.run_id).state is StepState.FAILED


def test_a_run_goes_on_while_nobody_can_ask_the_ledger_how_it_stands(caplog):
    run = make_run()
    others = [make_run() for _ in range(run.site.limits.max_leases)]
    for other in others:
        lease_on_disk(other, host=ProcessIdentity.of())
    left = ["gone", "gone", "", "gone again"]

    def watching() -> None:
        if not left:
            raise KeyboardInterrupt
        if why := left.pop(0):
            raise LedgerError(f"The server is {why}")

    with pytest.raises(KeyboardInterrupt):
        execute(run, watching)
    told = [each for each in caplog.messages if "nothing is counted" in each]
    assert [each.rpartition(" is ")[2] for each in told] == ["gone", "gone again"]


class Starting:
    """In place of `start_step`: fails a few times, then every step has succeeded before."""

    def __init__(self, num_failures: int) -> None:
        self.left = num_failures
        self.num_calls = 0

    def __call__(self, run, name, ahead=()) -> StepResult:
        self.num_calls += 1
        if self.left:
            self.left -= 1
            raise LeaseLostError("the lease ended before the step was in its mailbox")
        return StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)


@pytest.fixture
def starting(monkeypatch):
    def install(num_failures: int) -> Starting:
        monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)
        made = Starting(num_failures)
        monkeypatch.setattr(module, "start_step", made)
        return made

    return install


def test_a_lease_that_fails_to_open_is_tried_again(starting):
    run, calls = make_run(), starting(2)
    assert execute(run, nothing) is None
    assert calls.num_calls == 4 + 2
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED


@pytest.fixture
def succeeding(monkeypatch):
    """Every step has succeeded after one tick; what opens ahead with each."""
    asked = []

    def attempted(_run, step, tick, ahead):
        asked.append((step.name, *ahead))
        tick()
        return StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)

    monkeypatch.setattr(module, "_attempt", attempted)
    return asked


@pytest.mark.parametrize("next_is_there", [False, True])
def test_each_lease_is_released_after_the_last_step_that_needs_it(
    succeeding, monkeypatch, next_is_there
):
    """A step whose lease is there does not wait for the end of another lease."""
    run, released = make_run(), []

    def release(_, role: str, why: str, *, wait: bool) -> bool:
        released.append((role, why.split()[1], wait, len(succeeding)))
        return wait or len(succeeding) == 4

    monkeypatch.setattr(module.run_leases, "release", release)
    current = "its id" if next_is_there else None
    monkeypatch.setattr(module.run_leases, "current", lambda *_: current)
    assert execute(run, nothing) is None
    of_gpu = ("gpu", "evaluate", True, 4)
    if next_is_there:
        looks = [("cpu", "pack", False, number) for number in (1, 2, 3, 4)]
        assert released == [*looks, of_gpu]
    else:
        assert released == [("cpu", "pack", True, 1), of_gpu]


def test_leases_of_later_steps_open_with_the_first_one(succeeding):
    assert execute(make_run(), nothing) is None
    assert succeeding == [("pack", "gpu"), ("stage",), ("train",), ("evaluate",)]


def test_a_lease_that_never_opens_ends_the_run(starting):
    run, calls = make_run(), starting(100)
    with pytest.raises(LeaseError, match="ended before the step"):
        execute(run, nothing)
    assert calls.num_calls == run.recipe.retry.max_failures
    assert open_ledger().run(run.run_id).state is StepState.FAILED


def test_a_recipe_says_how_often_a_lease_is_asked_for(starting):
    run, calls = make_run(overrides=("retry.max_failures=2",)), starting(100)
    with pytest.raises(LeaseError, match="ended before the step"):
        execute(run, nothing)
    assert calls.num_calls == 2


class Losing:
    """In place of `_attempt`: training loses its node so often, with so much kept each time."""

    def __init__(self, kept: list[int]) -> None:
        self.kept = kept
        self.num_calls = 0
        self.lease_id = ""

    def __call__(self, run, step, tick, ahead) -> StepResult:
        done = StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)
        if step.name != "train":
            return done
        self.num_calls += 1
        state, cause, outputs = StepState.SUCCEEDED, None, {}
        if self.num_calls <= len(self.kept):
            state, cause = StepState.LOST, FailureClass.LOST
            outputs = {KEPT: self.kept[self.num_calls - 1]}
        if self.num_calls == 1:
            self.lease_id = lease_on_disk(run, "gpu")
        attempt_row_of(
            run, "train", self.lease_id, attempt=self.num_calls,
            key=f"{run.run_id}/train/{self.num_calls}", state=state, failure_class=cause,
            outputs=outputs, started_at=1.0, finished_at=2.0,
        )  # fmt: skip
        if cause is None:
            return done
        lost = Failure(failure_class=cause, error="", message="its node was lost")
        return done.model_copy(update={"state": state, "failure": lost})


@pytest.mark.parametrize(
    ("kept", "is_well"), [((10, 20, 30, 40, 50, 60), True), ((10, 10, 10, 10, 10, 10), False)]
)
def test_a_training_that_loses_its_node_six_times_ends_well_if_it_comes_further_each_time(
    monkeypatch, kept, is_well
):
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)
    losing = Losing(list(kept))
    monkeypatch.setattr(module, "_attempt", losing)
    assert (execute(make_run(), nothing) is None) is is_well
    assert losing.num_calls == (7 if is_well else 6)


def test_a_lease_that_was_taken_for_lost_and_came_back_is_waited_for(monkeypatch):
    """On a machine that was too busy for heartbeats: they come again before the run is ended."""
    run = make_run()
    lease = run.lease_folder(lease_on_disk(run, host=ProcessIdentity.of()))
    start = module.start_step
    done = StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)
    ticks = []

    def silent(*arguments):
        ticket = start(*arguments)
        long_ago = run.site.limits.lost_after + 1
        write_text(lease.heartbeat, f"{time.time() - long_ago} {time.monotonic() - long_ago}\n")
        return ticket

    def tick() -> None:
        ticks.append(1)
        write_heartbeat(lease)
        if len(ticks) == 2:
            write_record(lease.step(1).result, done)

    monkeypatch.setattr(module, "start_step", silent)
    assert module._attempt(run, steps_of(run.recipe, run.request.kind)[0], tick, ()) == done
    assert len(ticks) > 2
