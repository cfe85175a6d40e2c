"""What EC2 tells of instances, as states of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.batch.job_records import JobState, failure_class
from headrace.states import FailureClass
from headrace_ec2.states import ends_at, status_of


def _instance(state: str, code: str = "", index: int = 0, **tags: str) -> dict[str, Any]:
    return {
        "InstanceId": f"i-{index}",
        "AmiLaunchIndex": index,
        "InstanceType": "m5.large",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "State": {"Name": state},
        "StateReason": {"Code": code, "Message": f"{code}: why"},
        "Tags": [{"Key": f"headrace:{key}", "Value": value} for key, value in tags.items()],
    }


@pytest.mark.parametrize(
    ("code", "told", "state", "meaning"),
    [
        ("Client.UserInitiatedShutdown", None, JobState.CANCELLED, FailureClass.LOST),
        ("Server.SpotInstanceTermination", None, JobState.PREEMPTED, FailureClass.PREEMPTED),
        ("Server.InsufficientInstanceCapacity", None, JobState.PREEMPTED, FailureClass.PREEMPTED),
        ("Server.InternalError", None, JobState.NODE_FAILED, FailureClass.INFRASTRUCTURE),
        ("Client.VolumeLimitExceeded", None, JobState.FAILED, FailureClass.LOST),
        ("Client.InstanceInitiatedShutdown", "0", JobState.COMPLETED, FailureClass.LOST),
        ("Client.InstanceInitiatedShutdown", "3", JobState.FAILED, FailureClass.LOST),
        ("Client.InstanceInitiatedShutdown", "124", JobState.TIMED_OUT, FailureClass.TIMED_OUT),
        ("Client.InstanceInitiatedShutdown", None, JobState.UNKNOWN, FailureClass.LOST),
    ],
)
def test_how_an_instance_ended(code: str, told: str | None, state: JobState, meaning: FailureClass):
    """pains 23, 31."""
    for now in ("shutting-down", "terminated"):
        seen = status_of("job", [_instance(now, code)], lambda _: told)
        assert seen.state is state
        assert failure_class(seen) is meaning
        assert seen.failed_nodes == (("i-0",) if state is JobState.NODE_FAILED else ())


def test_a_node_that_ec2_takes_away_is_preempted_however_it_ends():
    """pains 23: it leaves by itself, before it is ended."""
    told = "taken away: spot notice for i-0: {}"
    living = status_of("job", [_instance("running")], lambda _: told)
    assert (living.state, living.is_taken) == (JobState.RUNNING, True)
    assert living.reason.endswith(f"i-0 is {told}")
    ended = _instance("terminated", "Client.InstanceInitiatedShutdown")
    seen = status_of("job", [ended], lambda _: told)
    assert (seen.state, seen.reason, seen.is_taken) == (JobState.PREEMPTED, told, False)
    assert not status_of("job", [_instance("running")], lambda _: "0").is_taken


def test_what_a_node_told_in_words_is_the_reason():
    ended = _instance("terminated", "Client.InstanceInitiatedShutdown")
    assert status_of("job", [ended], lambda _: "3").reason == "exit code 3"
    assert status_of("job", [ended], lambda _: "no sign").reason == "no sign"


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("pending", "pending"), JobState.PENDING),
        (("running", "pending"), JobState.PENDING),
        (("running", "running"), JobState.RUNNING),
        (("running", "stopped"), JobState.CANCELLED),
        (("stopping", "pending"), JobState.CANCELLED),
        (("running", "terminated"), JobState.RUNNING),
    ],
)
def test_a_gang_runs_when_all_of_it_does(states: tuple[str, ...], state: JobState):
    nodes = [_instance(each, index=index) for index, each in enumerate(states)]
    assert status_of("job", list(reversed(nodes)), lambda _: None).state is state


def test_the_worst_end_of_a_node_is_that_of_the_gang():
    """pains 34: the others follow it; which one it was is told."""
    ended = [
        _instance("terminated", "Client.UserInitiatedShutdown", 0),
        _instance("terminated", "Server.SpotInstanceTermination", 1),
    ]
    seen = status_of("job", ended, lambda _: None)
    assert seen.state is JobState.PREEMPTED
    assert seen.reason == "i-1: Server.SpotInstanceTermination: why"
    assert seen.nodes == ("i-0", "i-1")


def test_what_it_waits_for_is_told_with_what_there_was_no_capacity_for():
    tags = {"instead-of": "g5.xlarge in us-east-1b"}
    seen = status_of("job", [_instance("pending", **tags)], lambda _: None)
    assert seen.reason == "m5.large in us-east-1a; no capacity for g5.xlarge in us-east-1b"


def test_when_an_instance_ends_at_the_latest():
    assert ends_at(_instance("running", **{"ends-at": "1970-01-01T00:01:00Z"})) == 60.0
    assert ends_at(_instance("running")) is None
