"""What goes wrong with instances, and what is told of it; EC2 is simulated."""

from __future__ import annotations

import itertools
import math
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from headrace.batch.job_records import JobSpec, JobState
from headrace.batch.submission_gate import BURST, SubmissionGate
from headrace.batch.system import BatchSystem
from headrace.errors import (
    AmbiguousSubmitError,
    BatchError,
    JobRefusedError,
    QueueFullError,
    SilentError,
    SubmitLimitError,
)
from headrace.recipe.batch import Batch
from headrace_ec2 import api as ec2_api
from headrace_ec2.api import Ec2Api, Ec2Error
from headrace_ec2.backend import Ec2
from support.batch_contract import BatchContract, end_of
from support.ec2_sim import IMAGE, IMAGE_NAME, Ec2Sim, client_error, name_of
from support.factories import job_spec
from support.small_disk import fill, small_disk
from support.waiting import wait_until

_LONG_S = 60.0
_TYPES = ["c5.large", "m5.large"]


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobSpec]:
    """A job that does nothing, with changes."""

    def make(**changes: Any) -> JobSpec:
        given = {"name": f"headrace-{uuid.uuid4().hex[:12]}", "time_limit_s": 600.0}
        here = {"folder": str(tmp_path), "log": str(tmp_path / "log")}
        return job_spec(**{**given, **here, **changes})

    return make


Jobs = Callable[..., JobSpec]


@pytest.mark.parametrize(
    ("prologue", "log", "reason"),
    [
        (("echo no such module; exit 7",), "log", "exit code 7"),
        (
            ("echo mount.nfs4: No such device", "false"), "not mounted/log",
            "it ended before its work began; its console: mount.nfs4: No such device",
        ),
    ],
)  # fmt: skip
def test_what_fails_before_the_work_is_told_in_its_log_or_by_the_console(
    ec2_sim: Ec2Sim, job: Jobs, tmp_path: Path, prologue: tuple[str, ...], log: str, reason: str
):
    system = Ec2(ec2_sim.options())
    ended = end_of(system, system.submit(job(prologue=prologue, log=str(tmp_path / log))))
    assert (ended.state, ended.reason) == (JobState.FAILED, reason)
    assert log != "log" or (tmp_path / "log").read_text() == "no such module\n"


def test_a_full_shared_folder_is_suspected(ec2_sim: Ec2Sim, job: Jobs, tmp_path: Path):
    """pains 22: how the instance ended has no room there; it ends all the same."""
    system = Ec2(ec2_sim.options())
    with small_disk(tmp_path / "shared", "64k") as shared:
        fill(shared)
        ended = end_of(system, system.submit(job(log=str(shared / "log"))))
    assert ended.state is JobState.FAILED
    assert ended.reason == "it could not write how it ended: is the shared folder full?"


def test_an_instance_ends_when_the_host_gives_no_sign(ec2_sim: Ec2Sim, job: Jobs, tmp_path: Path):
    """pains 22: whatever has become of the host, and of the worker."""
    system = Ec2(ec2_sim.options())
    (tmp_path / "heartbeat").write_text("1")
    deaf = ("sh", "-c", "trap '' TERM; sleep 600")
    watched = job(command=deaf, heartbeat=str(tmp_path / "heartbeat"), silence_s=1.0)
    ended = end_of(system, system.submit(watched))
    assert (ended.state, ended.reason) == (
        JobState.FAILED, "the lease's host gave no sign for 1 s")  # fmt: skip


