"""What lies on the tiers, what is evicted and what never is."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from headrace.errors import ShardError, StorageFullError
from headrace.files import tiers
from headrace.files.locks import KEPT_S, in_use
from headrace.files.manifest import Manifest
from headrace.staging import cache
from headrace.staging import cache as soundness
from headrace.staging.cache import Soundness
from headrace.staging.staged import ensure_staged, staged
from headrace.staging.staged_folder import StagedFolder
from headrace.staging.tier_choice import StagingOptions
from support.staged_datasets import make_dataset, same_bytes, tier

LONG_AGO = time.time() - 2 * KEPT_S


@pytest.fixture
def sources(tmp_path):
    """Three datasets of the same size by name, and a tier with room for two."""
    made = {name: make_dataset(tmp_path / name, name=name) for name in ("aaa", "bbb", "ccc")}
    size = made["aaa"].num_bytes
    return [tier(tmp_path / "tier", budget=int(size * 2.5))]


def names(tiers):
    return {copy.name for copy in cache.copies_of(tiers)}


def age(tiers, name, used_at):
    [copy] = [copy for copy in cache.copies_of(tiers) if copy.name == name]
    os.utime(copy.path.with_suffix(".use"), (used_at, used_at))


def test_the_least_recently_used_copy_goes(tmp_path, sources):
    for name in ("aaa", "bbb"):
        ensure_staged(tmp_path / name, sources)
    age(sources, "aaa", LONG_AGO)
    age(sources, "bbb", LONG_AGO - 5)
    ensure_staged(tmp_path / "ccc", sources)
    assert names(sources) == {"aaa", "ccc"}


def test_using_a_copy_makes_it_the_last_to_go(tmp_path, sources):
    for name in ("aaa", "bbb"):
        ensure_staged(tmp_path / name, sources)
        age(sources, name, LONG_AGO)
    assert ensure_staged(tmp_path / "aaa", sources).reused
    ensure_staged(tmp_path / "ccc", sources)
    assert names(sources) == {"aaa", "ccc"}


def test_a_use_ends_in_order_when_somebody_has_removed_its_file(tmp_path):
    """What cleans /tmp and /dev/shm by age must not fail a training at its end."""
    with in_use(tmp_path / "x.use"):
        (tmp_path / "x.use").unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_in_use_is_never_evicted(tmp_path, sources):
    """Pains 28."""
    with staged(tmp_path / "aaa", sources) as copy, staged(tmp_path / "bbb", sources):
        age(sources, "aaa", LONG_AGO)
        age(sources, "bbb", LONG_AGO)
        with pytest.raises(StorageFullError, match="headrace cache list"):
            ensure_staged(tmp_path / "ccc", sources)
        assert not cache.evict(StagedFolder(copy.folder, copy.tier))
        assert {found.state for found in cache.copies_of(sources)} == {"in use"}
        assert same_bytes(tmp_path / "aaa", copy.folder)
    ensure_staged(tmp_path / "ccc", sources)
    assert "ccc" in names(sources)


def test_copies_used_lately_go_only_when_no_other_tier_has_room(tmp_path, sources):
    both = [*sources, tier(tmp_path / "slow", "slow", budget=sources[0].budget)]
    for name in ("aaa", "bbb"):
        assert ensure_staged(tmp_path / name, both).tier == "disk"
    assert ensure_staged(tmp_path / "ccc", both).tier == "slow"
    assert names(sources) == {"aaa", "bbb"}


def test_nothing_is_evicted_in_vain(tmp_path, sources):
    make_dataset(tmp_path / "huge", 3_000_000, name="huge")
    ensure_staged(tmp_path / "aaa", sources)
    with pytest.raises(StorageFullError):
        ensure_staged(tmp_path / "huge", sources)
    assert names(sources) == {"aaa"}


def _use_until_killed(source, tiers, queue):
    with staged(source, tiers):
        queue.put("in use")
        signal.pause()


def test_the_use_of_a_killed_process_ends(tmp_path, sources):
    """Pains 27: a lease on the cache survives its holder for a while, and expires."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    user = context.Process(target=_use_until_killed, args=(tmp_path / "aaa", sources, queue))
    user.start()
    queue.get()
    assert [copy.state for copy in cache.copies_of(sources)] == ["in use"]
    user.kill()
    user.join()
    datasets = Path(sources[0].folder) / "datasets"
    assert [copy.state for copy in cache.copies_of(sources)] == ["idle"]
    assert cache.idle_copies(datasets, KEPT_S, but="") == []
    age(sources, "aaa", LONG_AGO)
    assert [copy.name for copy in cache.idle_copies(datasets, KEPT_S, but="")] == ["aaa"]


