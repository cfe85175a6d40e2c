"""A process that has imported what its children need, and forks them in milliseconds.

The parent requests a child by a packet on a socket pair, with the writing end of a pipe: the server
reports the child's process id and, later, its exit code. It kills a child whose pipe is closed.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.errors import WorkerLostError
from headrace.processes import zygote
from headrace.processes.children import Child, Process, signal_group
from headrace.processes.identity import holds_gpu, open_files, set_name
from headrace.processes.working_folder import python_module

IDLE_S = 30.0
"""Seconds without a child after which a server ends."""

_REAP_S = 0.05
_PACKET_BYTES = 1 << 18

_Program = subprocess.Popen[bytes]


class ForkServers:
    """The fork servers of this process, one per environment; each ends when it is idle.

    Args:
        module: Run as a program with the argument `FD`; it calls `forked` after its imports.
        varying: Names of the environment variables that the module's import does not read.
        base: Environment to which a child's is added, by default this process's at that moment.
        imported: Modules of the zygote that servers are forked from, if zygotes are in use.
    """

    def __init__(
        self,
        module: str,
        varying: frozenset[str],
        base: Mapping[str, str] = os.environ,
        imported: Sequence[str] = (),
    ) -> None:
        self._start = partial(_Server, module, imported)
        self._module = module
        self._varying = varying
        self._base = base
        self._lock = threading.Lock()
        self._servers: dict[frozenset[tuple[str, str]], _Server] = {}

    def warm_up(self) -> None:
        """Start the server of the base environment before the first child is requested.

        Its output until it forks goes to this process's output.
        """
        env, _ = self._divided({})
        with self._lock:
            self._servers[frozenset(env.items())] = self._start(env, None)

    def start(self, child: Child) -> Process:
        """Start a child from the server of its environment, which may still be importing."""
        env, own = self._divided(child.env)
        child.log.parent.mkdir(parents=True, exist_ok=True)
        asked = replace(child, env=own)
        key = frozenset(env.items())
        with self._lock:
            server = self._servers.get(key)
            process = None if server is None else server.ask(asked)
            if process is None:  # no server, or it has ended because it was idle
                server = self._servers[key] = self._start(env, child.log)
                process = server.ask(asked)
        if process is None:
            raise WorkerLostError(f"{self._module} ended at once", f"See {child.log}.")
        return process

    def _divided(self, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Split an environment into a server's, and the part that only its child has."""
        whole = {**self._base, **env}
        own = {name: whole.pop(name) for name in self._varying if name in whole}
        return whole, own


