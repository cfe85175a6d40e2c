"""What follows from the files of a lease, whatever lies there: pure, as tables."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.batch.job_records import JobView
from headrace.clusters import lease_client, lease_machines
from headrace.clusters.lease_files import NEVER_STARTED, LeaseFiles, QueueWait, last_heartbeat
from headrace.clusters.lease_folders import leftovers, reap
from headrace.clusters.lease_records import (
    BadNodes,
    Ending,
    HostRecord,
    LeaseInfo,
    LeaseSpec,
    PoolJobView,
    PoolRecord,
)
from headrace.errors import HeadraceError, SilentError, StepError, UnknownNameError
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.site import Role
from headrace.record import Record
from headrace.states import FailureClass, LeaseState
from headrace.steps import mailbox
from support.factories import demo_info, demo_lease

_FOLDER = LeaseFolder(Path("leases/demo-gpu-1"))
_PROCESS = ProcessIdentity(host="node-7", pid=11, started_s=0.0)
_SPEC = demo_lease()
_HOST = HostRecord(process=_PROCESS)
_INFO = demo_info(host=_PROCESS, scheduler_address="tls://a:1", dashboard_url="")
_CLOSED = Ending(state=LeaseState.CLOSED, reason="done")
_FAILED = Ending(state=LeaseState.FAILED, reason="no nodes")
_DIED = Ending(state=LeaseState.LOST, reason="the host died")
_WAITS = JobView(is_ended=False, why="Slurm job 7 is pending", starts_at=99.0)
_NEVER = JobView(is_ended=True, why="never", failure_class=FailureClass.USER_ERROR)
_GONE = JobView(is_ended=True, why="preempted", failure_class=FailureClass.PREEMPTED)
_POOL = PoolRecord(waits_for="node-1 is pending", starts_at=5.0)
_BUSY = PoolJobView(node="node-0", job_id="6", stage="busy", why="")
_ONE_NODE = _POOL.model_copy(update={"jobs": (_BUSY,)})


def lease(*records: Record | StepError, **seen: Any) -> LeaseFiles:
    return LeaseFiles(folder=_FOLDER, records={type(each): each for each in records}, **seen)


@pytest.mark.parametrize(
    ("files", "expected", "words"),
    [
        (lease(_SPEC), LeaseState.STARTING, ""),
        (lease(_SPEC, _HOST, host_alive=True), LeaseState.STARTING, ""),
        (lease(_SPEC, _HOST, _INFO, host_alive=True), LeaseState.READY, ""),
        (lease(_SPEC, _HOST, _INFO), LeaseState.READY, ""),
        (
            lease(_SPEC, _HOST, _INFO, silent_s=21),
            LeaseState.LOST,
            "The lease's host (process 11 on node-7) gave no heartbeat for 21 s",
        ),
        (
            lease(_SPEC, silent_s=21),
            LeaseState.LOST,
            f"The host process never reported; see {_FOLDER.log}",
        ),
        (
            lease(_SPEC, _HOST, _INFO, host_alive=True, silent_s=21),
            LeaseState.LOST,
            "The lease's host (process 11 on node-7) gave no heartbeat for 21 s",
        ),
        (
            lease(_SPEC, _HOST, _INFO, host_alive=False),
            LeaseState.LOST,
            f"The lease's host (process 11 on node-7) died; see {_FOLDER.log}",
        ),
        (lease(_SPEC, _CLOSED, host_alive=False, silent_s=1e6), LeaseState.CLOSED, "done"),
        (lease(_SPEC, _HOST, _INFO, _CLOSED, host_alive=True), LeaseState.CLOSED, "done"),
        (lease(_CLOSED), LeaseState.CLOSED, "done"),
        (lease(_SPEC, _FAILED, host_alive=False), LeaseState.FAILED, "no nodes"),
        (lease(_SPEC, _CLOSED, _GONE), LeaseState.CLOSED, "done"),
        (lease(_SPEC, _DIED, _GONE), LeaseState.LOST, "preempted"),
        # waiting in a queue is no silence; the queue may know of an end before the files do
        (lease(_SPEC, job=_WAITS, silent_s=1e6), LeaseState.STARTING, ""),
        (lease(_SPEC, _HOST, _INFO, job=_WAITS, silent_s=6), LeaseState.READY, ""),
        (
            lease(_SPEC, _HOST, _INFO, job=_WAITS, silent_s=21),
            LeaseState.LOST,
            "The lease's host (process 11 on node-7) gave no heartbeat for 21 s",
        ),
        (lease(_SPEC, job=_NEVER), LeaseState.FAILED, "never"),
        (lease(_SPEC, job=_GONE), LeaseState.LOST, "preempted"),
        (
            lease(_SPEC, _HOST, _INFO, job=_GONE, silent_s=6, has_log=True),
            LeaseState.LOST,
            f"preempted; see {_FOLDER.log}",
        ),
    ],
)
def test_state_and_why_it_ended(files: LeaseFiles, expected: LeaseState, words: str):
    assert files.state(lost_after_s=20.0) is expected
    assert files.why_ended == words


def test_a_lease_is_lost_after_the_time_that_it_has_itself():
    spec = _SPEC.model_copy(update={"lost_after_s": 5.0})
    assert lease(spec, _HOST, silent_s=6).state() is LeaseState.LOST
    assert lease(spec, _HOST, silent_s=4).state() is LeaseState.STARTING
    assert lease(spec, _HOST, silent_s=6).state(9.0) is LeaseState.STARTING


def test_a_lease_that_never_was():
    assert lease(silent_s=1e9).why_ended == NEVER_STARTED
    assert lease(silent_s=1e9).state(20.0) is LeaseState.LOST
    assert lease(silent_s=1e9).state() is LeaseState.LOST
    with pytest.raises(UnknownNameError, match="no lease 'demo-gpu-1' in leases"):
        _ = lease(silent_s=1e9).spec


@pytest.mark.parametrize(
    ("files", "for_more", "expected"),
    [
        (lease(_SPEC, job=_WAITS), False, QueueWait("Slurm job 7 is pending", 99.0)),
        (lease(_SPEC, job=_GONE), False, QueueWait()),
        (lease(_SPEC, _HOST, job=_WAITS), False, QueueWait()),
        (lease(_SPEC, _INFO, job=_WAITS), False, QueueWait()),
        (lease(_SPEC, _CLOSED, _POOL), False, QueueWait()),
        (lease(_SPEC, _HOST, _INFO, _POOL), False, QueueWait("node-1 is pending", 5.0)),
        (lease(_SPEC, _HOST, _INFO, _ONE_NODE), False, QueueWait()),
        (lease(_SPEC, _HOST, _INFO, _ONE_NODE), True, QueueWait("node-1 is pending", 5.0)),
        (lease(_SPEC, _HOST, _INFO, PoolRecord()), True, QueueWait()),
    ],
)
def test_what_a_lease_waits_for(files: LeaseFiles, for_more: bool, expected: QueueWait):
    assert files.wait(for_more=for_more) == expected


@pytest.mark.parametrize("damaged", [StepError("not a PoolRecord"), OSError(5, "not readable")])
def test_a_file_that_cannot_be_read_counts_only_where_it_is_needed(damaged: Exception):
    records = {LeaseSpec: _SPEC, HostRecord: _HOST, LeaseInfo: _INFO, PoolRecord: damaged}
    files = LeaseFiles(folder=_FOLDER, records=records)
    assert files.state() is LeaseState.READY
    assert files.why_ended == ""
    with pytest.raises(type(damaged), match="not "):
        files.wait()
    ended = LeaseFiles(folder=_FOLDER, records={**records, Ending: _CLOSED})
    assert ended.wait() == QueueWait()


@pytest.mark.parametrize("is_ended", [True, False])
def test_the_hosts_word_counts_that_it_wrote_while_the_queue_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ended: bool
):
    folder = LeaseFolder(tmp_path)
    write_record(folder.spec, _SPEC)
    write_text(folder.job, "the job of Slurm")

    def job(*_: object) -> JobView:
        write_record(folder.closed, _CLOSED)
        return JobView(is_ended=is_ended, why="Slurm job 7 has completed")

    monkeypatch.setattr(lease_machines, "job_of", job)
    files = LeaseFiles.read(folder)
    assert files.state() is (LeaseState.CLOSED if is_ended else LeaseState.STARTING)
    assert LeaseFiles.read(folder).why_ended == "done"


_DONE = Ending(state=LeaseState.CLOSED, reason="done")


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    """A site with a lost lease, `c`."""
    site = SiteFolder(tmp_path)
    _lease(site, "c", heartbeat="1.0 1.0")
    return site


def _lease(site: SiteFolder, lease_id: str, heartbeat: str) -> LeaseFolder:
    lease = site.lease(lease_id)
    known = {"key": "k", "run_id": "r", "role_name": "cpu", "role": Role(), "heartbeat_s": 0.1}
    spec = LeaseSpec.model_validate({"lease_id": lease_id, **known})
    write_record(lease.spec, spec)
    write_text(lease.heartbeat, heartbeat)
    return lease


def test_a_lease_that_nobody_can_read_keeps_no_other_from_being_ended(
    site: SiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """Another release has written it."""
    caplog.set_level(logging.WARNING)
    write_text(site.lease("b").spec, '{"lease_id": "b", "a field of tomorrow": 1}')
    assert [each.folder.lease_id for each in reap(site)] == ["c"]
    assert LeaseFiles.read(site.lease("c")).state(20) is LeaseState.LOST
    assert site.lease("c").closed.exists()
    assert "Lease b is passed over" in caplog.text
    assert leftovers(site) == ()


@pytest.mark.parametrize("name", ["host", "heartbeat", "closed", "cause"])
def test_a_damaged_file_of_a_lease_keeps_no_other_from_being_ended(
    site: SiteFolder, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    lease = _lease(site, "b", heartbeat="1.0 1.0")
    getattr(lease, name).write_bytes(b"\x80[")
    assert "c" in [each.folder.lease_id for each in reap(site)]
    assert site.lease("c").closed.exists()


def test_a_lease_whose_batch_system_is_silent_keeps_no_other_from_being_ended(
    site: SiteFolder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pains 22: it is ended another time."""
    _lease(site, "b", heartbeat="1.0 1.0")
    end = lease_client.end

    def silent_about_b(folder: LeaseFolder, *given: Any) -> None:
        if folder.lease_id == "b":
            raise SilentError("EC2 says 503: no")
        end(folder, *given)

    monkeypatch.setattr(lease_client, "end", silent_about_b)
    assert [each.folder.lease_id for each in reap(site)] == ["c"]
    assert "Lease b is looked at again later: EC2 says 503: no" in caplog.text
    monkeypatch.setattr(lease_client, "end", end)
    assert [each.folder.lease_id for each in reap(site)] == ["b"]


