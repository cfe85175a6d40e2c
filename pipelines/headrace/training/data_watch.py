"""Looks at the data of a node again while its ranks train, and when they have ended.

Shards are verified when they are staged. Memory and disks fail later, and programs write where they
should not: ranks would train on that, or die by SIGBUS in a shard that has become shorter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path

from headrace.errors import StepCancelledError
from headrace.storage.atomic import read_record, write_record, write_text
from headrace.storage.layout import RunFolder
from headrace.storage.manifest import Manifest
from headrace.storage.soundness import Soundness, all_threads
from headrace.storage.staged_folder import StagedFolder
from headrace.training import checkpoints
from headrace.training.data import DataOnNode
from headrace.training.records import FailureKind, NodeLaunch, NodeOutcome
from headrace.training.rounds import DamagedData, Round, mark_damaged
from headrace.training.watch import is_unwanted

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

_MAY_BE_DAMAGE = (
    FailureKind.CRASHED,
    FailureKind.DATA_ERROR,
    FailureKind.INTERNAL,
    FailureKind.STORAGE,
)
"""Failures after which the data is looked at, such as SIGBUS and EIO."""


class DataWatch:
    """Eyes on the data of one node; a context in which its ranks run.

    Args:
        launch: The launch.
        data: The data.
        manifest: Manifest of the dataset.
        enabled: Nothing is looked at without it.
    """

    def __init__(
        self, launch: NodeLaunch, data: DataOnNode, manifest: Manifest, *, enabled: bool
    ) -> None:
        self._launch, self._data, self._enabled = launch, data, enabled
        self._run = RunFolder(Path(launch.run_folder))
        self._has_trained = checkpoints.progress_in(self._run.checkpoints) > 0
        self._soundness = Soundness(data.folder, manifest.shards)
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
        if self._enabled and self._has_trained and not self._damaged and self._data.mended:
            self._tell(self._data.mended)
        return not self._damaged and self._error is None

    def conclude(self, outcome: NodeOutcome) -> None:
        """Look at the data a last time, unless the ranks have ended for another reason.

        Args:
            outcome: How they have ended.

        Raises:
            StepCancelledError: Nobody waits for the training any more.
            OSError: What was found could not be written down.
        """
        self._end()
        if self._error is not None:
            raise self._error
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
        return not outcome.stopped and not self._launch.folder.paused.exists()

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
            asked = read_record(self._launch.folder.round, Round)
            if asked is not None and asked.number > passed:
                if not (asked.number == 1 and self._data.is_fresh):
                    self._look(num_threads=1)
                if not self._damaged:
                    write_record(self._launch.folder.sound(self._launch.node_index), asked)
                passed = asked.number
            if self._ending.wait(_LOOK_S):
                return

    def _look(self, num_threads: int) -> None:
        damaged = self._soundness.damaged(num_threads, self._tick)
        if damaged:
            self._tell(damaged)
            StagedFolder(self._data.folder, "").take_out(damaged)

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
