"""Bad input as its user meets it: what was wrong, the value, what would be right, what to do next.

Nothing is tried again in vain, no trace is shown but that of user code, once, and nothing is left.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.states import FailureClass, StepState
from support.bad_input import (
    Place,
    make_place,
    status_of,
    words,
    write_aborting_parquet,
    write_class_folders,
    write_endless_hdf5,
)
from support.small_disk import small_disk
from support.training import CODE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return make_place(tmp_path_factory.mktemp("bad-input"))


# --- raw samples -----------------------------------------------------------------------------


def fails_in(place: Place, step: str, recipe: str, *overrides: str) -> str:
    """Run a recipe whose step fails for good; everything that holds for all of them is checked.

    Returns:
        What the terminal showed.
    """
    done = place.run(recipe, *overrides)
    record, attempts = place.newest()
    failed = attempts[-1]
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert record.state is StepState.FAILED
    assert [row.step for row in attempts].count(step) == 1
    assert (failed.step, failed.state) == (step, StepState.FAILED)
    assert f"{step} failed ({failed.failure_class.value}): {failed.message}" in shown
    words(shown, f"headrace logs {record.run_id} {step}", f"headrace resume {record.run_id}")
    return shown


def test_an_empty_source_is_told_by_every_command(place):
    """As seen with run, status, logs and runs: words and class, but no trace anywhere."""
    source = place.home / "raw" / "hollow"
    source.mkdir(parents=True)
    place.write_raw("hollow", source)
    shown = fails_in(place, "pack", "hollow")
    summary = shown.rpartition("run folder")[2]  # a look before the run's end may say it, too
    assert summary.count(f"{source} is empty") == 1
    shown += place.shown("status").stdout
    shown += place.shown("logs").stdout
    shown += place.shown("runs").stdout
    assert shown.count(f"{source} is empty") >= 4
    assert "Traceback" not in shown
    step = status_of(place)["steps"]["pack"]
    assert (step["failure_class"], step["trace"], step["attempt"]) == ("user_error", "", 1)
    newest = json.loads(place.shown("runs", "--json", "--limit", "1").stdout)[0]
    assert newest["failure"]["failure_class"] == "user_error"
    assert newest["failure"]["step"] == "pack"


def test_a_corrupt_image_is_set_aside_and_listed(place):
    source = write_class_folders(place.home / "raw" / "spotted")
    (source / "dark" / "dark-003.png").write_bytes(b"no picture")
    place.write_raw("spotted", source)
    done = place.headrace(
        "run", "spotted", "--site", "here", "--pack-only", "pack.max_quarantined=0.05"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, (packed,) = place.newest()
    assert packed.outputs["num_quarantined"] == 1
    seen = place.shown("inspect", str(packed.outputs["dataset"])).stdout
    words(seen, "Quarantined (1)", "dark/dark-003.png")


def test_too_many_corrupt_images_fail_the_step_and_leave_no_dataset(place):
    source = write_class_folders(place.home / "raw" / "rotten")
    for number in (3, 4):
        (source / "dark" / f"dark-00{number}.png").write_bytes(b"no picture")
    place.write_raw("rotten", source)
    shown = fails_in(place, "pack", "rotten", "--pack-only")
    words(shown, "2 of 60 samples cannot be read", "0.01", "dark-003.png", "dark-004.png")
    words(shown, "raise pack.max_quarantined", "pack failed (data_error)")
    assert "Traceback" not in shown
    (folder,) = (place.home / "datasets").glob("rotten-*")
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "write", "signal_name"),
    [
        ("a.parquet", write_aborting_parquet, "SIGABRT"),
        ("first.h5", partial(write_endless_hdf5, heap=0), "SIGXCPU: CPU time limit exceeded"),
        ("last.h5", write_endless_hdf5, "SIGXCPU: CPU time limit exceeded"),
    ],
)
def test_a_file_that_makes_its_library_fail(place, name, write, signal_name):
    """In the step's driver, or in the worker that meets the damage; pains 16."""
    case = Path(name).stem
    source = place.home / "raw" / case
    source.mkdir(parents=True)
    write(source / name)
    place.write_raw(case, source, labels="none")
    shown = fails_in(place, "pack", case, "--pack-only")
    words(shown, "pack failed (data_error)", f"'{source}/{name}' is damaged", "leave it out")
    words(shown, f"reading it ended the process ({signal_name}")


def test_a_file_that_makes_the_users_reader_fail(place):
    source = place.home / "raw" / "frail"
    source.mkdir(parents=True)
    for number in range(9):
        (source / f"{number}.dat").write_text("damaged" if number == 5 else "text")
    reader = {"_target_": "frail_reader.read"}
    place.write_raw("frail", source, include=["*.dat"], reader=reader)
    shown = fails_in(place, "pack", "frail", "--pack-only")
    words(shown, "pack failed (data_error)", f"'{source}/5.dat' is damaged, or what reads it")
    words(shown, "reading it ended the process (SIGSEGV")


