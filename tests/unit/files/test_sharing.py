"""Shared folders and tiers: what two accounts may do there, and how room is measured."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import SiteError, StepError, StorageFullError
from headrace.files.atomic import read_bytes, write_text
from headrace.files.lines import append_line
from headrace.files.machine import available_memory_bytes, control_group_room_bytes
from headrace.files.private import make_private
from headrace.files.sharing import is_shared, private_folder_mode, share
from headrace.files.tiers import TierRoom, choose, measure, prepare, reserve_bytes
from headrace.recipe.site import Tier

OTHER = "nobody"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that this account shares with another one, in one that all may pass through."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="headrace-shared-") as folder:
        Path(folder).chmod(0o711)
        share(Path(folder) / OTHER, OTHER)
        yield Path(folder) / OTHER


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_whoever_shares_it_reads_files_and_takes_nothing_away(shared: Path):
    run = shared / "runs" / "one"
    make_private(run)
    write_text(run / "site.json", "{}")
    append_line(run / "controls.jsonl", "{}")
    assert is_shared(run)
    assert [_mode(each) for each in (shared, shared / "runs", run)] == 3 * [0o1770]
    assert [_mode(run / name) for name in ("site.json", "controls.jsonl")] == 2 * [0o640]
    acl = os.getxattr(run / "site.json", "system.posix_acl_access")
    assert pwd.getpwnam(OTHER).pw_uid.to_bytes(4, "little") in acl
    before = _mode(shared / "leases" / ".queue")
    share(shared, OTHER)  # a second time
    make_private(run)
    assert (_mode(run), before) == (0o1770, 0o770)


def test_other_folders_stay_as_they_are(tmp_path: Path):
    make_private(tmp_path / "runs" / "one")
    write_text(tmp_path / "runs" / "one" / "site.json", "{}")
    assert _mode(tmp_path / "runs" / "one") == 0o700
    assert _mode(tmp_path / "runs" / "one" / "site.json") == 0o600
    assert private_folder_mode(tmp_path) == 0o700


def test_an_acl_that_somebody_else_made_opens_nothing(shared: Path, tmp_path: Path):
    """A folder of a project whose default ACL names a group, say."""
    mine = tmp_path / "project"
    mine.mkdir()
    acl = bytearray(os.getxattr(shared, "system.posix_acl_default"))
    group = 4 + 8 * 3  # the entry of the folder's group, after the version and three users
    assert acl[group] == 0x04
    acl[group + 2] = 7
    os.setxattr(mine, "system.posix_acl_default", bytes(acl))
    assert not is_shared(mine)
    write_text(mine / "key.pem", "secret")
    assert _mode(mine / "key.pem") == 0o600


@pytest.mark.parametrize("kind", ["file", "folder", "pipe"])
def test_a_link_gives_nothing_that_the_other_account_may_not_read_itself(kind, shared, tmp_path):
    secret = tmp_path / "secrets" / "airflow.cfg"
    secret.parent.mkdir()
    secret.write_text("password")
    secret.chmod(0o600)
    run = shared / "runs" / "one"
    make_private(run)
    if kind == "file":
        (run / "airflow.cfg").symlink_to(secret)
    elif kind == "folder":
        run = shared / "runs" / "two"
        run.symlink_to(secret.parent)
    else:
        os.mkfifo(run / "airflow.cfg")
    with pytest.raises(StepError, match="may not read itself"):
        read_bytes(run / "airflow.cfg")


def test_nothing_is_appended_through_a_link(shared: Path, tmp_path: Path):
    (shared / "runs" / "controls.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        append_line(shared / "runs" / "controls.jsonl", "{}")
    assert not (tmp_path / "elsewhere").exists()


def test_the_other_account_must_be_able_to_come_there(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(SiteError, match=f"'{OTHER}' cannot pass through {closed}|cannot pass"):
        share(closed / OTHER, OTHER)
    assert list(closed.iterdir()) == []


def test_a_file_system_without_acls_is_refused(tmp_path: Path):
    with pytest.raises(SiteError, match="cannot be shared with account"):
        share(Path("/proc/headrace"), OTHER)


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
