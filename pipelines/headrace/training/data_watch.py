"""Looks at the data of a node again while its ranks train, and when they have ended.

Shards are verified when they are staged. Memory and disks fail later, and programs write where they
should not: ranks would train on that, or die by SIGBUS in a shard that has become shorter.

The nodes of a launch look at their data in rounds. The driver asks for a round when some checkpoint
is the newest one; once all nodes have passed it, all that was read up to that checkpoint has been
seen to be right, and the checkpoint is *sound*. A node that finds damage leaves a mark in the run's
folder, before anything else; training then goes back to the newest sound checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from functools import cached_property
from pathlib import Path

from headrace.errors import StepCancelledError
from headrace.files.atomic import is_there, read_record, write_record, write_text
from headrace.files.layout import RunFolder
from headrace.files.manifest import Manifest
from headrace.record import Record
from headrace.staging.cache import Soundness, all_threads
from headrace.staging.staged_folder import StagedFolder
from headrace.training import checkpoints
from headrace.training.data import DataOnNode
from headrace.training.records import FailureKind, LaunchFolder, NodeLaunch, NodeOutcome
from headrace.training.watch import is_unwanted

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

LEAST_REST_S = 600.0
"""Least time between two rounds."""

_REST_PER_LOOK = 100
"""A round is followed by so many times its own duration of rest: looking takes 1 % of the time."""

_MAY_BE_DAMAGE = (
    FailureKind.CRASHED,
    FailureKind.DATA_ERROR,
    FailureKind.INTERNAL,
    FailureKind.STORAGE,
)
"""Failures after which the data is looked at, such as SIGBUS and EIO."""


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
    files: tuple[str, ...]


def mark_damaged(run: RunFolder, damaged: DamagedData) -> None:
    """Leave the mark; the driver of this or the next attempt goes back for it."""
    write_record(run.soundness / f"damaged-{uuid.uuid4().hex[:12]}.json", damaged)


def spared_steps(run: RunFolder) -> tuple[int, ...]:
    """Steps of checkpoints that training may have to go back to, which are not pruned."""
    sound = _sound(run)
    return tuple({sound.step, sound.next_step})


class Rounds:
    """The driver's side: asks for rounds, and goes back when there was damage."""

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
        """Ask for the first round of a launch that resumes a checkpoint; before its nodes start."""
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
                self._ask(self._launch, checkpoints.newest_step(self._run.checkpoints))
        elif self._all_passed(self._launch, self._asked):
            step = max(self.sound_step, self._asked.step)
            self._write(Sound(step=step, next_step=step))
            self._rests_until_s = now_s + max(
                LEAST_REST_S, _REST_PER_LOOK * (now_s - self._asked_at_s)
            )
            self._asked = None

    def settle(self, *, goes_back: bool) -> tuple[DamagedData, ...]:
        """Take the marks that nodes have left, while no rank runs; empty without damage."""
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

    def _write(self, sound: Sound) -> None:
        write_record(_sound_file(self._run), sound)


def _sound_file(run: RunFolder) -> Path:
    return run.soundness / "sound.json"


def _sound(run: RunFolder) -> Sound:
    return read_record(_sound_file(run), Sound) or Sound()


class DataWatch:
    """Watches the data of one node; a context in which its ranks run."""

    def __init__(
        self, launch: NodeLaunch, data: DataOnNode, manifest: Manifest, *, enabled: bool
    ) -> None:
        self._launch, self._data, self._enabled = launch, data, enabled
        self._manifest = manifest
        self._run = RunFolder(Path(launch.run_folder))
        self._has_trained = checkpoints.progress_in(self._run.checkpoints) > 0
        self._damaged: set[str] = set()
        self._error: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-recheck", daemon=True)

    def __enter__(self) -> DataWatch:
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def keep_on(self) -> bool:
        """Whether no damage was found, so that ranks can go on."""
        return not self._damaged and self._error is None

    def conclude(self, outcome: NodeOutcome) -> None:
        """Look at the data a last time, unless the ranks have ended for another reason."""
        self._end()
        if self._error is not None:
            raise self._error
        if self._enabled:
            self._tell_mended()
        if not self._enabled or self._damaged or not self._is_due(outcome):
            return
        self._ending.clear()
        with ThreadPoolExecutor(1, "recheck") as pool:
            looking = pool.submit(self._look, all_threads())
            while not looking.done():
                try:
                    looking.result(_LOOK_S)
                except NotYetError:
                    if is_unwanted(self._launch):
                        self._ending.set()
            looking.result()

    def _is_due(self, outcome: NodeOutcome) -> bool:
        if outcome.failures:
            return any(failure.kind in _MAY_BE_DAMAGE for failure in outcome.failures)
        return not outcome.stopped and not is_there(self._launch.folder.paused)

    def _end(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            self._answer_rounds()
        except StepCancelledError:
            pass  # the ranks have ended
        except BaseException as error:  # noqa: BLE001  raised again by `conclude`
            self._error = error

    def _answer_rounds(self) -> None:
        passed = 0
        while not self._damaged:
            self._tell_mended()
            asked = read_record(self._launch.folder.round, Round)
            if not self._damaged and asked is not None and asked.number > passed:
                if not (asked.number == 1 and self._data.is_fresh):
                    self._look(num_threads=1)
                if not self._damaged:
                    write_record(self._launch.folder.sound(self._launch.node_index), asked)
                passed = asked.number
            if self._ending.wait(_LOOK_S):
                return

    @cached_property
    def _soundness(self) -> Soundness:
        return Soundness(Path(self._data.folder), self._manifest.shards)

    def _look(self, num_threads: int) -> None:
        damaged = self._soundness.damaged(num_threads, self._tick)
        if damaged:
            self._tell(damaged)
            StagedFolder(Path(self._data.folder), "").take_out(damaged)

    def _tell_mended(self) -> None:
        if self._has_trained and not self._damaged and self._data.mended:
            self._tell(self._data.mended)

    def _tell(self, damaged: Iterable[str]) -> None:
        """Leave a mark, before the damage can be mended, and end all ranks."""
        launch = self._launch
        found = DamagedData(node=launch.node_name, files=tuple(sorted(damaged)))
        logger.warning("Staged shards on %s changed: %s", found.node, ", ".join(found.files))
        mark_damaged(self._run, found)
        write_text(launch.folder.stop, f"{launch.node_name}: staged shards were damaged")
        self._damaged.update(damaged)

    def _tick(self, _: int) -> None:
        if self._ending.is_set():
            raise StepCancelledError("The data is not looked at any further: the ranks have ended")