# --- packed datasets -------------------------------------------------------------------------


def test_a_damaged_shard_is_named_before_anything_is_trained(place):
    damaged = place.home / "damaged"
    shutil.copytree(place.dataset, damaged)
    shard = damaged / "shards" / "train-00001.h5"
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    place.write_site(
        "fresh", tiers=[{"name": "d", "folder": str(place.home / "new"), "reserve": 0}]
    )
    place.write_recipe("damaged", dataset={"name": "damaged", "path": str(damaged)})
    done = place.headrace("run", "damaged", "--site", "fresh")
    record, attempts = place.newest()
    assert done.returncode == 1
    assert [(row.step, row.attempt) for row in attempts] == [("pack", 1), ("stage", 1)]
    assert attempts[-1].failure_class is FailureClass.DATA_ERROR
    words(done.stdout, f"Shard {shard} is damaged", "headrace verify")
    assert "Traceback" not in done.stdout + place.shown("logs", record.run_id).stdout
    assert not list((place.home / "new").rglob("*.h5.*"))
    verified = place.headrace("verify", str(damaged))
    assert verified.returncode == 1
    words(verified.stdout, "train-00001.h5", "1 of 3 shards are damaged")


# --- user code -------------------------------------------------------------------------------


def test_a_model_that_raises_is_shown_once_and_not_tried_again(place):
    shown = fails_in(place, "train", "blobs", "model.raises_at=7")
    words(shown, "train failed (user_error): Rank 1 on ", "training_step raised ValueError")
    assert shown.count("Traceback") == 1
    assert shown.count("ValueError: the blobs are too round") == 1
    words(shown, "blob_models.py", "Correct the code and run again")
    assert "lightning/pytorch" not in shown

    step = status_of(place)["steps"]["train"]
    assert (step["failure_class"], step["attempt"]) == ("user_error", 1)
    assert step["where"].startswith("rank 1 on ")
    assert step["trace"].count("Traceback") == 1
    logs = place.headrace("logs")
    assert logs.returncode == 0
    words(logs.stdout, "train/1 rank-1 | ", "the blobs are too round", "train/1 driver | ")


# --- full storage ----------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path) -> Iterator[Path]:
    """A file system with room for nothing that is worth staging."""
    with small_disk(tmp_path / "tiny", "8k") as folder:
        yield folder


def test_a_full_tier_is_left_for_the_next_and_the_exit_of_a_script_is_named(place, tiny):
    tiers = [
        {"name": "tiny", "folder": str(tiny / "t"), "reserve": 0},
        {"name": "disk", "folder": str(place.home / "second"), "reserve": 0},
    ]
    place.write_site("two-tiers", tiers=tiers)
    place.write_recipe("script", model=None, train={"script": str(CODE / "gone.py")})
    refused = place.headrace("run", "script", "--site", "two-tiers")
    words(refused.stderr, "train.script needs ", "gone.py', which does not exist")
    script = {"script": str(CODE / "argparse_script.py")}  # without its arguments
    place.write_recipe("script", model=None, train=script)
    done = place.headrace("run", "script", "--site", "two-tiers")
    record, attempts = place.newest()
    assert [(row.step, row.attempt) for row in attempts] == [
        ("pack", 1), ("stage", 1), ("train", 1),
    ]  # fmt: skip
    staged = attempts[1].outputs["nodes"][0]
    assert staged["tier"] == "disk"
    assert staged["folder"].startswith(str(place.home / "second"))
    assert not list(tiny.rglob("*.h5"))

    assert (done.returncode, record.state) == (1, StepState.FAILED)
    assert attempts[2].failure_class is FailureClass.USER_ERROR
    words(done.stdout, "the script ended with exit code 2")
    assert "Traceback" not in done.stdout


def test_without_room_on_any_tier_the_numbers_are_told_after_two_tries(place, tiny):
    place.write_site("full", tiers=[{"name": "tiny", "folder": str(tiny / "t"), "budget": "1KiB",
                                     "reserve": 0}])  # fmt: skip
    done = place.headrace("run", "blobs", "--site", "full")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    place.wait_for_quiet()
    record, attempts = place.newest()
    assert record.state is StepState.FAILED
    staged = [row for row in attempts if row.step == "stage"]
    assert [row.failure_class for row in staged] == [FailureClass.CAPACITY] * 2
    words(staged[0].message or "", "No storage tier has room", f"tiny: {tiny}/t needs ")
    # in memory, also the room of the training's batches is kept
    words(staged[0].message or "", " free (keeps 960B), budget 1.0KiB of which ", "Raise `budget`")
    words(done.stdout, "no room twice in a row")
