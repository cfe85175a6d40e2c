"""A private PostgreSQL server for tests: own temporary folder, unix socket, gone with the test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from headrace.processes.identity import die_with_parent
from support.waiting import wait_until

_DEBIAN_FOLDERS = "usr/lib/postgresql/*/bin"
_START_S = 60.0


@dataclass
class PostgresServer:
    """A server."""

    folder: Path
    """Folder of its socket and data."""
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        folder, user = self.folder, _user()
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_programs() / "postgres", "-D", folder / "data", "-k", folder, "-c",
                 "listen_addresses=", "-c", "fsync=off"],
                cwd=folder, stdout=log, stderr=log, user=user, group=user, extra_groups=_none(user),
                preexec_fn=lambda: die_with_parent(signal.SIGQUIT),
            )  # fmt: skip
        wait_until(self.is_ready, _START_S, "PostgreSQL to take connections")

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=90)

    def new_database(self, template: str = "template1") -> str:
        """Make a copy of an empty or other database; the password in its URL is not needed."""
        name = f"test_{uuid.uuid4().hex}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql://postgres:secret@/{name}?host={self.folder}"

    def connect(self, database: str) -> psycopg.Connection:
        """Open a connection that commits each statement by itself."""
        return psycopg.connect(
            host=str(self.folder), user="postgres", dbname=database, autocommit=True
        )

    def is_ready(self) -> bool:
        """Whether it takes connections."""
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server; skip the test when PostgreSQL is not installed."""
    programs, user = _programs(), _user()
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-", dir="/tmp"))  # short: socket path
    if user:
        shutil.chown(folder, user, user)
    running = PostgresServer(folder)
    try:
        _run([programs / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E",
              "UTF8", "--locale=C.UTF-8", "--no-sync"], folder, user)  # fmt: skip
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)


def _programs() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/").glob(_DEBIAN_FOLDERS))
    if not folders:
        pytest.skip(f"PostgreSQL is not installed: no initdb on PATH or in /{_DEBIAN_FOLDERS}")
    return folders[-1]


def _user() -> str | None:
    """PostgreSQL refuses to run as root; Debian's package makes a user for it."""
    return "postgres" if os.geteuid() == 0 else None


def _none(user: str | None) -> list[str] | None:
    return [] if user else None


def _run(command: list[Path | str], folder: Path, user: str | None) -> None:
    subprocess.run(
        command, cwd=folder, user=user, group=user, extra_groups=_none(user),
        check=True, capture_output=True,
    )  # fmt: skip
