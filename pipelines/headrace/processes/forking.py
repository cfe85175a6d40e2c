"""A server that has imported modules, and forks the processes that need them in milliseconds.

The server is `python -m headrace.processes.forking IDLE_S FILE MODULE… [BLANK]`, with a socket as
standard input. A packet on it holds a `Child`, and comes with the writing end of a pipe and with
the child's files. The fork reports its process id through the pipe, the server its exit code. A
process whose requester closes the pipe before the fork is never forked.

A server has one of two lifetimes:

- That of the process that started it, which holds the other end of its socket. The server ends with
  it, or when it is idle; it kills a fork whose pipe is closed, and the kernel ends its forks with
  it.
- Its own, as a *zygote*: its socket listens at FILE for all processes that would import the same.
  It ends when it is idle. Its forks outlive it and their requesters.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from filelock import FileLock

from headrace.processes.children import Child, Program, signal_group
from headrace.processes.identity import (
    die_with_parent,
    holds_gpu,
    set_name,
    take_input,
    tell_children,
)

APART = "HEADRACE_SECRETS"
"""Environment variable: names of variables that no zygote may have, separated by spaces."""

SPACE = "HEADRACE_ROOM"
"""First environment variable of a zygote, in whose place its forks show their own."""

SPACE_BYTES, BLANK = 8192, 1024 * " "
"""Bytes for the own environment of a fork; a zygote's last argument, with room for a command."""

TIMEOUT_S = 10.0
"""Time that a request to a zygote may take."""

_REAP_S = 0.05
_MOST_OF_A_PACKET = 1 << 18, 3, socket.MSG_CMSG_CLOEXEC


class _ForkedProcess:
    """A `Process` that was requested; `pid` as of the last report read."""

    def __init__(self, reports: Connection, server: Program | None) -> None:
        self._reports = reports
        self._server = server
        self.pid: int | None = None
        self._code: int | None = None

    def poll(self, timeout_s: float = 0) -> int | None:
        while self._code is None and self._reports.poll(timeout_s):
            try:
                self.pid, self._code = self._reports.recv()
            except (EOFError, OSError):  # the server has ended, and the kernel ends all with it
                code = 0 if self._server is None else self._server.wait()
                self._code = code or -signal.SIGKILL
            timeout_s = 0
        return self._code

    def is_forked(self, timeout_s: float) -> bool:
        """Whether it was forked within a time; if not, it never is."""
        self.poll(timeout_s)
        return self._pid_or_abandon(signal.SIGTERM) is not None

    def send_signal(self, sig: signal.Signals) -> None:
        pid = self._pid_or_abandon(sig)
        if pid is not None and self._code is None:
            with suppress(ProcessLookupError):
                os.kill(pid, sig)

    def signal_group(self, sig: signal.Signals) -> None:
        if (pid := self._pid_or_abandon(sig)) is not None:
            signal_group(pid, sig)

    def _pid_or_abandon(self, sig: signal.Signals) -> int | None:
        """Return the process id; a process that was not forked yet never is."""
        if self.poll() is None and self.pid is None:
            self._code = -sig
            self._reports.close()
        return self.pid


def request(
    connection: socket.socket, child: Child, server: Program | None = None
) -> _ForkedProcess | None:
    """Request a process from a server; return None if the server has ended, or is about to."""
    reports, sender = Pipe(duplex=False)
    files = [each for each in (child.input, child.output) if each is not None]
    with sender:
        try:
            socket.send_fds(connection, [pickle.dumps(child)], [sender.fileno(), *files])
        except OSError:
            reports.close()
            return None
    return _ForkedProcess(reports, server)


