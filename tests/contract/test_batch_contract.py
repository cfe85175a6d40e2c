"""Slurm, here and over SSH, and the batch system of docs/how-to/extend.md pass one contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.batch.job_records import JobState
from headrace.batch.slurm import Slurm
from headrace.batch.ssh import SshCommands
from headrace.batch.system import BatchSystem
from headrace.errors import JobRefusedError
from headrace.recipe.backend import backend_of
from headrace.recipe.load import load_site
from support.added_packages import blocks, entry_points_of, found_in, install
from support.batch_contract import START_S, BatchContract, FakeQueueContract, end_of, job, states
from support.login_node import LoginNode
from support.scripted_commands import CommandResult, FlakySubmits, ScriptedCommands
from support.slurm_dev import DevSlurm
from support.waiting import wait_until


class TestSlurm(BatchContract):
    refused = {"partition": "nope"}
    refusal = "nope"
    impossible = {"time_limit_s": 99 * 3600.0}

    @pytest.fixture
    def system(self, slurm: DevSlurm) -> BatchSystem:
        return slurm.system

    @pytest.fixture
    def flaky(self, slurm: DevSlurm) -> Callable[..., tuple[BatchSystem, FlakySubmits]]:
        def make(**counts: int) -> tuple[BatchSystem, FlakySubmits]:
            commands = FlakySubmits(slurm.commands, **counts)
            return type(slurm.system)(commands), commands

        return make

    @pytest.fixture
    def silent(self, slurm: DevSlurm) -> BatchSystem:
        down = CommandResult(1, "", "slurm_load_jobs error: Unable to contact slurm controller")
        return type(slurm.system)(ScriptedCommands(down))

    def test_too_much_memory_is_refused(self, system: BatchSystem, tmp_path: Path) -> None:
        with pytest.raises(JobRefusedError, match="Memory specification can not be satisfied"):
            system.submit(job(tmp_path, memory_per_node=2**40))

    def test_gpus_are_given_by_slurm(self, system: BatchSystem, tmp_path: Path) -> None:
        command = ("sh", "-c", f'echo "$CUDA_VISIBLE_DEVICES" >> "{tmp_path}/seen"')
        job_id = system.submit(job(tmp_path, command=command, gpus_per_node=2))
        assert end_of(system, job_id).state is JobState.COMPLETED
        assert (tmp_path / "seen").read_text() == "0,1\n"

    def test_a_preempted_job_is_told_from_a_cancelled_one(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        low = system.submit(job(tmp_path, command=("sleep", "60"), nodes=4, cpus_per_node=4))
        wait_until(lambda: states(system, [low]) == {JobState.RUNNING}, START_S, "it to run")
        urgent = job(tmp_path, command=("true",), cpus_per_node=4, partition="urgent")
        high = system.submit(urgent)
        assert end_of(system, low).state is JobState.PREEMPTED
        assert end_of(system, high).state is JobState.COMPLETED


@pytest.mark.slow
class TestSlurmOverSsh(BatchContract):
    """pains 14: as on the machine itself, though its commands run on a login node."""

    refused = TestSlurm.refused
    refusal = TestSlurm.refusal
    impossible = TestSlurm.impossible

    @pytest.fixture
    def commands(self, slurm: DevSlurm, login_node: LoginNode) -> SshCommands:
        return login_node.commands({"SLURM_CONF": str(slurm.config)})

    @pytest.fixture
    def system(self, commands: SshCommands) -> BatchSystem:
        return Slurm(commands)

    @pytest.fixture
    def flaky(self, commands: SshCommands) -> Callable[..., tuple[BatchSystem, FlakySubmits]]:
        def make(**counts: int) -> tuple[BatchSystem, FlakySubmits]:
            spoilt = FlakySubmits(commands, **counts)
            return Slurm(spoilt), spoilt

        return make

    @pytest.fixture
    def silent(self) -> BatchSystem:
        return Slurm(ScriptedCommands(CommandResult(None, "", "the connection to login1 was lost")))

    @pytest.fixture(autouse=True)
    def _one_connection(self, login_node: LoginNode) -> Iterator[None]:
        yield
        assert login_node.num_connections <= 1


@pytest.fixture
def package(tmp_path: Path) -> Iterator[None]:
    section, folder = "A batch system", tmp_path / "site-packages"
    install(folder, "headrace_tq", blocks(section, "python"), entry_points_of(section))
    (folder / "headrace_tq.sh.jinja").write_text(blocks(section, "jinja"))
    with found_in(folder):
        yield


@pytest.mark.usefixtures("package")
class TestTq(FakeQueueContract):
    kind = "tq"
    refused = {"partition": "nope"}
    refusal = "no queue nope"
    impossible = {"nodes": 99}
    no_answer = {"program": "tq-submit", "error": "tq-submit: no answer"}

    @staticmethod
    def make(commands: object) -> BatchSystem:
        return backend_of("tq")(commands)  # type: ignore[call-arg, return-value]


def test_it_is_short() -> None:
    written = blocks("A batch system", "python") + blocks("A batch system", "jinja")
    assert len(written.splitlines()) <= 120


@pytest.mark.usefixtures("package")
def test_a_role_names_it_and_what_it_lacks_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    text = (
        f"folder: {tmp_path}\ntiers: [{{name: t, folder: {tmp_path}/t}}]\n"
        "roles: {gpu: {backend: tq, batch: {BATCH}}}\n"
    )
    site.write_text(text.replace("BATCH", "partition: main"))
    assert load_site(str(site)).roles["gpu"].has_queue
    for batch, words in (
        ("qos: high", "backend 'tq' has no `batch.qos`: write the cluster's own option"),
        ("options: [--name=x]", "must not hold '--name=x': headrace finds its jobs by their names"),
    ):
        site.write_text(text.replace("BATCH", batch))
        with pytest.raises(Exception, match=words):
            load_site(str(site))
