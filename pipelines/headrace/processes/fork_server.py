"""The fork servers of a process: each ends with it, or when it is idle."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headrace.errors import WorkerLostError
from headrace.processes import zygote
from headrace.processes.children import Child, Process, start_program
from headrace.processes.forking import request
from headrace.processes.working_folder import python_module

IDLE_S = 30.0
"""Seconds without a child after which a server ends."""


class ForkServers:
    """The fork servers of this process, one per environment.

    Args:
        module: Imported by the servers, which call its function `load` if it has one.
        varying: Names of the environment variables that the module's import does not read.
        base: Environment to which a child's is added, by default this process's at that moment.
        imported: Modules of the zygote that servers are forked from, if zygotes are in use.
        idle_s: Seconds without a child after which a server ends.
    """

    def __init__(
        self,
        module: str,
        varying: frozenset[str],
        base: Mapping[str, str] = os.environ,
        imported: Sequence[str] = (),
        idle_s: float = IDLE_S,
    ) -> None:
        command = python_module("headrace.processes.forking", f"{idle_s:g}", "", module)
        self._server = partial(Child, name=module.rpartition(".")[2], command=command)
        self._imported = imported
        self._varying = varying
        self._base = base
        self._lock = threading.Lock()
        self._servers: dict[frozenset[tuple[str, str]], _Server] = {}

    def warm_up(self) -> None:
        """Start the server of the base environment before the first child is requested.

        Its output until it forks goes to this process's output.
        """
        env, _ = self._divided({})
        server = self._server(env=env, log=Path(os.devnull), output=1)
        with self._lock:
            self._servers[frozenset(env.items())] = _Server(server, self._imported)

    def start(self, child: Child) -> Process:
        """Start a child from the server of its environment, which may still be importing.

        The child's command is that of `python_module`: the fork calls the module's
        `main(arguments)`.
        """
        env, own = self._divided(child.env)
        child.log.parent.mkdir(parents=True, exist_ok=True)
        asked = replace(child, env=own)
        key = frozenset(env.items())
        with self._lock:
            server = self._servers.get(key)
            process = None if server is None else server.ask(asked)
            if process is None:  # no server, or it has ended because it was idle
                started = self._server(env=env, log=child.log)
                server = self._servers[key] = _Server(started, self._imported)
                process = server.ask(asked)
        if process is None:
            raise WorkerLostError(f"The server of {child.name} ended at once", f"See {child.log}.")
        return process

    def _divided(self, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Split an environment into a server's, and the part that only its child has."""
        whole = {**self._base, **env}
        own = {name: whole.pop(name) for name in self._varying if name in whole}
        return whole, own


class _Server:
    """A server's socket; the server's output before a fork goes to the first child's log."""

    def __init__(self, server: Child, imported: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = replace(server, input=theirs.fileno())
            self._forked = zygote.fork(imported, server, wait=False) if imported else None
            self._program = None if self._forked else start_program(server, {})

    def ask(self, child: Child) -> Process | None:
        """Request a process; return None if the server has ended, or is about to."""
        return request(self._connection, child, self._program)

    def __del__(self) -> None:
        self._connection.close()
