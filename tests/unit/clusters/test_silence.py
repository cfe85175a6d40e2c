"""When a lease ends: by its time limit, or by silence after its host began."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.clusters import host, lease_files
from headrace.clusters.host import keep_heartbeat
from headrace.clusters.lease_files import (
    LeaseFiles,
    last_heartbeat,
    sure_state,
    sure_states,
    write_heartbeat,
)
from headrace.clusters.lease_folders import reap
from headrace.clusters.lease_records import Ending, HostRecord, LeaseSpec
from headrace.clusters.lifetime import LeaseClock, ends_at, why_close
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.files.locks import locked
from headrace.processes.identity import ProcessIdentity
from headrace.states import LeaseState
from support.factories import demo_lease
from support.late_files import late_files

_THERE = ProcessIdentity(host="another-machine", pid=1, started_s=0.0)
_LOST_AFTER_S = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    """A lease whose job waited in a queue for an hour."""
    lease = SiteFolder(tmp_path).lease("demo-gpu-1")
    write_record(lease.spec, spec(lease))
    an_hour_ago = time.time() - 3600
    os.utime(lease.spec, (an_hour_ago, an_hour_ago))
    return lease


def spec(lease: LeaseFolder) -> LeaseSpec:
    return demo_lease(lease.lease_id, heartbeat_s=0.05)


def silent_for(lease: LeaseFolder, seconds: float) -> None:
    write_text(lease.heartbeat, f"{time.time() - seconds} {time.monotonic() - seconds}\n")


def test_silence_counts_from_the_host_and_not_from_the_request(folder: LeaseFolder) -> None:
    """A wait in the queue is no silence, also when the first heartbeat cannot be seen yet."""
    write_record(folder.host, HostRecord(process=_THERE, started_at=time.time() - 2))
    assert LeaseFiles.read(folder).state(_LOST_AFTER_S) is LeaseState.STARTING
    write_record(folder.host, HostRecord(process=_THERE, started_at=time.time() - 21))
    assert LeaseFiles.read(folder).state(_LOST_AFTER_S) is LeaseState.LOST
    assert "no heartbeat for 21 s" in LeaseFiles.read(folder).why_ended


def test_a_host_gives_a_heartbeat_before_it_reports(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    beaten = []
    write = host.write_record

    def watched(path: Path, record: object) -> None:
        if path == folder.host:
            beaten.append(last_heartbeat(folder))
        write(path, record)

    monkeypatch.setattr(host, "write_record", watched)
    done = Ending(state=LeaseState.CLOSED, reason="done")
    monkeypatch.setattr(host, "_serve_to_the_end", lambda _folder: done)
    host.serve(folder)
    assert beaten[0] == pytest.approx(time.time(), abs=60)


def test_silence_that_ends_while_it_is_looked_at_again_is_no_loss(folder: LeaseFolder) -> None:
    write_record(folder.host, HostRecord(process=_THERE))
    silent_for(folder, 60)
    assert LeaseFiles.read(folder).state(_LOST_AFTER_S) is LeaseState.LOST
    beating = threading.Timer(0.05, write_heartbeat, [folder])
    beating.start()
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.STARTING
    beating.join()


def test_a_clock_that_is_wrong_is_no_silence(folder: LeaseFolder) -> None:
    """The clock of the first node is a minute behind: its heartbeats are old, and they come."""
    write_record(folder.host, HostRecord(process=_THERE))
    silent_for(folder, 60)
    beating = threading.Timer(0.05, silent_for, [folder, 60])
    beating.start()
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.STARTING
    beating.join()


@pytest.mark.parametrize("behind_s", [600.0, -600.0])
def test_who_looks_on_is_not_misled_by_a_wrong_clock(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch, behind_s: float
) -> None:
    """As a trigger does, and `headrace run`: else each look would call for a second one."""
    write_record(folder.host, HostRecord(process=_THERE))
    silent_for(folder, behind_s)
    LeaseFiles.read(folder).state(_LOST_AFTER_S)
    silent_for(folder, behind_s)
    assert LeaseFiles.read(folder).state(_LOST_AFTER_S) is LeaseState.STARTING
    later = SimpleNamespace(time=lambda: time.time() + _LOST_AFTER_S, monotonic=time.monotonic)
    monkeypatch.setattr(lease_files, "time", later)
    assert LeaseFiles.read(folder).state(_LOST_AFTER_S) is LeaseState.LOST


def test_silence_that_goes_on_is_a_loss(folder: LeaseFolder) -> None:
    write_record(folder.host, HostRecord(process=_THERE))
    silent_for(folder, 60)
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.LOST


def test_what_is_certain_is_not_looked_at_again(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_files, "_wait", lambda _seconds: pytest.fail("it waited"))
    gone = ProcessIdentity.of().model_copy(update={"started_s": 1.0})
    write_record(folder.host, HostRecord(process=gone))
    write_heartbeat(folder)
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.LOST
    write_record(folder.closed, Ending(state=LeaseState.CLOSED, reason="done"))
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.CLOSED


def test_a_lease_that_is_just_being_started_is_not_lost(folder: LeaseFolder) -> None:
    """A batch system takes a minute for the answer to a submit; another process holds the lock."""
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.LOST
    lock = locked(folder.start_lock)
    assert sure_state(folder, _LOST_AFTER_S) is LeaseState.STARTING
    os.close(lock)


def test_heartbeats_that_a_file_system_shows_late_are_seen_before_anything_is_ended(
    folder: LeaseFolder, tmp_path: Path
) -> None:
    """An NFS client keeps what it saw of a folder, for up to a minute, until it is opened anew."""
    write_record(folder.host, HostRecord(process=_THERE))
    silent_for(folder, 60)
    with late_files(folder.path) as late:
        assert LeaseFiles.read(folder).state(_LOST_AFTER_S) is LeaseState.LOST
        with late.written_elsewhere():
            write_heartbeat(folder)
        assert sure_state(folder, _LOST_AFTER_S) is LeaseState.STARTING


def test_a_host_that_a_file_system_shows_late_is_not_reaped(tmp_path: Path) -> None:
    site = SiteFolder(tmp_path)
    lease = site.lease("late")
    write_record(lease.spec, spec(lease))
    an_hour_ago = time.time() - 3600
    os.utime(lease.spec, (an_hour_ago, an_hour_ago))
    with late_files(lease.path) as late:
        assert LeaseFiles.read(lease).state(_LOST_AFTER_S) is LeaseState.LOST
        with late.written_elsewhere():
            write_heartbeat(lease)
            write_record(lease.host, HostRecord(process=_THERE))
        assert reap(site) == ()
    assert not lease.close.exists()
    assert not lease.closed.exists()


def test_many_silent_leases_are_waited_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [SiteFolder(tmp_path).lease(f"l{number}") for number in range(20)]
    for lease in leases:
        write_record(lease.spec, spec(lease))
        write_record(lease.host, HostRecord(process=_THERE))
        silent_for(lease, 60)
    waits: list[float] = []
    monkeypatch.setattr(lease_files, "_wait", lambda seconds: waits.append(seconds))
    found = sure_states(dict.fromkeys(leases, _LOST_AFTER_S))
    assert set(found.values()) == {LeaseState.LOST}
    assert len(waits) < len(leases)


@pytest.fixture
def blocked(folder: LeaseFolder) -> LeaseFolder:
    """A lease whose heartbeat cannot be written: a folder is in its way."""
    (folder.heartbeat / "in-the-way").mkdir(parents=True)
    return folder


def _spec(lease: LeaseFolder, lost_after_s: float = 60.0) -> LeaseSpec:
    return spec(lease).model_copy(update={"heartbeat_s": 0.01, "lost_after_s": lost_after_s})


def test_a_heartbeat_that_cannot_be_written_is_tried_again(
    blocked: LeaseFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def mend_and_remove() -> None:
        beating = asyncio.create_task(keep_heartbeat(blocked, _spec(blocked)))
        while "trying again" not in caplog.text:
            await asyncio.sleep(0.01)
        (blocked.heartbeat / "in-the-way").rmdir()
        blocked.heartbeat.rmdir()
        while not blocked.heartbeat.is_file():
            await asyncio.sleep(0.01)
        blocked.spec.unlink()
        await beating

    asyncio.run(asyncio.wait_for(mend_and_remove(), 30))
    assert last_heartbeat(blocked) is not None


def test_a_host_without_a_heartbeat_for_long_ends(blocked: LeaseFolder) -> None:
    """Others count the lease as lost by then."""
    with pytest.raises(OSError, match="heartbeat"):
        asyncio.run(asyncio.wait_for(keep_heartbeat(blocked, _spec(blocked, 0.1)), 30))


def test_a_removed_folder_is_not_made_again_by_a_heartbeat(blocked: LeaseFolder) -> None:
    blocked.spec.unlink()
    (blocked.heartbeat / "in-the-way").rmdir()
    blocked.heartbeat.rmdir()
    blocked.path.rmdir()
    asyncio.run(asyncio.wait_for(keep_heartbeat(blocked, _spec(blocked)), 30))
    assert not blocked.path.exists()


_QUIET = {
    "now_s": 100.0,
    "ends_s": 3600.0,
    "idle_since_s": None,
    "lifetime_s": 3600.0,
    "idle_stop_s": 300.0,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"idle_since_s": 90.0}, None),
        ({"now_s": 399.9, "idle_since_s": 100.0}, None),
        ({"now_s": 400.0, "idle_since_s": 100.0}, "no step ran for 300 s"),
        ({"now_s": 3599.9}, None),
        ({"now_s": 3600.0}, "its lifetime of 3600 s is over"),
        ({"asked": "wrong data\n"}, "wrong data"),
        ({"asked": ""}, "asked to close"),
        ({"signal_name": "SIGTERM"}, "the host was ended by SIGTERM"),
        ({"lost_owner": "process 7 on here"}, "its owner, process 7 on here, has gone"),
        ({"is_removed": True}, "its folder was removed"),
        # who asked comes before what would have ended it anyway
        ({"asked": "done", "lost_owner": "x", "now_s": 1e9}, "done"),
        (
            {"lost_owner": "process 7 on here", "now_s": 1e9},
            "its owner, process 7 on here, has gone",
        ),
    ],
)
def test_why_close(changes: dict[str, Any], expected: str | None) -> None:
    """pains 18, 22: no lease lives without an owner, for ever, or for nothing."""
    assert why_close(LeaseClock(**{**_QUIET, **changes})) == expected


@pytest.mark.parametrize(
    ("lifetime_s", "job_started", "expected"),
    [
        (60.0, None, 1060.0),
        (60.0, "", 1060.0),
        # a job that has run for a while before its lease's host was there, such as for its prologue
        (60.0, "990", 990 + 60 - 10),
        (7200.0, "990", 990 + 7200 - 60),
    ],
)
def test_a_lease_ends_before_its_job_does(
    lifetime_s: float, job_started: str | None, expected: float
) -> None:
    """pains 31: by the clock, so that no signal of the batch system has to be understood."""
    assert ends_at(lifetime_s, 1000.0, job_started) == expected
