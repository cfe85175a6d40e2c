"""Which checkpoints come from data that was right: the driver's side.

The nodes of a launch look at their data again in rounds. A round is asked for when some checkpoint
is the newest one; once all nodes have passed it, all that was read up to that checkpoint has been
seen to be right, and the checkpoint is *sound*. A node that finds damage leaves a mark in the run's
folder, before anything else; training then goes back to the newest sound checkpoint.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

from headrace.record import Record
from headrace.storage.atomic import read_record, write_record
from headrace.storage.layout import RunFolder
from headrace.training import checkpoints
from headrace.training.launch_folder import LaunchFolder

LEAST_REST_S = 600.0
"""Least time between two rounds."""

_REST_PER_LOOK = 100
"""A round is followed by so many times its own duration of rest: looking takes 1 % of the time."""

_LOOK_S = 1.0


class Round(Record):
    """What nodes are asked for, and answer when their data has passed."""

    number: int
    """Number in the launch, from 1."""
    step: int
    """Optimizer steps of the newest checkpoint when it was asked for; 0: none."""


class Sound(Record):
    """How far training is known to come from data that was right."""

    step: int = 0
    """Optimizer steps of the newest sound checkpoint; 0: only the start is sound."""
    next_step: int = 0
    """Those of the checkpoint that will be, if the round under way finds no damage."""


class DamagedData(Record):
    """A node's mark: shards that were not what was staged."""

    node: str
    """Name of the node."""
    files: tuple[str, ...]
    """The shards."""


def mark_damaged(run: RunFolder, damaged: DamagedData) -> None:
    """Leave the mark; the driver of this or the next attempt goes back for it."""
    write_record(run.soundness / f"damaged-{uuid.uuid4().hex[:12]}.json", damaged)


def spared_steps(run: RunFolder) -> tuple[int, ...]:
    """Steps of checkpoints that training may have to go back to, which are not pruned."""
    sound = _sound(run)
    return tuple({sound.step, sound.next_step})


class Rounds:
    """Asks for rounds, and goes back when there was damage.

    Args:
        run: The run.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._launch: LaunchFolder | None = None
        self._num_nodes = 0
        self._number = 0
        self._asked: Round | None = None
        self._asked_at_s = self._looked_at_s = self._rests_until_s = 0.0

    @property
    def sound_step(self) -> int:
        """Optimizer steps of the newest sound checkpoint; 0 for the start."""
        return _sound(self._run).step

    def begin(self, launch: LaunchFolder, num_nodes: int, resume: str | None) -> None:
        """Ask for the first round of a launch; before its nodes start.

        Args:
            launch: The launch.
            num_nodes: Nodes that train.
            resume: Checkpoint that it goes on from.
        """
        self._launch, self._num_nodes, self._number = launch, num_nodes, 0
        self._ask(launch, (checkpoints.step_of(Path(resume)) or 0) if resume else 0)

    def look(self) -> None:
        """Take in what nodes answer, and ask for another round when one is due; call it often."""
        now_s = time.monotonic()
        if self._launch is None or now_s - self._looked_at_s < _LOOK_S:
            return
        self._looked_at_s = now_s
        if self._asked is None:
            if now_s >= self._rests_until_s:
                self._ask(self._launch, self._newest_step())
        elif self._all_passed(self._launch, self._asked):
            step = max(self.sound_step, self._asked.step)
            self._write(Sound(step=step, next_step=step))
            self._rests_until_s = now_s + max(
                LEAST_REST_S, _REST_PER_LOOK * (now_s - self._asked_at_s)
            )
            self._asked = None

    def settle(self, *, goes_back: bool) -> tuple[DamagedData, ...]:
        """Take in the marks that nodes have left; no rank may run.

        Args:
            goes_back: Remove the checkpoints that may come from damaged data.

        Returns:
            What nodes have found; empty when there is no damage.
        """
        marks = sorted(self._run.soundness.glob("damaged-*.json"))
        found = [read_record(mark, DamagedData) for mark in marks]
        if marks and goes_back:
            checkpoints.remove_after(self._run.checkpoints, self.sound_step)
        for mark in marks:
            mark.unlink()
        return tuple(damaged for damaged in found if damaged is not None)

    def _ask(self, launch: LaunchFolder, step: int) -> None:
        self._number += 1
        self._asked = Round(number=self._number, step=step)
        self._asked_at_s = time.monotonic()
        self._write(Sound(step=self.sound_step, next_step=step))
        write_record(launch.round, self._asked)

    def _all_passed(self, launch: LaunchFolder, asked: Round) -> bool:
        answers = (read_record(launch.sound(index), Round) for index in range(self._num_nodes))
        return all(answer == asked for answer in answers)

    def _newest_step(self) -> int:
        newest = checkpoints.newest_first(self._run.checkpoints)[:1]
        return (checkpoints.step_of(newest[0]) or 0) if newest else 0

    def _write(self, sound: Sound) -> None:
        write_record(_sound_file(self._run), sound)


def _sound_file(run: RunFolder) -> Path:
    return run.soundness / "sound.json"


def _sound(run: RunFolder) -> Sound:
    return read_record(_sound_file(run), Sound) or Sound()