@pytest.mark.parametrize("rebalance", ["save", "leave"])
def test_what_ec2_tells_a_spot_instance_is_passed_on_to_the_lease(
    ec2_sim: Ec2Sim, job: Jobs, tmp_path: Path, rebalance: str
):
    """pains 23: two minutes before the end, and before that where EC2 sees it coming."""
    system = Ec2(ec2_sim.options(markets=["spot"], rebalance=rebalance))
    notice, at_risk, stop = [tmp_path / name for name in ("notice", "at-risk", "stop")]
    until = ("sh", "-c", f"until [ -e {stop} ]; do sleep 0.1; done")
    watched = job(command=until, notice=str(notice), at_risk=str(at_risk))
    watched = watched.model_copy(update={"heartbeat": str(stop), "silence_s": 600.0})
    name = system.submit(watched)
    (instance,) = ec2_sim.alive()
    ec2_sim.risks[instance.id] = '{"noticeTime": "2030-01-01T00:00:00Z"}'
    first = at_risk if rebalance == "save" else notice
    why = f"EC2 recommends to leave {instance.id}"
    wait_until(lambda: first.exists() and why in first.read_text(), _LONG_S, "the recommendation")
    if rebalance == "save":
        assert not system.poll([name])[name].is_taken
        ec2_sim.notices[instance.id] = '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'
        why = f"spot notice for {instance.id}: " + '{"action": "terminate"'
        wait_until(lambda: notice.exists() and why in notice.read_text(), _LONG_S, "the notice")
    seen = system.poll([name])[name]
    assert (seen.state, seen.is_taken) == (JobState.RUNNING, True)
    assert f"{instance.id} is taken away: {why}" in seen.reason
    stop.touch()
    ended = end_of(system, name)
    assert ended.state is JobState.PREEMPTED
    assert ended.reason.startswith(f"taken away: {why}")


def test_an_instance_ends_when_its_time_is_over_whatever_hangs(ec2_sim: Ec2Sim, job: Jobs):
    """pains 22: the timer is set before anything else."""
    ec2_sim.minute_s = 0.5
    system = Ec2(ec2_sim.options())
    name = system.submit(job(time_limit_s=60.0, prologue=("trap '' TERM; sleep 600",)))
    assert end_of(system, name).state is JobState.FAILED
    assert ec2_sim.alive() == []


def test_without_capacity_the_next_offer_is_taken_and_the_first_comes_back(
    ec2_sim: Ec2Sim, job: Jobs
):
    system = Ec2(ec2_sim.options(instance_types=_TYPES, markets=["spot", "on-demand"]))
    ec2_sim.fill("c5.large", spot_only=True)
    first = system.submit(job(command=("sleep", "60")))
    assert [each["instance_type"] for each in ec2_sim.requests] == ["c5.large"] * 2
    seen = system.poll([first])[first]
    assert seen.reason == "c5.large in us-east-1a; no capacity for c5.large (spot) in us-east-1a"
    ec2_sim.refuse = None
    second = system.submit(job(command=("sleep", "60")))  # the empty one rests
    assert len(ec2_sim.requests) == 3
    system._rests_until_s.clear()
    third = system.submit(job(command=("sleep", "60")))
    assert system.poll([third])[third].reason == "c5.large (spot) in us-east-1a"
    ec2_sim.fill(*_TYPES)
    with pytest.raises(SubmitLimitError, match=r"^waiting: EC2 has no capacity for c5.large .spot. "
                       r"in us-east-1a; c5.large in us-east-1a; m5.large"):  # fmt: skip
        system.submit(job())
    system.cancel([first, second, third])


def test_an_instance_that_never_came_is_asked_for_elsewhere(ec2_sim: Ec2Sim, job: Jobs):
    """EC2 may grant a request, and find out afterwards that it has no room."""
    system = Ec2(ec2_sim.options(instance_types=_TYPES))
    name = system.submit(job(command=("sleep", "60")))
    (instance,) = ec2_sim.alive()
    ec2_sim.terminate(instance, "Server.InsufficientInstanceCapacity")
    assert system.poll([name])[name].state is JobState.PREEMPTED
    again = system.submit(job())
    assert ec2_sim.requests[-1]["instance_type"] == "m5.large"
    end_of(system, again)


@pytest.mark.parametrize(
    ("code", "error", "told", "num_requests"),
    [
        # botocore has tried again, with pauses
        ("RequestLimitExceeded", SubmitLimitError, "limits requests: so it is", 4),
        ("ExpiredToken", BatchError, r"does not accept the credentials(.|\n)*Renew", 1),
        ("UnauthorizedOperation", JobRefusedError, "UnauthorizedOperation: so it is", 1),
    ],
)
def test_each_refusal_has_its_error_and_its_next_step(
    ec2_sim: Ec2Sim, job: Jobs, code: str, error: type[Exception], told: str, num_requests: int
):
    """Throttling is waited for; credentials that expire end nothing."""
    ec2_sim.refuse_with(code)
    ec2_api._client.cache_clear()
    with pytest.raises(error, match=told):
        Ec2(ec2_sim.options()).submit(job())
    assert len(ec2_sim.requests) == num_requests


