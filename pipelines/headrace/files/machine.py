"""This machine: free space of its disks and memory, file systems of its paths, free ports."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from headrace.errors import StorageError, StorageFullError

NETWORK_FILE_SYSTEMS = frozenset((
    "acfs", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb3",
    "smbfs", "wekafs", "fuse.beegfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone",
    "fuse.s3fs", "fuse.sshfs",
))  # fmt: skip
"""File systems on which SQLite's locks and shared memory do not reach other machines."""

_NO_LIMIT_BYTES = 2**60
"""Control groups without a limit have `max` (v2) or a number above this (v1)."""

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = ("memory.max", "memory.current", "")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ALSO_OF_SOCKETS = (errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)
_NEXT_STEPS = {
    number: hint
    for hint, *numbers in (
        ("Free some space there.", *_FULL),
        ("Give this account the right to use it: see `ls -ld`.", errno.EACCES, errno.EPERM),
        ("Move what has that name, or choose another name.", errno.EEXIST, errno.ENOTDIR),
        ("Move what has that name, or choose another name.", errno.EISDIR, errno.ELOOP),
        ("Raise the limit of open files: `ulimit -n`.", errno.EMFILE, errno.ENFILE),
        ("Mount its file system for writing, or choose a folder on another.", errno.EROFS),
        ("It was removed, or its file system is not mounted: bring it back.", errno.ENOENT),
        ("Choose a shorter name.", errno.ENAMETOOLONG),
        ("Its disk fails: see `dmesg`, and mount it anew.", errno.EIO, errno.ENXIO, errno.ENODEV),
        ("Its server fails: mount it anew.", errno.ESTALE, *_ALSO_OF_SOCKETS),
    )
    for number in numbers
}
"""Next step after a system error that a file or folder causes, by error number."""


def is_full(error: OSError) -> bool:
    """Whether an error means that a disk or quota is full."""
    return error.errno in _FULL


def system_error(error: BaseException | None) -> OSError | None:
    """Return the system error that caused another; PyTorch hides it in a `RuntimeError`."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def storage_error(
    error: BaseException | None, folder: Path, before: str = "", then: str = ""
) -> StorageError | None:
    """Return the error that names the path and the next step; None if files did not cause it.

    `folder` is named if the system names no file; `before` and `then` surround the text.
    """
    if not isinstance(error, OSError) or error.errno not in _NEXT_STEPS:
        return None
    path = folder if error.filename is None else Path(os.fsdecode(error.filename))
    if error.errno in _ALSO_OF_SOCKETS and error.filename is None:
        return None
    line = (path, *path.parents)
    num_gone = next((at for at, each in enumerate(line) if os.path.lexists(each)), len(line) - 1)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        path = line[max(num_gone - (error.errno == errno.ENOENT), 0)]
    what, hint = os.strerror(error.errno), f"{_NEXT_STEPS[error.errno]} {then}".strip()
    if not is_full(error):
        return StorageError(f"{before}{what}: '{path}'", hint)
    there = line[num_gone].resolve()
    mount = next(each for each in (there, *there.parents) if each.is_mount())
    free = f"{free_bytes(there):,} bytes free on {mount}"
    return StorageFullError(f"{before}the disk or quota is full: {path} ({free})", hint)


def free_bytes(folder: Path) -> int:
    """Return the bytes free for this user in the file system of `folder`, which must exist."""
    return shutil.disk_usage(folder).free


def require_room(folder: Path, needed_bytes: int) -> None:
    """Raise a `StorageFullError` unless `needed_bytes` fit into `folder`, which must exist."""
    if free_bytes(folder) < needed_bytes:
        raise _full(folder, needed_bytes)


@contextmanager
def told_when_full(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Turn the block's error of a full disk into a `StorageFullError` with the bytes needed."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise _full(folder, needed_bytes) from error
        raise


def mounted(path: Path) -> tuple[str, str]:
    """Return type, as `ext4`, and mount options of an absolute path's file system; else empty.

    The path has no symbolic links.
    """
    known = psutil.disk_partitions(all=True)
    mounts = [each for each in known if path.is_relative_to(each.mountpoint)]
    mounts.reverse()  # a later mount covers an earlier one
    inner = max(mounts, key=lambda each: len(Path(each.mountpoint).parts), default=None)
    return ("", "") if inner is None else (inner.fstype, inner.opts)


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that holds `path`; None if it is local."""
    kind, _ = mounted(path)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds a path of this machine; empty if unknown."""
    return mounted(path.resolve())[0]


def available_memory_bytes() -> int:
    """Return the bytes that this machine and the control group can still allocate."""
    groups = Path("/proc/self/cgroup")
    text = groups.read_text() if groups.exists() else ""
    limit = control_group_room_bytes(text, Path("/sys/fs/cgroup"))
    available = int(psutil.virtual_memory().available)
    return available if limit is None else min(available, limit)


def give_back_large_blocks() -> None:
    """Return memory blocks of 1 MiB and more to the system as soon as this process frees them.

    The GNU C library keeps them otherwise: after a free it raises the size above which it maps
    blocks (`M_MMAP_THRESHOLD` in mallopt(3)). Other C libraries are left unchanged.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 2**20)


def control_group_room_bytes(groups: str, mount: Path) -> int | None:
    """Return the least bytes left in a process's memory control groups; None if unlimited.

    Cached files count as free, since the kernel drops them; files on tmpfs do not.
    `groups` is the content of `/proc/<pid>/cgroup`, `mount` as `/sys/fs/cgroup`.
    """
    rooms: list[int | None] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        parts = (group, *group.parents)
        if not controllers:
            rooms += [_group_room(mount / part, *_V2) for part in parts]
        elif "memory" in controllers.split(","):
            rooms += [_group_room(mount / "memory" / part, *_V1) for part in parts]
    return min((room for room in rooms if room is not None), default=None)


def _group_room(folder: Path, limit_name: str, used_name: str, prefix: str) -> int | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        used_bytes = int((folder / used_name).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:  # the group of another namespace, or one without the memory controller
        return None
    if limit == "max" or int(limit) >= _NO_LIMIT_BYTES:
        return None
    statistics = dict(line.split(maxsplit=1) for line in lines)
    cached = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(int(limit) - used_bytes + cached, 0)


def _full(folder: Path, needed_bytes: int) -> StorageFullError:
    return StorageFullError(
        f"No room in {folder}: {needed_bytes:,} bytes needed, {free_bytes(folder):,} bytes free",
        "Free some space there, or name another `folder` in the site.",
    )


def free_ports(address: str, *ports: int) -> tuple[int, ...]:
    """Return TCP ports of this machine, a free one for each 0; raise `OSError` if one is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as stack:
        listening = (socket.create_server((address, port), family=family) for port in ports)
        listeners = [stack.enter_context(each) for each in listening]
        return tuple(int(listener.getsockname()[1]) for listener in listeners)
