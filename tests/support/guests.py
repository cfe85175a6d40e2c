"""Machines with kernels of their own: guests of user-mode Linux on one network of this machine.

A guest's root is this machine's file tree, read-only; `/srv` is a disk of its own that outlives a
loss of power, `/mnt` is free for mounts, and `/tmp`, `/run` and `/dev/shm` are in memory.
Or its root is a disk of its own, from which it boots as that says: `NETWORK` makes it reachable.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.waiting import wait_until

PROGRAMS = {
    "linux.uml": "user-mode-linux",
    "gcc": "gcc",
    "rpc.nfsd": "nfs-kernel-server",
    "mount.nfs4": "nfs-common",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "modprobe": "kmod",
}
"""Programs that guests need, and their Debian packages."""

USER, USER_ID = "ada", 4001
"""An ordinary user of all guests."""

_PROJECT = Path(__file__).parents[2]
_MODULES = Path("/usr/lib/uml/modules")
_REGISTERS = Path(__file__).with_name("whole_registers.c")
_BOOT_S = 120.0

_MOST_MAPPINGS = Path("/proc/sys/vm/max_map_count")
_NEEDED_MAPPINGS = 2**20
"""A guest maps each page of a process apart: with the usual 65,530, one that imports torch dies."""

NETWORK = """\
mount -t hostfs -o $headrace_folder none /media
ip link set lo up
ip address add $headrace_address/24 dev vec0
ip link set vec0 up
"""
"""Shell commands of a guest that boots from its own disk; the variables come from its kernel."""

SSHD = """\
AuthorizedKeysFile /media/keys/user_key.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
UseDNS no
"""
"""Settings of its sshd."""

_INIT = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t hostfs -o {folder} none /media
mount -t tmpfs -o mode=755 tmpfs /root
for folder in {program} {project}; do
  case $folder in /root/*) mkdir -p $folder; mount -t hostfs -o $folder none $folder ;; esac
done
mkdir /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /tmp /run; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/sshd /run/lock /run/modules/lib/modules
chmod 1777 /tmp /dev/shm
mount -t ext4 /dev/ubda /srv
mkdir -p /srv/root /srv/{user} /srv/nfs/v4recovery /srv/nfs/sm
chown {user_id} /srv/{user}
chmod 700 /srv/root /srv/{user}
touch /srv/nfs/etab /srv/nfs/rmtab
mount --bind /srv/nfs /var/lib/nfs
for file in passwd hosts; do mount --bind /media/$file /etc/$file; done
hostname {name}
ip link set lo up
ip address add {address}/24 dev vec0
ip link set vec0 up
ln -s {modules} /run/modules/lib/modules/$(uname -r)
sh -ex /media/{name}/boot || echo o >/proc/sysrq-trigger
cp /media/keys/host_key /run/host_key
chmod 600 /run/host_key
/usr/sbin/sshd -f /media/sshd_config -E /media/{name}/sshd.log
while :; do sleep 1000; done
"""


@dataclass
class Guest:
    """One machine; it is off until `boot`."""

    name: str
    """Its host name, which the other guests know."""
    address: str
    """Its address on their network."""
    folder: Path
    """Folder of all guests on this machine: keys, disks, logs; `/media` inside."""
    device: str
    """Tap device that is its network card."""
    boots_from: str | Path
    """Shell commands that it runs at each boot, before its sshd; or the image of a disk, which is
    its root and says itself what is to be done."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def boot(self) -> None:
        """Switch it on, and wait until it answers."""
        own = self.folder / self.name
        own.mkdir(exist_ok=True)
        command = [
            "linux.uml", "mem=4G", f"umid={self.device}", f"uml_dir={self.folder}/uml", "panic=1",
            f"vec0:transport=tap,ifname={self.device},depth=64,mac={self._mac}",
            "con=null", "con0=null,fd:1", *self._root(own),
        ]  # fmt: skip
        with (own / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "TMPDIR": "/dev/shm",
                     "LD_PRELOAD": str(_library(self.folder))},
            )  # fmt: skip
        process = self._process

        def is_up() -> bool:
            assert process.poll() is None, f"{self.name} ended"
            return self._ssh("true").returncode == 0

        try:
            wait_until(is_up, _BOOT_S, f"{self.name} to boot")
        except AssertionError as error:
            said = [log.read_text(errors="replace")[-2000:] for log in sorted(own.glob("*.log"))]
            raise AssertionError("\n".join((str(error), *said))) from None

    def _root(self, own: Path) -> list[str]:
        if isinstance(self.boots_from, Path):
            facts = (f"headrace_folder={self.folder}", f"headrace_address={self.address}")
            return [
                f"ubd0={self.boots_from}",
                "root=/dev/ubda",
                "rw",
                f"hostname={self.name}",
                *facts,
            ]
        disk, init, (modules,) = own / "disk", own / "init", _MODULES.iterdir()
        if not disk.exists():
            with disk.open("wb") as file:
                file.truncate(4 * 2**30)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", disk], check=True)
        init.write_text(
            _INIT.format(
                name=self.name, address=self.address, folder=self.folder, user=USER,
                user_id=USER_ID, modules=modules, program=sys.base_prefix, project=_PROJECT,
            )
        )  # fmt: skip
        init.chmod(0o755)
        (own / "boot").write_text(self.boots_from)
        return [
            "root=98:0",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            f"init={init}",
            f"ubd0={disk}",
        ]

    def lose_power(self) -> None:
        """Kill the whole machine; what its disk was told to keep is kept."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._ssh_exit()

    def shut_down(self) -> None:
        """Switch it off as its administrator does, if its root is a disk of its own."""
        self.run("systemctl poweroff", check=False)
        assert self._process is not None
        self._process.wait(timeout=_BOOT_S)
        self.lose_power()

    def run(self, command: str, *, check: bool = True, user: str = "root") -> str:
        """Run a shell command there; return its output, standard error included.

        Raises:
            AssertionError: `check`, and its exit code is not 0.
        """
        done = self._ssh(f"exec 2>&1; {command}", user)
        assert not check or done.returncode == 0, f"{self.name}: {command}\n{done.stdout}"
        return done.stdout

    def start(self, command: str, log: str, user: str = "root") -> None:
        """Start a shell command there in the background, with its output in a file there."""
        self.run(f"nohup setsid sh -c {shlex.quote(command)} >>{log} 2>&1 </dev/null &", user=user)

    @property
    def _mac(self) -> str:
        """The same at each boot, so that the other guests know it by what they have cached."""
        return "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))

    def _ssh(self, command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._words(), f"{user}@{self.address}", command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", check=False,
        )  # fmt: skip

    def _ssh_exit(self) -> None:
        for user in ("root", USER):
            subprocess.run(
                [*self._words(), "-O", "exit", f"{user}@{self.address}"],
                capture_output=True, check=False,
            )  # fmt: skip

    def _words(self) -> list[str]:
        return [
            "ssh", "-F", str(self.folder / "ssh_config"), "-o", "ControlMaster=auto",
            "-o", f"ControlPath={self.folder}/s-%h-%r", "-o", "ControlPersist=60",
        ]  # fmt: skip


