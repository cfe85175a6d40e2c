"""Running a job from this process, and resuming it: room, failing leases, interruptions."""

from __future__ import annotations

import errno
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.clusters.lease_files import write_heartbeat
from headrace.errors import (
    CapacityError,
    HeadraceError,
    LeaseError,
    LeaseLostError,
    LedgerError,
    RecipeError,
    SiteError,
    StepError,
    StorageError,
    StorageFullError,
)
from headrace.execution import decisions, step_attempts
from headrace.execution import execute as module
from headrace.execution.decisions import Memory, Submit, Wait
from headrace.execution.execute import execute
from headrace.execution.resume import take_over_changed
from headrace.files.atomic import write_record, write_text
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.lifecycle import finish_run
from headrace.runs.owners import process_owner
from headrace.runs.planned_steps import steps_of
from headrace.runs.runs import Run, open_run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace.steps.retry_policy import PROGRESS
from headrace.suites.points import trial_recipe
from support.command_line import headrace
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run


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

    monkeypatch.setattr(step_attempts, "_submit", full)
    with pytest.raises(
        StorageFullError, match=r"quota is full: /shared/steps/000001 \([\d,]+ bytes free on /"
    ) as caught:
        execute(run, nothing)
    assert caught.value.hint.endswith(f"headrace resume {run.run_id}")
    assert open_ledger().run(run.run_id).state is StepState.FAILED


def test_a_part_waits_for_a_folder_that_cannot_be_used(monkeypatch):
    run, asked = make_run(), []

    def gone(*_: object) -> None:
        asked.append(1)
        if len(asked) > 2:
            raise KeyboardInterrupt
        raise OSError(errno.ESTALE, "Stale file handle", "/shared/steps/000001")

    monkeypatch.setattr(step_attempts, "_submit", gone)
    monkeypatch.setattr("headrace.execution.execute._STORAGE_PAUSE_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        execute(run, nothing, waits_for_storage=True)
    assert len(asked) == 3


def test_a_part_whose_folder_is_gone_opens_no_lease_until_it_is_back(monkeypatch):
    run, looks, asked = make_run(), [], []

    def tick() -> None:
        looks.append(1)
        if 1 < len(looks) < 5:
            raise StorageError("The folder is gone")

    def submitted(*_: object) -> None:
        asked.append(len(looks))
        if len(asked) == 2:
            raise KeyboardInterrupt
        raise LeaseLostError("Its folder is gone")

    monkeypatch.setattr(step_attempts, "_submit", submitted)
    monkeypatch.setattr("headrace.execution.execute._STORAGE_PAUSE_S", 0.01)
    with pytest.raises(KeyboardInterrupt):
        execute(run, tick, waits_for_storage=True)
    assert asked[0] == 1
    assert asked[1] >= 5


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


DONE = StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)


class Scripted:
    """In place of `act`: what comes of each step's attempts, the last one for all that follow.

    An outcome that is an error is that of a lease which does not open.
    """

    def __init__(self, **outcomes: list[StepResult | LeaseError]) -> None:
        self.outcomes = outcomes
        self.num_calls = Counter[str]()

    def __call__(self, run, step, action, memory):
        if not isinstance(action, Submit):
            return action.then if isinstance(action, Wait) else memory
        left = self.outcomes.get(step.name, [DONE])
        outcome = left.pop(0) if len(left) > 1 else left[0]
        self.num_calls[step.name] += 1
        if isinstance(outcome, LeaseError):
            return replace(memory, error=outcome)
        if outcome.state is not StepState.SUCCEEDED:
            number = len(open_ledger().attempts(run.run_id, step.name)) + 1
            attempt_row_of(
                run, step.name, f"{run.run_id}-gpu-1", attempt=number,
                key=f"{run.run_id}/{step.name}/{number}", state=outcome.state,
                failure_class=outcome.failure.failure_class, outputs=outcome.outputs,
                started_at=1.0, finished_at=2.0,
            )  # fmt: skip
        return replace(memory, result=outcome)


@pytest.fixture
def scripted(monkeypatch):
    def install(**outcomes) -> Scripted:
        monkeypatch.setattr(decisions, "_RETRY_PAUSE_S", 0.0)
        made = Scripted(**outcomes)
        monkeypatch.setattr(module, "act", made)
        return made

    return install


UNOPENED = LeaseLostError("the lease ended before the step was in its mailbox")


def test_a_lease_that_fails_to_open_is_tried_again(scripted):
    run, made = make_run(), scripted(pack=[UNOPENED, UNOPENED, DONE])
    assert execute(run, nothing) is None
    assert made.num_calls == {"pack": 3, "stage": 1, "train": 1, "evaluate": 1}
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED


