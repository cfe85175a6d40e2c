"""Triggers, run on real step and lease folders."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import asdict, replace

import pytest

from headrace.clusters.lease_files import NEVER_STARTED
from headrace.clusters.lease_records import Ending
from headrace.errors import CapacityError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.states import LeaseState, StepState
from headrace.status import lease as leases
from headrace.status.step import in_words
from headrace.steps import mailbox
from headrace.steps.mailbox import DriverExit, Progress, StepResult, StepStatus
from headrace_airflow import triggers
from headrace_airflow.triggers import ProgressLines, RoomTrigger, StepTrigger, WaitingTask
from support.factories import demo_info, step_spec, write_lease
from support.ledger_rows import lease_row, run_row
from support.written_files import recording

TASK = asdict(
    WaitingTask(
        dag_id="headrace_train",
        run_id="manual__1",
        task_id="train",
        try_number=2,
        poll_s=0.01,
        settle_s=0.0,
    )
)


@pytest.fixture
def lease(tmp_path):
    """A lease whose host (this process) lives and beats."""
    folder = LeaseFolder(tmp_path / "leases" / "demo-gpu-1")
    folder.steps.mkdir(parents=True)
    return write_lease(folder, ProcessIdentity.of())


def become_ready(lease):
    write_record(lease.info, demo_info(lease.lease_id))


def end(lease, state, reason):
    write_record(lease.closed, Ending(state=state, reason=reason))


@pytest.fixture
def step(lease, tmp_path):
    return mailbox.submit(lease, step_spec(RunFolder(tmp_path / "runs" / "demo"), "train"))


def events(trigger):
    """All events that a trigger yields until it returns."""

    async def collected():
        return [event.payload async for event in trigger.run()]

    return asyncio.run(asyncio.wait_for(collected(), 30))


async def _after(delay_s, action):
    await asyncio.sleep(delay_s)
    action()


def events_after(trigger, action):
    """Events of a trigger that has looked in vain before `action`."""

    async def collected():
        helper = asyncio.create_task(_after(0.05, action))
        found = [event.payload async for event in trigger.run()]
        await helper
        return found

    return asyncio.run(asyncio.wait_for(collected(), 30))


def step_trigger(lease, step, *, is_ready=True):
    return StepTrigger(TASK, str(step.path), is_ready=is_ready)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: StepTrigger(TASK, f"{p}/l/steps/1", is_ready=True),
        lambda p: RoomTrigger(task=TASK, key="run-1/gpu", max_active=3, max_owner=None),
    ],
)
def test_a_trigger_survives_the_way_to_another_triggerer(make, tmp_path):
    """Pains 8."""
    trigger = make(tmp_path)
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    assert module == triggers.__name__
    again = getattr(triggers, name)(**arguments)
    assert again.serialize() == trigger.serialize()


def finish(lease, step):
    write_record(step.status, StepStatus(state=StepState.SUCCEEDED))
    result = StepResult(state=StepState.SUCCEEDED, started_at=0, finished_at=1)
    write_record(step.result, result)


ENDS = {
    "its result": (finish, "succeeded", ""),
    "its driver's end": (
        lambda _, step: write_record(step.exit, DriverExit(code=-9, at=time.time())), "queued", "",
    ),
    "its lease's end": (
        lambda lease, _: end(lease, LeaseState.LOST, "the host was killed"), "queued", "was killed",
    ),
    "its lease's folder removed": (
        lambda lease, _: shutil.rmtree(lease.path), "queued", NEVER_STARTED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("happens", "state", "why"), ENDS.values(), ids=ENDS)
def test_a_step_trigger_fires_once_when_there_is(lease, step, happens, state, why):
    (event,) = events_after(step_trigger(lease, step), lambda: happens(lease, step))
    assert event["state"] == state
    assert event["lease"].endswith(why)


class EnoughError(Exception):
    """Ends a trigger that would look for ever."""


def looks(monkeypatch, number, **seen):
    """Let triggers look so many times, at a lease that stands as it does but for `seen`."""
    counted = iter(range(number))

    def once_more():
        if next(counted, None) is None:
            raise EnoughError

    def ledger():
        once_more()
        return open_ledger()

    def look(*arguments):
        once_more()
        found = leases.look(*arguments)
        return replace(found, lease=found.lease.model_copy(update=seen))

    monkeypatch.setattr(triggers, "look", look)
    monkeypatch.setattr(triggers, "open_ledger", ledger)


@pytest.fixture
def full(headrace_home):
    """A ledger in which lease `before` has its site's one place, `first` and `second` wait."""
    ledger = open_ledger()
    ledger.add_run(run_row())
    ledger.add_lease(lease_row("before", key="before"), max_active=1)
    for name in ("first", "second"):
        with pytest.raises(CapacityError):
            ledger.add_lease(lease_row(name, key=name), max_active=1, waits=True)
    return ledger


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("kind", [StepTrigger, RoomTrigger])
def test_triggers_only_read(lease, step, monkeypatch, kind):
    """Side effects in triggers run twice when a triggerer restarts (pains 8)."""
    places = {
        StepTrigger: {"step_folder": str(step.path), "is_ready": False},
        RoomTrigger: {"key": "second", "max_active": 1, "max_owner": None},
    }
    monkeypatch.setattr(triggers.random, "uniform", lambda *_: 0.0)
    looks(monkeypatch, 3)
    with recording() as written, pytest.raises(EnoughError):
        events(kind(task=TASK, **places[kind]))
    assert [each for each in written if not each.startswith("sqlite3.connect ")] == []


