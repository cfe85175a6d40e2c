"""A DAG run whose training waits at a known step until a test lets it go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from headrace.files.layout import StepFolder
from headrace.states import StepState
from support import job_processes
from support.airflow_service import LONG_S, AirflowService
from support.waiting import wait_until

STOPPED_WITHIN_S = 60.0
"""Work that a user has ended must be gone after this time, also when only the reaper sees it."""

HOLD_AT = 12
"""Optimizer steps after which training waits; the last checkpoint before it is two steps older."""


class HeldTraining:
    """A triggered run of recipe `held`, whose model is in `training_code/held_digits.py`.

    Args:
        service: The Airflow it runs on.
        folder: Folder for the model's files.
        trigger: Asks for the run with these overrides, and gives the id of the DAG run; by default
            through the REST API.
    """

    def __init__(
        self,
        service: AirflowService,
        folder: Path,
        trigger: Callable[[list[str]], str] | None = None,
    ) -> None:
        self.service = service
        self._folder = folder
        folder.mkdir(parents=True)
        (folder / "hold").touch()
        overrides = [f"model.folder={folder}", f"model.hold_at={HOLD_AT}"]
        ask = trigger or (lambda asked: service.trigger("held", overrides=asked))
        self.dag_run = ask(overrides)
        """Id of the DAG run."""
        self.run_id = service.wait_for_run(self.dag_run)
        """Id of the run in the ledger."""

    def wait_held(self, attempt: int = 1) -> None:
        """Wait until training waits for the n-th time, with its task deferred."""

        def held() -> bool:
            begun = self.attempts()
            return len(begun) >= attempt and (self._folder / f"held-{begun[-1][0]}").exists()

        wait_until(held, LONG_S, f"attempt {attempt} at training to wait")
        self.service.wait_task(self.dag_run, "train", "deferred")

    def release(self) -> None:
        """Let training go on, now and in later attempts."""
        (self._folder / "hold").unlink()

    def attempts(self) -> list[tuple[int, int]]:
        """Process and first step of each time that training began."""
        file = self._folder / "attempts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(pid), int(step)) for pid, step in (line.split() for line in lines)]

    def tracker(self) -> str:
        """A digest of the environment variable TRACKER_KEY, as training saw it."""
        return (self._folder / "tracker").read_text()

    def step(self) -> StepFolder:
        """Folder of the newest attempt to train."""
        folder = self.service.step_folder(self.run_id, "train")
        assert folder is not None
        return folder

    def states(self, step: str = "train") -> list[StepState]:
        """States in the ledger of the attempts at a step."""
        return [row.state for row in self.service.ledger.attempts(self.run_id, step)]

    def wait_no_ranks(self, timeout_s: float = STOPPED_WITHIN_S) -> None:
        """Wait until no rank is left."""
        wait_until(
            lambda: not job_processes.ranks(self.service, self.run_id), timeout_s, "ranks to end"
        )

    def wait_nothing_left(self, timeout_s: float = STOPPED_WITHIN_S) -> None:
        """Wait until no process of any of the run's leases is left."""
        wait_until(
            lambda: not job_processes.lease_processes(self.service, self.run_id),
            timeout_s,
            "the processes of all leases to end",
        )

    def wait_run(self, state: StepState, timeout_s: float = STOPPED_WITHIN_S) -> None:
        """Wait until the run has this state in the ledger, and see that all of it has ended."""
        ledger = self.service.ledger
        wait_until(
            lambda: ledger.run(self.run_id).state is state,
            timeout_s,
            f"the run to be {state.value}",
        )
        self.service.assert_books_closed(self.run_id)

    def weights(self) -> str:
        """Hash of the trained weights."""
        outputs = self.service.ledger.run(self.run_id).outputs
        return str(outputs["train"]["weights_xxh3"])


@contextmanager
def standing_still(service: AirflowService, name: str) -> Iterator[None]:
    """Stand all processes of a component of Airflow still; they go on afterwards."""
    first = job_processes.component(service, name)
    stopped = [first, *first.children(recursive=True)]
    _signal(stopped, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        if process.is_running():
            os.kill(process.pid, number)
