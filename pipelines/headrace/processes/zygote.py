"""Zygotes: processes that have imported what others need, and are forked for them.

A zygote outlives the lease that starts it, and ends after a while without work. Processes share one
only if they would import the same: interpreter, packages, environment, folder, control group,
limits. What it forks shows its own command and environment, and lives on without it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib
import os
import pickle
import resource
import select
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock

from headrace.processes.identity import holds_gpu, open_files, tell_children
from headrace.processes.working_folder import python_module

KEPT = "HEADRACE_ZYGOTE_S"
"""Environment variable: seconds for which a zygote is kept without work; none is used without."""

APART = "HEADRACE_SECRETS"
"""Environment variable: names of those that no zygote may know, with spaces between."""

_NAME = "headrace.processes.zygote"
_ROOM = "HEADRACE_ROOM"
_ROOM_BYTES, _BLANK = 8192, 1024 * " "
_OF_EACH = ("HEADRACE_", "AIRFLOW_CTX_", "PYTEST_", "SSH_", "__DASK_")
_OF_SHELLS = frozenset(("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "WINDOWID"))
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user")
_PACKET_BYTES = 1 << 18
_TIMEOUT_S = 10.0
_MOST = 6
"""Zygotes of an account: two for each of three environments, of hosts and of ranks."""
_LOOK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A process to be forked, as which `python -m MODULE ARGUMENT…` would run in its own session.

    It is handed at most one file, whose number is its last argument.
    """

    module: str
    """Has a function `main(arguments)`."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole of it."""


def fork(modules: Sequence[str], asked: Fork, files: Sequence[int], *, wait: bool) -> bool:
    """Have a process forked by the zygote of some modules; the zygote is started if need be.

    It imports `modules` in this order, and calls the function `load` of each that has one. `files`
    are standard input, standard output and error, and at most one more.

    Returns whether the process exists (with `wait`) or will; if not, start a program instead.
    """
    kept = asked.environment.get(KEPT, "0")
    if float(kept) <= 0:
        return False
    shared, own = _divided(asked.environment)
    if len(_shown(own)) > _ROOM_BYTES:
        return False
    try:
        packet = pickle.dumps((os.getcwd(), asked.module, asked.arguments, own))
        with _connected((kept, *modules), shared) as connection:
            socket.send_fds(connection, [packet], files)
            return not wait or bool(connection.recv(1))
    except OSError:
        return False


def zygotes() -> list[psutil.Process]:
    """This account's zygotes on this machine."""
    return [found for file in folder().glob("*.pid") if (found := _zygote_of(file)) is not None]


def kept_bytes() -> int:
    """Memory that zygotes have now; what two of them share counts twice."""
    total = 0
    for each in zygotes():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            total += each.memory_info().rss
    return total


def _zygote_of(file: Path) -> psutil.Process | None:
    with suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(file.read_text()))
        return process if _NAME in process.cmdline() else None
    return None


def folder() -> Path:
    """Where zygotes are found: of this account alone, on this machine alone."""
    of_session = os.environ.get("XDG_RUNTIME_DIR", "")
    if of_session and os.path.isdir(of_session) and os.stat(of_session).st_uid == os.getuid():
        return Path(of_session, "headrace")
    return Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")


