"""Which tier is taken, and how its room is measured."""

import os
from pathlib import Path

import pytest

from headrace.errors import StorageFullError
from headrace.files.machine import available_memory_bytes, control_group_room_bytes
from headrace.files.tiers import TierRoom, choose, measure, prepare, reserve_bytes
from headrace.recipe.site import Tier


def room(name: str, **more: object) -> TierRoom:
    values = {"needed_bytes": 100, "free_bytes": 1000} | more
    return TierRoom(name=name, folder=Path("/tier") / name, **values)


@pytest.mark.parametrize(
    ("rooms", "chosen"),
    [
        ([room("a"), room("b")], "a"),
        ([room("a", free_bytes=99), room("b")], "b"),
        ([room("a", free_bytes=100), room("b")], "a"),
        ([room("a", free_bytes=150, reserve_bytes=51), room("b")], "b"),
        ([room("a", budget_bytes=99), room("b")], "b"),
        ([room("a", budget_bytes=150, held_bytes=51), room("b")], "b"),
        ([room("a", budget_bytes=150, held_bytes=50), room("b")], "a"),
        ([room("a", problem="is not writable"), room("b")], "b"),
        ([room("a", needed_bytes=0, problem="is not writable"), room("b")], "b"),
        ([room("a", needed_bytes=0, free_bytes=0, reserve_bytes=10)], "a"),
    ],
)
def test_first_tier_with_room_wins(rooms, chosen):
    assert choose(rooms, "it").name == chosen


def test_no_room_tells_folder_need_free_and_budget():
    """Pains 28: the error names the budget."""
    rooms = [
        room("shm", needed_bytes=2048, free_bytes=1024, reserve_bytes=512, budget_bytes=4096),
        room("nvme", problem="belongs to another user (uid 7)"),
    ]
    with pytest.raises(StorageFullError) as error:
        choose(rooms, "the splits train of dataset 'digits'")
    assert str(error.value).splitlines()[:3] == [
        "No storage tier has room for the splits train of dataset 'digits':",
        "    shm: /tier/shm needs 2.0KiB, has 1.0KiB free (keeps 512B), "
        "budget 4.0KiB of which 0B are taken",
        "    nvme: /tier/nvme belongs to another user (uid 7)",
    ]


def test_measures_what_is_held(tmp_path):
    (tmp_path / "datasets/x").mkdir(parents=True)
    (tmp_path / "datasets/x/shard").write_bytes(b"x" * 5000)
    tier = Tier(name="disk", folder=str(tmp_path), budget="1MiB", reserve="1KiB")
    measured = measure(tier, 10)
    status = os.statvfs(tmp_path)
    assert measured.held_bytes == 5000
    assert (measured.budget_bytes, measured.reserve_bytes) == (2**20, 1024)
    assert 0 < measured.free_bytes <= status.f_blocks * status.f_frsize
    assert measured.usable_bytes == 2**20 - 5000


def test_memory_bounds_a_tier_in_memory(monkeypatch):
    folder = Path("/dev/shm") / f"headrace-test-{os.getpid()}"
    assert prepare(folder) == ""
    try:
        monkeypatch.setattr("headrace.files.tiers.available_memory_bytes", lambda: 12345)
        assert measure(Tier(name="shm", folder=str(folder)), 1).free_bytes == 12345
    finally:
        folder.rmdir()


def test_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    """Pains 27: a name that another user took first in /dev/shm."""
    if os.getuid() != 0:
        pytest.skip("giving a folder to another user takes root")
    os.chown(tmp_path, 4242, -1)
    assert prepare(tmp_path) == "belongs to another user (uid 4242)"


def test_a_folder_that_others_may_write_in_is_refused(tmp_path):
    """Pains 27: they could put shards there that are then trained on."""
    folder = tmp_path / "tier"
    assert prepare(folder) == ""
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o1777)
    told = prepare(folder)
    assert told.startswith("can be written by other users (drwxrwxrwt)")
    assert f"{folder}/headrace-{{user}}" in told


def test_a_link_of_another_user_is_refused(tmp_path):
    """It would lead to a folder of this user's own that is no tier."""
    if os.getuid() != 0:
        pytest.skip("giving a link to another user takes root")
    (tmp_path / "mine").mkdir()
    (tmp_path / "tier").symlink_to(tmp_path / "mine")
    assert prepare(tmp_path / "tier") == ""
    os.lchown(tmp_path / "tier", 4242, -1)
    assert prepare(tmp_path / "tier") == "belongs to another user (uid 4242)"


def write_v2(folder: Path, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon 1\nfile {cached * 2}\nactive_file {cached}\ninactive_file 1\n"
    )


def write_v1(folder: Path, limit: int, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text("total_active_file 5\ntotal_inactive_file 6\n")


def test_control_groups_v2_smallest_room_counts(tmp_path):
    write_v2(tmp_path / "user/job", "max", 10)
    write_v2(tmp_path / "user", "1000", 400, cached=50)
    assert control_group_room_bytes("0::/user/job\n", tmp_path) == 1000 - 400 + 51


def test_control_groups_v2_inside_a_container(tmp_path):
    write_v2(tmp_path, "1000", 2000)
    assert control_group_room_bytes("0::/not/seen/here\n", tmp_path) == 0


def test_control_groups_v1(tmp_path):
    write_v1(tmp_path / "memory/job", 1000, 300)
    write_v1(tmp_path / "memory", 9223372036854771712, 10**6)
    groups = "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n"
    assert control_group_room_bytes(groups, tmp_path) == 1000 - 300 + 11


@pytest.mark.parametrize("groups", ["", "0::/\n", "3:cpuset:/\n4:memory:/\n"])
def test_no_limit(tmp_path, groups):
    assert control_group_room_bytes(groups, tmp_path) is None


def test_this_machine_has_memory():
    assert available_memory_bytes() > 0


def test_computed_reserve():
    """Memory is for programs first."""
    gib = 2**30
    assert reserve_bytes(None, 40 * gib, in_memory=True) == 4 * gib
    assert reserve_bytes(None, gib, in_memory=True) == gib // 4
    assert reserve_bytes(None, 40 * gib, in_memory=False) == gib // 4
    assert reserve_bytes(5, 40 * gib, in_memory=True) == 5