@pytest.mark.parametrize("next_is_there", [False, True])
def test_each_lease_is_released_after_the_last_step_that_needs_it(
    scripted, monkeypatch, next_is_there
):
    """A step whose lease is there does not wait for the end of another lease."""
    run, released, made = make_run(), [], scripted()

    def release(_, role: str, why: str, *, wait: bool) -> bool:
        released.append((role, why.split()[1], wait, len(made.num_calls)))
        return wait or len(made.num_calls) == 4

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


def test_leases_of_later_steps_open_with_the_first_one(monkeypatch):
    run, asked = make_run(), []

    def acquire(_, role: str, ahead: tuple[str, ...]) -> str:
        asked.append((role, *ahead))
        raise CapacityError("full")

    monkeypatch.setattr(step_attempts, "_inputs", lambda *_: {})
    monkeypatch.setattr(step_attempts.run_leases, "acquire", acquire)
    for step in steps_of(run.recipe, run.request.kind):
        memory = step_attempts.act(run, step, Submit(attempt=1), Memory())
        assert isinstance(memory.error, CapacityError)
    assert asked == [("cpu", "gpu"), ("gpu",), ("gpu",), ("gpu",)]


@pytest.mark.parametrize(("overrides", "most"), [((), 5), (("retry.max_failures=2",), 2)])
def test_a_lease_that_never_opens_ends_the_run(scripted, overrides, most):
    run, made = make_run(overrides=overrides), scripted(pack=[UNOPENED])
    with pytest.raises(LeaseError, match="ended before the step"):
        execute(run, nothing)
    assert made.num_calls == {"pack": most}
    assert open_ledger().run(run.run_id).state is StepState.FAILED


def lost(kept: int) -> StepResult:
    failure = Failure(failure_class=FailureClass.LOST, error="", message="its node was lost")
    changes = {"state": StepState.LOST, "failure": failure, "outputs": {PROGRESS: kept}}
    return DONE.model_copy(update=changes)


@pytest.mark.parametrize(
    ("kept", "is_well"), [((10, 20, 30, 40, 50, 60), True), ((10,) * 6, False)]
)
def test_a_training_that_loses_its_node_six_times_ends_well_if_it_comes_further_each_time(
    scripted, kept, is_well
):
    run, made = make_run(), scripted(train=[*map(lost, kept), DONE])
    lease_on_disk(run, "gpu")
    assert (execute(run, nothing) is None) is is_well
    assert made.num_calls["train"] == (7 if is_well else 6)


def test_a_lease_that_was_taken_for_lost_and_came_back_is_waited_for(monkeypatch):
    """On a machine that was too busy for heartbeats: they come again before the run is ended."""
    run = make_run()
    lease = run.lease_folder(lease_on_disk(run, host=ProcessIdentity.of()))
    submit = step_attempts._submit
    done = StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=2.0)
    ticks = []

    def silent(*arguments):
        ticket = submit(*arguments)
        long_ago = run.site.limits.lost_after + 1
        write_text(lease.heartbeat, f"{time.time() - long_ago} {time.monotonic() - long_ago}\n")
        return ticket

    def tick() -> None:
        ticks.append(1)
        write_heartbeat(lease)
        if len(ticks) == 2:
            write_record(lease.step(1).result, done)

    monkeypatch.setattr(step_attempts, "_submit", silent)
    assert module._until_decided(run, steps_of(run.recipe, run.request.kind)[0], tick) == done
    assert len(ticks) > 2


def wide_site(home: Path, name: str = "wide", **changes: object) -> str:
    """A site whose gang has two nodes; its file."""
    content = {"folder": home, "max_leases": 2, **changes}
    file = home.parent / f"{name}.yaml"
    file.write_text(
        f"folder: {content['folder']}\n"
        "roles: {cpu: {}, gpu: {kind: gang, nodes: 2, ranks_per_node: 2}}\n"
        f"tiers: [{{name: disk, folder: {home}/tier}}]\n"
        f"limits: {{max_leases: {content['max_leases']}}}\n"
    )
    return str(file)


def changed(run: Run, *overrides: str, site: str = "") -> Run:
    return take_over_changed(run.run_id, process_owner(), overrides, site)


