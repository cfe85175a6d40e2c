"""One run from its command to its end, resumed once if need be, as its user would do it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos.campaign.ground import Ground, environment
from headrace.errors import HeadraceError
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import RunRecord
from headrace.states import StepState

POLL_S = 0.05
_COMMAND = (sys.executable, "-c", "from headrace.cli.app import main; main()  # headrace.cli.app")
_RESUME = re.compile(r"headrace resume (\S+)")

Tick = Callable[[], None]


class HungError(HeadraceError):
    """A run did not end in the time it has."""


class Course:
    """The commands of one run, one after another.

    Args:
        ground: What all runs share.
        home: The run's home.
        limit_s: Time that all of it has, seconds.
        tick: Called a few times a second; may raise to stop.
    """

    def __init__(self, ground: Ground, home: Path, limit_s: float, tick: Tick) -> None:
        self._ground = ground
        self._home = home
        self._tick = tick
        self._deadline = time.monotonic() + limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self.commands: list[str] = []
        """What was run, and how it ended."""

    def go(self) -> RunRecord | None:
        """Run, and resume once what did not succeed.

        Returns:
            The run in the end; None when it was never entered in the ledger.

        Raises:
            HungError: The time is over.
        """
        self._run(*self._first())
        record = self._record()
        if record is None:
            self._run(*self._first())
        elif record.state is not StepState.SUCCEEDED:
            self._run("resume", self._to_resume(record.run_id))
        return self._record()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds.

        Raises:
            HungError: The time is over.
        """
        while not condition():
            self._tick()
            if time.monotonic() > self._deadline:
                raise HungError(f"waited in vain for {what}")
            time.sleep(POLL_S)

    def join(self) -> None:
        """Wait for the newest command, which has ended or was killed."""
        if self._process is not None:
            self._process.wait()

    def _first(self) -> tuple[str, ...]:
        return ("run", str(self._ground.recipe), "--site", str(self._ground.site))

    def _run(self, *arguments: str) -> None:
        name = f"headrace {arguments[0]}"
        with (self._home / "commands.log").open("ab") as log:
            self._process = process = subprocess.Popen(
                [*_COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self._home),
                start_new_session=True,
            )
        try:
            self.wait_for(lambda: process.poll() is not None, f"`{name}`")
        finally:
            self.commands.append(f"{name}: {process.poll()}")

    def _record(self) -> RunRecord | None:
        file = self._home / "ledger.db"
        rows = Ledger.open(f"sqlite:///{file}").runs(limit=1) if file.exists() else []
        return rows[0] if rows else None

    def _to_resume(self, run_id: str) -> str:
        """Id of the run that `headrace status` says to resume, as a user would look it up."""
        done = subprocess.run(
            [*_COMMAND, "status"],
            env=environment(self._home),
            capture_output=True,
            text=True,
            check=False,
        )
        found = _RESUME.search(done.stdout + done.stderr)
        self.commands.append(f"headrace status: {done.returncode}, {found and found.group()}")
        return found.group(1) if found else run_id