def missing() -> str:
    """Why there can be no guests here; empty if there can be."""
    if os.geteuid() != 0:
        return "needs root: it makes network devices"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    packages = [PROGRAMS[name] for name in PROGRAMS if shutil.which(name, path=path) is None]
    if packages:
        return f"needs the Debian packages {' '.join(packages)}"
    for path in ("/dev/net/tun", str(_MOST_MAPPINGS)):
        if not os.access(path, os.W_OK):
            return f"needs to write {path}"
    return ""


@contextmanager
def guests(starts: Mapping[str, str | Path]) -> Iterator[list[Guest]]:
    """Boot guests, one behind the other, by name and `boots_from`; they end with the block."""
    with ExitStack() as stack:
        if int(most := _MOST_MAPPINGS.read_text()) < _NEEDED_MAPPINGS:
            _MOST_MAPPINGS.write_text(str(_NEEDED_MAPPINGS))
            stack.callback(_MOST_MAPPINGS.write_text, most)
        folder = Path(tempfile.mkdtemp(prefix="hru-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        folder.chmod(0o755)
        build = ["gcc", "-shared", "-fPIC", "-O2", "-o", _library(folder), _REGISTERS]
        subprocess.run(build, check=True)
        bridge, number = f"hru{os.getpid()}", os.getpid() % 250
        _ip(f"link add {bridge} type bridge")
        stack.callback(_ip, f"link delete {bridge}")
        _ip(f"address add 10.68.{number}.254/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        made = []
        for index, (name, start) in enumerate(starts.items(), start=1):
            device = f"hru{os.getpid()}-{index}"
            _ip(f"tuntap add {device} mode tap")
            stack.callback(_ip, f"link delete {device}")
            _ip(f"link set {device} master {bridge} up")
            made.append(Guest(name, f"10.68.{number}.{index}", folder, device, start))
        _write_settings(folder, made)
        for guest in made:
            stack.callback(guest.lose_power)
            guest.boot()
        yield made


def _write_settings(folder: Path, made: Sequence[Guest]) -> None:
    keys = folder / "keys"
    keys.mkdir()
    for name in ("host_key", "user_key"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(key, check=True)
    own = "HostKey /run/host_key\nPidFile none\nUsePAM no\n"
    (folder / "sshd_config").write_text(SSHD + own)
    (folder / "ssh_config").write_text(
        f"IdentityFile {keys}/user_key\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        "StrictHostKeyChecking no\nConnectTimeout 5\nServerAliveInterval 30\n"
    )
    lines = ["127.0.0.1 localhost", *(f"{each.address} {each.name}" for each in made)]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    system = [
        line for line in Path("/etc/passwd").read_text().splitlines()
        if not line.startswith(("root:", f"{USER}:"))
    ]  # fmt: skip
    users = ["root:x:0:0::/srv/root:/bin/sh", f"{USER}:x:{USER_ID}:{USER_ID}::/srv/{USER}:/bin/sh"]
    (folder / "passwd").write_text("\n".join(users + system) + "\n")


def _library(folder: Path) -> Path:
    return folder / f"{_REGISTERS.stem}.so"


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)
