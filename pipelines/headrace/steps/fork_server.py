"""The parent's side of a fork server: starts it, asks it for processes, hears how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.errors import WorkerLostError
from headrace.steps.children import Child, Process, signal_group
from headrace.steps.forking import ForkAnswer, ForkRequest, Lines, readable

_LISTEN_S = 1.0


class ForkServer:
    """A process that has imported a module, and forks children that run it.

    Args:
        module: Run as `python -u -m MODULE FD`; it calls `headrace.steps.forking.forked`.
        env: The whole environment.
        log: Standard output and error until it forks are appended here.
    """

    def __init__(self, module: str, env: Mapping[str, str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        self._connection = ours
        self._lines = Lines(ours)
        self._lock = threading.RLock()
        self._answers: dict[int, ForkAnswer] = {}
        self._num_asked = 0
        command = (sys.executable, "-u", "-m", module, str(theirs.fileno()))
        start = partial(_start, command, theirs.fileno(), env, log)
        started: Future[subprocess.Popen[bytes]] = Future()
        # the kernel ties the server's life to the thread that starts it
        threading.Thread(target=self._hold, args=(start, started), name=module, daemon=True).start()
        with theirs:
            self._process = started.result()

    def ask(self, child: Child, env: Mapping[str, str]) -> ForkedProcess | None:
        """Ask for a process; the server may still be busy with its imports.

        Args:
            child: What is wanted.
            env: Environment variables on top of the server's.

        Returns:
            None when the server has ended.
        """
        with self._lock:
            request = ForkRequest(
                number=self._num_asked,
                name=child.name,
                command=child.command,
                env=dict(env),
                log=str(child.log),
                has_input=child.input is not None,
            )
            try:
                _send(self._connection, request.line(), child.input)
            except OSError:  # it has ended, or is about to
                self._listen(0)
                return None
            self._num_asked += 1
            return ForkedProcess(self, request.number)

    def last_of(self, number: int, timeout_s: float = 0) -> ForkAnswer | None:
        """What is known of a process; None before it was forked.

        Args:
            number: Number of the request.
            timeout_s: How long to wait for news.
        """
        with self._lock:
            self._listen(timeout_s)
            answer = self._answers.get(number)
            if not self._lines.is_open and (answer is None or answer.code is None):
                pid = 0 if answer is None else answer.pid
                code = self._process.wait() or -signal.SIGKILL  # the kernel ends all with it
                answer = self._answers[number] = ForkAnswer(number=number, pid=pid, code=code)
            return answer

    def give_up(self) -> None:
        """End a server that has forked nothing yet."""
        with self._lock:
            if not self._answers:
                self._process.kill()

    def _hold(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        started: Future[subprocess.Popen[bytes]],
    ) -> None:
        try:
            process = start()
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()
        with self._lock:
            self._listen(0)  # to the last word

    def _listen(self, timeout_s: float) -> None:
        while self._lines.is_open and readable([self._connection], timeout_s):
            for line in self._lines.take():
                answer = ForkAnswer.model_validate_json(line)
                self._answers[answer.number] = answer
            timeout_s = 0
        if not self._lines.is_open:
            self._connection.close()


class ForkedProcess:
    """A process that a fork server was asked for; a `Process` of a `ChildGroup`."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server = server
        self._number = number

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        answer = self._server.last_of(self._number)
        return None if answer is None else answer.code

    def wait(self) -> int:
        """Wait for its end; gives the exit code."""
        while (code := self.poll()) is None:
            self._server.last_of(self._number, _LISTEN_S)
        return code

    def send_signal(self, sig: signal.Signals) -> None:
        """Signal the process, if it runs."""
        pid = self._pid()
        if pid and self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(pid, sig)

    def signal_group(self, sig: signal.Signals) -> None:
        """Signal the process and all that it started and that did not leave its group."""
        pid = self._pid()
        if pid:
            signal_group(pid, sig)

    def _pid(self) -> int:
        """Process id; 0 when it never came to be: a server that still imports is ended."""
        self._server.give_up()
        while (answer := self._server.last_of(self._number)) is None:
            self._server.last_of(self._number, _LISTEN_S)
        return answer.pid


class ForkServers:
    """The fork servers of this process, one for each environment; they end when nobody needs them.

    Args:
        module: What they run.
        varying: Names of the environment variables that the module's import does not look at.
    """

    def __init__(self, module: str, varying: frozenset[str]) -> None:
        self._module = module
        self._varying = varying
        self._lock = threading.Lock()
        self._servers: dict[frozenset[tuple[str, str]], ForkServer] = {}

    def start(self, child: Child) -> Process:
        """Start a child from a server with its environment.

        Raises:
            WorkerLostError: The server ended before it could be asked.
        """
        env = {**os.environ, **child.env}
        child.log.parent.mkdir(parents=True, exist_ok=True)
        own = {name: env.pop(name) for name in self._varying if name in env}
        key = frozenset(env.items())
        with self._lock:
            server = self._servers.get(key)
            process = None if server is None else server.ask(child, own)
            if process is None:  # there is none, or it has ended for want of work
                server = self._servers[key] = ForkServer(self._module, env, child.log)
                process = server.ask(child, own)
        if process is None:
            raise WorkerLostError(f"{self._module} ended at once", f"See {child.log}.")
        return process


def _send(connection: socket.socket, line: bytes, file: int | None) -> None:
    sent = 0 if file is None else socket.send_fds(connection, [line], [file])
    connection.sendall(line[sent:])


def _start(
    command: tuple[str, ...], connection: int, env: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            pass_fds=(connection,),
            start_new_session=True,
        )
