"""The mailbox, and the context of a step: damaged shards, events that cannot be written."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import LeaseLostError, StepCancelledError, StepError
from headrace.files.atomic import write_json, write_record, write_text
from headrace.files.layout import LeaseFolder
from headrace.files.manifest import Manifest
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.context import StepContext, append_event, skipped_shards
from headrace.steps.mailbox import StepResult, StepSpec, StepStatus
from support.shards import write_dataset
from support.training import make_context, make_recipe, make_site


@pytest.fixture
def lease(tmp_path):
    folder = LeaseFolder(tmp_path / "lease-1")
    folder.path.mkdir()
    return folder


def spec(key: str = "r/pack/1") -> StepSpec:
    return StepSpec(key=key, kind="pack", run_id="r", name="pack", attempt=1, run_folder="/nowhere")


def test_submitting_twice_gives_one_step(lease):
    first = mailbox.submit(lease, spec())
    assert mailbox.submit(lease, spec()) == first
    assert mailbox.submit(lease, spec("r/pack/2")).number == 2


def test_concurrent_writers_leave_no_gap_and_no_double(lease):
    keys = [f"r/step/{n % 10}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda key: mailbox.submit(lease, spec(key)), keys))
    assert sorted({folder.number for folder in folders}) == list(range(1, 11))
    assert len(list(lease.steps.glob("[0-9]*"))) == 10


def test_a_writer_killed_half_way_leaves_no_gap(lease):
    lease.steps.mkdir()
    (lease.steps / ".0123abcd").mkdir()  # what is left of a writer that died before the rename
    assert mailbox.submit(lease, spec()).number == 1
    assert [folder.number for folder in mailbox.submitted(lease)] == [1]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_lease_that_has_ended_takes_no_step(lease, is_removed):
    lease.path.rmdir() if is_removed else write_text(lease.closed, "idle")
    with pytest.raises(LeaseLostError, match="lease-1 has ended"):
        mailbox.submit(lease, spec())
    assert lease.path.exists() is not is_removed


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("no heartbeat", "node n3 failed; no heartbeat"),
        ("node n3 failed", "node n3 failed"),
        ("", "node n3 failed"),
    ],
)
def test_a_cause_that_becomes_known_is_told_once_and_first(lease, known, message):
    lost = mailbox.lost(mailbox.submit(lease, spec()), known)
    told = mailbox.blamed(lost, "node n3 failed", FailureClass.PREEMPTED)
    assert told.state is StepState.PREEMPTED
    assert told.failure.message == message
    assert mailbox.blamed(lost, "x", FailureClass.INFRASTRUCTURE).state is StepState.LOST


@pytest.mark.parametrize(
    ("code", "cancelled", "state", "words"),
    [
        (-9, False, StepState.LOST, "signal 9"),
        (3, False, StepState.LOST, "exit code 3"),
        (-9, True, StepState.CANCELLED, "the user"),
    ],
)
def test_a_driver_that_died_without_a_result(lease, code, cancelled, state, words):
    """A driver killed at any moment ends as a known state, never as silence (pains 5, 6)."""
    folder = mailbox.submit(lease, spec())
    assert mailbox.outcome(folder) is None
    assert mailbox.status(folder).state is StepState.QUEUED
    assert not mailbox.was_killed(folder)
    if cancelled:
        mailbox.request_cancel(folder, "the user")
    write_json(folder.exit, {"code": code, "at": 12.0})
    assert mailbox.was_killed(folder) is (code < 0)
    result = mailbox.outcome(folder)
    assert result.state is state
    assert words in result.failure.message


@pytest.mark.parametrize(
    ("code", "why", "cancelled", "state"),
    [
        (-signal.SIGABRT, "", False, StepState.FAILED),
        (-signal.SIGKILL, "", False, StepState.LOST),
        (-signal.SIGABRT, "the lease's time is over", False, StepState.LOST),
        (-signal.SIGABRT, "", True, StepState.CANCELLED),
        (1, "", False, StepState.LOST),
    ],
)
def test_a_file_that_ends_its_driver_is_a_fault_of_the_data(lease, code, why, cancelled, state):
    """It is not tried again: every other driver would end so, too."""
    folder = mailbox.submit(lease, spec())
    write_text(folder.reading, "/raw/a.parquet\0")
    if cancelled:
        mailbox.request_cancel(folder, "the user")
    write_json(folder.exit, {"code": int(code), "at": 12.0, "why": why})
    result = mailbox.outcome(folder)
    assert result.state is state
    is_fault = state is StepState.FAILED
    assert (result.failure.failure_class is FailureClass.DATA_ERROR) is is_fault
    assert ("'/raw/a.parquet' is damaged" in result.failure.message) is is_fault


def test_the_time_of_a_lost_step_counts_from_the_start_of_its_driver(lease):
    folder = mailbox.submit(lease, spec())
    running = StepStatus(state=StepState.RUNNING, elapsed_s=6.0, updated_at=10.0)
    write_record(folder.status, running)
    write_json(folder.exit, {"code": -9, "at": 12.0})
    result = mailbox.outcome(folder)
    assert (result.started_at, result.finished_at) == (4.0, 12.0)
    assert mailbox.lost(folder, "host died").started_at == 4.0


def test_a_result_counts_more_than_an_exit_code(lease):
    folder = mailbox.submit(lease, spec())
    write_json(folder.exit, {"code": -9, "at": 12.0})
    done = StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2)
    write_record(folder.result, done)
    assert mailbox.outcome(folder) == done


def test_a_lost_lease_makes_its_steps_lost_or_cancelled(lease):
    folder = mailbox.submit(lease, spec())
    assert mailbox.lost(folder, "host died").state is StepState.LOST
    mailbox.request_cancel(folder, "asked")
    failure = mailbox.lost(folder, "host died").failure
    assert failure.failure_class is FailureClass.CANCELLED


def test_a_damaged_file_is_named(lease):
    folder = mailbox.submit(lease, spec())
    folder.status.write_text(json.dumps({"state": "dancing"}))
    with pytest.raises(StepError, match=r"status\.json does not hold a StepStatus"):
        mailbox.status(folder)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Five shards; the second of training and that of the test are damaged."""
    fields = {"x": np.arange(40), "label": np.zeros(40, dtype=np.int64)}
    splits = {"train": 24, "val": 8, "test": 8}
    written = write_dataset(tmp_path / "data", fields, splits=splits, shard_samples=8)
    for name in ("train-00001", "test-00000"):
        (tmp_path / "data/shards" / f"{name}.h5").unlink()
    return written


