"""Which file system a path is on, which ones a SQLite ledger is refused on; memory given back."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from headrace.files import machine as mounts
from headrace.files.machine import file_system, file_system_of, network_file_system

MOUNTS = r"""/dev/vda1 / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/nvme0 /home/me/fast xfs rw 0 0
10.0.0.1@o2ib:/fs /lustre lustre rw,flock 0 0
gpfs0 /gpfs gpfs rw 0 0
beegfs_nodev /mnt/bee beegfs rw 0 0
//nas/share /mnt/nas cifs rw 0 0
me@host:/ /mnt/with\040space fuse.sshfs rw 0 0
/dev/sdb /mnt/twice ext4 rw 0 0
server:/x /mnt/twice nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/ledger.db", None),
        ("/home/me/.headrace/ledger.db", "nfs4"),
        ("/home/me/fast/ledger.db", None),
        ("/homeless/ledger.db", None),
        ("/lustre/ledger.db", "lustre"),
        ("/gpfs/a/b/ledger.db", "gpfs"),
        ("/mnt/bee/ledger.db", "beegfs"),
        ("/mnt/nas/ledger.db", "cifs"),
        ("/mnt/with space/ledger.db", "fuse.sshfs"),
        ("/mnt/twice/ledger.db", "nfs"),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str | None):
    assert network_file_system(PurePosixPath(path), MOUNTS) == kind


def test_damaged_and_missing_lines_are_no_network():
    assert network_file_system(PurePosixPath("/x"), "") is None
    assert network_file_system(PurePosixPath("/x"), "half a\n\n") is None


def test_this_machine_tells_its_mounts():
    assert file_system_of(Path("/proc/1")) == "proc"


def test_a_name_that_is_no_text_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A USB stick of another country is mounted under bytes that are not UTF-8."""
    (tmp_path / "mounts").write_bytes(b"/dev/sdc /media/caf\xe9 vfat rw 0 0\n" + MOUNTS.encode())
    monkeypatch.setattr(mounts, "TABLE", tmp_path / "mounts")
    assert file_system_of(Path("/lustre/x")) == "lustre"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/dev/shm/x", "tmpfs"), ("/data", "ext4"), ("/data/my disk/x", "xfs"), ("/datax", "ext4")],
)
def test_file_system_of_the_longest_mount(path: str, kind: str):
    table = (
        "/dev/vda / ext4 rw 0 0\ndevtmpfs /dev devtmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
        "/dev/vdb /data/my\\040disk xfs rw 0 0\n"
    )
    assert file_system(PurePosixPath(path), table) == kind


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the GNU C library")
@pytest.mark.parametrize("gives_back", [True, False])
def test_large_blocks_are_given_back_once_they_are_freed(gives_back: bool):
    """Without asking for it they stay: then there would be nothing to ask for."""
    asked = "machine.give_back_large_blocks()" if gives_back else ""
    code = f"""
import psutil
from headrace.files import machine
{asked}
first = b"x" * 2**24
del first  # from now on the C library keeps what is smaller
blocks = [(b"x" * 2**23, b"x" * 2**14) for _ in range(10)]
before = psutil.Process().memory_info().rss
kept = [small for _, small in blocks]
del blocks
print(before - psutil.Process().memory_info().rss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 9 * 2**23) is gives_back
