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
from support.ports import find_free_port
from support.waiting import wait_until

_SERVED = """\
volume files
  type storage/posix
  option directory {files}
end-volume
volume locks
  type features/locks
  subvolumes files
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.locks.allow 127.0.0.1
  subvolumes locks
end-volume
"""
_SEEN = """\
volume far
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume locks
end-volume
"""
_BIND = 'mount --bind "$0" "$1" && shift && exec "$@"'
_UNCACHED = ("--attribute-timeout=0", "--entry-timeout=0")
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
    """Mount `folder/files` at `folder/far`, by a server and a client of GlusterFS."""
    if reason := gluster.why_not():
        pytest.skip(reason)
    files, far = folder / "files", folder / "far"
    port = find_free_port()
    server = _started(folder, "glusterfsd", _SERVED.format(files=files, port=port))
    client = _started(folder, "glusterfs", _SEEN.format(port=port), *_UNCACHED, str(far))
    try:
        wait_until(far.is_mount, _TIMEOUT_S, "the folder to be mounted")
        yield FarFolder(far, client)
    finally:
        client.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "--lazy", str(far)], check=False)
        for each in (client, server):
            each.kill()
            each.wait(_TIMEOUT_S)
        shutil.rmtree(files)
        files.mkdir()


def _started(folder: Path, program: str, volume: str, *arguments: str) -> subprocess.Popen[bytes]:
    file = folder / f"{program}.vol"
    file.write_text(volume)
    log = folder / f"{program}.log"
    return subprocess.Popen(
        [program, "--no-daemon", f"--volfile={file}", f"--log-file={log}", *arguments],
        stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )  # fmt: skip
