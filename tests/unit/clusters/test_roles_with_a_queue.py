"""What a role of a batch system may say, and what its files tell before there is a host."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import Failure, StepResult, blamed


def test_a_local_role_has_no_queue():
    with pytest.raises(ValidationError, match="leave `batch` out"):
        Role(batch={"partition": "gpu"})


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ({"host": "job"}, "for pools on a batch system"),
        ({"backend": "slurm", "kind": "gang", "host": "job"}, "for pools on a batch system"),
        ({"backend": "slurm", "host_options": ["--mem=2G"]}, "`host_options` are for `host: job`"),
        (
            {"backend": "slurm", "host": "job", "host_options": ["--time=1"]},
            "`host_options` must not hold",
        ),
    ],
)
def test_where_the_host_of_a_pool_runs(role: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        Role(**role)


def test_the_site_of_the_small_slurm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    site = load_site("slurm-dev")
    assert {role.batch.config for role in site.roles.values()} == {"/somewhere/slurm.conf"}
    assert (site.roles["cpu"].kind, site.roles["cpu"].nodes) == ("pool", 4)
    assert (site.roles["gpu"].nodes, site.roles["gpu"].ranks_per_node) == (2, 2)


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (FailureClass.PREEMPTED, StepState.PREEMPTED),
        (FailureClass.TIMED_OUT, StepState.TIMED_OUT),
        (FailureClass.USER_ERROR, StepState.FAILED),
        (FailureClass.OUT_OF_MEMORY, StepState.FAILED),
        (FailureClass.INFRASTRUCTURE, StepState.LOST),
        (FailureClass.LOST, StepState.LOST),
    ],
)
def test_a_lost_step_tells_its_cause(cause: FailureClass, state: StepState):
    """pains 31: the batch system's word, in front of what the files tell."""
    failure = Failure(failure_class=FailureClass.LOST, error="", message="no heartbeat")
    lost = StepResult(state=StepState.LOST, failure=failure, started_at=1.0, finished_at=2.0)
    told = blamed(lost, "Slurm job 7 ended", cause)
    assert (told.state, told.failure.failure_class) == (state, cause)
    assert told.failure.message == "Slurm job 7 ended; no heartbeat"
