"""The child's side of a fork server: a process that has imported what its children need.

A process that imports PyTorch takes seconds of a core and thousands of files, and its modules take
memory, in each rank anew. A fork of one that has imported them is there in milliseconds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_PR_SET_NAME = 15

IDLE_S = 30.0
"""Seconds without a child after which a server ends."""

_READ_BYTES = 1 << 16
_MOST_FILES = 1  # the kernel never joins what came with files of its own
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def line(self) -> bytes:
        """As a line on the socket."""
        return self.model_dump_json().encode() + b"\n"


class ForkRequest(_Message):
    """A process that the server is asked for."""

    number: int
    """What answers call it."""
    name: str
    """Name of the process, as `top` and `ps -o comm` show it; 15 bytes at most."""
    command: tuple[str, ...]
    """Program and arguments of a process that does the same without the server."""
    env: dict[str, str]
    """Environment variables on top of the server's."""
    log: str
    """File to which standard output and error are appended."""
    has_input: bool = False
    """Whether a file descriptor came with the request, which becomes standard input."""


class ForkAnswer(_Message):
    """What became of a process: it was started, or has ended."""

    number: int
    """The request's number."""
    pid: int
    """Its process id."""
    code: int | None = None
    """Exit code, minus the signal number when a signal ended it; null while it runs."""


def readable(sources: Sequence[socket.socket], timeout_s: float | None) -> list[socket.socket]:
    """Those of some sockets, of any number, that have something to read or are closed.

    Args:
        sources: The sockets.
        timeout_s: How long to wait for one; None: until there is one.
    """
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    ready = {file for file, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
    return [source for source in sources if source.fileno() in ready]


class Lines:
    """The lines that come from a socket.

    Args:
        connection: The socket; whoever asks for lines has seen that there is something to read.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._begun = b""
        self.is_open = True
        """Whether more may come."""
        self.files: list[int] = []
        """File descriptors that have come with lines, in their order; whoever uses one takes it."""

    def take(self) -> list[bytes]:
        """Read once; give the lines that are whole."""
        try:
            read, files, *_ = socket.recv_fds(
                self._connection, _READ_BYTES, _MOST_FILES, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:  # the other side was killed
            read, files = b"", []
        self.files += files
        self.is_open = bool(read)
        *whole, self._begun = (self._begun + read).split(b"\n")
        return whole


@dataclass
class _Server:
    """What the server holds, and its children must let go."""

    connection: socket.socket
    lines: Lines
    woken: socket.socket
    waker: socket.socket
    running: dict[int, int] = field(default_factory=dict)

    def watch_children(self) -> None:
        self.woken.setblocking(False)
        self.waker.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def let_go(self) -> None:
        """In a child: nothing of the server is left."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self.connection, self.woken, self.waker):
            each.close()
        for file in self.lines.files:  # of requests still to come
            os.close(file)

    def reap(self) -> None:
        """Tell of the children that have ended."""
        while readable([self.woken], 0):
            self.woken.recv(_READ_BYTES)
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            self.tell(ForkAnswer(number=self.running.pop(pid), pid=pid, code=code))

    def tell(self, answer: ForkAnswer) -> None:
        self.connection.sendall(answer.line())


def forked(connection: socket.socket, idle_s: float = IDLE_S) -> ForkRequest | None:
    """Fork a process for each request; call it when all is imported, before any thread starts.

    Args:
        connection: The server's end of a pair of stream sockets.
        idle_s: Seconds without a child after which the server has done its work.

    Returns:
        In each forked process what it is to do; its environment, input, output, name and process
        group are set.
        In the server None, when nobody needs it any more.
    """
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, all pages of the server
    woken, waker = socket.socketpair()
    lines = Lines(connection)
    server = _Server(connection, lines, woken, waker)
    server.watch_children()
    while lines.is_open or server.running:
        sources = [woken, connection] if lines.is_open else [woken]
        ready = readable(sources, None if server.running else idle_s)
        if not ready:
            connection.shutdown(
                socket.SHUT_RD
            )  # later requests fail at once, earlier ones are read
        for line in lines.take() if connection in ready else ():
            request = ForkRequest.model_validate_json(line)
            if _fork(server, request):
                return request
        server.reap()
    return None


def _fork(server: _Server, request: ForkRequest) -> bool:
    """Whether this is the child."""
    given = server.lines.files.pop(0) if request.has_input else None
    pid = os.fork()
    if pid == 0:
        server.let_go()
        _become(request, given)
        return True
    if given is not None:
        os.close(given)
    os.setpgid(pid, pid)  # as the child does: whoever is first, it is done before it is told
    server.running[pid] = request.number
    server.tell(ForkAnswer(number=request.number, pid=pid))
    return False


def _become(request: ForkRequest, given: int | None) -> None:
    os.setpgid(0, 0)
    os.environ.update(request.env)
    if given is not None:
        os.dup2(given, 0)
        os.close(given)
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    if holds_gpu(_open_files()):  # what an import has begun on a GPU does not survive a fork
        os.execvp(request.command[0], request.command)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, request.name.encode(), 0, 0, 0)


def holds_gpu(files: Iterable[str]) -> bool:
    """Whether a process with these open files has begun to use a GPU."""
    return any(file.startswith(_GPUS) for file in files)


def _open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:  # the listing's own
            continue
    return found
