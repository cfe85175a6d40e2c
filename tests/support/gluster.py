"""A GlusterFS volume of two bricks on a network host, mounted by each machine for itself."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from headrace.processes.identity import die_with_parent
from support.net_hosts import NetHost
from support.waiting import wait_until

_STARTED = """\
set -e
mount -t tmpfs tmpfs /var/lib/glusterd
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log/glusterfs
mkdir /run/gluster
exec glusterd --no-daemon
"""
_TIMEOUT_S = 60.0


def why_not() -> str:
    """Return what is missing here; empty if a volume can be served and mounted."""
    if shutil.which("glusterd") is None or shutil.which("glusterfs") is None:
        return "install the Debian packages glusterfs-server and glusterfs-client"
    return "" if Path("/dev/fuse").exists() else "needs FUSE: there is no /dev/fuse"


@contextmanager
def volume(folder: Path, server: NetHost, nodes: Sequence[NetHost]) -> Iterator[Path]:
    """Serve a volume from one host, and mount it on this machine and on others at one path.

    Each mount has a client, connections and caches of its own, as on machines of their own.
    """
    mounted = folder / "volume"
    for each in ("brick-1", "brick-2", "volume"):
        (folder / each).mkdir(parents=True)
    spaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    with ExitStack() as stack:
        served = _child((*server.command, *spaces, "sh", "-c", _STARTED), folder / "server", stack)
        (daemon,) = wait_until(psutil.Process(served).children, _TIMEOUT_S, "glusterd to start")
        gluster = ("nsenter", f"--target={daemon.pid}", "--all", "gluster", "--mode=script")
        wait_until(lambda: _code((*gluster, "pool", "list")) == 0, _TIMEOUT_S, "glusterd to answer")
        address = server.node.address
        bricks = [f"{address}:{folder}/brick-{number}" for number in (1, 2)]
        for command in (("create", "shared", *bricks, "force"), ("start", "shared")):
            assert _code((*gluster, "volume", *command)) == 0, (folder / "server").read_text()
        client = ("glusterfs", "--no-daemon", "-s", address, "--volfile-id=shared", str(mounted))
        log = ("-l", str(folder / "client.log"))
        for prefix in ((), *(node.command for node in nodes)):
            _child((*prefix, *client, *log), folder / "client", stack)
            seen = (*prefix, "stat", "--file-system", "--format=%T", str(mounted))
            wait_until(lambda seen=seen: _output(seen) == "fuseblk", _TIMEOUT_S, "a mount")
            if not prefix:
                stack.callback(_code, ("umount", "--lazy", str(mounted)))
        yield mounted


def _child(command: Sequence[str], log: Path, stack: ExitStack) -> int:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        )  # fmt: skip
    stack.callback(process.wait, _TIMEOUT_S)
    stack.callback(process.kill)
    return process.pid


def _code(command: Sequence[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
