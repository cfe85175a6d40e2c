"""Run the commands of batch systems and of checks; the only module that starts their programs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.errors import BatchError

_PREFIX = re.compile(
    r"^(?:(?:q(?:sub|stat|del|select|acct|conf)|b(?:sub|jobs|kill|acct|queues|params)"
    r"|s(?:batch|queue|cancel|acct|acctmgr|info)|slurm_\w+)(?: error)?: )?"
    r"(?:(?:error|ERROR): )?"
)
"""Prefix of an error line: the name of the program, `error`."""

_OF_SUDO = re.compile(r"sudo: |Sorry, user ")


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int | None
    """Exit code; None if the command timed out."""
    output: str
    error: str

    @property
    def words(self) -> str:
        """Lines of a failed command for users, joined to one line; errors come first."""
        lines = f"{self.error}\n{self.output}".splitlines()
        parts = dict.fromkeys(_PREFIX.sub("", line.strip()) for line in lines if line.strip())
        return "; ".join(parts) or f"exit code {self.code}"


class Commands(Protocol):
    """Run commands on one machine: this one, another account's, a login node, or a test's."""

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """Run a command to its end, with `text` as its standard input.

        Raises:
            BatchError: The program does not exist.
        """


class LocalCommands:
    """Run commands on this machine, with added environment variables and without some.

    A command is stopped after `timeout_s`.
    """

    def __init__(
        self, environment: Mapping[str, str], timeout_s: float = 60.0, without: Collection[str] = ()
    ) -> None:
        self._environment = dict(environment)
        self._timeout_s = timeout_s
        self._without = frozenset(without)

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """See `Commands`."""
        kept = {key: value for key, value in os.environ.items() if key not in self._without}
        try:
            ended = subprocess.run(
                list(command),
                input=text,
                env={**kept, **self._environment},
                capture_output=True,
                text=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            errors = (late.stderr or b"").decode(errors="replace")  # bytes, in text mode too
            waited = f"{command[0]} gave no answer within {self._timeout_s:g} s"
            return CommandResult(None, "", f"{waited}\n{errors}".strip())
        except OSError as error:
            raise BatchError(
                f"{command[0]} cannot be run: {error.strerror or error}",
                "Run headrace on a machine with the batch system's commands, and put them on PATH.",
            ) from error
        return CommandResult(ended.returncode, ended.stdout, ended.stderr)


def answer_of(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a command on this machine; if it cannot be run, the code is None and `error` says why."""
    try:
        return LocalCommands(environment or {}, timeout_s).run(command)
    except BatchError as error:
        return CommandResult(None, "", error.what)


class SudoCommands:
    """Run commands on this machine as another account, by `sudo` without a password."""

    def __init__(
        self, account: str, environment: Mapping[str, str], timeout_s: float = 60.0
    ) -> None:
        self._account = account
        self._prefix = ("sudo", "-n", "-u", account, *(f"{k}={v}" for k, v in environment.items()))
        self._commands = LocalCommands({"LC_ALL": "C"}, timeout_s)

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        """See `Commands`. Only the programs of the batch system need to be in sudoers."""
        if tuple(command) == ("id", "-un"):
            return CommandResult(0, f"{self._account}\n", "")
        # sudo sets variables itself
        words = command[1:] if command[0] == "env" else command
        answer = self._commands.run((*self._prefix, *words), text)
        if answer.code != 1 or not _OF_SUDO.match(answer.error):
            return answer
        program = next(word for word in words if "=" not in word)
        why = f"{answer.words}; sudoers must let this account run {program} as {self._account}, "
        return replace(answer, error=f"{why}without a password (NOPASSWD) and with SETENV")
