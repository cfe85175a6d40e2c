"""Folders that are removed, or become read-only, while a run goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.states import StepState
from support.bad_input import HEADRACE, Place, make_place, words
from support.small_disk import fill, read_only, small_disk
from support.waiting import wait_until

pytestmark = pytest.mark.slow

_HELD_AT = 7
_HELD_S = 60.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A home whose recipe `held` waits in a step after the first checkpoint."""
    made = make_place(tmp_path / "home")
    notes = tmp_path / "notes"
    notes.mkdir()
    model = {"_target_": "blob_models.BlobModel", "notes": str(notes), "holds": [_HELD_AT]}
    made.write_recipe("held", model=model, retry={"max_failures": 2})
    return made


@contextmanager
def held(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A run that waits in its training; after the block it goes on to its end."""
    notes = place.home.parent / "notes"
    with (
        (place.home.parent / "shown").open("wb") as shown,
        subprocess.Popen(
            [str(HEADRACE), "run", "held", "--site", "here"],
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.STDOUT,
        ) as run,
    ):
        try:
            wait_until((notes / f"held-{_HELD_AT}").exists, _HELD_S, "training to wait")
            yield run
        finally:
            (notes / f"go-{_HELD_AT}").touch()


def folder_of(place: Place, pattern: str) -> Path:
    (found,) = place.home.glob(pattern)
    return found


def end_of(place: Place, run: subprocess.Popen[bytes], code: int) -> str:
    """What a run that has ended wrote; nothing of it is left."""
    shown = (place.home.parent / "shown").read_text()
    assert "train: running" in shown
    place.wait_for_quiet()
    assert run.returncode == code, shown
    assert "Traceback" not in shown
    assert "fault of" not in shown
    return shown


@pytest.mark.parametrize("lease", ["leases/*-gpu-1", "leases"])
def test_a_lease_whose_folder_is_removed_is_lost_and_the_run_goes_on(place: Place, lease: str):
    """pains 31: from the last checkpoint, in another lease."""
    with held(place) as run:
        folder_of(place, lease).rename(place.home.parent / "gone")  # at once, as no `rmtree` is
    end_of(place, run, 0)
    record, attempts = place.newest()
    assert record.state is StepState.SUCCEEDED
    trained = [row for row in attempts if row.step == "train"]
    assert [row.state for row in trained] == [StepState.LOST, StepState.SUCCEEDED]
    assert [row.lease_id.rpartition("-")[2] for row in trained] == ["1", "2"]


def test_a_lease_whose_folder_is_read_only_is_lost_and_the_run_goes_on(place: Place):
    with ExitStack() as stack:
        with held(place) as run:
            stack.enter_context(read_only(folder_of(place, "leases/*-gpu-1")))
        end_of(place, run, 0)
    record, attempts = place.newest()
    assert record.state is StepState.SUCCEEDED
    assert [row.state for row in attempts if row.step == "train"] == [
        StepState.LOST, StepState.SUCCEEDED,
    ]  # fmt: skip


@pytest.mark.parametrize("part", ["checkpoints", ""])
def test_a_run_folder_that_is_read_only_is_named_and_the_run_goes_on_later(place: Place, part: str):
    with ExitStack() as stack:
        with held(place) as run:
            stack.enter_context(read_only(folder_of(place, f"runs/*/{part}")))
        shown = end_of(place, run, 1)
    run_id = folder_of(place, "runs/*").name
    words(shown, "train failed (infrastructure): ", "Read-only file system: '", f"/runs/{run_id}/")
    words(shown, "Mount its file system for writing", f"headrace resume {run_id}")
    assert place.headrace("resume", run_id).returncode == 0


def test_a_run_folder_that_is_removed_is_named(place: Place):
    with held(place) as run:
        folder = folder_of(place, "runs/*")
        folder.rename(place.home.parent / "gone")
    shown = end_of(place, run, 1)
    words(shown, f"{folder} holds no recipe.json", "its file system is not mounted: bring it back")
    words(place.headrace("resume", folder.name).stderr, "is gone or incomplete")


def test_a_dataset_that_is_removed_is_packed_again_when_its_run_goes_on(place: Place):
    source = place.home.parent / "source"
    for number in range(40):
        file = source / "abc"[number % 3] / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.eye(8, dtype=np.float32)[number % 8])
    dataset = {"name": "eyes", "source": str(source), "include": ["**/*.npy"], "labels": "folders"}
    model = {"_target_": "blob_models.BlobModel", "notes": str(place.home.parent / "notes")}
    place.write_recipe(
        "held",
        dataset={**dataset, "splits": {"train": 1.0}},
        data={"global_batch_size": 4},
        model={**model, "holds": [_HELD_AT]},
    )
    with held(place) as run:
        run.send_signal(signal.SIGINT)
        run.wait(60)
    run_id = folder_of(place, "runs/*").name
    shutil.rmtree(folder_of(place, "datasets/eyes-*"))
    done = place.headrace("resume", run_id)
    words(done.stdout + done.stderr, "Step pack begins anew: ")
    assert done.returncode == 0, done.stderr
    _, attempts = place.newest()
    packed = [row.outputs for row in attempts if row.step == "pack"]
    assert [each["reused"] for each in packed] == [False, False]
    assert packed[0]["fingerprint"] == packed[1]["fingerprint"]


def test_runs_are_read_while_the_disk_is_full(tmp_path: Path):
    with small_disk(tmp_path / "home", "16m") as disk:
        place = make_place(disk)
        assert place.run("blobs", "--pack-only").returncode == 0
        run_id = folder_of(place, "runs/*").name
        fill(disk)
        for command in (
            ("runs",),
            ("status",),
            ("runs", "show", run_id),
            ("cost", run_id),
            ("logs",),
        ):
            done = place.headrace(*command)
            assert done.returncode == 0, done.stderr
        words(place.headrace("runs").stdout, run_id, "succeeded")
