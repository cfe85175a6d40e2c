"""Places of a site: what has ended on disk holds none, and who waits is told who has them."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import Ending
from headrace.errors import CapacityError, SilentError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.leases.end_leases import finalize_ended
from headrace.leases.run_leases import acquire, release
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.status.lease import why_no_room
from support.runs import ended_owner, lease_on_disk, make_run

_GONE_BY_ITSELF = "its owner, process 7 on here, has gone"


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No host is started; ids of the leases that would have been."""
    ids: list[str] = []
    monkeypatch.setattr(lease_client, "start", lambda folder, *_: ids.append(folder.lease_id))
    return ids


def full_site(*, ended: bool) -> list[Run]:
    """Runs of killed commands, whose leases are open in the ledger, as many as the site allows."""
    holders = [make_run(owner=ended_owner()) for _ in range(make_run().site.limits.max_leases)]
    for holder in holders:
        host = None if ended else ProcessIdentity.of()
        folder = holder.lease_folder(lease_on_disk(holder, host=host))
        if ended:
            write_record(folder.closed, Ending(state=LeaseState.CLOSED, reason=_GONE_BY_ITSELF))
    return holders


def test_leases_that_have_ended_on_disk_hold_no_place(started: list[str]) -> None:
    holders = full_site(ended=True)
    run = make_run()
    assert acquire(run, "cpu") == f"{run.run_id}-cpu-1"
    assert started == [f"{run.run_id}-cpu-1"]
    rows = [row for holder in holders for row in open_ledger().leases(run_id=holder.run_id)]
    assert {(row.state, row.why_ended) for row in rows} == {(LeaseState.CLOSED, _GONE_BY_ITSELF)}


def test_a_lease_stays_open_while_its_batch_system_is_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """pains 22: the run has ended all the same, and whoever looks next ends the lease."""
    run = make_run()
    lease_id = lease_on_disk(run)
    end = lease_client.end

    def silent(folder: LeaseFolder, reason: str) -> None:
        raise SilentError("EC2 says 503: no")

    monkeypatch.setattr(lease_client, "end", silent)
    release(run, "cpu", "the last step was done")
    end_run(run, StepState.SUCCEEDED)
    assert finalize_ended() == []
    assert caplog.text.count(f"Lease {lease_id} is looked at again later: EC2 says 503: no") == 3
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED
    assert open_ledger().lease(lease_id).state.is_active
    open_ledger().reopen_run(run.run_id)
    with pytest.raises(SilentError):
        acquire(run, "cpu")  # whose machines may be there is not asked for a second time
    monkeypatch.setattr(lease_client, "end", end)
    (told,) = finalize_ended()
    assert told.startswith(f"lease {lease_id}: closed")
    assert not open_ledger().lease(lease_id).state.is_active


def test_why_a_job_never_starts_is_asked_before_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever settles it first: afterwards the queue tells of a job that was cancelled."""
    lease_on_disk(make_run())
    done: list[str] = []
    monkeypatch.setattr(LeaseFiles, "state", lambda *_, **__: LeaseState.FAILED)
    monkeypatch.setattr(lease_client, "cause", lambda _: done.append("asked"))
    monkeypatch.setattr(lease_client, "end", lambda *_, **__: done.append("cancelled"))
    finalize_ended()
    assert done == ["asked", "cancelled"]


def test_a_lease_whose_host_died_holds_no_place() -> None:
    holders = [make_run() for _ in range(make_run().site.limits.max_leases)]
    lost = [lease_on_disk(holder) for holder in holders]
    acquire(make_run(), "cpu")
    assert {open_ledger().lease(lease_id).state for lease_id in lost} == {LeaseState.LOST}


def test_a_lease_that_a_killed_command_never_started_holds_no_place() -> None:
    run, holders = make_run(), [make_run(owner=ended_owner()) for _ in range(2)]
    for holder in holders:
        lease_id = lease_on_disk(holder)
        shutil.rmtree(holder.lease_folder(lease_id).path)
    acquire(run, "cpu")
    assert [row.run_id for row in open_ledger().active_leases()] == [run.run_id]


def test_a_lease_of_the_run_is_used_unless_it_was_lost() -> None:
    run, other = make_run(), make_run()
    assert [acquire(run, "cpu") for _ in range(2)] == [f"{run.run_id}-cpu-1"] * 2  # not started
    lease_on_disk(other)
    assert acquire(other, "cpu") == f"{other.run_id}-cpu-2"


def test_one_that_somebody_is_about_to_start_keeps_its_place() -> None:
    run, holders = make_run(), [make_run() for _ in range(2)]
    for holder in holders:
        shutil.rmtree(holder.lease_folder(lease_on_disk(holder)).path)
    with pytest.raises(CapacityError):
        acquire(run, "cpu")


def test_a_lease_of_another_machine_that_uses_the_same_ledger_is_left_alone() -> None:
    """Its folder cannot be seen from here."""
    holder = make_run()
    lease_id = lease_on_disk(holder)
    shutil.rmtree(holder.site_folder.leases)
    shutil.rmtree(holder.folder.path)
    assert finalize_ended() == []
    assert open_ledger().lease(lease_id).state is LeaseState.STARTING


def test_who_waits_is_told_who_has_what_since_when_and_how_to_free_it() -> None:
    assert why_no_room(make_run()) == ""
    gone, alive = full_site(ended=False)[0], make_run()
    lease_on_disk(alive, "gpu", host=ProcessIdentity.of())
    run = make_run()
    with pytest.raises(CapacityError) as caught:
        acquire(run, "cpu")
    first, *lines = caught.value.what.splitlines()
    assert first.endswith("(limits.max_leases). They are held by:")
    of_gone = next(line for line in lines if gone.run_id in line)
    of_alive = next(line for line in lines if alive.run_id in line)
    assert "role cpu, lease" in of_gone
    assert "which has ended; to free it: headrace lease close" in of_gone
    assert of_gone.endswith(f"{gone.run_id}-cpu-1 --site laptop")
    assert "role gpu" in of_alive
    assert ", since " in of_alive
    assert of_alive.endswith(f"to free it: headrace cancel {alive.run_id}")
    assert caught.value.what == why_no_room(run)


def test_of_many_that_ask_at_once_no_more_get_a_place_than_there_are() -> None:
    full_site(ended=True)
    runs = [make_run() for _ in range(6)]
    barrier = threading.Barrier(len(runs))

    def ask(run: Run) -> bool:
        barrier.wait()
        try:
            acquire(run, "cpu")
        except CapacityError:
            return False
        return True

    with ThreadPoolExecutor(len(runs)) as pool:
        got = list(pool.map(ask, runs))
    most = runs[0].site.limits.max_leases
    assert sum(got) == most == len(open_ledger().active_leases())