@pytest.mark.nightly
def test_a_storm_of_throttling_at_two_hundred_nodes(
    ec2_sim: Ec2Sim, job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """pains 16, 17: two of three calls are refused for long; each job is started once.

    EC2 hears no more than the site's pace, and botocore's repetition, allow.
    """
    monkeypatch.setattr(ec2_api, "_ATTEMPTS", 2)
    ec2_api._client.cache_clear()
    ec2_sim.boot_s = math.inf
    calls, told, per_minute = itertools.count(), set(), 2400

    def refuse(instance_type: str, is_spot: bool) -> None:
        if (number := next(calls)) < 60 and number % 3:
            raise client_error("RequestLimitExceeded", "Request limit exceeded.")

    ec2_sim.refuse = refuse
    rules = Batch(poll=0.3, submits_per_minute=per_minute)
    gate = SubmissionGate(Ec2(ec2_sim.options()), tmp_path, rules)

    def submitted(spec: JobSpec) -> bool:
        try:
            return bool(gate.submit(spec, tmp_path / spec.name / "job.json"))
        except QueueFullError as error:
            told.add(error.what)
            return False

    specs = [job() for _ in range(200)]
    begun_s = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        waiting = [
            threads.submit(wait_until, partial(submitted, spec), 240.0, "a turn") for spec in specs
        ]
    passed_s = time.monotonic() - begun_s
    assert all(each.result() for each in waiting)
    assert sorted(map(name_of, ec2_sim.alive())) == sorted(spec.name for spec in specs)
    assert len(ec2_sim.requests) > 200
    assert len(ec2_sim.requests) <= 2 * (BURST + passed_s * per_minute / 60)
    assert "waiting: EC2 limits requests: Request limit exceeded." in told
    gate.system.cancel([spec.name for spec in specs])


def test_after_an_unclear_answer_the_very_same_is_asked_again(
    ec2_sim: Ec2Sim, job: Jobs, tmp_path: Path
):
    """pains 17: a fall to another offer in between would be a second job."""
    system = Ec2(ec2_sim.options(instance_types=_TYPES))
    ec2_sim.fill("c5.large")
    ec2_sim.errors_after = 1
    asked = job(command=("sleep", "60"))
    with pytest.raises(AmbiguousSubmitError, match="No clear answer"):
        system.submit(asked)
    ec2_sim.refuse = None  # the first offer has capacity again
    assert system.submit(asked) == asked.name
    assert len(ec2_sim.alive()) == 1
    tokens = [each["client_token"] for each in ec2_sim.requests]
    assert tokens[1] == tokens[2] != tokens[0]
    gate = SubmissionGate(system, tmp_path, Batch())
    record = gate.submit(asked, tmp_path / "job.json")
    assert record.job_id == asked.name
    assert len(ec2_sim.alive()) == 1
    system.cancel([asked.name])


def test_a_gang_has_ended_when_all_of_it_has(ec2_sim: Ec2Sim, job: Jobs):
    system = Ec2(ec2_sim.options(markets=["spot"]))
    name = system.submit(job(nodes=2, command=("sleep", "60")))
    first, second = ec2_sim.alive()
    ec2_sim.terminate(second, "Server.SpotInstanceTermination")
    seen = system.poll([name])[name]
    assert seen.state is JobState.RUNNING
    assert f"{second.id} has ended: Server.SpotInstanceTermination" in seen.reason
    system.cancel([name])
    ended = end_of(system, name)
    assert ended.state is JobState.PREEMPTED
    assert ended.nodes == (first.id, second.id)


def test_a_gang_is_ended_whose_member_was_stopped(ec2_sim: Ec2Sim, job: Jobs):
    """pains 22: a stopped instance never ends by itself, and its volumes cost money."""
    system = Ec2(ec2_sim.options())
    name = system.submit(job(nodes=2, command=("sleep", "60")))
    _, stopped = ec2_sim.alive()
    stopped.stop()
    seen = system.poll([name])[name]
    assert seen.state is JobState.CANCELLED
    assert f"{stopped.id}: it is stopped" in seen.reason
    assert ec2_sim.alive() == []


def test_an_instance_that_hangs_is_ended_and_its_node_has_failed(ec2_sim: Ec2Sim, job: Jobs):
    """EC2 tells it, and is asked once a minute, however many instances there are."""
    system = Ec2(ec2_sim.options())
    names = [system.submit(job(command=("sleep", "60"))) for _ in range(3)]
    assert {each.state for each in system.poll(names).values()} == {JobState.RUNNING}
    hung, shaken, _ = ec2_sim.alive()
    now = datetime.now(timezone.utc)
    ec2_sim.impaired = {hung.id: now - timedelta(minutes=6), shaken.id: now - timedelta(minutes=4)}
    system.poll(names)
    assert ec2_sim.num_looks == 1
    system = Ec2(ec2_sim.options())  # as a minute later
    for _ in range(2):  # also when it is known to have been terminated
        seen = system.poll(names)
        assert [seen[name].state for name in names] == [
            JobState.NODE_FAILED, JobState.RUNNING, JobState.RUNNING]  # fmt: skip
    failed = seen[names[0]]
    assert failed.failed_nodes == (hung.id,)
    assert failed.reason.startswith("EC2's system status check has failed since ")
    assert hung not in ec2_sim.alive()
    system.cancel(names)


def test_without_the_right_to_ask_whether_instances_hang_work_goes_on(
    ec2_sim: Ec2Sim, job: Jobs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    system = Ec2(ec2_sim.options())
    name = system.submit(job(command=("sleep", "60")))
    call = Ec2Api.call

    def refuse(api: Ec2Api, operation: str, **request: Any) -> Any:
        if operation == "describe_instance_status":
            raise Ec2Error("UnauthorizedOperation", "You are not authorized")
        return call(api, operation, **request)

    monkeypatch.setattr(Ec2Api, "call", refuse)
    assert system.poll([name])[name].state is JobState.RUNNING
    assert "It is unknown whether instances hang: EC2 says UnauthorizedOperation" in caplog.text
    system.cancel([name])


@pytest.mark.parametrize(("ahead_s", "told"), [(420.0, "7 min ahead of"), (-360.0, "6 min behind")])
def test_a_wrong_clock_is_told_where_it_spoils_signatures(
    ec2_sim: Ec2Sim, job: Jobs, monkeypatch: pytest.MonkeyPatch, ahead_s: float, told: str
):
    ec2_sim.refuse_with("RequestExpired")
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s)
    monkeypatch.setattr(ec2_api, "time", clock)
    with pytest.raises(BatchError, match=f"The clock of this machine is {told} EC2's"):
        Ec2(ec2_sim.options()).submit(job())


def test_a_server_that_is_not_there_is_no_matter_of_credentials(
    ec2_sim: Ec2Sim, job: Jobs, free_port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ec2_api, "_ATTEMPTS", 1)
    system = Ec2(ec2_sim.options(endpoint_url=f"http://127.0.0.1:{free_port}"))
    with pytest.raises(AmbiguousSubmitError, match="Could not connect to the endpoint URL"):
        system.submit(job())
    with pytest.raises(SilentError, match="Is EC2 reachable from here"):
        system.find("x")


def test_without_credentials_a_request_reads_nothing_again_but_credentials(
    ec2_sim: Ec2Sim, monkeypatch: pytest.MonkeyPatch
):
    """The models of botocore's services take a third of a second to read."""
    system = Ec2(ec2_sim.options(region="us-west-2"))
    with monkeypatch.context() as without:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            without.delenv(name)
        read: list[str] = []
        load_file = JSONFileLoader.load_file

        def load(loader: JSONFileLoader, path: str) -> Any:
            read.append(path)
            return load_file(loader, path)

        without.setattr(JSONFileLoader, "load_file", load)
        for _ in range(3):
            with pytest.raises(BatchError, match="Unable to locate credentials"):
                system.find("x")
    assert len(read) == len(set(read))
    assert not system.find("x")  # they are there now


def test_the_newest_image_of_a_pattern_is_taken(ec2_sim: Ec2Sim, job: Jobs):
    pattern = {"image": IMAGE_NAME.replace("20171103", "*"), "image_owner": "amazon"}
    assert f'"ImageId": "{IMAGE}"' in Ec2(ec2_sim.options(**pattern)).preview(job())
    nobody = Ec2(ec2_sim.options(image="nobody-made-this-*"))
    with pytest.raises(JobRefusedError, match=r"no image 'nobody-made-this-\*' of owner 'self'"):
        nobody.submit(job())


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