def test_what_a_dead_process_was_evicting_goes(tmp_path, sources):
    """Pains 27."""
    copy = ensure_staged(tmp_path / "aaa", sources)
    going = copy.folder.with_name(".aaa.0123abcd.partial")
    copy.folder.rename(going)
    ensure_staged(tmp_path / "bbb", sources)
    assert not going.exists()


def test_half_copies_go_first_and_after_a_day(tmp_path, sources):
    ensure_staged(tmp_path / "aaa", sources)
    half = Path(sources[0].folder) / "datasets/half"
    (half / "shards").mkdir(parents=True)
    (half / "shards/x.h5").write_bytes(b"x" * 1_500_000)
    assert [copy.state for copy in cache.copies_of(sources)] == ["interrupted", "idle"]
    ensure_staged(tmp_path / "bbb", sources)
    assert names(sources) == {"aaa", "bbb"}
    half.mkdir()
    os.utime(half, (1, 1))
    ensure_staged(tmp_path / "bbb", [tier(tmp_path / "tier")], ("test",))
    ensure_staged(tmp_path / "ccc", [tier(tmp_path / "tier")], ("test",))
    assert not half.exists()


def test_a_damaged_shard_is_found_and_staged_anew(tmp_path, sources, monkeypatch):
    monkeypatch.setattr(soundness, "SMALL_BYTES", 0)
    manifest = make_dataset(tmp_path / "ddd", name="ddd")
    copy = ensure_staged(tmp_path / "ddd", sources)
    shard = copy.folder / manifest.shards[1].file
    status = shard.stat()
    with shard.open("r+b") as file:
        file.seek(1000)
        file.write(b"\0")
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))  # nothing shows it but the bytes
    assert ensure_staged(tmp_path / "ddd", sources).reused
    [found] = cache.copies_of(sources)
    assert cache.verify(found) == (manifest.shards[1].file,)
    again = ensure_staged(tmp_path / "ddd", sources)
    assert again.copied_bytes == manifest.shards[1].num_bytes
    assert same_bytes(tmp_path / "ddd", copy.folder)
    [found] = cache.copies_of(sources)
    assert cache.verify(found) == ()


