"""Which file system a path is on, which ones a SQLite ledger is refused on; memory given back."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import StorageError, StorageFullError
from headrace.files.atomic import write_text
from headrace.files.machine import (
    file_system_of,
    free_ports,
    mounted,
    network_file_system,
    storage_error,
)
from support.mounts import tell_mounts
from support.small_disk import fill, read_only, small_disk

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
def test_the_innermost_mount_decides(
    path: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tell_mounts(monkeypatch, tmp_path, MOUNTS)
    assert network_file_system(Path(path)) == kind


@pytest.mark.parametrize("table", ["", "half a\n\n"])
def test_damaged_and_missing_lines_are_no_network(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tell_mounts(monkeypatch, tmp_path, table)
    assert network_file_system(Path("/x")) is None


def test_this_machine_tells_its_mounts():
    assert file_system_of(Path("/proc/1")) == "proc"


def test_a_name_that_is_no_text_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A USB stick of another country is mounted under bytes that are not UTF-8."""
    stick = b"/dev/sdc /media/caf\xe9 vfat rw 0 0\n"
    tell_mounts(monkeypatch, tmp_path, stick + MOUNTS.encode())
    assert file_system_of(Path("/lustre/x")) == "lustre"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/dev/shm/x", "tmpfs"), ("/data", "ext4"), ("/data/my disk/x", "xfs"), ("/datax", "ext4")],
)
def test_file_system_of_the_longest_mount(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = (
        "/dev/vda / ext4 rw 0 0\ndevtmpfs /dev devtmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
        "/dev/vdb /data/my\\040disk xfs rw 0 0\n"
    )
    tell_mounts(monkeypatch, tmp_path, table)
    assert mounted(Path(path))[0] == kind


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


def raised(call: Callable[[], object]) -> OSError:
    with pytest.raises(OSError) as caught:  # noqa: PT011  the table says which
        call()
    return caught.value


def too_many_files(path: Path) -> OSError:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        return raised(path.read_text)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("meet", "what", "hint"),
    [
        (lambda p: raised((p / "gone" / "x").read_text), "No such file.*: 'P/gone'$", "bring it"),
        (lambda p: raised((p / "file" / "x").read_text), "Not a directory: 'P/file'$", "Move"),
        (lambda p: raised(p.read_text), "Is a directory: 'P'$", "Move what has that name"),
        (lambda p: raised((p / "file").mkdir), "File exists: 'P/file'$", "another name"),
        (lambda p: raised((p / ("x" * 256)).mkdir), "File name too long: 'P/x+'$", "shorter"),
        (lambda p: raised((p / "loop").read_text), "symbolic links: 'P/loop'$", "Move"),
        (lambda p: too_many_files(p / "file"), "Too many open files: 'P/file'$", "ulimit -n"),
    ],
)
def test_a_fault_of_a_file_is_named_with_its_path_and_the_next_step(
    tmp_path: Path, meet: Callable[[Path], OSError], what: str, hint: str
):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    named = storage_error(meet(tmp_path), Path("/"), "It ends: ", "Then go on.")
    assert type(named) is StorageError
    assert named.failure_class.is_retried
    assert re.match("It ends: .*" + what.replace("P", re.escape(str(tmp_path))), named.what)
    assert hint in named.hint
    assert named.hint.endswith(" Then go on.")


@pytest.mark.parametrize(
    ("number", "kind", "hint"),
    [
        (errno.EACCES, StorageError, "the right to use it"),
        (errno.EPERM, StorageError, "the right to use it"),
        (errno.EIO, StorageError, "dmesg"),
        (errno.ESTALE, StorageError, "Its server fails"),
        (errno.ENODEV, StorageError, "dmesg"),
        (errno.ENFILE, StorageError, "ulimit -n"),
        (errno.EROFS, StorageError, "for writing"),
        (errno.EDQUOT, StorageFullError, "Free some space"),
    ],
)
def test_a_fault_without_a_file_names_the_folder(number: int, kind: type, hint: str, tmp_path):
    named = storage_error(OSError(number, os.strerror(number)), tmp_path)
    assert type(named) is kind
    assert str(tmp_path) in named.what
    assert hint in named.hint


def test_real_file_systems_that_are_full_or_read_only_are_named(tmp_path: Path):
    with small_disk(tmp_path / "disk", "64k") as disk, read_only(disk):
        named = storage_error(raised(lambda: write_text(disk / "x", "x")), Path("/"))
        assert named.what == f"Read-only file system: '{disk}/x'"
    with small_disk(tmp_path / "full", "64k") as disk:
        fill(disk)
        named = storage_error(raised(lambda: write_text(disk / "x", "x")), Path("/"))
        assert named.what == f"the disk or quota is full: {disk}/x (0 bytes free on {disk})"


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT])
def test_what_sockets_say_is_a_fault_of_files_only_with_a_file(number: int):
    assert storage_error(OSError(number, "x"), Path("/")) is None
    assert "/mnt/x" in storage_error(OSError(number, "x", "/mnt/x"), Path("/")).what


def test_other_errors_are_no_faults_of_files():
    with socket.socket() as closed:
        refused = raised(lambda: closed.connect(("127.0.0.1", 1)))
    for error in (refused, ValueError("x"), OSError("x"), OSError(errno.EINVAL, "x"), None):
        assert storage_error(error, Path("/")) is None


def test_free_ports_are_free_and_different():
    """Pains 33."""
    ports = free_ports("127.0.0.1", *([0] * 50))
    assert len(set(ports)) == 50
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            listener.listen()
            with pytest.raises(OSError, match="in use"):
                free_ports("127.0.0.1", 0, port)
