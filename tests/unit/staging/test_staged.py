"""Staging onto a node's tiers: once, verified, resumed, whole, with its progress."""

import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import xxhash

from headrace.errors import ManifestError, ShardError, StepCancelledError, StorageFullError
from headrace.files.manifest_file import read_manifest, write_manifest
from headrace.recipe.site import Tier
from headrace.staging.stage_step import Ticker, total_done_bytes
from headrace.staging.staged import ensure_staged
from headrace.staging.tier_choice import StagingOptions
from support.staged_datasets import copy_in, make_dataset, same_bytes, tier


def hidden_files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob(".*")}


def test_stages_all_and_reuses(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    assert copy.folder == copy_in(tmp_path / "tier", tmp_path / "source")
    assert (copy.tier, copy.reused, copy.num_bytes) == ("disk", False, manifest.num_bytes)
    assert copy.bytes_per_s > 0
    assert pickle.loads(pickle.dumps(copy)) == copy  # it goes from a node to the step
    assert read_manifest(copy.folder) == manifest
    assert same_bytes(tmp_path / "source", copy.folder)
    assert hidden_files(copy.folder) == {".complete.json"}
    again = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    assert again.reused
    assert again.folder == copy.folder
    assert (again.num_bytes, again.bytes_per_s) == (manifest.num_bytes, 0)


def test_reuse_of_a_large_copy_reads_no_shard(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.staging.cache.SMALL_BYTES", 0)
    make_dataset(tmp_path / "source")
    ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    shutil.rmtree(tmp_path / "source/shards")

    def refuse(*_: object) -> str:
        raise AssertionError("read a shard")

    for module in ("staged_folder", "cache"):
        monkeypatch.setattr(f"headrace.staging.{module}.file_xxh3_128", refuse)
    assert ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")]).reused


def test_folders_are_private(tmp_path):
    """Pains 27."""
    make_dataset(tmp_path / "source")
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    for folder in (tmp_path / "tier", tmp_path / "tier/datasets", copy.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_user_is_substituted(tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    make_dataset(tmp_path / "source")
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "headrace-{user}")])
    assert copy.folder.is_relative_to(tmp_path / "headrace-ada")


def test_another_split_adds_what_is_missing(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    tiers = [tier(tmp_path / "tier")]
    first = ensure_staged(tmp_path / "source", tiers, ("test",))
    assert read_manifest(first.folder).splits == {"test": 10}
    assert read_manifest(first.folder).class_counts == {"test": {"a": 10}}
    test_shard = first.folder / "shards/test-00000.h5"
    inode = test_shard.stat().st_ino
    second = ensure_staged(tmp_path / "source", tiers, ("train",))
    assert not second.reused
    assert second.num_bytes == sum(s.num_bytes for s in manifest.shards_of("train"))
    assert read_manifest(second.folder) == manifest
    assert test_shard.stat().st_ino == inode
    assert ensure_staged(tmp_path / "source", tiers, ("test",)).reused


def test_unknown_split_names_the_valid_ones(tmp_path):
    make_dataset(tmp_path / "source")
    with pytest.raises(ManifestError, match=r"no split 'trian'(.|\n)*'train'"):
        ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")], ("trian",))


def test_changed_file_is_copied_again(tmp_path):
    make_dataset(tmp_path / "source")
    tiers = [tier(tmp_path / "tier")]
    copy = ensure_staged(tmp_path / "source", tiers)
    shard = copy.folder / "shards/train-00001.h5"
    shard.write_bytes(b"x" * shard.stat().st_size)
    again = ensure_staged(tmp_path / "source", tiers)
    assert not again.reused
    assert again.copied_bytes == shard.stat().st_size
    assert same_bytes(tmp_path / "source", copy.folder)


def test_flipped_bit_in_the_source_is_named(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    shard = tmp_path / "source" / manifest.shards[2].file
    content = bytearray(shard.read_bytes())
    content[1000] ^= 4
    shard.write_bytes(content)
    got = xxhash.xxh3_128_hexdigest(bytes(content))
    with pytest.raises(ShardError) as error:
        ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    for word in (manifest.shards[2].file, manifest.shards[2].xxh3_128, got):
        assert word in str(error.value)
    staged = copy_in(tmp_path / "tier", tmp_path / "source")
    assert not (staged / manifest.shards[2].file).exists()
    assert hidden_files(staged) == set()


def test_missing_source_shard_is_named(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    (tmp_path / "source" / manifest.shards[0].file).unlink()
    with pytest.raises(ShardError, match=r"train-00000\.h5 is missing"):
        ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])


def test_shard_outside_of_the_folder_is_refused(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    bad = manifest.shards[0].model_copy(update={"file": "../outside.h5"})
    write_manifest(
        tmp_path / "source", manifest.model_copy(update={"shards": (bad, *manifest.shards[1:])})
    )
    with pytest.raises(ManifestError, match="outside of its folder"):
        ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])


def test_falls_to_the_next_tier_by_budget(tmp_path):
    make_dataset(tmp_path / "source")
    small = tier(tmp_path / "small", "small", budget=1000)
    copy = ensure_staged(tmp_path / "source", [small, tier(tmp_path / "large", "large")])
    assert copy.tier == "large"
    assert not (copy_in(tmp_path / "small", tmp_path / "source")).exists()


def test_no_room_names_every_tier(tmp_path):
    make_dataset(tmp_path / "source")
    (tmp_path / "file").write_text("")
    tiers = [
        tier(tmp_path / "small", "small", budget=1000),
        tier(tmp_path / "file/x", "broken"),
        Tier(name="kept", folder=str(tmp_path / "kept"), reserve=2**60),
    ]
    with pytest.raises(StorageFullError) as error:
        ensure_staged(tmp_path / "source", tiers)
    text = str(error.value)
    for word in ("1000B", "1.1MiB", str(tmp_path / "small"), "cannot be created", "1.0EiB"):
        assert word in text
    assert "stage.splits" in text


@pytest.fixture
def tiny_tmpfs(tmp_path):
    """A file system of 700 kB."""
    if os.getuid() != 0:
        pytest.skip("mounting a tmpfs takes root")
    point = tmp_path / "tiny"
    point.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(point)], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not allowed here: {made.stderr.decode()}")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_memory_that_batches_need_stays_free(tmp_path, tiny_tmpfs):
    """300 kB fit into 700 kB of memory, but not beside batches of 500 kB."""
    make_dataset(tmp_path / "source")
    tiers = [tier(tiny_tmpfs / "headrace", "tiny"), tier(tmp_path / "disk")]

    def chosen(batch_bytes: int, split: str, tiers=tiers) -> str:
        options = StagingOptions(batch_bytes=batch_bytes)
        return ensure_staged(tmp_path / "source", tiers, (split,), options=options).tier

    with pytest.raises(StorageFullError, match=r"has .* free \(keeps 488\.3KiB\)"):
        chosen(500_000, "test", tiers[:1])
    assert chosen(500_000, "test") == "disk"
    shutil.rmtree(tmp_path / "disk")
    assert chosen(100_000, "test") == "tiny"
    assert chosen(2**60, "test") == "tiny"  # what is there already stays
    shutil.rmtree(tiny_tmpfs / "headrace")
    assert chosen(2**60, "train") == "disk"


