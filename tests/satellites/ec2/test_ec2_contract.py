"""EC2 does what every batch system must."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.batch.job_records import JobState
from headrace.batch.system import BatchSystem
from headrace.errors import JobRefusedError
from headrace_ec2 import api as ec2_api
from headrace_ec2.backend import Ec2
from support.batch_contract import BatchContract, end_of
from support.ec2_sim import Ec2Sim


class TestEc2(BatchContract):
    """Instances in the place of jobs; no queue, so that what cannot start is refused at once."""

    refused = {"prologue": ("#" * 20_000,)}
    refusal = "EC2 accepts 16,384"
    longest_job_s = None

    @pytest.fixture
    def system(self, ec2_sim: Ec2Sim) -> BatchSystem:
        return Ec2(ec2_sim.options())

    @pytest.fixture
    def flaky(self, ec2_sim: Ec2Sim) -> Callable[..., tuple[BatchSystem, Ec2Sim]]:
        def make(before: int = 0, after: int = 0) -> tuple[BatchSystem, Ec2Sim]:
            ec2_sim.errors_before, ec2_sim.errors_after = before, after
            return Ec2(ec2_sim.options()), ec2_sim

        return make

    @pytest.fixture
    def silent(
        self, free_port: int, ec2_sim: Ec2Sim, monkeypatch: pytest.MonkeyPatch
    ) -> BatchSystem:
        monkeypatch.setattr(ec2_api, "_ATTEMPTS", 1)
        return Ec2(ec2_sim.options(endpoint_url=f"http://127.0.0.1:{free_port}"))

    def test_a_job_that_can_never_start_is_told_at_once(
        self, ec2_sim: Ec2Sim, tmp_path: Path
    ) -> None:
        system = Ec2(ec2_sim.options(image="ami-00000000"))
        with pytest.raises(JobRefusedError, match=r"InvalidAMIID.NotFound: The image id .* not"):
            system.submit(self.job(tmp_path))

    def test_an_end_at_the_time_limit_is_told(self, ec2_sim: Ec2Sim, tmp_path: Path) -> None:
        system = Ec2(ec2_sim.options())
        job_id = system.submit(self.job(tmp_path, command=("sleep", "60"), time_limit_s=1.0))
        assert end_of(system, job_id).state is JobState.TIMED_OUT
