"""Two hosts on one machine: network namespaces with addresses, storage and an sshd of their own."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.recipe.batch import Login
from support.login_node import SSHD, LoginNode, made

DATA = "data0"
"""Interface between the two hosts; the other one, `ctl0`, leads to this machine."""


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
        command = ["ip", "netns", "exec", self.namespace, "cat", "/proc/net/tcp"]
        table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows = [line.split() for line in table.splitlines()[1:]]
        return {_endpoint(row[1]) for row in rows if row[3] == "0A"}


@dataclass(frozen=True)
class TwoHosts:
    """Both hosts."""

    hosts: tuple[NetHost, NetHost]
    """They reach each other by two networks, neither of which is loopback."""
    storage: Path
    """Folder that is other storage on each of them, in memory."""

    @property
    def logins(self) -> tuple[Login, ...]:
        """How headrace reaches them."""
        return tuple(host.node.login for host in self.hosts)


@pytest.fixture
def two_hosts() -> Iterator[Callable[[tuple[int, int]], TwoHosts]]:
    """Makes two hosts, once; the argument gives the bytes of storage of each."""
    if os.geteuid() != 0 or not (SSHD.exists() and shutil.which("ssh") and shutil.which("ip")):
        pytest.skip("as root, with the Debian packages openssh-server, openssh-client, iproute2")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headrace-hosts-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        yield lambda sizes: _made(folder, sizes, stack)


def _made(folder: Path, sizes: tuple[int, int], stack: ExitStack) -> TwoHosts:
    number = os.getpid() % 250
    name = f"hr{os.getpid()}"
    storage = folder / "storage"
    storage.mkdir()
    _ip(stack, f"link add {name} type bridge", undo=f"link delete {name}")
    _ip(stack, f"address add 10.66.{number}.254/24 dev {name}")
    _ip(stack, f"link set {name} up")
    for index in (1, 2):
        _ip(stack, f"netns add {name}-{index}", undo=f"netns delete {name}-{index}")
    _ip(stack, f"link add {DATA} netns {name}-1 type veth peer name {DATA} netns {name}-2")
    hosts = []
    for index, num_bytes in zip((1, 2), sizes, strict=True):
        space, port = f"{name}-{index}", f"{name}v{index}"
        _ip(stack, f"link add {port} master {name} type veth peer name ctl0 netns {space}")
        _ip(stack, f"link set {port} up")
        for device, address in (("ctl0", f"10.66.{number}"), (DATA, f"10.67.{number}")):
            _ip(stack, f"-n {space} address add {address}.{index}/24 dev {device}")
        for device in ("lo", "ctl0", DATA):
            _ip(stack, f"-n {space} link set {device} up")
        mount = f'mount -t tmpfs -o size={num_bytes},mode=700 tmpfs {storage} && exec "$@"'
        prefix = ("ip", "netns", "exec", space, "sh", "-c", mount, "sh")
        own = folder / f"ssh-{index}"
        own.mkdir()
        node = made(own, f"10.66.{number}.{index}", prefix)
        stack.callback(node.stop)
        hosts.append(NetHost(space, f"10.67.{number}.{index}", node))
    _know_each_other(hosts)
    for host in hosts:
        host.node.start()
    return TwoHosts((hosts[0], hosts[1]), storage)


def _know_each_other(hosts: list[NetHost]) -> None:
    """One identity and one list of known hosts for both."""
    first, second = (host.node.folder for host in hosts)
    both = (first / "known_hosts").read_text() + (second / "known_hosts").read_text()
    for folder in (first, second):
        (folder / "known_hosts").write_text(both)
    for name in ("user_key", "user_key.pub"):
        shutil.copy2(first / name, second / name)


def _ip(stack: ExitStack, command: str, undo: str | None = None) -> None:
    subprocess.run(["ip", *command.split()], check=True)
    if undo is not None:
        stack.callback(subprocess.run, ["ip", *undo.split()], check=True)


def _endpoint(text: str) -> tuple[str, int]:
    """Address and port as `/proc/net/tcp` writes them: hexadecimal, the address back to front."""
    address, _, port = text.partition(":")
    return str(ipaddress.ip_address(bytes.fromhex(address)[::-1])), int(port, 16)