def lie_about_free_space(monkeypatch):
    monkeypatch.setattr("headrace.files.tiers.room_bytes", lambda _: 2**40)


def test_disk_full_in_the_copy_falls_to_the_next_tier(tmp_path, tiny_tmpfs, monkeypatch):
    """Space that somebody else takes after it was measured."""
    lie_about_free_space(monkeypatch)
    make_dataset(tmp_path / "source")
    tiny = tier(tiny_tmpfs / "headrace", "tiny")
    copy = ensure_staged(tmp_path / "source", [tiny, tier(tmp_path / "large", "large")])
    assert copy.tier == "large"
    assert same_bytes(tmp_path / "source", copy.folder)
    left = {path.name for path in (tiny_tmpfs / "headrace/datasets").iterdir()}
    assert left <= {f"{copy.folder.name}.lock", ".room.lock"}


def test_disk_full_keeps_what_was_published(tmp_path, tiny_tmpfs, monkeypatch):
    lie_about_free_space(monkeypatch)
    make_dataset(tmp_path / "source")
    tiers = [tier(tiny_tmpfs / "headrace", "tiny")]
    ensure_staged(tmp_path / "source", tiers, ("test",))
    with pytest.raises(StorageFullError, match=r"tiny: .* ran full while it was copied to"):
        ensure_staged(tmp_path / "source", tiers)
    assert ensure_staged(tmp_path / "source", tiers, ("test",)).reused


def test_full_file_system_is_measured(tmp_path, tiny_tmpfs):
    make_dataset(tmp_path / "source")
    tiers = [tier(tiny_tmpfs / "headrace", "tiny"), tier(tmp_path / "large", "large")]
    assert ensure_staged(tmp_path / "source", tiers).tier == "large"


def _stage_and_tell(source, folder, barrier, queue):
    barrier.wait()
    copy = ensure_staged(source, [tier(folder)])
    queue.put((copy.reused, copy.copied_bytes))


