"""A real Grid Engine passes the contract of batch systems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.batch.commands import LocalCommands
from headrace.batch.job_records import JobState
from headrace.batch.system import BatchSystem
from headrace.errors import JobRefusedError
from headrace.recipe.batch import Batch
from headrace_queues.sge import Sge
from support.batch_contract import ScriptContract, end_of
from support.grid_engine import GridEngine
from support.scripted_commands import FlakySubmits


class TestGridEngine(ScriptContract):
    batch = Batch(parallel_environment="mpi")
    refused = {"partition": "nope"}
    refusal = 'unknown queue "nope"'
    impossible = {"folder": "/dev/null/folder"}
    always = {"parallel_environment": "mpi"}
    cancelled_early = JobState.NODE_FAILED  # as in the accounting since the job tried to start

    @pytest.fixture
    def system(self, grid_engine: GridEngine) -> BatchSystem:
        found = grid_engine.system
        found.accounting_pause_s = 20.0  # it is flushed each second, on a busy machine later
        return found

    @pytest.fixture
    def flaky(self, grid_engine: GridEngine) -> Callable[..., tuple[BatchSystem, FlakySubmits]]:
        def make(**counts: int) -> tuple[BatchSystem, FlakySubmits]:
            lost = "error: commlib error: got read error (closing)"
            commands = FlakySubmits(grid_engine.commands, **counts, program="qsub", error=lost)
            return Sge(commands), commands

        return make

    @pytest.fixture
    def silent(self, grid_engine: GridEngine) -> BatchSystem:
        return Sge(LocalCommands({**grid_engine.environment, "SGE_QMASTER_PORT": "1"}))

    @pytest.fixture
    def limited(self) -> dict[str, Any]:
        return {"options": ("-l h_rt=0:0:2",)}  # of two limits the later one applies

    def test_a_job_that_no_cluster_can_run_is_refused(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        with pytest.raises(JobRefusedError, match="no suitable queues"):
            system.submit(self.job(tmp_path, nodes=99))

    @pytest.mark.parametrize(
        ("text", "options", "state"),
        [
            ("for i in 1 2 3; do (head -c 120M /dev/zero; sleep 60) | tail & done; wait",
             ("-l h_vmem=300M",), JobState.OUT_OF_MEMORY),  # each process is below the limit
            ("sleep 60", ("-l s_rt=0:0:1",), JobState.TIMED_OUT),
            ("kill -KILL $PPID; sleep 2", (), JobState.NODE_FAILED),  # its daemon's child
        ],
    )  # fmt: skip
    def test_how_a_job_ended(
        self, system: BatchSystem, tmp_path: Path, text: str, options: tuple[str], state: JobState
    ) -> None:
        """pains 31: a job that runs out of memory has the same value as one at its time limit."""
        job = self.job(tmp_path, command=("sh", "-c", text), options=options)
        ended = end_of(system, system.submit(job))
        assert (ended.state, bool(ended.reason)) == (state, True)