def _divided(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment of a zygote, and what the process has beside it."""
    apart = environment.get(APART, "").split()
    own = {
        name: value
        for name, value in environment.items()
        if name.startswith(_OF_EACH) or name in _OF_SHELLS or name in apart
    }
    return {name: environment[name] for name in environment if name not in own}, own


def _connected(arguments: Sequence[str], environment: Mapping[str, str]) -> socket.socket:
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    seen = folder().lstat()
    if seen.st_uid != os.getuid() or seen.st_mode & 0o077:
        raise PermissionError(f"{folder()} is not this account's alone")
    told = repr((arguments, sorted(environment.items()), *_surroundings(), *_installed()))
    file = folder() / hashlib.sha256(told.encode()).hexdigest()[:32]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_TIMEOUT_S)
    try:
        with FileLock(folder() / "lock", _TIMEOUT_S, mode=0o600):
            try:
                connection.connect(str(file))
            except (FileNotFoundError, ConnectionRefusedError):
                _start(file, arguments, environment)
                connection.connect(str(file))
            file.with_suffix(".pid").touch()  # when it was asked for last
    except BaseException:
        connection.close()
        raise
    return connection


def _start(file: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    kept = sorted(folder().glob("*.pid"), key=lambda each: each.stat().st_mtime)
    num_kept = len(kept)
    for left in kept:
        process = _zygote_of(left)
        if process is None or (num_kept >= _MOST and _ended_idle(process, left)):
            left.unlink()
            left.with_suffix("").unlink(missing_ok=True)
            num_kept -= 1
    file.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(file))
        listening.listen()
        started = subprocess.Popen(
            python_module(_NAME, str(listening.fileno()), str(file), *arguments, _BLANK),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={_ROOM: "-" * _ROOM_BYTES, **environment},  # first, for its place in memory
            pass_fds=(listening.fileno(),),
            start_new_session=True,
        )
    # a zombie if nobody waited for it, should it end first
    threading.Thread(target=started.wait, name=f"wait-{started.pid}", daemon=True).start()
    try:
        file.with_suffix(".pid").write_text(str(started.pid))
    except OSError:  # nobody would know of it
        started.kill()
        raise


def _ended_idle(zygote: psutil.Process, file: Path) -> bool:
    """End a zygote that has nothing to do, and that nobody has asked who still waits for it."""
    with suppress(psutil.NoSuchProcess):
        if time.time() - file.stat().st_mtime < _TIMEOUT_S or zygote.children():
            return False
        zygote.terminate()
    return True


def _surroundings() -> Iterator[object]:
    """What a process takes over from the one that starts it, and no order tells."""
    yield from (sys.executable, os.getcwd(), os.getgroups(), os.getpriority(0, 0))
    yield os.sched_getaffinity(0)
    yield [resource.getrlimit(limit) for limit in _LIMITS]
    yield [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    yield Path("/proc/self/cgroup").read_text()
    status = Path("/proc/self/status").read_text().splitlines()
    yield [line for line in status if line.startswith(("Umask:", "Cap", "NoNewPrivs:", "Seccomp:"))]


def _installed() -> Iterator[object]:
    """What changes when a package is installed or removed, or headrace itself is edited."""
    for place in (*site.getsitepackages(), site.getusersitepackages()):
        if os.path.isdir(place):
            yield place, os.stat(place).st_mtime_ns
    root = Path(__file__).parents[2]
    if str(root) not in site.getsitepackages():
        yield max(file.stat().st_mtime_ns for file in root.glob("headrace*/**/*.py"))


def main(arguments: list[str]) -> int:
    """Entry point of a zygote, and of each process forked from it."""
    if not all(_shown_at()):
        return 1  # not every kernel tells, and without it no lease would know its processes
    number, path, kept, *modules, _ = arguments
    listening = socket.socket(fileno=int(number))
    order = _forked(listening, Path(path), float(kept), modules)
    if order is None:
        return 0
    module, rest = order
    code: int = importlib.import_module(module).main(rest)
    return code


def _forked(
    listening: socket.socket, file: Path, kept_s: float, modules: Sequence[str]
) -> tuple[str, list[str]] | None:
    """In each forked process what it is to run; None in the zygote when nobody needs it any more.

    What an early module is enough for does not wait for the later ones.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever waits for one that ends must not see it
    gc.disable()
    importlib.import_module(modules[0])  # without it no process is to be had
    for module in modules:
        with suppress(Exception):  # who needs it meets the same, and tells of it in its own log
            getattr(importlib.import_module(module), "load", lambda: None)()
        gc.freeze()
        if (order := _answered(listening, 0.0)) is not None:
            return order
    if (order := _answered(listening, kept_s)) is not None:
        return order
    with FileLock(file.with_name("lock"), _TIMEOUT_S, mode=0o600):
        file.unlink(missing_ok=True)
        file.with_suffix(".pid").unlink(missing_ok=True)
    return _answered(listening, 0.0)  # those who were before that


def _answered(listening: socket.socket, kept_s: float) -> tuple[str, list[str]] | None:
    """In each forked process what it is to run; None in the zygote after that time without work."""
    asked = select.poll()
    asked.register(listening, select.POLLIN)
    busy_s = time.monotonic()
    while True:
        if asked.poll(1000 * min(_LOOK_S, kept_s)):
            order = _fork(listening)
            if order is not None:
                return order
        elif not (kept_s and _has_children()):
            if time.monotonic() - busy_s >= kept_s:
                return None
            continue
        busy_s = time.monotonic()


def _has_children() -> bool:
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return True
    return False


def _fork(listening: socket.socket) -> tuple[str, list[str]] | None:
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            packet, files, *_ = socket.recv_fds(connection, _PACKET_BYTES, 3)
        except OSError:
            return None
        pid = os.fork() if packet and not _is_left(files[2:]) else None
        if pid == 0:
            listening.close()
            connection.close()
            return _become(packet, files)
        for each in files:
            os.close(each)
        with suppress(OSError):  # not everybody waits
            connection.send(b"1")
    return None


def _is_left(handed: Sequence[int]) -> bool:
    """Whether nobody has the other end of what a process is to be handed."""
    ends = select.poll()
    for file in handed:
        ends.register(file, 0)  # an end that was closed is told of all the same
    return bool(ends.poll(0))


def _become(packet: bytes, files: Sequence[int]) -> tuple[str, list[str]]:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    read, written, *handed = files
    for file, number in ((read, 0), (written, 1), (written, 2)):
        os.dup2(file, number)
    os.close(read)
    os.close(written)
    gc.enable()
    where, module, arguments, own = pickle.loads(packet)
    os.chdir(where)  # the zygote's may have been removed, and this one made in its place
    importlib.invalidate_caches()  # modules may have come since
    arguments = [*arguments, *map(str, handed)]
    command = python_module(module, *arguments)
    del os.environ[_ROOM]
    os.environ.update(own)
    if holds_gpu(open_files()):  # what an import has begun on a GPU does not survive a fork
        for file in handed:
            os.set_inheritable(file, True)
        os.execv(sys.executable, command)
    _show(command, own)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # Python's own generator is seeded at a fork
    tell_children()
    return module, arguments


def _show(command: Sequence[str], own: Mapping[str, str]) -> None:
    """Have the kernel tell others this process's command, and its environment, as of a program.

    It reads both where it once put them (`proc_pid_stat(5)`): arguments, the last of which is
    blank, and variables, the first of which is there to be written over.
    """
    first_argument, end, first_variable = _shown_at()
    shown = os.fsencode("\0".join(command))[: end - first_argument - 1]
    ctypes.memset(first_argument, 0, end - first_argument)
    ctypes.memmove(first_argument, shown, len(shown))
    shown = _shown(own) + f"{_ROOM}=".encode()  # and what is left of it
    ctypes.memmove(first_variable, shown, len(shown))


def _shown(own: Mapping[str, str]) -> bytes:
    """A process's own variables as the kernel shows them, without secrets."""
    apart = own.get(APART, "").split()
    lines = (f"{name}={own[name]}\0" for name in sorted(own) if name not in apart)
    return os.fsencode("".join(lines))


def _shown_at() -> tuple[int, int, int]:
    """Addresses of the first argument, of what follows the last, and of the first variable."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[47])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
