"""Zygotes: processes that have imported modules, and are forked to save the imports.

A zygote outlives the lease that starts it, and ends when it has been idle for a while. Processes
share one only if they would import the same: interpreter, packages, environment, folder, control
group, limits. A forked process shows its own command and environment, and outlives the zygote.
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

KEEP_WARM = "HEADRACE_ZYGOTE_S"
"""Environment variable: seconds for which an idle zygote stays; without it, none is used."""

APART = "HEADRACE_SECRETS"
"""Environment variable: names of variables that no zygote may have, separated by spaces."""

_NAME = "headrace.processes.zygote"
_SPACE = "HEADRACE_ROOM"
_SPACE_BYTES, _BLANK = 8192, 1024 * " "
_OF_EACH = ("HEADRACE_", "AIRFLOW_CTX_", "PYTEST_", "SSH_", "__DASK_")
_OF_SHELLS = frozenset(("PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES", "WINDOWID"))
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user")
_PACKET_BYTES = 1 << 18
_TIMEOUT_S = 10.0
_MOST = 6
"""Zygotes of an account: two for each of three environments, of hosts and of ranks."""
_REAP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A process to fork, equal to `python -m MODULE ARGUMENT…` in its own session.

    It gets at most one file, whose number becomes its last argument.
    """

    module: str
    """It has a function `main(arguments)`."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """The whole environment."""


def fork(modules: Sequence[str], asked: Fork, files: Sequence[int], *, wait: bool) -> bool:
    """Fork a process from the zygote of some modules; start the zygote if needed.

    It imports `modules` in this order, and calls the function `load` of each that has one. `files`
    are standard input, standard output and error, and at most one more.

    Returns whether the process exists (with `wait`) or will; if not, start a program instead.
    """
    keep_s = asked.environment.get(KEEP_WARM, "0")
    if float(keep_s) <= 0:
        return False
    shared, own = _divided(asked.environment)
    if len(_shown(own)) > _SPACE_BYTES:
        return False
    try:
        packet = pickle.dumps((os.getcwd(), asked.module, asked.arguments, own))
        with _connected((keep_s, *modules), shared) as connection:
            socket.send_fds(connection, [packet], files)
            return not wait or bool(connection.recv(1))
    except OSError:
        return False


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
        return process if _NAME in process.cmdline() else None
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
    connection.settimeout(_TIMEOUT_S)
    try:
        with FileLock(folder() / "lock", _TIMEOUT_S, mode=0o600):
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(file))
        listening.listen()
        started = subprocess.Popen(
            python_module(_NAME, str(listening.fileno()), str(file), *arguments, _BLANK),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={_SPACE: "-" * _SPACE_BYTES, **environment},  # first, for its position in memory
            pass_fds=(listening.fileno(),),
            start_new_session=True,
        )
    # without a wait it would stay as a zombie if it ends first
    threading.Thread(target=started.wait, name=f"wait-{started.pid}", daemon=True).start()
    try:
        file.with_suffix(".pid").write_text(str(started.pid))
    except OSError:  # without the file it could not be found
        started.kill()
        raise


def _ended_idle(zygote: psutil.Process, file: Path) -> bool:
    """End a zygote that is idle, and was not asked within the time a request may take."""
    with suppress(psutil.NoSuchProcess):
        if time.time() - file.stat().st_mtime < _TIMEOUT_S or zygote.children():
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


def main(arguments: list[str]) -> int:
    """Entry point of a zygote, and of each process forked from it."""
    if not all(_shown_at()):
        return 1  # not all kernels report them; without them a lease cannot find its processes
    number, path, keep_s, *modules, _ = arguments
    listening = socket.socket(fileno=int(number))
    order = _forked(listening, Path(path), float(keep_s), modules)
    if order is None:
        return 0
    module, rest = order
    code: int = importlib.import_module(module).main(rest)
    return code


def _forked(
    listening: socket.socket, file: Path, keep_s: float, modules: Sequence[str]
) -> tuple[str, list[str]] | None:
    """Return the order of each forked process; None in the zygote when it is idle for too long.

    A process that needs only the first modules does not wait for the later ones.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes must leave no zombies
    gc.disable()
    importlib.import_module(modules[0])  # no process can do without it
    for module in modules:
        with suppress(Exception):  # a process that needs it fails the same, and logs it
            getattr(importlib.import_module(module), "load", lambda: None)()
        gc.freeze()
        if (order := _answered(listening, 0.0)) is not None:
            return order
    if (order := _answered(listening, keep_s)) is not None:
        return order
    with FileLock(file.with_name("lock"), _TIMEOUT_S, mode=0o600):
        file.unlink(missing_ok=True)
        file.with_suffix(".pid").unlink(missing_ok=True)
    return _answered(listening, 0.0)  # requests from before that


def _answered(listening: socket.socket, keep_s: float) -> tuple[str, list[str]] | None:
    """Return the order of each forked process; None in the zygote after `keep_s` idle."""
    asked = select.poll()
    asked.register(listening, select.POLLIN)
    busy_s = time.monotonic()
    while True:
        if asked.poll(1000 * min(_REAP_S, keep_s)):
            order = _fork(listening)
            if order is not None:
                return order
        elif not (keep_s and _has_children()):
            if time.monotonic() - busy_s >= keep_s:
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
        pid = os.fork() if packet and not _is_abandoned(files[2:]) else None
        if pid == 0:
            listening.close()
            connection.close()
            return _become(packet, files)
        for each in files:
            os.close(each)
        with suppress(OSError):  # not all requesters wait
            connection.send(b"1")
    return None


def _is_abandoned(handed: Sequence[int]) -> bool:
    """Whether the other end of a file for a process is closed."""
    ends = select.poll()
    for file in handed:
        ends.register(file, 0)  # a closed end is always reported
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
    os.chdir(where)  # the zygote's folder may have been removed and made again
    importlib.invalidate_caches()  # modules may be new
    arguments = [*arguments, *map(str, handed)]
    command = python_module(module, *arguments)
    del os.environ[_SPACE]
    os.environ.update(own)
    if holds_gpu(open_files()):  # state of a GPU, begun by an import, does not survive a fork
        for file in handed:
            os.set_inheritable(file, True)
        os.execv(sys.executable, command)
    _show(command, own)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # Python's own generator is seeded at a fork
    tell_children()
    return module, arguments


def _show(command: Sequence[str], own: Mapping[str, str]) -> None:
    """Make the kernel show this process's command and environment as those of a program.

    The kernel reads both from the memory of the first ones (`proc_pid_stat(5)`): the last argument
    is blank, and the first variable is a placeholder to be overwritten.
    """
    first_argument, end, first_variable = _shown_at()
    shown = os.fsencode("\0".join(command))[: end - first_argument - 1]
    ctypes.memset(first_argument, 0, end - first_argument)
    ctypes.memmove(first_argument, shown, len(shown))
    shown = _shown(own) + f"{_SPACE}=".encode()  # with the rest of the placeholder
    ctypes.memmove(first_variable, shown, len(shown))


def _shown(own: Mapping[str, str]) -> bytes:
    """Return a process's own variables as the kernel shows them, without secrets."""
    apart = own.get(APART, "").split()
    lines = (f"{name}={own[name]}\0" for name in sorted(own) if name not in apart)
    return os.fsencode("".join(lines))


def _shown_at() -> tuple[int, int, int]:
    """Return the addresses of the first argument, the end of the last, and the first variable."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[47])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