def test_a_run_goes_on_with_fewer_nodes_and_with_more_again(headrace_home):
    """pains 30, 31: the lease asks for as many as train; the change is on record."""
    site = wide_site(headrace_home)
    run = make_run(site=site, owner=ended_owner())
    assert run.site.roles["gpu"].nodes == 2
    fewer = changed(run, "train.nodes=1", "train.ranks_per_node=4")
    assert (fewer.recipe.train.nodes, fewer.recipe.train.ranks_per_node) == (1, 4)
    assert fewer.site.roles["gpu"].nodes == 1
    assert fewer == open_run(run.run_id)
    finish_run(fewer, StepState.FAILED)
    with pytest.raises(RecipeError, match="nodes is 2, but role 'gpu' has only 1") as caught:
        changed(run, "train.nodes=2")
    assert "--site SITE` reads that anew" in caught.value.hint
    more = changed(run, "train.nodes=2", site=wide_site(headrace_home, max_leases=3))
    assert (more.site.roles["gpu"].nodes, more.site.limits.max_leases) == (2, 3)
    assert more.request.words == (
        *("run", "digits", "train.nodes=1", "train.ranks_per_node=4", "train.nodes=2"),
        *("--site", site),
    )
    told = headrace("status", run.run_id).output
    for words in ("train.nodes null -> 1", "train.nodes 1 -> 2", 'site "wide" -> "wide"'):
        assert words in told
    record = open_ledger().run(run.run_id)
    assert (record.state, record.overrides) == (StepState.RUNNING, more.request.overrides)


def test_a_run_goes_on_with_other_worker_processes(headrace_home):
    """As after one of them was killed for memory."""
    run = make_run(owner=ended_owner())
    assert changed(run, "data.workers=0").recipe.data.workers == 0


def test_another_site_with_the_same_folder_takes_a_run_up(headrace_home):
    run = make_run(site=wide_site(headrace_home), owner=ended_owner())
    other = changed(run, site="laptop")
    assert other.site.roles["gpu"].nodes == 1
    assert open_ledger().run(run.run_id).site_name == "laptop"
    finish_run(other, StepState.FAILED)
    with pytest.raises(SiteError, match="has the folder /elsewhere") as caught:
        changed(run, site=wide_site(headrace_home, "away", folder="/elsewhere"))
    assert "train.init_from=" in caught.value.hint


def test_what_decides_what_comes_of_a_run_cannot_be_changed(headrace_home):
    run = make_run(owner=ended_owner())
    with pytest.raises(RecipeError, match=r"seed, trainer\.max_epochs would change what") as caught:
        changed(run, "seed=5", "trainer.max_epochs=99", "train.ranks_per_node=1")
    assert "May be changed: pack_role, train.role, train.nodes, " in caught.value.hint
    assert f"headrace run digits KEY=VALUE train.init_from={run.run_id}:last" in caught.value.hint
    with pytest.raises(HeadraceError, match="64, which 3 ranks cannot share equally"):
        changed(run, "train.ranks_per_node=3")
    assert open_run(run.run_id) == run
    assert open_ledger().run(run.run_id).owner == run.request.owner


def test_a_run_that_is_worked_on_is_not_changed(headrace_home):
    run = make_run()
    with pytest.raises(StepError, match="worked on by process"):
        changed(run, "train.ranks_per_node=1")
    assert open_run(run.run_id) == run


def test_what_still_runs_with_the_old_numbers_is_ended_first(headrace_home):
    run = make_run(owner=ended_owner())
    lease_id = lease_on_disk(run, "gpu")
    attempt_row_of(run, "train", lease_id, state=StepState.RUNNING)
    attempt_row_of(run, "pack", lease_id, state=StepState.SUCCEEDED)
    goes_on = changed(run, "train.ranks_per_node=1")
    (lease,) = open_ledger().leases(run_id=run.run_id)
    assert lease.state is not LeaseState.STARTING
    states = {each.step: each.state for each in open_ledger().attempts(run.run_id)}
    assert states == {"train": StepState.LOST, "pack": StepState.SUCCEEDED}
    assert goes_on.lease_folder(lease_id).closed.exists()


def test_trials_of_a_suite_are_as_wide_as_it_goes_on(headrace_home):
    grid = ('suite.grid={"seed": [1, 2]}',)
    run = make_run(overrides=grid, kind="suite", owner=ended_owner())
    assert changed(run, "train.ranks_per_node=1").recipe.train.ranks_per_node == 1
    trial = trial_recipe(json.loads(run.folder.source.read_bytes()), {"seed": 2})
    assert (trial.train.ranks_per_node, trial.seed) == (1, 2)


def test_a_gang_has_as_many_nodes_as_train(headrace_home):
    told = headrace("plan", "digits", "--site", wide_site(headrace_home), "train.nodes=1").output
    assert "gang of 1 node, 2 ranks each" in told
