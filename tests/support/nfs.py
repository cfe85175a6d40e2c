"""A server of NFS 4.2 and two clients of it: three machines with kernels of their own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from support.guests import Guest, guests

_SERVE = "rpc.nfsd -N 3 8"
_EXPORT = "exportfs -o rw,sync,{},no_subtree_check,fsid=0 '*:/srv/export'"
_SERVER = f"""\
modprobe -d /run/modules nfsd
mount -t nfsd nfsd /proc/fs/nfsd
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
mkdir -p /srv/export
chmod 1777 /srv/export
{_EXPORT.format("no_root_squash")}
{_SERVE}
rpc.mountd -N 3
"""
_CLIENT = """\
modprobe -d /run/modules nfsv4
mount -t nfs4 -o nfsvers=4.2,hard server:/ /mnt
"""

SHARED = "/mnt/site"
"""Folder of the site on the clients."""


@dataclass(frozen=True)
class NfsMachines:
    """The machines; `/mnt` of the clients is `/srv/export` of the server."""

    server: Guest
    control: Guest
    node: Guest

    def stop_server(self) -> None:
        """Let the server answer no request; its machine runs."""
        self.server.run("rpc.nfsd 0")

    def start_server(self) -> None:
        """Let it answer again."""
        self.server.run(_SERVE)

    def mount(self, options: str = "", squash: str = "no_root_squash") -> None:
        """Mount it on both clients anew, with options beside the defaults."""
        self.server.run(_EXPORT.format(squash))
        for client in (self.control, self.node):
            client.run(f"umount /mnt && mount -t nfs4 -o nfsvers=4.2,hard{options} server:/ /mnt")

    def prepare(self, user: str = "root") -> None:
        """Write the site `nfs.yaml`, whose node is the machine `node`."""
        options = ("UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", "LogLevel=ERROR")
        key = f"/srv/{user}/key"
        host = {"host": f"{user}@node", "identity": key, "options": options}
        batch = {"interface": "vec0", "poll": 1, "hosts": [host]}
        role = {"backend": "ssh", "kind": "gang", "nodes": 1, "ranks_per_node": 1,
                "lifetime": 1800, "batch": batch}  # fmt: skip
        site = {
            "name": "nfs", "folder": SHARED, "limits": {"lost_after": 20}, "roles": {"gpu": role},
            "tiers": [{"name": "own", "folder": f"/srv/{user}/tier", "reserve": 0}],
        }  # fmt: skip
        folder = self.control.folder
        (folder / "nfs.yaml").write_text(yaml.safe_dump(_plain(site)))
        self.control.run(f"install -m 600 -o {user} /media/keys/user_key {key}")
        self.control.run(f"cp /media/nfs.yaml . && mkdir -p -m 700 {SHARED}", user=user)

    def command(self, *arguments: str, home: str = "home") -> str:
        """Shell command that runs `headrace` with a home on the own disk, or with another one."""
        words = shlex.join([str(Path(sys.executable).with_name("headrace")), *arguments])
        return f"HEADRACE_HOME={home} HEADRACE_DIGITS=/mnt/digits COLUMNS=160 {words}"

    def python(self, guest: Guest, code: str) -> list[str]:
        """Run Python code on a machine; return the words that it prints."""
        return guest.run(f"HEADRACE_HOME=home {program(code)}").split()


def program(code: str) -> str:
    """Return a shell command that runs Python code."""
    return shlex.join([sys.executable, "-c", code])


@contextmanager
def nfs_machines() -> Iterator[NfsMachines]:
    """Boot the machines."""
    with guests({"server": _SERVER, "node": _CLIENT, "control": _CLIENT}) as made:
        server, node, control = made
        yield NfsMachines(server=server, control=control, node=node)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
