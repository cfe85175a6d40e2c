"""PBS, Grid Engine and LSF do what every batch system must, with fakes of their commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.batch.job_records import JobState
from headrace.batch.system import BatchSystem
from headrace.errors import JobRefusedError
from headrace.recipe.batch import Batch
from headrace_queues.lsf import Lsf
from headrace_queues.pbs import Pbs
from headrace_queues.sge import Sge
from support.batch_contract import FakeQueueContract, ends_at_limit
from support.fake_queues.commands import FakeQueue


class TestPbs(FakeQueueContract):
    kind = "pbs"
    make = Pbs
    leaves_nodes_out = False
    refused = {"partition": "nope"}
    refusal = "Unknown queue"
    impossible = {"nodes": 99}
    no_answer = {
        "program": "qsub",
        "error": "Communication failure.\nqsub: cannot connect to server",
    }

    def test_an_end_at_the_time_limit_is_told(self, queue: FakeQueue, tmp_path: Path) -> None:
        ends_at_limit(Pbs(queue.commands), queue, self.job(tmp_path, command=("sleep", "60")))


class TestGridEngine(FakeQueueContract):
    kind = "sge"
    make = Sge
    batch = Batch(parallel_environment="mpi")
    refused = {"partition": "nope"}
    refusal = 'unknown queue "nope"'
    impossible = {"folder": "/dev/null/folder"}
    always = {"parallel_environment": "mpi"}
    cancelled_early = JobState.UNKNOWN
    no_answer = {"program": "qsub", "error": "error: commlib error: got read error (closing)"}

    def test_a_job_that_no_cluster_can_run_is_refused(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        with pytest.raises(JobRefusedError, match="no suitable queues"):
            system.submit(self.job(tmp_path, nodes=99))

    def test_an_end_at_the_time_limit_is_told(self, queue: FakeQueue, tmp_path: Path) -> None:
        ends_at_limit(Sge(queue.commands), queue, self.job(tmp_path, command=("sleep", "60")))


class TestLsf(FakeQueueContract):
    kind = "lsf"
    make = Lsf
    refused = {"partition": "nope"}
    refusal = "nope: No such queue"
    impossible = {"options": ('-w "done(12)"',)}
    no_answer = {"program": "bsub", "error": "Cannot connect to LSF. Please wait ..."}

    def test_an_end_at_the_time_limit_is_told(self, queue: FakeQueue, tmp_path: Path) -> None:
        job_id = ends_at_limit(
            Lsf(queue.commands), queue, self.job(tmp_path, command=("sleep", "60"))
        )
        assert Lsf(queue.commands).accounting([job_id])[job_id].state is JobState.TIMED_OUT
