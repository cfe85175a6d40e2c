"""Zygotes: servers that outlive the lease that starts them, so that the next one imports nothing.

A zygote ends when it has been idle for a while. Processes share one only if they would import the
same: interpreter, packages, environment, folder, control group, limits. A forked process shows its
own command and environment, and outlives the zygote.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import site
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
from filelock import FileLock

from headrace.processes.children import Child, Process, start_program
from headrace.processes.forking import (
    APART,
    BLANK,
    SPACE,
    SPACE_BYTES,
    TIMEOUT_S,
    request,
    shown_environment,
)
from headrace.processes.working_folder import python_module

KEEP_WARM = "HEADRACE_ZYGOTE_S"
"""Environment variable: seconds for which an idle zygote stays; without it, none is used."""

_OF_EACH = ("HEADRACE_", "AIRFLOW_CTX_", "PYTEST_", "SSH_", "__DASK_")
_OF_SHELLS = frozenset(("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "WINDOWID"))
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user")
_MOST = 6
"""Zygotes of an account: two for each of three environments, of hosts and of ranks."""


def fork(modules: Sequence[str], child: Child, *, wait: bool) -> Process | None:
    """Fork a process from the zygote of some modules; start the zygote if needed.

    It imports `modules` in this order, and calls the function `load` of each that has one. The
    environment of `child` is the whole one.

    Returns the process, which exists (with `wait`) or will; if None, start a program instead.
    """
    keep_s = child.env.get(KEEP_WARM, "0")
    shared, own = _divided(child.env)
    if float(keep_s) <= 0 or len(shown_environment(own)) > SPACE_BYTES:
        return None
    try:
        with _connected((keep_s, *modules), shared) as connection:
            process = request(connection, replace(child, env=own, folder=os.getcwd()))
    except OSError:
        return None
    if process is not None and wait and not process.is_forked(TIMEOUT_S):
        return None
    return process


def zygotes() -> list[psutil.Process]:
    """Return this account's zygotes on this machine."""
    return [found for file in folder().glob("*.pid") if (found := _zygote_of(file)) is not None]


def zygote_bytes() -> int:
    """Return the memory of all zygotes; shared pages count twice."""
    total = 0
    for each in zygotes():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total += each.memory_info().rss
    return total


def _zygote_of(file: Path) -> psutil.Process | None:
    with suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(file.read_text()))
        return process if str(file.with_suffix("")) in process.cmdline() else None
    return None


def folder() -> Path:
    """Return the folder of zygotes: of this account and this machine only."""
    of_session = os.environ.get("XDG_RUNTIME_DIR", "")
    if of_session and os.path.isdir(of_session) and os.stat(of_session).st_uid == os.getuid():
        return Path(of_session, "headrace")
    return Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")


def _divided(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split an environment into a zygote's, and the part that only its process has."""
    apart = environment.get(APART, "").split()
    own = {
        name: value
        for name, value in environment.items()
        if name.startswith(_OF_EACH) or name in _OF_SHELLS or name in apart
    }
    return {name: environment[name] for name in environment if name not in own}, own


def _connected(arguments: Sequence[str], environment: Mapping[str, str]) -> socket.socket:
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder().lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder()} must belong to this account, with mode 700")
    key = repr((arguments, sorted(environment.items()), *_surroundings(), *_installed()))
    file = folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(TIMEOUT_S)
    try:
        with FileLock(folder() / "lock", TIMEOUT_S, mode=0o600):
            try:
                connection.connect(str(file))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(file, arguments, environment)
                connection.connect(str(file))
            file.with_suffix(".pid").touch()  # time of the last request
    except BaseException:
        connection.close()
        raise
    return connection


def _start(file: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    files = sorted(folder().glob("*.pid"), key=lambda each: each.stat().st_mtime)
    num_left = len(files)
    for each in files:
        process = _zygote_of(each)
        if process is None or (num_left >= _MOST and _ended_idle(process, each)):
            each.unlink()
            each.with_suffix("").unlink(missing_ok=True)
            num_left -= 1
    file.unlink(missing_ok=True)
    keep_s, *modules = arguments
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(file))
        listening.listen()
        zygote = Child(
            name="zygote",
            command=python_module("headrace.processes.forking", keep_s, str(file), *modules, BLANK),
            log=Path(os.devnull),
            env={SPACE: "-" * SPACE_BYTES, **environment},  # first, for its position in memory
            input=listening.fileno(),
        )
        started = start_program(zygote, {})
    try:
        file.with_suffix(".pid").write_text(str(started.pid))
    except OSError:  # without the file it could not be found
        started.send_signal(signal.SIGKILL)
        raise


def _ended_idle(zygote: psutil.Process, file: Path) -> bool:
    """End a zygote that is idle, and was not asked within the time a request may take."""
    with suppress(psutil.NoSuchProcess):
        if time.time() - file.stat().st_mtime < TIMEOUT_S or zygote.children():
            return False
        zygote.terminate()
    return True


def _surroundings() -> Iterator[object]:
    """Yield what a process inherits from the one that starts it, besides the request."""
    yield from (sys.executable, os.getcwd(), os.getgroups(), os.getpriority(0, 0))
    yield os.sched_getaffinity(0)
    yield [resource.getrlimit(limit) for limit in _LIMITS]
    yield [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    yield Path("/proc/self/cgroup").read_text()
    status = Path("/proc/self/status").read_text().splitlines()
    yield [line for line in status if line.startswith(("Umask:", "Cap", "NoNewPrivs:", "Seccomp:"))]


def _installed() -> Iterator[object]:
    """Yield what changes when a package is installed or removed, or headrace is edited."""
    for packages in (*site.getsitepackages(), site.getusersitepackages()):
        if os.path.isdir(packages):
            yield packages, os.stat(packages).st_mtime_ns
    root = Path(__file__).parents[2]
    if str(root) not in site.getsitepackages():
        yield max(file.stat().st_mtime_ns for file in root.glob("headrace*/**/*.py"))
