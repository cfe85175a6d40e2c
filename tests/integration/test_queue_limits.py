"""Many jobs, and a suite, on a real Slurm: within the limits, and none twice."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch.job_records import JobSpec
from headrace.batch.submission_gate import SubmissionGate
from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.errors import QueueFullError, SubmitLimitError
from headrace.files.layout import SiteFolder
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role
from headrace.states import LeaseState, StepState
from support.command_line import headrace
from support.factories import job_spec
from support.held_suite import HeldSuite
from support.leases import lease_spec
from support.paced_run import Waiting, until
from support.queue_burst import burst, flaky_sbatch
from support.slurm_dev import DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

NUM_JOBS = 100
MOST, MOST_QUEUED = 14, 8
LOST = 13


@pytest.mark.nightly
def test_a_hundred_jobs_asked_for_at_once(slurm: DevSlurm, tmp_path: Path):
    """pains 16, 17: within the limits at every moment, and no duplicate of a lost answer."""
    leases = tmp_path / "leases"
    batch = Batch(max_jobs=MOST, max_queued=MOST_QUEUED, poll=0.3, submits_per_minute=100_000)
    seen: list[Counter[str]] = []
    with burst(leases, batch, flaky_sbatch(tmp_path / "bin", LOST), NUM_JOBS) as workers:
        while any(worker.is_alive() for worker in workers):
            states = slurm.run("squeue", "--noheader", "--format=%T").split()
            seen.append(Counter(states))
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
    assert max(each.total() for each in seen) <= MOST
    assert max(each["PENDING"] for each in seen) <= MOST_QUEUED
    assert max(each.total() for each in seen) >= MOST - 3  # it is looked at now and then
    names = slurm.run("squeue", "--noheader", "--states=all", "--format=%j").split()
    made = Counter(name for name in names if name.startswith("headrace-burst-"))
    assert len(made) == NUM_JOBS
    assert set(made.values()) == {1}
    calls = (tmp_path / "bin" / "sbatch.calls").read_text().count("\n")
    assert calls == NUM_JOBS  # what was lost was found by name
    told = {file.read_text() for file in leases.glob("*/waiting.json")}
    assert f"waiting: site limit of {MOST_QUEUED} queued jobs" in told


def test_a_lease_that_waits_for_its_turn_says_so(slurm: DevSlurm, tmp_path: Path):
    """pains 16: neither lost nor failed, and nothing of it is left when it is given up."""
    role = Role.model_validate(
        {"backend": "slurm", "kind": "gang", "batch": {"max_jobs": 1, "poll": 0.3}}
    )
    site = SiteFolder(tmp_path)
    first, second = site.lease("first-1"), site.lease("second-1")
    blocker = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--exclusive", "--nodes=4",
                        "--wrap=sleep 60").strip()  # fmt: skip
    lease_client.start(first, lease_spec(first, role))
    for _ in range(2):
        with pytest.raises(QueueFullError, match="site limit of 1 jobs"):
            lease_client.start(second, lease_spec(second, role))
    assert LeaseFiles.read(second).state(0.0) is LeaseState.STARTING
    assert LeaseFiles.read(second).wait().why == "waiting: site limit of 1 jobs"
    lease_client.end(first, reason="not needed")

    def started() -> bool:
        try:
            lease_client.start(second, lease_spec(second, role))
        except QueueFullError:
            return False
        return True

    wait_until(started, 90, "the first job to be gone", poll_s=0.2)
    assert "Slurm job" in LeaseFiles.read(second).wait().why
    lease_client.end(second, reason="not needed")
    assert slurm.queue() == [blocker]
    slurm.run("scancel", blocker)


@pytest.fixture
def qos_limit(slurm: DevSlurm) -> Iterator[int]:
    """A limit of three submitted jobs a user, which Slurm enforces."""
    change = ("sacctmgr", "--immediate", "modify", "qos", "normal", "set")
    slurm.run(*change, "MaxSubmitJobsPerUser=3")
    yield 3
    slurm.run(*change, "MaxSubmitJobsPerUser=-1")


def test_a_limit_of_slurm_is_read_and_a_refusal_for_it_is_waited_for(
    slurm: DevSlurm, qos_limit: int, tmp_path: Path
):
    """pains 16: known from the books; and when others of the user took the places, from sbatch."""
    gate = SubmissionGate(slurm.system, tmp_path, Batch(poll=0.3, submits_per_minute=1000))
    others = [
        slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 60").strip()
        for _ in range(qos_limit - 1)
    ]
    wait_until(lambda: slurm.system.limits(_job(1)), 120, "the limit to be known")
    assert gate.submit(_job(1), tmp_path / "1" / "job.json").job_id in slurm.queue()
    with pytest.raises(SubmitLimitError, match="QOSMaxSubmitJobPerUserLimit"):
        gate.submit(_job(2), tmp_path / "2" / "job.json")
    slurm.run("scancel", *others)

    def submitted() -> bool:
        try:
            return bool(gate.submit(_job(2), tmp_path / "2" / "job.json"))
        except QueueFullError:
            return False

    wait_until(submitted, 90, "a place to come free", poll_s=0.2)
    assert gate.submit(_job(3), tmp_path / "3" / "job.json").job_id in slurm.queue()
    with pytest.raises(QueueFullError, match=r"MaxSubmitJobsPerUser of QOS normal\) limit of 3 "):
        gate.submit(_job(4), tmp_path / "4" / "job.json")
    slurm.run("scancel", *slurm.queue())


def _job(number: int) -> JobSpec:
    name = f"headrace-limited-{number}-{uuid.uuid4().hex[:8]}"
    return job_spec(name=name, command=("sleep", "60"), memory_per_node=2**26, time_limit_s=120.0)


_HELD, _GANG = (1, 2, 3, 4), 5
"""Trials that wait in their third step to be let go; and the last, which takes two nodes."""


def test_trials_go_on_elsewhere_when_the_job_of_their_node_is_cancelled(
    headrace_home: Path, slurm: DevSlurm, no_leftover_processes: None
):
    """pains 22, 37: each GPU has one trial, each trial one success, and all of it is priced."""
    notes = {number: headrace_home / f"notes-{number}" for number in (*_HELD, _GANG)}
    for folder in notes.values():
        folder.mkdir()
    points = [{"model.notes": str(notes[number]), "model.fate": "hold"} for number in _HELD]
    suite = HeldSuite(
        headrace_home,
        {
            "backend": "slurm",
            "kind": "pool",
            "nodes": 2,
            "lifetime": 600,
            "price": {"usd_per_gpu_hour": 1800},
            "batch": {"interface": "lo", "poll": 0.2, "gpus_per_node": 2},
        },
        {
            "data": {"global_batch_size": 16},
            "model": {"_target_": "trial_models.TrialModel", "notes": str(notes[_GANG])},
            "trainer": {"max_epochs": 1, "checkpoint_every_steps": 1},
            "suite": {
                "objectives": [{"metric": "loss"}],
                "points": [*points, {"train.nodes": 2, "train.ranks_per_node": 1}],
            },
        },
    )
    lost: list[int] = []

    def are_held() -> bool:
        return all((notes[number] / "held-3").exists() for number in _HELD)

    def disturb() -> Waiting:
        yield from until(are_held)
        begun = suite.begun()
        machine = begun[1].machines[0]
        lost.extend(number for number in _HELD if begun[number].machines == (machine,))
        parts = {
            number: json.loads((notes[number] / "part-0.1.json").read_text()) for number in _HELD
        }
        for numbers in (lost, sorted({*_HELD} - {*lost})):
            assert [parts[number]["CUDA_VISIBLE_DEVICES"] for number in numbers] == ["0", "1"]
            first, second = (set(parts[number]["cpus"]) for number in numbers)
            assert not first & second
        for number in lost:
            (notes[number] / "held-3").unlink()
        (job_id,) = slurm.queue(f"--nodelist={machine}")
        slurm.run("scancel", job_id)
        yield from until(lambda: are_held() and job_id not in slurm.queue())
        shown = headrace("suite", "show", suite.run.run_id)
        assert "running (2)" in shown.stdout
        for number in _HELD:
            (notes[number] / "go-3").touch()

    suite.go(disturb())
    assert slurm.queue() == []
    ends = suite.ends()
    done = [end for end in ends if end.state is StepState.SUCCEEDED]
    assert sorted(end.number for end in done) == [*_HELD, _GANG]
    assert sorted(end.number for end in ends if end.state is StepState.LOST) == lost
    (gang,) = [end for end in done if end.number == _GANG]
    assert len(set(gang.machines)) == gang.usage.nodes == 2
    usage = suite.usage()
    for (number, attempt), row in usage.items():
        assert (row.machine_kind, row.usd_per_hour) == ("slurm 2 x GPU", 3600.0)
        assert row.usd == pytest.approx(row.node_s)  # a dollar a second
        assert row.gpus == (4 if number == _GANG else 1)
        assert (row.cause == "succeeded") == ((number, attempt) not in [(n, 1) for n in lost])
        assert (row.queue_s > 0) or attempt == 2
    shown = json.loads(headrace("cost", suite.run.run_id, "--by", "trial", "--json").stdout)
    told = {each["trial"]: each["usd"] for each in shown}
    for number in lost:
        assert told[str(number)] == pytest.approx(usage[number, 1].usd + usage[number, 2].usd)
    (whole,) = json.loads(headrace("cost", suite.run.run_id, "--by", "run", "--json").stdout)
    status = json.loads(headrace("status", suite.run.run_id, "--json").stdout)
    assert whole["usd"] == pytest.approx(status["cost"]["usd"])
