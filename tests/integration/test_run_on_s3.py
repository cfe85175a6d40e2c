"""Whole runs between S3 prefixes, and on folders that are removed or become read-only."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ManifestError, ShardError
from headrace.files.layout import RunFolder
from headrace.objects.store import below, open_store
from headrace.staging.staged import ensure_staged
from headrace.staging.tier_choice import StagingOptions
from headrace.states import StepState
from headrace.steps.history import read_history
from support.bad_input import HEADRACE, Place, make_place, status_of, words
from support.s3_servers import SECRET, S3Server
from support.small_disk import fill, read_only, small_disk
from support.staged_datasets import make_dataset, same_bytes, tier
from support.waiting import wait_until

pytestmark = pytest.mark.slow

NUM_EACH = 12


@pytest.fixture
def place(tmp_path: Path, swift_server: S3Server) -> Place:
    """A home whose site names the server."""
    found = Place(tmp_path / "home")
    found.home.mkdir()
    found.write_site(s3={"endpoint_url": swift_server.endpoint_url})
    return found


def test_pack_stage_train_and_evaluate(
    place: Place,
    digits_folder: Path,
    swift_server: S3Server,
    swift_bucket: str,
    no_leftover_processes: None,
) -> None:
    """The site's options and the environment's credentials reach every process."""
    raw = open_store(below(swift_bucket, "raw"), swift_server.options)
    for folder in sorted(digits_folder.glob("[0-9]")):
        for image in sorted(folder.iterdir())[:NUM_EACH]:
            raw.upload(image, f"{folder.name}/{image.name}")
    overrides = [
        f"dataset.source={swift_bucket}/raw",
        f"pack.target={swift_bucket}/packed",
        "pack.shard_samples=16",
        "pack_role=gpu",
        "data.global_batch_size=8",
        "trainer.max_epochs=1",
        f"trainer.checkpoint_target={swift_bucket}/kept",
    ]
    done = place.run("digits", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    steps = status_of(place)["steps"]
    dataset = steps["pack"]["outputs"]["dataset"]
    assert dataset.startswith(f"{swift_bucket}/packed/digits-")
    assert steps["pack"]["outputs"]["num_samples"] == 10 * NUM_EACH
    assert steps["evaluate"]["outputs"]["num_samples"] == 10 * NUM_EACH // 5
    assert not list((place.home / "datasets").glob("**/*.h5"))
    files = [file.path for file in open_store(dataset, swift_server.options).list_files()]
    assert "manifest.json" in files
    final = Path(steps["train"]["outputs"]["checkpoint"])
    kept = open_store(below(swift_bucket, "kept", final.parents[1].name), swift_server.options)
    assert kept.read(final.name) == final.read_bytes()
    told = place.headrace("cost", "--by", "kind", "--json")
    took = {each["kind"]: each for each in json.loads(told.stdout)}
    size = steps["pack"]["outputs"]["num_bytes"]
    pictures = sum(file.num_bytes for file in raw.list_files())
    assert (took["pack"]["stored_bytes"], took["pack"]["fetched_bytes"]) == (size, pictures)
    assert took["pack"]["samples"] == 10 * NUM_EACH
    assert took["stage"]["fetched_bytes"] == steps["stage"]["outputs"]["copied_bytes"]


def upload(folder, url, options):
    store = open_store(url, options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.upload(path, str(path.relative_to(folder)))


@pytest.mark.parametrize("kind", ["moto", "swift"])
def test_staged_from_s3_and_read_again_only_when_damaged(tmp_path, kind, request):
    options = request.getfixturevalue(f"{kind}_server").options
    url = request.getfixturevalue(f"{kind}_bucket") + "/some/dataset"
    manifest = make_dataset(tmp_path / "source")
    upload(tmp_path / "source", url, options)
    tiers, s3 = [tier(tmp_path / "tier")], StagingOptions(s3=options)
    copy = ensure_staged(url, tiers, options=s3)
    assert copy.copied_bytes == manifest.num_bytes
    assert same_bytes(tmp_path / "source", copy.folder)
    shard = copy.folder / manifest.shards[0].file
    shard.write_bytes(b"damaged")
    again = ensure_staged(url, tiers, options=s3)
    assert again.copied_bytes == manifest.shards[0].num_bytes
    assert same_bytes(tmp_path / "source", copy.folder)


def test_what_is_wrong_in_s3_is_named(tmp_path, moto_server, moto_bucket):
    options, url = moto_server.options, f"{moto_bucket}/dataset"
    tiers, s3 = [tier(tmp_path / "tier")], StagingOptions(s3=options)
    with pytest.raises(ManifestError, match=f"{url} is not a dataset"):
        ensure_staged(url, tiers, options=s3)
    manifest = make_dataset(tmp_path / "source")
    upload(tmp_path / "source", url, options)
    store = open_store(url, options)
    store.write(manifest.shards[2].file, b"x" * manifest.shards[2].num_bytes)
    with pytest.raises(ShardError, match=rf"{url}/{manifest.shards[2].file} is damaged"):
        ensure_staged(url, tiers, options=s3)
    store.delete(manifest.shards[2].file)
    with pytest.raises(ShardError, match=rf"{url}/{manifest.shards[2].file} is missing"):
        ensure_staged(url, tiers, options=s3)


_HELD_AT = 7
_HELD_S = 60.0


@pytest.fixture
def faulty_place(tmp_path: Path) -> Place:
    """A home whose recipe `held` waits in a step after the first checkpoint."""
    made = make_place(tmp_path / "home")
    notes = tmp_path / "notes"
    notes.mkdir()
    model = {"_target_": "blob_models.BlobModel", "notes": str(notes), "holds": [_HELD_AT]}
    made.write_recipe("held", model=model, retry={"max_failures": 2})
    return made


@contextmanager
def held(faulty_place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A run that waits in its training; after the block it goes on to its end."""
    notes = faulty_place.home.parent / "notes"
    with (
        (faulty_place.home.parent / "shown").open("wb") as shown,
        subprocess.Popen(
            [str(HEADRACE), "run", "held", "--site", "here"],
            env=faulty_place.environment(),
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


def folder_of(faulty_place: Place, pattern: str) -> Path:
    (found,) = faulty_place.home.glob(pattern)
    return found


def end_of(faulty_place: Place, run: subprocess.Popen[bytes], code: int) -> str:
    """What a run that has ended wrote; nothing of it is left."""
    shown = (faulty_place.home.parent / "shown").read_text()
    assert "train: running" in shown
    faulty_place.wait_for_quiet()
    assert run.returncode == code, shown
    assert "Traceback" not in shown
    assert "fault of" not in shown
    return shown


@pytest.mark.parametrize("lease", ["leases/*-gpu-1", "leases"])
def test_a_lease_whose_folder_is_removed_is_lost_and_the_run_goes_on(
    faulty_place: Place, lease: str
):
    """pains 31: from the last checkpoint, in another lease."""
    with held(faulty_place) as run:
        folder_of(faulty_place, lease).rename(
            faulty_place.home.parent / "gone"
        )  # at once, as no `rmtree` is
    end_of(faulty_place, run, 0)
    record, attempts = faulty_place.newest()
    assert record.state is StepState.SUCCEEDED
    trained = [row for row in attempts if row.step == "train"]
    assert [row.state for row in trained] == [StepState.LOST, StepState.SUCCEEDED]
    assert [row.lease_id.rpartition("-")[2] for row in trained] == ["1", "2"]


def test_a_lease_whose_folder_is_read_only_is_lost_and_the_run_goes_on(faulty_place: Place):
    with ExitStack() as stack:
        with held(faulty_place) as run:
            stack.enter_context(read_only(folder_of(faulty_place, "leases/*-gpu-1")))
        end_of(faulty_place, run, 0)
    record, attempts = faulty_place.newest()
    assert record.state is StepState.SUCCEEDED
    assert [row.state for row in attempts if row.step == "train"] == [
        StepState.LOST, StepState.SUCCEEDED,
    ]  # fmt: skip


@pytest.mark.parametrize("part", ["checkpoints", ""])
def test_a_run_folder_that_is_read_only_is_named_and_the_run_goes_on_later(
    faulty_place: Place, part: str
):
    with ExitStack() as stack:
        with held(faulty_place) as run:
            stack.enter_context(read_only(folder_of(faulty_place, f"runs/*/{part}")))
        shown = end_of(faulty_place, run, 1)
    run_id = folder_of(faulty_place, "runs/*").name
    words(shown, "train failed (infrastructure): ", "Read-only file system: '", f"/runs/{run_id}/")
    words(shown, "Mount its file system for writing", f"headrace resume {run_id}")
    assert faulty_place.headrace("resume", run_id).returncode == 0


def test_a_run_folder_that_is_removed_is_named(faulty_place: Place):
    with held(faulty_place) as run:
        folder = folder_of(faulty_place, "runs/*")
        folder.rename(faulty_place.home.parent / "gone")
    shown = end_of(faulty_place, run, 1)
    words(shown, f"{folder} holds no recipe.json", "its file system is not mounted: bring it back")
    refusal = faulty_place.headrace("resume", folder.name).stderr
    # its processes may have made the folder again
    assert "is gone or incomplete" in refusal or "was removed on" in refusal


def write_held_packing(faulty_place: Place, trainer: dict[str, object], **changes: object) -> None:
    """A recipe `held` that packs its samples, and waits in training after a checkpoint."""
    source = faulty_place.home.parent / "source"
    for number in range(40):
        file = source / "abc"[number % 3] / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.eye(8, dtype=np.float32)[number % 8])
    dataset = {"name": "eyes", "source": str(source), "include": ["**/*.npy"], "labels": "folders"}
    model = {"_target_": "blob_models.BlobModel", "notes": str(faulty_place.home.parent / "notes")}
    usual = {"accelerator": "cpu", "max_epochs": 1, "checkpoint_every_steps": 5}
    faulty_place.write_recipe(
        "held",
        dataset={**dataset, "splits": {"train": 1.0}},
        data={"global_batch_size": 4},
        model={**model, "holds": [_HELD_AT]},
        trainer={**usual, **trainer},
        **changes,
    )


def test_a_dataset_that_is_removed_is_packed_again_when_its_run_goes_on(faulty_place: Place):
    write_held_packing(faulty_place, {})
    with held(faulty_place) as run:
        run.send_signal(signal.SIGINT)
        run.wait(60)
    run_id = folder_of(faulty_place, "runs/*").name
    shutil.rmtree(folder_of(faulty_place, "datasets/eyes-*"))
    done = faulty_place.headrace("resume", run_id)
    words(done.stdout + done.stderr, "Step pack begins anew: ")
    assert done.returncode == 0, done.stderr
    _, attempts = faulty_place.newest()
    packed = [row.outputs for row in attempts if row.step == "pack"]
    assert [each["reused"] for each in packed] == [False, False]
    assert packed[0]["fingerprint"] == packed[1]["fingerprint"]


def test_a_run_goes_on_from_what_s3_has(
    faulty_place: Place, swift_server: S3Server, swift_bucket: str
) -> None:
    """Its staged copy and its checkpoints are lost; dataset and copies of these are there."""
    faulty_place.write_site(s3={"endpoint_url": swift_server.endpoint_url})
    target = f"{swift_bucket}/kept"
    pack = {"target": f"{swift_bucket}/packed"}
    write_held_packing(faulty_place, {"checkpoint_target": target}, pack=pack)
    with held(faulty_place) as run:
        folder = RunFolder(folder_of(faulty_place, "runs/*"))
        kept = open_store(below(target, folder.path.name), swift_server.options)

        def is_copied() -> bool:
            about = [each.path for each in kept.list_files() if each.path.endswith(".ckpt.json")]
            return any(json.loads(kept.read(path))["is_whole"] for path in about)

        wait_until(is_copied, _HELD_S, "a checkpoint to be copied")
        run.send_signal(signal.SIGINT)
        run.wait(60)
    shutil.rmtree(folder.checkpoints)
    shutil.rmtree(faulty_place.home / "tier")
    done = faulty_place.headrace("resume", folder.path.name)
    assert done.returncode == 0, done.stdout + done.stderr
    _, attempts = faulty_place.newest()
    assert [row.step for row in attempts].count("pack") == 1
    first, second = (row.step for row in read_history(folder).starts)
    assert (first, second >= 5) == (0, True)
    trained = next(row for row in attempts if row.step == "train" and row.outputs).outputs
    final = Path(trained["checkpoint"])
    assert kept.read(final.name) == final.read_bytes()


def test_runs_are_read_while_the_disk_is_full(tmp_path: Path):
    with small_disk(tmp_path / "home", "16m") as disk:
        faulty_place = make_place(disk)
        assert faulty_place.run("blobs", "--pack-only").returncode == 0
        run_id = folder_of(faulty_place, "runs/*").name
        fill(disk)
        for command in (
            ("runs",),
            ("status",),
            ("runs", "show", run_id),
            ("cost", run_id),
            ("logs",),
        ):
            done = faulty_place.headrace(*command)
            assert done.returncode == 0, done.stderr
        words(faulty_place.headrace("runs", "--kind", "pack").stdout, run_id, "succeeded")
