"""Hosts on one machine: network namespaces with addresses, storage and an sshd of their own."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.recipe.batch import Login
from support.login_node import SSHD, LoginNode, made
from support.waiting import wait_until

DATA = "data0"
"""Interface between the hosts; the other one, `ctl0`, leads to this machine."""


@dataclass(frozen=True)
class NetHost:
    """One of the hosts."""

    namespace: str
    """Its network namespace."""
    address: str
    """Its address on `data0`."""
    node: LoginNode
    """Its sshd, which listens on `ctl0`."""

    def listeners(self) -> set[tuple[str, int]]:
        """IPv4 addresses and ports that processes of the host listen at."""
        table = _output(f"netns exec {self.namespace} cat /proc/net/tcp")
        rows = [line.split() for line in table.splitlines()[1:]]
        return {_endpoint(row[1]) for row in rows if row[3] == "0A"}

    @property
    def command(self) -> tuple[str, ...]:
        """What runs a command on the host: in the namespaces of its sshd."""
        return ("nsenter", f"--target={pids_in(self.namespace)[0]}", "--net", "--mount")

    def lose_power(self) -> None:
        """Kill all of its processes; with the last one goes what its storage held."""
        kill_all_in(self.namespace)
        self.node.stop()


@dataclass(frozen=True)
class NetHosts:
    """All hosts."""

    hosts: tuple[NetHost, ...]
    """They reach each other by two networks, neither of which is loopback."""
    storage: Path
    """Folder that is other storage on each of them, in memory."""
    outside: str
    """Address of this machine that they reach."""

    @property
    def logins(self) -> tuple[Login, ...]:
        """How headrace reaches them."""
        return tuple(host.node.login for host in self.hosts)


@pytest.fixture
def net_hosts() -> Iterator[Callable[[Sequence[int]], NetHosts]]:
    """Makes hosts, once; the argument gives the bytes of storage of each."""
    if problem := _problem():
        pytest.skip(problem)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headrace-hosts-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        yield lambda sizes: _made(folder, sizes, stack)


def _problem() -> str:
    """What is missing here; empty when there can be hosts."""
    if not (SSHD.exists() and shutil.which("ssh")):
        return "needs the Debian packages openssh-server and openssh-client"
    return namespaces_problem()


def namespaces_problem() -> str:
    """Why this machine cannot have network namespaces; empty if it can."""
    if os.geteuid() != 0:
        return "needs root: it makes network namespaces"
    if not shutil.which("ip"):
        return "needs the Debian package iproute2"
    space = f"hr{os.getpid()}-try"
    tried = subprocess.run(
        ["ip", "netns", "add", space], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        said = tried.stderr.strip()
        return f"needs to make network namespaces (capabilities NET_ADMIN, SYS_ADMIN): {said}"
    subprocess.run(["ip", "netns", "delete", space], check=True)
    return ""


def _made(folder: Path, sizes: Sequence[int], stack: ExitStack) -> NetHosts:
    number = os.getpid() % 250
    name = f"hr{os.getpid()}"
    storage = folder / "storage"
    storage.mkdir()
    outside = f"10.66.{number}.254"
    add_bridge(f"{name}c", stack, outside)
    add_bridge(f"{name}d", stack)
    hosts = []
    for index, num_bytes in enumerate(sizes, start=1):
        space = add_namespace(name, index, stack)
        addresses = {"ctl0": f"10.66.{number}.{index}", DATA: f"10.67.{number}.{index}"}
        for device, address in addresses.items():
            connect(space, f"{name}{device[0]}", index, device, address)
        mount = f'mount -t tmpfs -o size={num_bytes},mode=700 tmpfs {storage} && exec "$@"'
        prefix = ("ip", "netns", "exec", space, "sh", "-c", mount, "sh")
        own = folder / f"ssh-{index}"
        own.mkdir()
        node = made(own, addresses["ctl0"], prefix)
        stack.callback(node.stop)
        hosts.append(NetHost(space, addresses[DATA], node))
    _know_each_other(hosts)
    for host in hosts:
        host.node.start()
    return NetHosts(tuple(hosts), storage, outside)


def add_bridge(name: str, stack: ExitStack, address: str = "") -> None:
    """Make a network between namespaces; with an address, this machine is in it too."""
    _ip(f"link add {name} type bridge")
    stack.callback(_ip, f"link delete {name}")
    _ip(f"link set {name} up")
    if address:
        _ip(f"address add {address}/24 dev {name}")


def add_namespace(name: str, index: int, stack: ExitStack) -> str:
    """Make a network namespace with loopback; return its name."""
    space = f"{name}-{index}"
    _ip(f"netns add {space}")
    stack.callback(_ip, f"netns delete {space}")
    _ip(f"-n {space} link set lo up")
    return space


def connect(space: str, bridge: str, index: int, device: str, address: str) -> None:
    """Give a namespace an interface with an address on a bridge."""
    _ip(f"link add {bridge}{index} master {bridge} type veth peer {device} netns {space}")
    _ip(f"link set {bridge}{index} up")
    _ip(f"-n {space} address add {address}/24 dev {device}")
    _ip(f"-n {space} link set {device} up")


def pids_in(space: str) -> list[int]:
    """Processes of a network namespace."""
    return [int(pid) for pid in _output(f"netns pids {space}").split()]


def kill_all_in(space: str) -> None:
    """Kill all processes of a network namespace, and wait for their end."""
    for pid in pids_in(space):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not pids_in(space), 90, f"{space} to be off")


def _know_each_other(hosts: Sequence[NetHost]) -> None:
    """One identity and one list of known hosts for all."""
    folders = [host.node.folder for host in hosts]
    known = "".join((folder / "known_hosts").read_text() for folder in folders)
    for folder in folders:
        (folder / "known_hosts").write_text(known)
    for folder in folders[1:]:
        for name in ("user_key", "user_key.pub"):
            shutil.copy2(folders[0] / name, folder / name)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def _output(command: str) -> str:
    return subprocess.run(
        ["ip", *command.split()], check=True, capture_output=True, text=True
    ).stdout


def _endpoint(text: str) -> tuple[str, int]:
    """Address and port as `/proc/net/tcp` writes them: hexadecimal, the address back to front."""
    address, _, port = text.partition(":")
    return str(ipaddress.ip_address(bytes.fromhex(address)[::-1])), int(port, 16)
