#!/usr/bin/env python3
"""A real Slurm with four nodes and two fake GPUs each on this machine, for tests and trials.

`slurm_dev.py up|down|status --folder DIR`, as root, with Debian's packages slurm-wlm, slurmdbd,
munge and mariadb-server. Everything lies in the folder, all ports are on loopback, and neither
the machine's own munge nor its database or Slurm are touched. Both commands may be repeated.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_dev_daemons import Daemon, Daemons, DevError
from slurm_dev_files import Shape, gres_conf, slurm_conf, slurmdbd_conf

PROGRAMS = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
}
"""Programs that are needed, and the Debian package of each."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_TIMEOUT_S = 60.0
_JOBS_TIMEOUT_S = 20.0
_FIRST_PORTS = range(17000, 31000, 10)


def why_not() -> str:
    """Why this machine cannot run it; empty when it can."""
    if os.geteuid() != 0:
        return "the small Slurm needs root: its daemons start jobs and make device files"
    missing = {package for name, package in PROGRAMS.items() if not shutil.which(name, path=PATH)}
    return f"install the Debian packages {' '.join(sorted(missing))}" if missing else ""


def up(daemons: Daemons, **shape_keys: Any) -> Shape:
    """Bring it up, unless it is up.

    Args:
        daemons: Its daemons, in a folder whose path is short, for the sockets in it.
        shape_keys: Fields of its `Shape` that are not the defaults.

    Raises:
        DevError: It did not come up; nothing of it runs then.
    """
    reason = why_not()
    if reason:
        raise DevError(reason)
    folder = daemons.folder
    shape = Shape(folder=folder, host=socket.gethostname(), port=0, **shape_keys)
    shape = replace(shape, port=_port_of(shape))
    if daemons.all and all(each.is_alive for each in daemons.all) and _answers(shape):
        return shape
    down(daemons)
    try:
        _write_files(shape)
        _start(shape, daemons)
    except BaseException:
        daemons.stop()
        raise
    return shape


def down(daemons: Daemons) -> int:
    """End all jobs, then all daemons; what they wrote stays.

    Returns:
        How many processes were ended.
    """
    config = daemons.folder / "slurm.conf"
    if not daemons.all:
        return 0
    if any(each.name == "slurmctld" and each.is_alive for each in daemons.all):
        run("scancel", "--quiet", "--user=root", config=config)
        deadline = time.monotonic() + _JOBS_TIMEOUT_S
        while run("squeue", "--noheader", config=config).stdout and time.monotonic() < deadline:
            time.sleep(0.2)
    return daemons.stop()