def context(folder: Path, on_bad_shard: str) -> StepContext:
    """Another call is another attempt of the same run."""
    recipe = {
        "model": {"_target_": "torch.nn.Identity"},
        "data": {"global_batch_size": 8, "on_bad_shard": on_bad_shard},
    }
    return make_context(folder, make_recipe(recipe), make_site(folder))


def test_without_the_policy_nothing_is_looked_at(tmp_path: Path, manifest: Manifest):
    given = context(tmp_path, "stop")
    assert skipped_shards(given, str(tmp_path / "data"), manifest).shards == ()
    assert not given.run_folder.skipped.exists()


def test_what_a_run_left_out_it_leaves_out_to_its_end(tmp_path: Path, manifest: Manifest):
    """Pains 30: a resumed attempt trains on the samples of the first one."""
    data = str(tmp_path / "data")
    first = context(tmp_path, "skip")
    found = skipped_shards(first, data, manifest)
    assert (found.files, found.num_samples) == ({"shards/train-00001.h5"}, 8)
    there = [each.num_bytes for each in manifest.shards if (tmp_path / "data" / each.file).exists()]
    assert (first.current.done, first.current.total) == (sum(there), manifest.num_bytes)
    assert first.metrics["skipped_samples"] == 8
    (tmp_path / "data/shards/train-00000.h5").unlink()
    second = context(tmp_path, "skip")
    assert skipped_shards(second, data, manifest) == found
    (event,) = map(json.loads, second.folder.events.read_text().splitlines())
    assert (event["event"], event["num_samples"]) == ("shards_skipped", 8)


@pytest.mark.parametrize("another", ["0", "another"])
def test_another_dataset_is_looked_at_anew(tmp_path: Path, manifest: Manifest, another: str):
    data = str(tmp_path / "data")
    skipped_shards(context(tmp_path, "skip"), data, manifest)
    (tmp_path / "data/shards/train-00000.h5").unlink()
    other = manifest.model_copy(update={"fingerprint": another})
    found = skipped_shards(context(tmp_path, "skip"), data, other)
    assert found.files == {"shards/train-00000.h5", "shards/train-00001.h5"}
    assert found.fingerprint == another


@pytest.mark.parametrize(
    ("path", "why"),
    [("/dev/full", "[Errno 28]"), ("/proc/self/oom_score_adj", "Invalid argument")],
)
def test_a_failure_costs_the_event_and_not_the_step(
    path: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    append_event(Path(path), f"started at {path}")
    assert f"event started at {path}: " in caplog.text
    assert why in caplog.text


@pytest.mark.parametrize("why", ["by ann", "Cancelled: by ann"])
def test_a_cancelled_step_is_named_cancelled_once(tmp_path: Path, why: str) -> None:
    given = context(tmp_path, "stop")
    mailbox.request_cancel(given.folder, why)
    with pytest.raises(StepCancelledError, match=r"^Cancelled: by ann$"):
        given.check()