def test_concurrent_callers_copy_once(tmp_path):
    manifest = make_dataset(tmp_path / "source", 2_000_000)
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(4), context.SimpleQueue()
    arguments = (tmp_path / "source", tmp_path / "tier", barrier, queue)
    callers = [context.Process(target=_stage_and_tell, args=arguments) for _ in range(4)]
    for caller in callers:
        caller.start()
    answers = [queue.get() for _ in callers]
    for caller in callers:
        caller.join()
    assert sorted(answers) == [(False, manifest.num_bytes)] + [(True, 0)] * 3


def _stage_until_killed(source, folder):
    shards = copy_in(Path(folder), source) / "shards"

    def kill_after_a_shard(done_bytes, total_bytes):
        if list(shards.glob("train-*.h5")):
            part = shards / f".part.{os.getuid()}.{os.getpid()}"
            part.write_bytes(b"half a shard")
            os.kill(os.getpid(), signal.SIGKILL)

    ensure_staged(source, [tier(folder)], tick=kill_after_a_shard)


@pytest.mark.parametrize("verify", [True, False])
def test_killed_copy_is_resumed(tmp_path, verify):
    """Pains 27: leftovers of a dead process go, whole shards stay."""
    manifest = make_dataset(tmp_path / "source")
    arguments = (tmp_path / "source", tmp_path / "tier")
    caller = multiprocessing.get_context("fork").Process(target=_stage_until_killed, args=arguments)
    caller.start()
    caller.join()
    assert caller.exitcode == -signal.SIGKILL
    staged = copy_in(tmp_path / "tier", tmp_path / "source")
    assert not (staged / ".complete.json").exists()
    inodes = {path: path.stat().st_ino for path in staged.glob("shards/[!.]*.h5")}
    assert inodes
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")], verify=verify)
    there = sum(path.stat().st_size for path in inodes)
    assert copy.copied_bytes == manifest.num_bytes - there
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert same_bytes(tmp_path / "source", copy.folder)
    assert hidden_files(staged) == {".complete.json"}
    assert not list(staged.parent.glob("*.reserved"))


def test_kill_at_any_moment_leaves_a_copy_that_can_be_completed(tmp_path):
    """Pains 27."""
    make_dataset(tmp_path / "source", 8_000_000)
    context = multiprocessing.get_context("fork")
    for part_of_shards in range(3):
        folder = tmp_path / f"tier{part_of_shards}"
        caller = context.Process(target=ensure_staged, args=(tmp_path / "source", [tier(folder)]))
        caller.start()
        _wait_for_files(folder, part_of_shards + 1, caller)
        caller.kill()
        caller.join()
        copy = ensure_staged(tmp_path / "source", [tier(folder)])
        assert same_bytes(tmp_path / "source", copy.folder)
        assert hidden_files(copy.folder) == {".complete.json"}


def _wait_for_files(folder, num_files, caller):
    deadline = time.monotonic() + 90
    while caller.is_alive() and time.monotonic() < deadline:
        if len(list(folder.glob("datasets/*/shards/*"))) >= num_files:
            return


def test_damaged_leftover_is_copied_again_when_verified(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    leftover = copy_in(tmp_path / "tier", tmp_path / "source") / manifest.shards[0].file
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"x" * manifest.shards[0].num_bytes)
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    assert same_bytes(tmp_path / "source", copy.folder)


def test_stop_from_outside(tmp_path):
    make_dataset(tmp_path / "source")

    def cancel(done_bytes, total_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")], tick=cancel)
    assert not (copy_in(tmp_path / "tier", tmp_path / "source") / ".complete.json").exists()
    copy = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    assert same_bytes(tmp_path / "source", copy.folder)


def test_manifest_of_a_newer_release_is_refused(tmp_path):
    make_dataset(tmp_path / "source")
    manifest = tmp_path / "source/manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 2', '"format_version": 9'))
    with pytest.raises(ManifestError, match=r"format version 9; this release reads up to 2"):
        ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])


def test_bytes_of_all_nodes_add_up(tmp_path):
    files = [tmp_path / f"node-{index}.json" for index in range(3)]
    assert total_done_bytes(files) == 0
    Ticker(files[0])(10, 100)
    Ticker(files[2])(32, 100)
    assert total_done_bytes(files) == 42


def test_written_seldom_but_always_at_the_end(tmp_path):
    file = tmp_path / "node.json"
    tick = Ticker(file)
    tick(1, 100)
    tick(2, 100)
    assert total_done_bytes([file]) == 1
    tick(100, 100)
    assert total_done_bytes([file]) == 100


def test_stops_when_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.staging.stage_step.wanted", lambda: False)
    with pytest.raises(StepCancelledError):
        Ticker(tmp_path / "node.json")(1, 100)