class _Server:
    """The parent's side of a server; its output before a fork goes to the first child's log."""

    def __init__(
        self, module: str, imported: Sequence[str], env: Mapping[str, str], log: Path | None
    ) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = zygote.Fork(module=module, arguments=(), environment=env)
        with (
            theirs,
            open(os.devnull) as nothing,
            open(1, "ab", closefd=False) if log is None else log.open("ab") as output,
        ):
            files = [each.fileno() for each in (nothing, output, theirs)]
            is_forked = bool(imported) and zygote.fork(imported, order, files, wait=False)
            self._process = None if is_forked else self._program(module, env, files)

    def _program(self, module: str, env: Mapping[str, str], files: Sequence[int]) -> _Program:
        read, written, theirs = files
        started: Future[_Program] = Future()
        start = partial(
            subprocess.Popen,
            python_module(module, str(theirs)),
            stdin=read,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=env,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        # the kernel ties the server's life to the thread that starts it
        threading.Thread(target=self._hold, args=(start, started), daemon=True).start()
        return started.result()

    def ask(self, child: Child) -> _ForkedProcess | None:
        """Request a process; return None if the server has ended, or is about to."""
        reports, sender = Pipe(duplex=False)
        files = [sender.fileno()] + ([] if child.input is None else [child.input])
        with sender:
            try:
                socket.send_fds(self._connection, [pickle.dumps(child)], files)
            except OSError:
                reports.close()
                return None
        return _ForkedProcess(reports, self._process)

    def _hold(self, start: Callable[[], _Program], started: Future[_Program]) -> None:
        with self._connection:
            try:
                process = start()
            except OSError as error:
                started.set_exception(error)
                return
            started.set_result(process)
            process.wait()


class _ForkedProcess:
    """A `Process` that was requested from a server; `pid` as of the last report read."""

    def __init__(self, reports: Connection, server: _Program | None) -> None:
        self._reports = reports
        self._server = server
        self._lock = threading.Lock()
        self.pid: int | None = None
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._read_reports(0)

    def wait(self) -> int:
        while (code := self._read_reports(None)) is None:
            pass
        return code

    def send_signal(self, sig: signal.Signals) -> None:
        if self._poll_or_abandon(sig) is None and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def signal_group(self, sig: signal.Signals) -> None:
        self._poll_or_abandon(sig)
        if self.pid is not None:
            signal_group(self.pid, sig)

    def _read_reports(self, timeout_s: float | None) -> int | None:
        with self._lock:
            while self._code is None and self._reports.poll(timeout_s):
                self._read_report()
                timeout_s = 0
            return self._code

    def _read_report(self) -> None:
        try:
            number: int = self._reports.recv()
        except (EOFError, OSError):  # the server has ended, and the kernel ends all with it
            code = 0 if self._server is None else self._server.wait()
            self._end(code or -signal.SIGKILL)
            return
        if self.pid is None:
            self.pid = number
        else:
            self._end(number)

    def _poll_or_abandon(self, sig: signal.Signals) -> int | None:
        """Return the exit code, None while it runs; a process that was not forked yet never is."""
        self._read_reports(0)
        with self._lock:
            if self.pid is None and self._code is None:
                self._end(-sig)
            return self._code

    def _end(self, code: int) -> None:
        self._code = code
        self._reports.close()


def forked(connection: socket.socket, idle_s: float = IDLE_S) -> Child:
    """Fork a process for each packet; call this before any thread starts.

    It returns only in forked processes: the child to become. The server exits here: when the parent
    has closed the socket pair, whose end is `connection`, or `idle_s` seconds after the last child.
    """
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, all pages of the server
    running: dict[int, Connection] = {}
    packets = select.poll()
    packets.register(connection, select.POLLIN)
    is_open = True
    while is_open or running:
        is_ready = bool(packets.poll(1000 * (_REAP_S if running else idle_s)))
        if is_ready and is_open:
            packet, files = _received(connection)
            is_open = bool(packet)
            if not packet:
                packets.unregister(connection)
            elif (child := _fork(connection, running, packet, files)) is not None:
                return child
        elif not running:  # later requests fail immediately, earlier ones are still read
            connection.shutdown(socket.SHUT_RD)
        _reap(running)
    os._exit(0)


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    try:
        packet, files, *_ = socket.recv_fds(connection, _PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # the other side was killed
        return b"", []
    return packet, files


def _fork(
    connection: socket.socket, running: dict[int, Connection], packet: bytes, files: list[int]
) -> Child | None:
    """Fork the child of a packet; return it in the child, None in the server."""
    child: Child = pickle.loads(packet)
    sender, given = Connection(files[0], readable=False), files[1:]
    pid = os.fork() if _has_reader(sender) else None  # the requester may have ended meanwhile
    if pid == 0:
        connection.close()
        for each in (sender, *running.values()):
            each.close()
        _become(child, given)
        return child
    for file in given:
        os.close(file)
    if pid is None:
        sender.close()
        return None
    with suppress(OSError):  # the child does so too: it must be done before the report
        os.setpgid(pid, pid)
    running[pid] = sender
    _report(sender, pid)
    return None


def _reap(running: dict[int, Connection]) -> None:
    """Report the ends of children, and kill children whose pipe has no reader."""
    for pid, sender in list(running.items()):
        if not _has_reader(sender):
            signal_group(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _report(running.pop(pid), os.waitstatus_to_exitcode(status))
            sender.close()


def _has_reader(sender: Connection) -> bool:
    pipe = select.poll()
    pipe.register(sender.fileno(), 0)  # errors are always reported: the reader has closed it
    return not pipe.poll(0)


def _report(sender: Connection, number: int) -> None:
    with suppress(BrokenPipeError):
        sender.send(number)


def _become(child: Child, given: list[int]) -> None:
    os.setpgid(0, 0)
    os.environ.update(child.env)
    for file in given:
        os.dup2(file, 0)
        os.close(file)
    log = os.open(child.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    if holds_gpu(open_files()):  # state of a GPU, begun by an import, does not survive a fork
        os.execvp(child.command[0], child.command)
    set_name(child.name)