def run(*command: str, config: Path) -> subprocess.CompletedProcess[str]:
    """A Slurm command, answered by the Slurm of that configuration file."""
    return subprocess.run(
        command,
        env={**os.environ, "PATH": PATH, "SLURM_CONF": str(config)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def _port_of(shape: Shape) -> int:
    """First of its free neighbouring ports; the folder's earlier one when it has one."""
    if shape.config.exists():
        for line in shape.config.read_text().splitlines():
            if line.startswith("SlurmctldPort="):
                return int(line.partition("=")[2])
    # by chance, so that two that start at once do not choose the same
    for first in random.sample(_FIRST_PORTS, 100):
        if all(_is_free(port) for port in range(first, first + shape.num_ports)):
            return first
    raise DevError(f"No {shape.num_ports} neighbouring ports from {_FIRST_PORTS.start} on are free")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _write_files(shape: Shape) -> None:
    folder = shape.folder
    for name in ("state", "munge", *(f"spool/{node}" for node in shape.node_names)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # munge looks at the folders above its socket
    _write_private(folder / "munge.key", secrets.token_bytes(1024))
    shape.config.write_text(slurm_conf(shape))
    (folder / "gres.conf").write_text(gres_conf(shape))
    _write_private(folder / "slurmdbd.conf", slurmdbd_conf(shape).encode())
    for number in range(shape.gpus):
        if not shape.gpu(number).exists():
            os.mknod(shape.gpu(number), 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # like /dev/null


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _start(shape: Shape, daemons: Daemons) -> None:
    _start_munge(shape, daemons)
    _start_database(shape, daemons)
    dbd = daemons.start("slurmdbd", ["slurmdbd", "-D"], _environment(shape))
    show = ("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    daemons.wait(dbd, lambda: run(*show, config=shape.config).returncode == 0, _START_TIMEOUT_S)
    # the controller looks the cluster up in the accounting when it starts
    if shape.cluster not in run(*show, config=shape.config).stdout:
        run("sacctmgr", "--immediate", "add", "cluster", shape.cluster, config=shape.config)
    nodes = [start_node(shape, daemons, name) for name in shape.node_names]
    start_controller(shape, daemons)
    for node in nodes:
        daemons.wait(node, lambda: _num_idle(shape) == shape.nodes, _START_TIMEOUT_S)


def start_controller(shape: Shape, daemons: Daemons) -> None:
    """Start the controller and wait until it answers; it knows the jobs of its predecessor.

    Raises:
        DevError: It does not come up.
    """
    controller = daemons.start("slurmctld", ["slurmctld", "-D"], _environment(shape))
    daemons.wait(controller, lambda: _answers(shape), _START_TIMEOUT_S)


def start_node(shape: Shape, daemons: Daemons, name: str) -> Daemon:
    """Start the daemon of a node."""
    command = [*shape.node_command, "slurmd", "-D", "-N", name]
    return daemons.start(node_daemon(name), command, _environment(shape))


def node_daemon(node: str) -> str:
    """Name of the daemon of a node."""
    return f"slurmd-{node}"


def _environment(shape: Shape) -> dict[str, str]:
    return {
        "SLURM_CONF": str(shape.config),
        "PATH": PATH,
        "MYSQL_UNIX_PORT": str(shape.mysql_socket),
    }


def _start_munge(shape: Shape, daemons: Daemons) -> None:
    folder = shape.folder
    command = ["munged", "--foreground", "--force", f"--socket={shape.munge_socket}",
               f"--key-file={folder}/munge.key", f"--pid-file={folder}/munge/munged.pid",
               f"--log-file={folder}/munge/munged.log", f"--seed-file={folder}/munge/seed",
               "--num-threads=10"]  # fmt: skip
    shape.munge_socket.unlink(missing_ok=True)
    daemon = daemons.start("munged", command, {"PATH": PATH})
    daemons.wait(daemon, shape.munge_socket.exists, _START_TIMEOUT_S)


def _start_database(shape: Shape, daemons: Daemons) -> None:
    data, temporary = shape.folder / "mysql", shape.folder / "mysql-tmp"
    temporary.mkdir(exist_ok=True)  # a server that starts empties it, also of another one's tables
    shared = ["--no-defaults", "--user=root", f"--datadir={data}", f"--tmpdir={temporary}"]
    if not (data / "mysql").exists():
        install = ["mariadb-install-db", *shared, "--auth-root-authentication-method=normal",
                   "--skip-test-db"]  # fmt: skip
        env = {**os.environ, "PATH": PATH}
        made = subprocess.run(install, env=env, check=False, capture_output=True, timeout=60)
        if made.returncode:
            output = (made.stdout + made.stderr).decode(errors="replace")
            raise DevError(f"{install[0]} failed with {made.returncode}:\n{output}")
    command = ["mariadbd", *shared, "--skip-networking",
               f"--socket={shape.mysql_socket}", f"--pid-file={shape.folder}/mysql.pid",
               "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0",
               "--innodb-lock-wait-timeout=900", "--performance-schema=off"]  # fmt: skip
    shape.mysql_socket.unlink(missing_ok=True)
    daemon = daemons.start("mariadbd", command, {"PATH": PATH})
    daemons.wait(daemon, lambda: _takes_connections(shape.mysql_socket), _START_TIMEOUT_S)
    shape.mysql_socket.chmod(0o600)  # the database asks for no password


def _takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _answers(shape: Shape) -> bool:
    return run("scontrol", "ping", config=shape.config).returncode == 0


def _num_idle(shape: Shape) -> int:
    answer = run("sinfo", "--noheader", "--Node", "--format=%N %t", "--partition=main",
                 config=shape.config)  # fmt: skip
    return sum(1 for line in answer.stdout.splitlines() if line.split()[1:] == ["idle"])


def main(arguments: list[str]) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("--folder", type=Path, required=True, help="where everything of it lies")
    options = parser.parse_args(arguments)
    daemons = Daemons(options.folder)
    try:
        if options.command == "up":
            daemons.folder.mkdir(parents=True, exist_ok=True)
            shape = up(daemons)
            sys.stdout.write(f"Slurm is up. To use it:\n  export SLURM_CONF={shape.config}\n")
        elif options.command == "down":
            sys.stdout.write(f"Ended {down(daemons)} processes of {daemons.folder}\n")
        else:
            for each in daemons.all:
                sys.stdout.write(f"{each.name} {each.pid} {'up' if each.is_alive else 'gone'}\n")
    except DevError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
