"""Which file system a path is on, from the text of `/proc/mounts`."""

from __future__ import annotations

import re
from pathlib import Path, PurePath, PurePosixPath

TABLE = Path("/proc/mounts")
"""The file systems that this machine has mounted."""

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "acfs",
        "afs",
        "beegfs",
        "beegfs_nodev",
        "ceph",
        "cifs",
        "davfs",
        "fuse.beegfs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.mount-s3",
        "fuse.mountpoint-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "quobyte",
        "smb3",
        "smbfs",
        "wekafs",
    )
)
"""Types on which SQLite's locks and shared memory do not reach other machines."""


def file_system(path: PurePath, mounts: str) -> str:
    """Type of the file system that holds `path`.

    Args:
        path: An absolute path without symbolic links.
        mounts: Text of `/proc/mounts`: device, mount point, type, options and two numbers a line.

    Returns:
        The type, such as `ext4` or `nfs4`; empty when no line covers the path.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        point = PurePosixPath(_unescape(parts[1]))
        depth = len(point.parts)
        if path.is_relative_to(point) and depth >= best:  # a later mount covers an earlier one
            best, kind = depth, parts[2]
    return kind


def network_file_system(path: PurePath, mounts: str) -> str | None:
    """Type of the network file system that holds `path`; None when it is a local one."""
    kind = file_system(path, mounts)
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def file_system_of(path: Path) -> str:
    """Type of the file system that holds a path of this machine; empty when that is not known."""
    return file_system(path.resolve(), current_mounts())


def current_mounts() -> str:
    """Text of this machine's `/proc/mounts`; empty where there is none."""
    try:
        return TABLE.read_text(errors="surrogateescape")
    except FileNotFoundError:
        return ""


def _unescape(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
