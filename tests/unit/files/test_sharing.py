"""Folders of two accounts: what they may do there, and that links lead nowhere else."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import SiteError, StepError
from headrace.files.atomic import read_bytes, write_text
from headrace.files.lines import append_line
from headrace.files.private import make_private
from headrace.files.sharing import is_shared, private_folder_mode, share

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
