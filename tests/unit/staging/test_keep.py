"""Copies that nobody has used for a tier's `keep` are removed by whoever comes next."""

import os
import time
from pathlib import Path

import pytest

from headrace.files import tiers
from headrace.staging import cache
from headrace.staging.staged import ensure_staged, staged
from headrace.staging.staged_folder import StagedFolder
from support.staged_datasets import make_dataset, tier

DAY_S = 86400.0


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in ("aaa", "bbb"):
        make_dataset(tmp_path / name, name=name)
    return tmp_path


def names(tier) -> set[str]:
    return {copy.name for copy in cache.copies_of([tier])}


def not_used_for(folder: Path, seconds: float) -> None:
    """Make a copy look as if its last user, dead or alive, had let go of it so long ago."""
    then = time.time() - seconds
    for path in (folder, folder.with_suffix(".use")):
        os.utime(path, (then, then))


@pytest.mark.parametrize("wanted", ["aaa", "bbb"])
def test_the_next_stage_removes_what_is_past_its_time(sources, wanted):
    """Whether it copies something or finds all of it there."""
    here = tier(sources / "tier", keep="2d")
    first = ensure_staged(sources / "aaa", [here]).folder
    second = ensure_staged(sources / "bbb", [here]).folder
    old = second.with_name("old")
    (old / "shards").mkdir(parents=True)  # half a copy of a lease that died
    if wanted == "bbb":
        cache.evict(StagedFolder(second, "disk"))
    not_used_for(first, 1.9 * DAY_S)
    old.with_suffix(".use").touch()
    not_used_for(old, 2.1 * DAY_S)
    ensure_staged(sources / wanted, [here])
    assert names(here) >= {"aaa", wanted}
    assert not old.exists()
    not_used_for(first, 2.1 * DAY_S)
    ensure_staged(sources / "bbb", [here])
    assert names(here) == {"bbb"}


def test_a_copy_in_use_stays_however_old_it_is(sources):
    here = tier(sources / "tier", keep="1d")
    with staged(sources / "aaa", [here]) as copy:
        not_used_for(copy.folder, 30 * DAY_S)
        ensure_staged(sources / "bbb", [here])
        assert names(here) == {"aaa", "bbb"}
    assert ensure_staged(sources / "aaa", [here]).reused  # which ends a use: the clock starts anew
    ensure_staged(sources / "bbb", [here])
    assert names(here) == {"aaa", "bbb"}


def test_the_copy_that_is_asked_for_is_used_however_old_it_is(sources):
    here = tier(sources / "tier", keep="1d")
    not_used_for(ensure_staged(sources / "aaa", [here]).folder, 30 * DAY_S)
    assert ensure_staged(sources / "aaa", [here]).reused


def test_what_belongs_to_another_user_is_left_alone(sources, monkeypatch):
    here = tier(sources / "tier", keep="1d")
    not_used_for(ensure_staged(sources / "aaa", [here]).folder, 2 * DAY_S)
    monkeypatch.setattr("headrace.staging.cache.os.getuid", lambda: os.geteuid() + 1)
    assert cache.past_keep(here) == ()


def test_memory_is_given_back_sooner_than_disk(tmp_path, monkeypatch):
    here = tier(tmp_path)
    monkeypatch.setattr(tiers, "file_system_of", lambda _: "tmpfs")
    assert tiers.keep_s(here) == DAY_S
    monkeypatch.setattr(tiers, "file_system_of", lambda _: "ext4")
    assert tiers.keep_s(here) == 7 * DAY_S
    assert tiers.keep_s(tier(tmp_path, keep="3h")) == 3 * 3600
