"""A real sshd on loopback, as the login node of a cluster."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from headrace.batch.ssh import SshCommands
from headrace.processes.identity import die_with_parent, end_processes
from headrace.recipe.batch import Login
from support.ports import find_free_port
from support.waiting import wait_until

SSHD = Path("/usr/sbin/sshd")
JOBS = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".headrace" / "ssh-jobs"
"""Folder of jobs on hosts: in the home of the login, whatever `$HOME` says here."""

_CONFIG = """\
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowUsers {user}
LogLevel VERBOSE
"""


class LoginNode:
    """An sshd of the current user, with keys of its own.

    Args:
        folder: Keys, configuration and log; short, for a socket lies here too.
        port: Where it listens.
        address: Address that it listens on.
        prefix: Command before that of sshd.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.port = port
        self.address = address
        self._prefix = tuple(prefix)
        self._process: subprocess.Popen[bytes] | None = None

    def commands(self, environment: Mapping[str, str] | None = None) -> SshCommands:
        """Runs commands on it, over a connection that ends with it."""
        return SshCommands(self.login, environment or {}, folder=self.folder / "ssh")

    @property
    def login(self) -> Login:
        """How headrace reaches it; the user's own configuration and keys are left out."""
        return Login(
            host=f"{getpass.getuser()}@{self.address}",
            port=self.port,
            identity=str(self.folder / "user_key"),
            options=(
                f"UserKnownHostsFile={self.folder}/known_hosts",
                "GlobalKnownHostsFile=none",
                "IdentityAgent=none",
            ),
        )

    @property
    def num_connections(self) -> int:
        """TCP connections that were ever made."""
        return self.log.count(f"Connection from {self.address}")

    @property
    def log(self) -> str:
        """What sshd wrote."""
        file = self.folder / "sshd.log"
        return file.read_text() if file.exists() else ""

    def restart_with(self, setting: str) -> None:
        """Start it anew with one more line of configuration."""
        self.stop()
        with (self.folder / "config").open("a") as file:
            file.write(f"{setting}\n")
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        _make_run_folder()
        command = [*self._prefix, str(SSHD), "-D", "-f", str(self.folder / "config"),
                   "-E", str(self.folder / "sshd.log")]  # fmt: skip
        num_before = self.log.count("Server listening")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with_parent(signal.SIGKILL)
        )
        wait_until(lambda: self.log.count("Server listening") > num_before, 60, "sshd to listen")

    def stop(self) -> None:
        """End it with all its connections; harmless when it has ended."""
        if self._process is None:
            return
        sshd = psutil.Process(self._process.pid)
        end_processes([*sshd.children(recursive=True), sshd], grace_s=0.0)
        self._process.wait(timeout=60)
        self._process = None


def made(folder: Path, address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> LoginNode:
    """A login node with fresh keys, not started yet; arguments as `LoginNode`."""
    node = LoginNode(folder, find_free_port(), address, prefix)
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    config = _CONFIG.format(port=node.port, address=address, folder=folder, user=getpass.getuser())
    (folder / "config").write_text(config)
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[{address}]:{node.port} {host_key}")
    return node


@pytest.fixture
def login_node() -> Iterator[LoginNode]:
    """An sshd that runs during the test."""
    if not SSHD.exists() or shutil.which("ssh") is None:
        pytest.skip("install the Debian packages openssh-server and openssh-client")
    folder = Path(tempfile.mkdtemp(prefix="headrace-sshd-", dir="/tmp"))
    node = made(folder)
    node.start()
    try:
        yield node
    finally:
        node.commands().close()
        node.stop()
        # clients of other names take their sockets away themselves when they notice
        wait_until(lambda: not _sockets(folder / "ssh"), 60, "ssh's connections to end")
        shutil.rmtree(folder)


def _sockets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.is_socket()]


def _make_run_folder() -> None:
    """Debian's sshd wants this folder when it runs as root."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
