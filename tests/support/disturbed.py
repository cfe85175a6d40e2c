"""A job that is disturbed on purpose, and what must hold afterwards all the same."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from pyarrow import parquet

from headrace.files.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.files.manifest_file import read_manifest
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import AttemptRecord
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepStatus
from support.leftovers import describe
from support.waiting import wait_until

HEADRACE = Path(sys.executable).with_name("headrace")
OVERRIDES = (
    "trainer.max_epochs=12",
    "data.global_batch_size=32",
    "trainer.checkpoint_every_steps=10",
    "pack_role=gpu",
)
"""About 470 steps with a checkpoint every ten: long enough to be hit in the middle; one lease."""

FIRST_CHECKPOINT = 10
LONG_S = 600.0
GONE_S = 60.0
"""No process of a job may be left so long after its end."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gave: the same for equal recipes, whatever happened on the way."""

    weights: str
    train_metrics: dict[str, float]
    test_metrics: dict[str, float]
    steps: int


class Records:
    """The ledger and the folders of a home, read while jobs run.

    Args:
        home: Home of headrace, which is its site's folder too.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ledger = Ledger.open(f"sqlite:///{home / 'ledger.db'}")

    def result(self, run_id: str) -> Result:
        """Result of a run that has ended well; every sample of the test split counted once."""
        outputs = self.ledger.run(run_id).outputs
        train, evaluate = outputs["train"], outputs["evaluate"]
        expected = read_manifest(Path(outputs["pack"]["dataset"])).splits["test"]
        counted = parquet.read_table(evaluate["predictions"])["sample_id"].to_numpy()
        assert evaluate["num_samples"] == expected == len(counted) == len(np.unique(counted))
        return Result(
            weights=train["weights_xxh3"],
            train_metrics=train["metrics"],
            test_metrics=evaluate["metrics"],
            steps=train["steps"],
        )

    def attempts(self, run_id: str, step: str) -> list[AttemptRecord]:
        """Attempts at a step, the first one first."""
        return [one for one in self.ledger.attempts(run_id) if one.step == step]

    def lease(self, lease_id: str) -> LeaseFolder:
        """Folder of a lease."""
        return SiteFolder(self.home).lease(lease_id)

    def folder(self, attempt: AttemptRecord) -> StepFolder:
        """Folder of an attempt that was submitted."""
        assert attempt.number is not None
        return self.lease(attempt.lease_id).step(attempt.number)

    def status(self, run_id: str, step: str) -> StepStatus | None:
        """How the newest attempt at a step stands; None before it is submitted."""
        attempts = [one for one in self.attempts(run_id, step) if one.number is not None]
        return mailbox.status(self.folder(attempts[-1])) if attempts else None

    def events(self, attempt: AttemptRecord, name: str) -> list[dict[str, Any]]:
        """Events of one kind in an attempt's folder."""
        lines = self.folder(attempt).events.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def assert_settled(self, run_id: str) -> None:
        """Nothing of the run is open in the ledger, and it has ended well."""
        assert self.ledger.run(run_id).state is StepState.SUCCEEDED
        assert all(one.state.is_final for one in self.ledger.attempts(run_id))
        assert not [one for one in self.ledger.leases(run_id=run_id) if one.state.is_active]


def training_moment(
    records: Records, run_id: str, rng: random.Random, least: float = 0.1, most: float = 0.7
) -> float:
    """Wait until a random part of the training is done, at least one checkpoint.

    Args:
        records: Where the run is found.
        run_id: The run.
        rng: Chooses the part.
        least: The smallest part to be chosen.
        most: The largest one.

    Returns:
        Optimizer steps done by then.
    """
    part = rng.uniform(least, most)

    def reached() -> float:
        status = records.status(run_id, "train")
        assert not records.ledger.run(run_id).state.is_final, "the run ended before the moment"
        if status is None or status.state.is_final or not status.progress.total:
            return 0.0
        far_enough = max(part * status.progress.total, FIRST_CHECKPOINT + 1)
        return status.progress.done if status.progress.done >= far_enough else 0.0

    done = wait_until(reached, LONG_S, f"{part:.0%} of the training")
    print(f"moment: {part:.0%} of the training asked for, step {done:g} seen")
    return done


def kill(process: psutil.Process) -> None:
    """Kill -9, and wait until the process is gone or a zombie."""
    print(f"killed: {describe([process]).strip()}")
    process.kill()
    wait_until(lambda: _is_gone(process), 60.0, f"process {process.pid} to die")


def _is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def headrace(
    home: Path, arguments: Sequence[str], log: Path, **more: str
) -> subprocess.Popen[bytes]:
    """Start a command of headrace as a terminal does, in a process group of its own."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(HEADRACE), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HEADRACE_HOME": str(home), **more},
            start_new_session=True,
        )


def newest_run(records: Records, log: Path, process: subprocess.Popen[bytes]) -> str:
    """Id of the run that a command has started, from what it prints."""

    def told() -> str:
        lines = log.read_text().splitlines()
        found = [line.removeprefix("run: ") for line in lines if line.startswith("run: ")]
        assert found or process.poll() is None, log.read_text()
        return found[-1] if found else ""

    run_id = wait_until(told, LONG_S, "the command to name its run")
    assert records.ledger.run(run_id).run_id == run_id
    return run_id
