"""What changed in a staged copy since it was verified is found, whoever changed it, and mended."""

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import ShardError
from headrace.files.manifest import Manifest
from headrace.staging import cache as soundness
from headrace.staging.cache import Soundness
from headrace.staging.staged import StagingOptions, ensure_staged, staged
from support.staged_datasets import make_dataset, same_bytes, tier


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return make_dataset(tmp_path / "source")


def flip(shard: Path) -> None:
    """Change one bit, so that nothing shows it but the bytes."""
    status = shard.stat()
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


def fail_to_read(path: Path, *_: object) -> str:
    raise OSError(errno.EIO, "Input/output error", str(path))


@pytest.mark.parametrize(
    ("harm", "num_found"),
    [
        (lambda shard: None, 0),
        (flip, 1),
        (lambda shard: os.truncate(shard, 10), 1),
        (lambda shard: shard.unlink(), 1),
    ],
    ids=["nothing", "flip", "truncation", "removal"],
)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_harm_is_found(tmp_path, manifest, harm, num_found, num_threads):
    folder = tmp_path / "source"
    sound = Soundness(folder, manifest.shards)
    seen: list[int] = []
    assert sound.damaged(num_threads, seen.append) == ()
    assert sum(seen) == manifest.num_bytes
    harm(folder / manifest.shards[1].file)
    assert sound.damaged(num_threads) == (manifest.shards[1].file,) * num_found


def test_a_shard_that_others_have_mended_was_damaged(tmp_path, manifest):
    shard = tmp_path / "source" / manifest.shards[1].file
    right = shard.read_bytes()
    sound = Soundness(tmp_path / "source", manifest.shards)
    flip(shard)
    shard.unlink()
    shard.write_bytes(right)
    assert sound.damaged() == (manifest.shards[1].file,)


def test_what_cannot_be_read_is_damaged(tmp_path, manifest, monkeypatch):
    monkeypatch.setattr(soundness, "file_xxh3_128", fail_to_read)
    found = Soundness(tmp_path / "source", manifest.shards).damaged()
    assert len(found) == len(manifest.shards)


def test_shards_that_come_later_are_looked_at_when_they_are_there(tmp_path, manifest):
    shard = tmp_path / "source" / manifest.shards[1].file
    content = shard.read_bytes()
    shard.unlink()
    sound = Soundness(tmp_path / "source", manifest.shards)
    assert sound.damaged() == ()
    shard.write_bytes(content)
    assert sound.damaged() == ()
    flip(shard)
    assert sound.damaged() == (manifest.shards[1].file,)


def test_a_small_copy_is_read_and_mended_before_it_is_used(tmp_path, manifest):
    tiers = [tier(tmp_path / "tier")]
    copy = ensure_staged(tmp_path / "source", tiers)
    flip(copy.folder / manifest.shards[1].file)
    with staged(tmp_path / "source", tiers) as again:
        assert again.copied_bytes == manifest.shards[1].num_bytes
        assert same_bytes(tmp_path / "source", again.folder)
    assert ensure_staged(tmp_path / "source", tiers).reused


def test_a_small_part_is_read_before_it_is_used(tmp_path):
    manifest = make_dataset(tmp_path / "source", 3_000_000)
    size, file = manifest.shards[0].num_bytes, manifest.shards[1].file
    tiers = [tier(tmp_path / "tier", budget=2 * size + 2**20 + size // 2)]
    options = StagingOptions(partial=True)
    copy = ensure_staged(tmp_path / "source", tiers, options=options)
    assert copy.left_out
    flip(copy.folder / file)
    again = ensure_staged(tmp_path / "source", tiers, options=options)
    assert again.copied_bytes == size
    assert (copy.folder / file).read_bytes() == (tmp_path / "source" / file).read_bytes()


def test_a_large_copy_is_left_to_those_who_use_it(tmp_path, manifest, monkeypatch):
    monkeypatch.setattr(soundness, "SMALL_BYTES", 0)
    tiers = [tier(tmp_path / "tier")]
    copy = ensure_staged(tmp_path / "source", tiers)
    status = (copy.folder / manifest.shards[1].file).stat()
    flip(copy.folder / manifest.shards[1].file)
    os.utime(copy.folder / manifest.shards[1].file, ns=(status.st_mtime_ns,) * 2)
    assert ensure_staged(tmp_path / "source", tiers).reused


@pytest.mark.parametrize(
    "harm", [lambda shard: os.truncate(shard, 5), lambda shard: shard.unlink()]
)
def test_a_stage_mends_what_is_gone_or_short_of_a_large_copy(tmp_path, manifest, monkeypatch, harm):
    monkeypatch.setattr(soundness, "SMALL_BYTES", 0)
    tiers = [tier(tmp_path / "tier")]
    copy = ensure_staged(tmp_path / "source", tiers)
    harm(copy.folder / manifest.shards[2].file)
    again = ensure_staged(tmp_path / "source", tiers)
    assert again.copied_bytes == manifest.shards[2].num_bytes
    assert same_bytes(tmp_path / "source", again.folder)


def test_damage_that_the_source_has_too_is_named(tmp_path, manifest):
    tiers = [tier(tmp_path / "tier")]
    copy = ensure_staged(tmp_path / "source", tiers)
    flip(copy.folder / manifest.shards[1].file)
    flip(tmp_path / "source" / manifest.shards[1].file)
    with pytest.raises(ShardError, match=r"train-00001\.h5 is damaged"):
        ensure_staged(tmp_path / "source", tiers)