def test_how_machines_stand_is_shown_once_until_it_changes(lease, step, monkeypatch):
    shown = []
    monkeypatch.setattr(triggers, "show", lambda *given: shown.append(given[-1]))
    looks(monkeypatch, 4, waits_for="job 7 waits for nodes")
    with pytest.raises(EnoughError):
        events(step_trigger(lease, step))
    assert shown == ["job 7 waits for nodes"]


def test_a_step_whose_lease_starts_is_told_when_it_is_ready_and_then_no_more(
    lease, step, monkeypatch
):
    """Its task writes that down, and waits again."""
    found = events_after(step_trigger(lease, step, is_ready=False), lambda: become_ready(lease))
    assert found == [{"state": "queued", "lease": ""}]
    looks(monkeypatch, 3)
    with pytest.raises(EnoughError):
        events(step_trigger(lease, step))


def room_for(name):
    return RoomTrigger(task=TASK, key=name, max_active=1, max_owner=None)


def free_a_place(ledger):
    ledger.set_lease_state("before", LeaseState.CLOSED, ended_at=9.0)


def test_room_trigger_waits_until_it_is_its_turn(full, monkeypatch):
    assert events_after(room_for("first"), lambda: free_a_place(full)) == [{}]
    looks(monkeypatch, 5)
    with pytest.raises(EnoughError):  # `first` comes first, and asks
        events(room_for("second"))


def test_room_trigger_of_one_whose_turn_it_is_not_fires_when_others_leave_a_place(
    full, monkeypatch
):
    """Whoever asks then calls them, and is not kept back by one that has gone."""
    free_a_place(full)
    monkeypatch.setattr(triggers, "_UNTIL_CALLED_S", 0.05)
    assert events(room_for("second")) == [{}]


STOPPED = ["failed", "success", None, "queued", "running"]


@pytest.mark.parametrize(
    ("state", "stops"), [*[(each, True) for each in STOPPED], ("deferred", False)]
)
def test_a_user_who_ends_the_task_stops_this_attempt(lease, step, monkeypatch, state, stops):
    """Mark failed, mark success and clear reach the work of a deferred task (pains 9).

    A triggerer that is out of touch stops nothing: its task is still deferred, elsewhere.
    """
    monkeypatch.setattr(triggers, "task_states", lambda *_: {"train": state})
    asyncio.run(step_trigger(lease, step).on_kill())
    assert step.cancel.exists() is stops
    assert not stops or "train (try 2)" in step.cancel.read_text()


def status(done, phase, **more):
    progress = Progress(done=done, total=900, unit="steps", phase=phase)
    return StepStatus(state=StepState.RUNNING, progress=progress, **more)


def test_progress_is_one_readable_line_with_the_metric_first():
    figures = {"val_loss": 0.12304, "loss": 0.2, "samples_per_s": 12345.4, "data_wait": 0.02}
    line = in_words(status(369, "epoch 3/15", rate=41.3, eta_s=130.0, metrics=figures))
    assert line == ("epoch 3/15 · val_loss 0.123 · loss 0.2 · 12,345 samples/s · 41 % · 2 min left")
    starved = in_words(status(1, "epoch 1/2", metrics={"data_wait": 0.31}, eta_s=7200.0))
    assert starved == "epoch 1/2 · waits for data 31 % · 0 % · 2.0 h left"
    plain = StepStatus(state=StepState.RUNNING, progress=Progress(done=3, unit="shards"), rate=2)
    assert in_words(plain) == "running · 2 shards/s · 3 shards"
    assert in_words(StepStatus(state=StepState.QUEUED)) == "queued"


def test_short_epochs_are_told_every_ten_seconds_and_long_ones_every_thirty():
    lines = ProgressLines()
    told = [at for at in range(100) if lines.line(status(at, f"epoch {at}/99"), 1000.0 + at)]
    assert told == list(range(0, 100, 10))
    lines = ProgressLines()
    told = [at for at in range(100) if lines.line(status(at, f"epoch {at // 45}/2"), 1000.0 + at)]
    assert told == [0, 30, 45, 75, 90]
    ended = StepStatus(state=StepState.SUCCEEDED)
    assert lines.line(ended, 1100.0)
