"""What every batch system must do; a system's suite inherits `BatchContract` and names itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.batch import submission_gate
from headrace.batch.commands import Commands
from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.batch.queue_state import JobRecord, final_status, intent_of, job_status, state_file
from headrace.batch.submission_gate import SubmissionGate
from headrace.batch.system import INDEX, BatchSystem
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError
from headrace.files.atomic import write_text
from headrace.recipe.batch import Batch
from support.factories import job_spec
from support.fake_queues.commands import FakeQueue, fake_queue
from support.scripted_commands import FlakySubmits
from support.waiting import wait_until

START_S = 60.0


ENDED_S = 60.0


class BatchContract:
    """The suite. A system gives itself, with flaky submits and without answers, and bad jobs."""

    @pytest.fixture(autouse=True)
    def short_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(submission_gate, "_PAUSE_S", 0.1)

    @pytest.fixture
    def system(self) -> BatchSystem:
        raise NotImplementedError

    @pytest.fixture
    def flaky(self) -> Callable[..., tuple[BatchSystem, FlakySubmits]]:
        raise NotImplementedError

    @pytest.fixture
    def silent(self) -> BatchSystem:
        """The same system, when it does not answer."""
        raise NotImplementedError

    refused: dict[str, Any]
    """Changes that make a job one that is refused at once."""
    refusal: str
    """Part of the words with which it is refused."""
    impossible: dict[str, Any]
    """Changes that make a job one that is taken and can never start."""
    always: ClassVar[dict[str, Any]] = {}
    """What every job of the system must say."""
    leaves_nodes_out = True
    """Whether its jobs can be kept off nodes."""
    batch = Batch()
    """What the system is asked for in the site of such a job."""
    longest_job_s: float | None = 48 * 3600.0
    """The longest time of such a job."""
    cancelled_early = JobState.CANCELLED
    """What the system knows of a job that was cancelled before it started."""

    def job(self, place: Path, **changes: Any) -> JobSpec:
        return job(place, **{**self.always, **changes})

    def test_a_job_runs_on_each_of_its_nodes(self, system: BatchSystem, tmp_path: Path) -> None:
        """pains 15: one allocation of N nodes."""
        job = self.job(
            tmp_path,
            command=("sh", "-c", 'echo "at:$COLOUR:$STEEL" >> "$1"', "sh", f"{tmp_path}/seen"),
            nodes=2,
            environment={"COLOUR": "it's blue"},
            prologue=("export STEEL=grey",),
        )
        job_id = system.submit(job)
        assert end_of(system, job_id).state is JobState.COMPLETED
        seen = (tmp_path / "seen").read_text().splitlines()
        assert seen == ["at:it's blue:grey"] * 2

    def test_a_failed_job_is_told_from_a_good_one(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        job_id = system.submit(self.job(tmp_path, command=("sh", "-c", "echo sorry; exit 3")))
        assert end_of(system, job_id).state is JobState.FAILED
        assert "sorry" in (tmp_path / "log").read_text()

    def test_one_query_for_many_jobs(self, system: BatchSystem, tmp_path: Path) -> None:
        ids = [system.submit(self.job(tmp_path, command=("sleep", "60"))) for _ in range(2)]
        wait_until(lambda: states(system, ids) == {JobState.RUNNING}, START_S, "both to run")
        assert set(system.poll([*ids, "999999"])) == set(ids)
        system.cancel(ids)
        assert {end_of(system, job_id).state for job_id in ids} == {JobState.CANCELLED}
        system.cancel(ids)  # harmless

    def test_the_books_know_how_jobs_ended(self, system: BatchSystem, tmp_path: Path) -> None:
        """pains 31: decided by accounting."""
        good = system.submit(self.job(tmp_path, command=("true",)))
        bad = system.submit(self.job(tmp_path, command=("false",)))

        def in_books() -> bool:
            told = system.accounting([good, bad])
            return {key: each.state for key, each in told.items()} == {
                good: JobState.COMPLETED,
                bad: JobState.FAILED,
            }

        wait_until(in_books, ENDED_S, "the books to have both", poll_s=0.3)

    def test_a_bad_job_is_refused_with_the_reason(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        with pytest.raises(JobRefusedError, match=f"refuses the job .*{self.refusal}"):
            system.submit(self.job(tmp_path, **self.refused))

    def test_a_job_that_can_never_start_is_told_at_once(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        """Not waited for: the reason is one that waiting does not change."""
        job_id = system.submit(self.job(tmp_path, **self.impossible))
        try:
            seen = wait_until(
                lambda: (now := system.poll([job_id])[job_id]).never_starts and now,
                START_S,
                "the reason",
            )
            assert seen.reason
        finally:
            system.cancel([job_id])
        wait_until(lambda: end_of(system, job_id).state is self.cancelled_early, ENDED_S, "its end")

    def test_a_lost_answer_makes_no_second_job(
        self, flaky: Callable[..., tuple[BatchSystem, FlakySubmits]], tmp_path: Path
    ) -> None:
        """pains 17: a submit that times out after it did its work."""
        system, commands = flaky(after=1)
        job = self.job(tmp_path, command=("sleep", "60"))
        record = submit(system, job, tmp_path)
        assert [each.job_id for each in system.find(job.name)] == [record.job_id]
        assert commands.num_submits == 1
        assert submit(system, job, tmp_path) == record
        system.cancel([record.job_id])
        end_of(system, record.job_id)

    def test_a_submit_that_did_nothing_is_tried_again(
        self, flaky: Callable[..., tuple[BatchSystem, FlakySubmits]], tmp_path: Path
    ) -> None:
        system, commands = flaky(before=2)
        job = self.job(tmp_path, command=("true",))
        record = submit(system, job, tmp_path)
        assert commands.num_submits == 3
        assert len(system.find(job.name)) == 1
        end_of(system, record.job_id)

    def test_a_submitter_that_died_is_followed_by_no_second_job(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        """pains 6: between the submit and the record of it."""
        job = self.job(tmp_path, command=("true",))
        write_text(intent_of(tmp_path / "job.json"), job.name)
        job_id = system.submit(job)
        assert submit(system, job, tmp_path).job_id == job_id
        assert len(system.find(job.name)) == 1
        end_of(system, job_id)

    def test_the_first_node_is_told_and_can_be_left_out(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        """pains 34: so that a bad one is named, and not given again."""
        command = {"command": ("sleep", "60")}
        first = system.submit(self.job(tmp_path, **command))
        node = node_of(system, first)
        system.cancel([first])
        ended = end_of(system, first)
        assert ended.nodes == (node,)
        assert ended.failed_nodes == ()  # it was cancelled
        again = system.submit(self.job(tmp_path, **command, exclude=(node,)))
        assert (node_of(system, again) != node) is self.leaves_nodes_out
        system.cancel([again])
        end_of(system, again)

    def test_the_longest_job_is_told(self, system: BatchSystem) -> None:
        assert system.longest_job_s(self.batch) == self.longest_job_s

    def test_a_queue_that_is_down_is_no_end_of_a_job(
        self, system: BatchSystem, silent: BatchSystem, tmp_path: Path
    ) -> None:
        lease = tmp_path / "leases" / "a-1"
        lease.mkdir(parents=True)
        record = submit(system, self.job(tmp_path, command=("sleep", "60")), lease)
        wait_until(
            lambda: job_status(system, lease.parent, record, 0.1).state is JobState.RUNNING,
            START_S,
            "the job to run",
        )
        state = state_file(lease.parent, "")
        before = state.read_bytes()
        wait_until(
            lambda: job_status(silent, lease.parent, record, 0.1) and state.read_bytes() != before,
            START_S,
            "a question that gets no answer",
        )
        assert job_status(silent, lease.parent, record, 0.1).state is JobState.RUNNING
        with pytest.raises(BatchError):
            silent.poll([record.job_id])
        system.cancel([record.job_id])
        end_of(system, record.job_id)


class ScriptContract(BatchContract):
    """The suite of systems whose job scripts start the tasks on further nodes themselves."""

    @pytest.fixture
    def limited(self) -> dict[str, Any]:
        """Changes that make a job one that reaches its time limit within seconds."""
        raise NotImplementedError

    def test_a_submit_to_a_server_that_is_down_is_no_refusal(
        self, silent: BatchSystem, tmp_path: Path
    ) -> None:
        """pains 17."""
        with pytest.raises(AmbiguousSubmitError, match="no clear answer"):
            silent.submit(self.job(tmp_path))
        for ask in (silent.poll, silent.cancel):  # Grid Engine's accounting is a file
            with pytest.raises(BatchError, match="does not answer"):
                ask(["1"])
        with pytest.raises(BatchError, match="does not answer"):
            silent.longest_job_s(self.batch)

    def test_an_end_at_the_time_limit_is_told(
        self, system: BatchSystem, limited: dict[str, Any], tmp_path: Path
    ) -> None:
        job_id = system.submit(self.job(tmp_path, command=("sleep", "60"), **limited))
        ended = end_of(system, job_id)
        assert ended.state is JobState.TIMED_OUT, ended
        assert ended.reason
        assert system.accounting([job_id])[job_id].state is JobState.TIMED_OUT

    def test_the_first_node_that_fails_ends_the_job(
        self, system: BatchSystem, tmp_path: Path
    ) -> None:
        """As with `srun --kill-on-bad-exit`."""
        text = f'if [ "${INDEX}" = 1 ]; then exit 5; fi; sleep 60'
        job_id = system.submit(self.job(tmp_path, nodes=2, command=("sh", "-c", text)))
        assert end_of(system, job_id).state is JobState.FAILED

    def test_each_node_knows_its_place(self, system: BatchSystem, tmp_path: Path) -> None:
        text = f'echo "${INDEX}:$(pwd)" >> seen; test -z "$DISPLAY_OF_SUBMITTER"'
        folder = tmp_path / "a folder"
        folder.mkdir()
        changes = {"folder": str(folder), "log": f"{folder}/log", "nodes": 3}
        job_id = system.submit(self.job(tmp_path, command=("sh", "-c", text), **changes))
        assert end_of(system, job_id).state is JobState.COMPLETED, (folder / "log").read_text()
        seen = (folder / "seen").read_text().splitlines()
        assert sorted(seen) == [f"{index}:{folder}" for index in range(3)]


class FakeQueueContract(ScriptContract):
    """The suite of systems that are driven through fakes of their commands only."""

    kind: ClassVar[str]
    make: ClassVar[Callable[[Commands], BatchSystem]]
    no_answer: ClassVar[dict[str, str]]
    """The submit command, and what it says when nobody knows what it did."""

    @pytest.fixture
    def queue(self, tmp_path: Path) -> Iterator[FakeQueue]:
        made = fake_queue(self.kind, tmp_path / "fake")
        yield made
        made.end()

    @pytest.fixture
    def system(self, queue: FakeQueue) -> BatchSystem:
        return type(self).make(queue.commands)

    @pytest.fixture
    def flaky(self, queue: FakeQueue) -> Callable[..., tuple[BatchSystem, FlakySubmits]]:
        def make(**counts: int) -> tuple[BatchSystem, FlakySubmits]:
            commands = FlakySubmits(queue.commands, **counts, **self.no_answer)
            return type(self).make(commands), commands

        return make

    @pytest.fixture
    def silent(self, queue: FakeQueue) -> BatchSystem:
        return type(self).make(queue.silent_commands)

    @pytest.fixture
    def limited(self, queue: FakeQueue) -> dict[str, Any]:
        queue.limit_s(0.2)
        return {}


def job(place: Path, **changes: Any) -> JobSpec:
    given = {"name": f"headrace-{uuid.uuid4().hex[:12]}", "memory_per_node": 2**28}
    here = {"time_limit_s": 120.0, "folder": str(place), "log": str(place / "log")}
    return job_spec(**{**given, **here, **changes})


def submit(system: BatchSystem, job: JobSpec, folder: Path) -> JobRecord:
    gate = SubmissionGate(system, folder, Batch(submits_per_minute=100_000))
    return gate.submit(job, folder / "job.json")


def end_of(system: BatchSystem, job_id: str) -> JobStatus:
    record = JobRecord(job_id=job_id, name="", submitted_at=0.0)
    ended = final_status(system, record, ENDED_S)
    assert ended is not None, f"job {job_id} has not ended"
    return ended


def node_of(system: BatchSystem, job_id: str) -> str:
    def nodes() -> tuple[str, ...]:
        seen = system.poll([job_id]).get(job_id)
        return () if seen is None else seen.nodes

    return wait_until(nodes, START_S, "the node to be told")[0]


def states(system: BatchSystem, job_ids: list[str]) -> set[JobState]:
    return {each.state for each in system.poll(job_ids).values()}