class ForkServer:
    """Forks processes on request; `file` is a zygote's."""

    def __init__(self, channel: socket.socket, file: str = "") -> None:
        self._channel, self._file = channel, file
        self._is_open = True
        self._running: dict[int, Connection] = {}

    def serve(self, idle_s: float) -> Child | None:
        """Fork a process for each request; call this before any thread starts.

        Returns the child to become in each fork, and None in the server: `idle_s` seconds after its
        last fork has ended, or when its requester has ended. A zygote does not wait for its forks
        if `idle_s` is 0.
        """
        packets = select.poll()
        packets.register(self._channel, select.POLLIN)
        while self._is_open or self._running:
            is_busy = bool(self._running) and (idle_s > 0 or not self._file)
            if not self._is_open:
                time.sleep(_REAP_S)
            elif packets.poll(1000 * (_REAP_S if is_busy else idle_s)):
                if (child := self._fork()) is not None:
                    return child
            elif not is_busy:
                break
            self._reap()
        return None

    def close(self) -> Child | None:
        """Refuse later requests, and return as `serve` does for those from before that."""
        if self._file:
            with FileLock(Path(self._file).with_name("lock"), TIMEOUT_S, mode=0o600):
                Path(self._file).unlink(missing_ok=True)
                Path(self._file).with_suffix(".pid").unlink(missing_ok=True)
        else:
            self._channel.shutdown(socket.SHUT_RD)
        return self.serve(0)

    def _reap(self) -> None:
        """Report the ends of forks, and kill forks whose requesters have ended."""
        for pid, sender in list(self._running.items()):
            if not self._file and not _has_reader(sender):
                signal_group(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _report(self._running.pop(pid), pid, os.waitstatus_to_exitcode(status))
                sender.close()

    def _fork(self) -> Child | None:
        """Fork the child of a packet; return it in the child, None in the server."""
        packet, files = self._received()
        if not packet:
            return None
        child: Child = pickle.loads(packet)
        sender, given = Connection(files[0], readable=False), files[1:]
        pid = os.fork() if _has_reader(sender) else None  # the requester may have ended meanwhile
        if pid == 0:
            os.setsid()
            _report(sender, os.getpid())  # now signals to its group reach it
            self._channel.close()
            for each in (sender, *self._running.values()):
                each.close()
            _become(child, given)
            return child
        for file in given:
            os.close(file)
        if pid is None:
            sender.close()
        else:
            self._running[pid] = sender
        return None

    def _received(self) -> tuple[bytes, list[int]]:
        """Return a packet and its files; the packet is empty if its requester has ended."""
        connection = self._channel
        if self._file:
            connection, _ = self._channel.accept()
            connection.settimeout(TIMEOUT_S)
        try:
            packet, files, *_ = socket.recv_fds(connection, *_MOST_OF_A_PACKET)
        except OSError:
            packet, files = b"", []
        if self._file:
            connection.close()
        self._is_open = bool(packet or self._file)
        return packet, files


def _has_reader(sender: Connection) -> bool:
    pipe = select.poll()
    pipe.register(sender, 0)  # errors are always reported: the reader has closed it
    return not pipe.poll(0)


def _report(sender: Connection, pid: int, code: int | None = None) -> None:
    with suppress(BrokenPipeError):
        sender.send((pid, code))


def _become(child: Child, given: Sequence[int]) -> None:
    """Give this process the folder, environment, files, name and command of a child."""
    if child.folder is not None:
        os.chdir(child.folder)  # that of the server may have been removed and made again
    files = iter(given)
    write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    read = os.open(os.devnull, os.O_RDONLY) if child.input is None else next(files)
    written = os.open(child.log, write, 0o666) if child.output is None else next(files)
    for file, number in ((read, 0), (written, 1), (written, 2)):
        os.dup2(file, number)
    os.close(read)
    os.close(written)
    gc.enable()
    importlib.invalidate_caches()  # modules may be new
    shows_own = os.environ.pop(SPACE, None) is not None
    os.environ.update(child.env)
    if holds_gpu():  # state of a GPU, begun by an import, does not survive a fork
        os.execvp(child.command[0], child.command)
    set_name(child.name)
    if shows_own:
        _show(child)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # Python's own generator is seeded at a fork
    tell_children()


def _show(child: Child) -> None:
    """Make the kernel show this process's command and environment as those of a program.

    The kernel reads both from the memory of the first ones (`proc_pid_stat(5)`): the last argument
    is blank, and the first variable is a placeholder to be overwritten.
    """
    first_argument, end, first_variable = _shown_at()
    shown = os.fsencode("\0".join(child.command))[: end - first_argument - 1]
    ctypes.memset(first_argument, 0, end - first_argument)
    ctypes.memmove(first_argument, shown, len(shown))
    shown = shown_environment(child.env) + f"{SPACE}=".encode()  # with the rest of the placeholder
    ctypes.memmove(first_variable, shown, len(shown))


def shown_environment(own: Mapping[str, str]) -> bytes:
    """Return the own variables of a zygote's fork as the kernel shows them, without secrets."""
    apart = own.get(APART, "").split()
    lines = (f"{name}={own[name]}\0" for name in sorted(own) if name not in apart)
    return os.fsencode("".join(lines))


def _shown_at() -> tuple[int, int, int]:
    """Return the addresses of the first argument, the end of the last, and the first variable."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46]), int(fields[47])


def _forked(server: ForkServer, file: str, idle_s: float, modules: Sequence[str]) -> Child | None:
    """Import the modules, and call the function `load` of each that has one; then serve.

    A fork of a zygote that needs only the first modules does not wait for the later ones.
    """
    gc.disable()  # what is imported stays
    importlib.import_module(modules[0])  # no fork can do without it
    for module in modules:
        try:
            getattr(importlib.import_module(module), "load", lambda: None)()
        except Exception:  # a fork that needs it fails the same, and logs it
            if not file:
                raise
        gc.freeze()  # a collection in a fork would write to, and so copy, all pages of the server
        if file and (child := server.serve(0)) is not None:
            return child
    return server.serve(idle_s) or server.close()


def main(arguments: list[str]) -> int:
    """Run a server, and each process forked from it: the function `main` of the child's module."""
    idle_s, file, *words = arguments
    if file and not all(_shown_at()):
        return 1  # not all kernels report them; without them a lease cannot find its processes
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide the ends of forks
    server = ForkServer(socket.socket(fileno=take_input()), file)
    child = _forked(server, file, float(idle_s), [word for word in words if word != BLANK])
    if child is None:
        os._exit(0)
    sys.argv = list(child.command[4:])
    code: int = importlib.import_module(sys.argv[0]).main(sys.argv[1:])
    return code


if __name__ == "__main__":
    if not sys.argv[2]:
        die_with_parent()
    sys.exit(main(sys.argv[1:]))
