"""The fake commands as programs in a folder for PATH."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.batch.commands import LocalCommands
from support.fake_queues import lsf, pbs, queue, tq
from support.waiting import wait_until

_TESTS = Path(__file__).parents[2]
_SYSTEMS = {"pbs": pbs, "lsf": lsf, "tq": tq}
_PROGRAM = """\
#!{python} -S
import os, sys
sys.path.insert(0, {tests!r})
from support.fake_queues import {system}
if os.environ.get({silent!r}):
    sys.exit({system}.silent({name!r}))
if sys.argv[1:] == [{system}.ABOUT]:
    sys.exit({system}.about({name!r}))
sys.exit({system}.{function}(sys.argv[1:]))
"""


@dataclass(frozen=True)
class FakeQueue:
    """A fake batch system with four nodes."""

    folder: Path
    """Its jobs."""
    programs: Path
    """Folder of its commands, for PATH."""

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to talk to it."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, queue.FOLDER: str(self.folder)}

    @property
    def commands(self) -> LocalCommands:
        """Its commands."""
        return LocalCommands(self.environment)

    @property
    def silent_commands(self) -> LocalCommands:
        """Its commands, when the server is down."""
        return LocalCommands({**self.environment, queue.SILENT: "yes"})

    def limit_s(self, limit_s: float) -> None:
        """From now on all jobs end after that time."""
        (self.folder / "limit").write_text(str(limit_s))

    def jobs(self) -> list[queue.Job]:
        """All jobs ever, in order."""
        return queue.jobs(self.folder)

    def end(self) -> None:
        """Kill what is left of its jobs."""
        for job in self.jobs():
            queue.cancel(self.folder, job)
        runners = [int(file.read_text()) for file in self.folder.glob("runner-*")]
        left = [psutil.Process(pid) for pid in runners if psutil.pid_exists(pid)]
        wait_until(lambda: not any(map(_lives, left)), 3 * queue.KILL_AFTER_S, "the jobs to end")
        shutil.rmtree(self.folder)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def fake_queue(system: str, folder: Path) -> FakeQueue:
    """Write the commands of a system (pbs, lsf, tq) and an empty queue into a folder."""
    made = FakeQueue(folder / "queue", folder / "bin")
    made.folder.mkdir(parents=True)
    made.programs.mkdir()
    for name in _SYSTEMS[system].COMMANDS:
        program = made.programs / name
        program.write_text(
            _PROGRAM.format(
                python=sys.executable,
                tests=str(_TESTS),
                system=system,
                name=name,
                function=name.replace("-", "_"),
                silent=queue.SILENT,
            )
        )
        program.chmod(0o755)
    return made
