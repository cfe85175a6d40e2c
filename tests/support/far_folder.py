"""A folder that processes of this machine reach by FUSE, so that it can hang as one of NFS does.

Nodes that start in a mount namespace of their own have the files themselves at the same path.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.processes.identity import die_with_parent
from support import gluster
from support.waiting import wait_until

_VOLUME = """\
volume files
  type storage/posix
  option directory {files}
end-volume
volume locks
  type features/locks
  subvolumes files
end-volume
"""
_BIND = 'mount --bind "$0" "$1" && shift && exec "$@"'
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class FarFolder:
    """A folder that is mounted."""

    path: Path
    """Where all see it."""
    client: subprocess.Popen[bytes]
    """Its FUSE client on this machine."""

    @contextmanager
    def out_of_reach(self) -> Iterator[None]:
        """Let each access from this machine hang inside the context; the nodes go on."""
        self.client.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.client.send_signal(signal.SIGCONT)


def node_command(folder: Path) -> tuple[str, ...]:
    """Make `files` and `far` in a folder.

    Returns:
        What runs a command with the files at `far`.
    """
    for name in ("files", "far"):
        (folder / name).mkdir()
    return ("unshare", "--mount", "sh", "-c", _BIND, str(folder / "files"), str(folder / "far"))


@contextmanager
def mounted(folder: Path) -> Iterator[FarFolder]:
    """Mount `folder/files` at `folder/far` by the client of GlusterFS, without a server."""
    if reason := gluster.why_not():
        pytest.skip(reason)
    files, far, volume = folder / "files", folder / "far", folder / "volume"
    volume.write_text(_VOLUME.format(files=files))
    client = subprocess.Popen(
        ["glusterfs", "--no-daemon", f"--volfile={volume}", f"--log-file={folder}/client.log",
         "--attribute-timeout=0", "--entry-timeout=0", str(far)],
        stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )  # fmt: skip
    try:
        wait_until(lambda: far.is_mount(), _TIMEOUT_S, "the folder to be mounted")
        yield FarFolder(far, client)
    finally:
        client.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "--lazy", str(far)], check=False)
        client.kill()
        client.wait(_TIMEOUT_S)
        shutil.rmtree(files)
        files.mkdir()