def test_what_has_ended_is_not_looked_at_again(
    site: SiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """A site's leases of years are there; each look at one takes a few files of a slow storage."""
    caplog.set_level(logging.WARNING)
    for lease_id in ("a", "b"):
        write_text(site.lease(lease_id).spec, "{}")
        write_record(site.lease(lease_id).closed, _DONE)
    assert [each.folder.lease_id for each in leftovers(site)] == ["c"]
    assert not caplog.text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from(["state", "reason", "process", "code", "at", "key", "failure", "is_ended"])
_CONTENT = (
    st.binary(max_size=64)
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(_KEYS, _JSON).map(lambda value: json.dumps(value).encode())
    | st.integers(1, 5000).map(lambda depth: b"[" * depth)
)
_FILES = ("host", "info", "heartbeat", "close", "closed", "cause", "bad_nodes", "pool", "waiting")


def lease_in(folder: str) -> LeaseFolder:
    lease = LeaseFolder(Path(folder) / "leases" / "demo-1")
    write_record(
        lease.spec,
        demo_lease("demo-1", role_name="cpu"),
    )
    return lease


def only_named_errors(call: Callable[[], Any]) -> None:
    with suppress(HeadraceError):
        call()


@pytest.mark.parametrize("name", [*_FILES, "spec"])
@settings(max_examples=25, deadline=None)
@given(content=_CONTENT)
def test_readers_of_a_lease(name: str, content: bytes):
    with TemporaryDirectory() as folder:
        lease = lease_in(folder)
        getattr(lease, name).write_bytes(content)
        for call in (
            lambda lease: LeaseFiles.read(lease).why_ended,
            lambda lease: LeaseFiles.read(lease).wait(),
            lambda lease: LeaseFiles.read(lease).get(BadNodes),
            lease_client.info,
            last_heartbeat,
        ):
            only_named_errors(lambda call=call: call(lease))
        only_named_errors(lambda: LeaseFiles.read(lease).state(20.0))


@pytest.mark.parametrize("name", ["spec", "status", "result", "exit", "cancel"])
@settings(max_examples=25, deadline=None)
@given(content=_CONTENT)
def test_readers_of_a_step(name: str, content: bytes):
    with TemporaryDirectory() as folder:
        lease = lease_in(folder)
        step = lease.step(1)
        step.path.mkdir(parents=True)
        getattr(step, name).write_bytes(content)
        only_named_errors(lambda: mailbox.status(step))
        only_named_errors(lambda: mailbox.outcome(step))
        only_named_errors(lambda: mailbox.lost(step, "gone"))
        only_named_errors(lambda: mailbox.find(lease, "k"))
        only_named_errors(lambda: mailbox.was_killed(step))
