"""Whatever lies in files of runs and leases: commands that look show the rest, or a named error."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from headrace.clusters.lease_records import Ending, LeaseInfo, PoolRecord, Waiting
from headrace.errors import HeadraceError, StepError
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.steps.context import append_event
from headrace.steps.mailbox import DriverExit, Failure, StepResult, StepSpec, StepStatus
from support.command_line import Ended, headrace
from support.runs import attempt_row_of, lease_on_disk, make_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("headrace_home")]

FEW = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def damage(draw: st.DrawFn, *kinds: str) -> Callable[[bytes], bytes]:
    """Makes another content out of what a file holds: half of it, garbage, or a wrong value."""
    start, size, garbage = draw(st.floats(0, 1)), draw(st.floats(0, 1)), draw(st.binary(max_size=9))
    value = draw(st.none() | st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=2))
    kind = draw(st.sampled_from(kinds))

    def harm(content: bytes) -> bytes:
        at = int(start * len(content))
        if kind == "cut":
            return content[:at]
        if kind == "garbage":
            return garbage
        if kind == "mixed":
            return content[:at] + garbage + content[at + int(size * 9) :]
        if not content.startswith(b"{\n"):
            return json.dumps(value).encode()
        known = json.loads(content)
        key = sorted(known)[int(start * (len(known) - 1))]
        return json.dumps({**known, key: value}).encode()

    return harm


def looked(*arguments: str) -> Ended:
    """What a command prints; it may fail by a named error only."""
    try:
        return headrace(*arguments)
    except HeadraceError as error:
        return Ended(1, str(error), "")


@pytest.fixture
def run() -> Run:
    """A run with a lease, on which a step has failed; and another lease."""
    made = make_run()
    lease_id = lease_on_disk(made, host=ProcessIdentity.of())
    fill(made.lease_folder(lease_id))
    lease_on_disk(made, "gpu")
    attempt_row_of(made, "pack", lease_id, number=1)
    return made


def fill(lease: LeaseFolder) -> None:
    me = ProcessIdentity.of()
    write_record(
        lease.info,
        LeaseInfo(lease_id=lease.lease_id, backend="local", host=me, scheduler_address="tcp://x:1",
                  dashboard_url="http://x/", nodes=1, ready_at=1.0),
    )  # fmt: skip
    write_record(lease.pool, PoolRecord(waits_for="nodes"))
    write_record(lease.waiting, Waiting(reason="a test"))
    write_record(lease.closed, Ending(state=LeaseState.CLOSED, reason="a test"))
    step = lease.step(1)
    step.logs.mkdir(parents=True)
    run_folder = str(lease.path.parent.parent / "runs" / "r")
    write_record(
        step.spec,
        StepSpec(key="k", kind="pack", run_id="r", name="pack", attempt=1, run_folder=run_folder),
    )
    write_record(step.status, StepStatus(state=StepState.RUNNING))
    write_record(step.exit, DriverExit(code=1, at=3.0))
    failure = Failure(failure_class="lost", error="E", message="a test", where="rank 1")
    ended = StepResult(state=StepState.FAILED, failure=failure, started_at=1.0, finished_at=2.0)
    write_record(step.result, ended)
    for name in ("launch", "restart"):
        append_event(step.events, name, number=1)


def files_of(run: Run) -> dict[str, Path]:
    lease = run.lease_folder(f"{run.run_id}-cpu-1")
    step: StepFolder = lease.step(1)
    of_lease = {name: getattr(lease, name) for name in LEASE}
    of_step = {f"step-{name}": getattr(step, name) for name in STEP}
    return {**of_lease, **of_step, **{f"run-{name}": getattr(run.folder, name) for name in RUN}}


LEASE = ("spec", "host", "info", "pool", "waiting", "closed", "heartbeat", "cause", "bad_nodes")
STEP = ("spec", "status", "exit", "result", "events")
RUN = ("recipe", "site", "request")
NAMES = [*LEASE, *(f"step-{name}" for name in STEP), *(f"run-{name}" for name in RUN)]


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(harm=damage("cut", "garbage", "mixed", "value"))
def test_damaged_files_of_runs_and_leases(run: Run, name: str, harm) -> None:
    file = files_of(run)[name]
    before = file.read_bytes() if file.exists() else b'{"at": 1}'
    file.write_bytes(harm(before))
    for look in (("status",), ("status", "--json"), ("logs",)):
        shown = looked(*look)
        if look[0] == "status":
            assert shown.exit_code == 0
            assert "pack" in shown.output
            assert name.startswith("run-") or "stage" in shown.output
    looked("lease", "show", f"{run.run_id}-cpu-1")
    assert f"{run.run_id}-gpu-1" in looked("lease", "list", "--all").output
    assert run.run_id in looked("runs").output
    file.write_bytes(before)


@pytest.mark.parametrize("name", ["status", "result"])
def test_a_step_whose_file_is_damaged_is_shown_with_the_others(run: Run, name: str) -> None:
    file = files_of(run)[f"step-{name}"]
    file.write_bytes(file.read_bytes()[:20])
    shown = looked("status")
    assert shown.exit_code == 0
    assert f"pack: {file} does not hold a Step{name.capitalize()}" in shown.output
    assert "evaluate" in shown.output


@pytest.mark.parametrize("name", ["run-recipe", "run-site", "run-request", "pool"])
def test_a_run_with_a_damaged_file_is_shown_as_far_as_it_is_known(run: Run, name: str) -> None:
    file = files_of(run)[name]
    file.write_bytes(file.read_bytes()[:20])
    shown = looked("status")
    assert shown.exit_code == 0
    assert f"{file} does not hold a" in shown.output
    assert ("Start a new run." if name.startswith("run-") else "Remove it") in shown.output
    assert run.run_id in shown.output
    assert "pack" in shown.output
    assert str(file) in json.loads(looked("status", "--json").output)["damage"]


@pytest.mark.parametrize("name", ["run-recipe", "run-site", "run-request"])
def test_what_needs_a_damaged_file_says_what_to_do(run: Run, name: str) -> None:
    files_of(run)[name].write_text("{")
    assert headrace("logs").exit_code == 0
    with pytest.raises(StepError) as caught:
        headrace("cancel")
    assert str(files_of(run)[name]) in caught.value.what
    assert caught.value.hint == "Start a new run."


def break_text(content: bytes) -> bytes:
    """Words that SQLite tells of in its error, and that are no text."""
    return content.replace(b"CREATE TABLE headrace_runs", b"CREATE \xa3ABLE headrace_runs")


@FEW
@example(harm=lambda content: content[: len(content) // 2])
@example(harm=break_text)
@given(harm=damage("cut", "garbage", "mixed"))
def test_a_damaged_ledger(run: Run, headrace_home: Path, tmp_path: Path, monkeypatch, harm) -> None:
    copy = tmp_path / f"{uuid.uuid4().hex}.db"
    with sqlite3.connect(headrace_home / "ledger.db") as ours, sqlite3.connect(copy) as theirs:
        ours.backup(theirs)
    copy.write_bytes(harm(copy.read_bytes()))
    with monkeypatch.context() as patch:
        patch.setenv("HEADRACE_LEDGER", f"sqlite:///{copy}")
        for look in (("status", run.run_id), ("runs",), ("runs", "--json"), ("lease", "list")):
            looked(*look)