def test_what_fits_is_staged_and_the_rest_left_where_it_is(tmp_path):
    manifest = make_dataset(tmp_path / "source", 3_000_000)
    sizes = [shard.num_bytes for shard in manifest.shards]
    tiers = [tier(tmp_path / "tier", budget=sum(sizes[:2]) + 2**20 + sizes[2] // 2)]
    partial = StagingOptions(partial=True)
    with pytest.raises(StorageFullError, match=r"stage\.partial: true"):
        ensure_staged(tmp_path / "source", tiers)
    copy = ensure_staged(tmp_path / "source", tiers, options=partial)
    assert copy.left_out_bytes == sum(sizes[2:])
    assert copy.copied_bytes == sum(sizes[:2])
    present = [(copy.folder / shard.file).exists() for shard in manifest.shards]
    assert present == [True, True, False, False]
    assert (copy.folder / "manifest.json").read_bytes() == (
        tmp_path / "source/manifest.json"
    ).read_bytes()
    [found] = cache.copies_of(tiers)
    assert (found.num_shards, found.num_left_out, found.state) == (2, 2, "idle")
    again = ensure_staged(tmp_path / "source", tiers, options=partial)
    assert again.reused
    assert again.left_out_bytes == copy.left_out_bytes
    grown = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    assert grown.copied_bytes == sum(sizes[2:])
    assert grown.left_out_bytes == 0


def test_old_copies_make_room_for_a_part(tmp_path):
    sizes = [
        shard.num_bytes for shard in make_dataset(tmp_path / "large", 3_000_000, "large").shards
    ]
    make_dataset(tmp_path / "old", 3_000_000, "old")
    tiers = [tier(tmp_path / "tier", budget=sum(sizes) - 1)]
    ensure_staged(tmp_path / "old", tiers, ("train",))
    age(tiers, "old", LONG_AGO)
    partial = StagingOptions(partial=True)
    copy = ensure_staged(tmp_path / "large", tiers, options=partial)
    assert names(tiers) == {"large"}
    assert copy.left_out_bytes == sizes[-1]


def test_partial_takes_all_where_all_fits(tmp_path):
    manifest = make_dataset(tmp_path / "source")
    tiers = [tier(tmp_path / "small", "small", budget=400_000), tier(tmp_path / "large", "large")]
    copy = ensure_staged(tmp_path / "source", tiers, options=StagingOptions(partial=True))
    assert (copy.tier, copy.copied_bytes) == ("large", manifest.num_bytes)


def test_two_stages_at_once_do_not_overfill(tmp_path):
    """The room of a stage that is under way counts as taken before it is filled."""
    size = make_dataset(tmp_path / "aaa", name="aaa").num_bytes
    make_dataset(tmp_path / "bbb", name="bbb")
    fast = tier(tmp_path / "fast", "fast", budget=int(size * 1.5))
    tiers = [fast, tier(tmp_path / "slow", "slow")]
    datasets = tmp_path / "fast/datasets"
    datasets.mkdir(parents=True)
    folder = StagedFolder(datasets / "aaa", "fast")
    with cache.at_once(folder.lock_file) as held, folder.reserving(size):
        assert held
        assert ensure_staged(tmp_path / "bbb", tiers).tier == "slow"
    (datasets / "aaa.reserved").write_text(str(size))  # left by a dead process
    make_dataset(tmp_path / "ccc", name="ccc")
    assert ensure_staged(tmp_path / "ccc", tiers).tier == "fast"


def test_a_use_waits_for_the_eviction_under_way(tmp_path, sources):
    copy = ensure_staged(tmp_path / "aaa", sources)
    folder = StagedFolder(copy.folder, copy.tier)
    with cache.at_once(folder.use_file) as free:
        assert free
        with cache.at_once(folder.use_file) as twice:
            assert not twice
    with in_use(folder.use_file), in_use(folder.use_file):  # several readers share it
        assert not cache.evict(folder)
    assert cache.evict(folder)
    assert not cache.evict(folder)
    assert not ensure_staged(tmp_path / "aaa", sources).reused


DAY_S = 86400.0


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for name in ("aaa", "bbb"):
        make_dataset(tmp_path / name, name=name)
    return tmp_path


def names_on(tier) -> set[str]:
    return {copy.name for copy in cache.copies_of([tier])}


def not_used_for(folder: Path, seconds: float) -> None:
    """Make a copy look as if its last user, dead or alive, had let go of it so long ago."""
    then = time.time() - seconds
    for path in (folder, folder.with_suffix(".use")):
        os.utime(path, (then, then))


@pytest.mark.parametrize("wanted", ["aaa", "bbb"])
def test_the_next_stage_removes_what_is_past_its_time(three, wanted):
    """Whether it copies something or finds all of it there."""
    here = tier(three / "tier", keep="2d")
    first = ensure_staged(three / "aaa", [here]).folder
    second = ensure_staged(three / "bbb", [here]).folder
    old = second.with_name("old")
    (old / "shards").mkdir(parents=True)  # half a copy of a lease that died
    if wanted == "bbb":
        cache.evict(StagedFolder(second, "disk"))
    not_used_for(first, 1.9 * DAY_S)
    old.with_suffix(".use").touch()
    not_used_for(old, 2.1 * DAY_S)
    ensure_staged(three / wanted, [here])
    assert names_on(here) >= {"aaa", wanted}
    assert not old.exists()
    not_used_for(first, 2.1 * DAY_S)
    ensure_staged(three / "bbb", [here])
    assert names_on(here) == {"bbb"}


def test_a_copy_in_use_stays_however_old_it_is(three):
    here = tier(three / "tier", keep="1d")
    with staged(three / "aaa", [here]) as copy:
        not_used_for(copy.folder, 30 * DAY_S)
        ensure_staged(three / "bbb", [here])
        assert names_on(here) == {"aaa", "bbb"}
    assert ensure_staged(three / "aaa", [here]).reused  # which ends a use: the clock starts anew
    ensure_staged(three / "bbb", [here])
    assert names_on(here) == {"aaa", "bbb"}


def test_the_copy_that_is_asked_for_is_used_however_old_it_is(three):
    here = tier(three / "tier", keep="1d")
    not_used_for(ensure_staged(three / "aaa", [here]).folder, 30 * DAY_S)
    assert ensure_staged(three / "aaa", [here]).reused


def test_what_belongs_to_another_user_is_left_alone(three, monkeypatch):
    here = tier(three / "tier", keep="1d")
    not_used_for(ensure_staged(three / "aaa", [here]).folder, 2 * DAY_S)
    monkeypatch.setattr("headrace.staging.cache.os.getuid", lambda: os.geteuid() + 1)
    assert cache.past_keep(here) == ()


def test_memory_is_given_back_sooner_than_disk(tmp_path, monkeypatch):
    here = tier(tmp_path)
    monkeypatch.setattr(tiers, "file_system_of", lambda _: "tmpfs")
    assert tiers.keep_s(here) == DAY_S
    monkeypatch.setattr(tiers, "file_system_of", lambda _: "ext4")
    assert tiers.keep_s(here) == 7 * DAY_S
    assert tiers.keep_s(tier(tmp_path, keep="3h")) == 3 * 3600


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
