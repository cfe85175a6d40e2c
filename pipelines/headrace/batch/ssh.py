"""Run the commands of a batch system on a login node, over one persistent SSH connection.

The connection belongs to OpenSSH's client (`ControlMaster`); all processes of a user share it.
Source: https://man.openbsd.org/ssh_config
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.batch.commands import CommandResult, LocalCommands
from headrace.errors import BatchError, LoginError
from headrace.recipe.batch import Login

LOST = 255
"""Exit code of `ssh` when the connection, not the command, failed."""

_SLOTS = 8
"""Commands at once; by default sshd allows 10 sessions per connection (MaxSessions)."""

_PERSIST = "10m"
_CONNECT_TIMEOUT_S = 15
_SLOT_PAUSE_S = 0.05

_BEGUN = "headrace: begun\n"

_SCRIPT = (
    f"echo '{_BEGUN.strip()}'; "
    'PATH="${1:+$1:}$PATH"; export PATH; shift; "$@"; code=$?; '
    f'if [ "$code" -eq {LOST} ]; then exit 254; fi; exit "$code"'
)
"""Runs the command; marks the start of its output, and leaves exit code 255 to ssh."""

_HINTS = (
    ("host key verification failed", "Log in once by hand with `{by_hand}` and compare the host "
     "key, so that it is in known_hosts."),
    ("permission denied", "headrace never asks for a password: use a key without a passphrase, or "
     "an agent; `{by_hand}` must work without a question."),
    ("could not resolve", "Correct `login.host` in the site."),
)  # fmt: skip
_HINT = "Run `{by_hand}` to see why."


class SshCommands:
    """Run commands on a login node, with environment variables set there.

    A command is stopped after `timeout_s`. The connection's socket is in `folder`, by default one
    per user; its path must be short, as for all sockets.
    """

    def __init__(
        self,
        login: Login,
        environment: Mapping[str, str],
        timeout_s: float = 60.0,
        folder: Path | None = None,
    ) -> None:
        self._login = login
        self._environment = dict(environment)
        self._timeout_s = timeout_s
        self._folder = folder or Path(f"/tmp/headrace-ssh-{os.getuid()}")
        identity = hashlib.sha256(login.model_dump_json().encode()).hexdigest()[:12]
        self.socket = self._folder / identity

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Run a command to its end; see `Commands`.

        Raises:
            LoginError: The login node cannot be reached; the command was not started.
            BatchError: The program does not exist there.
        """
        with self._slot():
            self._connect()
            answer = self._local().run(self._through(command), text)
        if answer.code == LOST:  # the command may have run before
            why = _last_line(answer.error) or "no reason given"
            return CommandResult(None, "", f"the connection to {self._login.host} was lost: {why}")
        if answer.code is None:
            waited = f"{command[0]} on {self._login.host} gave no answer in {self._timeout_s:g} s"
            return CommandResult(None, "", waited)
        _, begun, output = answer.output.partition(_BEGUN)
        if not begun:
            reason = _last_line(answer.error) or _last_line(answer.output) or "nothing"
            raise LoginError(
                f"The login node {self._login.host} runs no commands for this user: {reason}",
                _HINT.format(by_hand=_by_hand(self._login)),
            )
        if answer.code == 127:
            raise BatchError(
                f"{command[0]} cannot be run on {self._login.host}: {_last_line(answer.error)}",
                "Name the folder of the batch system's commands as `login.path` in the site.",
            )
        return CommandResult(answer.code, output, answer.error)

    def close(self) -> None:
        """End the connection; the next command makes a new one."""
        self._control("exit")

    def _local(self) -> LocalCommands:
        return LocalCommands({"LC_ALL": "C"}, self._timeout_s)

    def _through(self, command: Sequence[str]) -> tuple[str, ...]:
        settings = [f"{name}={value}" for name, value in self._environment.items()]
        there = ("sh", "-c", _SCRIPT, "sh", self._login.path, "env", *settings, *command)
        # through the socket or not at all: never a second connection
        return ("ssh", "-F", "none", "-T", "-S", str(self.socket), "-o", "BatchMode=yes",
                "-o", "ControlMaster=no", "-o", "ProxyCommand=false", self._login.host,
                "--", shlex.join(there))  # fmt: skip

    def _connect(self) -> None:
        """Make the connection if it does not exist."""
        if self._control("check") == 0:
            return
        with FileLock(self.socket.with_suffix(".lock"), mode=0o600):
            if self._control("check") == 0:
                return
            self.socket.unlink(missing_ok=True)  # of a connection that died
            self._make()

    def _make(self) -> None:
        log = self.socket.with_suffix(".log")
        # a file: the background process must hold no pipe of ours
        with log.open("wb") as file:
            try:
                made = subprocess.run(
                    master_command(self._login, self.socket),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env={**os.environ, "LC_ALL": "C"},
                    timeout=self._timeout_s,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise _no_login(self._login, str(error)) from error
        if made.returncode != 0:
            raise _no_login(self._login, log.read_text(errors="replace"))

    def _control(self, word: str) -> int | None:
        command = ("ssh", "-F", "none", "-S", str(self.socket), "-O", word, self._login.host)
        if not self.socket.exists():
            return LOST
        return self._local().run(command).code

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold one of the connection's slots, which all processes share."""
        _make_private(self._folder)
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            for number in range(_SLOTS):
                lock = FileLock(f"{self.socket}.{number}", mode=0o600)
                try:
                    lock.acquire(timeout=0)
                except Timeout:
                    continue
                try:
                    yield
                finally:
                    lock.release()
                return
            time.sleep(_SLOT_PAUSE_S)
        raise LoginError(
            f"{_SLOTS} commands are running on {self._login.host} and none has ended "
            f"within {self._timeout_s:g} s"
        )


def master_command(login: Login, socket: Path) -> tuple[str, ...]:
    """Return the command that makes the connection and leaves it in the background; pure.

    It never asks for a password or an unknown host key. The user's own OpenSSH configuration
    applies, except what would forward the user's agent, display or ports.
    """
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ControlMaster": "yes",
        "ControlPath": str(socket),
        "ControlPersist": _PERSIST,
        "ConnectTimeout": str(_CONNECT_TIMEOUT_S),
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "3",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "ForwardX11": "no",
    }
    given = [part for option in login.options for part in ("-o", option)]
    ours = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return ("ssh", "-f", "-N", "-T", *given, *ours, *_address(login))


def _address(login: Login) -> tuple[str, ...]:
    port = ("-p", str(login.port)) if login.port is not None else ()
    key = ("-i", login.identity, "-o", "IdentitiesOnly=yes") if login.identity else ()
    return (*port, *key, login.host)


def _by_hand(login: Login) -> str:
    given = [part for option in login.options for part in ("-o", option)]
    return shlex.join(("ssh", *given, *_address(login), "true"))


def _no_login(login: Login, output: str) -> LoginError:
    hint = next((text for words, text in _HINTS if words in output.lower()), _HINT)
    why = _last_line(output) or "no reason given"
    return LoginError(
        f"The login node {login.host} cannot be reached by ssh: {why}",
        hint.format(by_hand=_by_hand(login)),
    )


def _make_private(folder: Path) -> None:
    """Make the folder; refuse one that other users own or may enter."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_mine or found.st_mode & 0o077:
        raise LoginError(
            f"{folder} must be a folder that you own and only you may enter",
            "Remove it, or ask its owner to remove it.",
        )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
