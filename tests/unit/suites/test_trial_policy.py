"""What the end of an attempt means for its trial."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.recipe.suite import Objective, SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace.steps.retry_policy import Attempt
from headrace.suites.records import PRUNED, Added, Ended, Started
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_policy import ended, judge, values_of
from support.scripted_trials import trial

FINAL, AGAIN = {"is_final": True}, {"is_final": False}
FREE = {"is_final": False, "is_counted": False}
ONE = (Attempt(failure_class=FailureClass.LOST),)
TWO = ONE * 2
STARTED = Started(number=1, attempt=1, node="n", machines=("m-1",))


def _result(state: str, failure_class: str | None = None, **fields: Any) -> StepResult:
    failure = None
    if failure_class:
        error = fields.pop("error", "")
        failure = Failure(failure_class=FailureClass(failure_class), error=error, message="m")
    values = {"started_at": 100.0, "finished_at": 160.0, **fields}
    return StepResult(state=StepState(state), failure=failure, **values)


@pytest.mark.parametrize(
    ("result", "row", "how", "expected"),
    [
        (_result("succeeded"), {}, {}, {"state": "succeeded", **FINAL}),
        (_result("failed", "user_error"), {}, {}, {"state": "failed", **FINAL}),
        (_result("failed", "data_error"), {}, {}, {"state": "failed", **FINAL}),
        (_result("failed", "infrastructure"), {}, {}, {"state": "failed", **AGAIN}),
        (_result("failed", "out_of_memory"), {"failed": ONE}, {}, {"state": "failed", **AGAIN}),
        (_result("lost", "lost"), {"failed": TWO}, {}, {"state": "lost", **FINAL}),
        (_result("lost", "lost"), {"failed": TWO}, {"further": True}, {"state": "lost", **FREE}),
        (_result("cancelled", "cancelled"), {}, {}, {"state": "cancelled", **FREE}),
        (
            _result("cancelled", "cancelled"), {"unwanted": True}, {},
            {"state": "cancelled", **FINAL},
        ),
        (_result("lost", "lost"), {"unwanted": True}, {}, {"state": "cancelled", **FINAL}),
        # its driver was lost: it is run again, unless it was cancelled
        (_result("lost", "lost"), {"failed": TWO}, {"is_orphan": True}, {"state": "lost", **FREE}),
        (
            _result("lost", "lost"), {"unwanted": True}, {"is_orphan": True},
            {"state": "cancelled", **FINAL},
        ),
        (_result("failed", "user_error"), {}, {"is_orphan": True}, {"state": "failed", **FINAL}),
        (
            _result("cancelled", "cancelled"), {}, {"why_stopped": f"{PRUNED}: it promises little"},
            {"state": "succeeded", "pruned": True, **FINAL},
        ),
        (
            _result("succeeded", outputs={"pruned": True}), {}, {},
            {"state": "succeeded", "pruned": True, **FINAL},
        ),
        (_result("succeeded"), {"unwanted": True}, {}, {"state": "succeeded", **FINAL}),
        (_result("timed_out", "timed_out"), {}, {}, {"state": "timed_out", **AGAIN}),
        (_result("timed_out", "timed_out"), {"took_s": 40.0}, {}, {"state": "timed_out", **FINAL}),
        (
            _result("timed_out", "timed_out", error="LeaseEndsError"), {"took_s": 40.0}, {},
            {"state": "timed_out", **FREE},
        ),
        (
            _result("preempted", "preempted", error="LeaseTakenError"), {"failed": TWO}, {},
            {"state": "preempted", **FREE},
        ),
    ],
)  # fmt: skip
def test_verdicts(
    result: StepResult, row: dict[str, Any], how: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = TrialState(trial(1))
    for name, value in row.items():
        setattr(before, name, value)
    entry = ended(STARTED, result, (), 20.0 if how.pop("further", False) else 0.0)
    entry = judge(before, entry, SuiteSpec(retries=2, time_limit=100.0), **how)
    found = {key: getattr(entry, key) for key in expected}
    assert found == {**expected, "state": StepState(expected["state"])}
    assert entry.pruned is expected.get("pruned", False)
    assert (entry.failure_class is None) is (entry.state is StepState.SUCCEEDED)
    assert entry.is_final or entry.is_counted is expected.get("is_counted", True)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((10, 20, 30, 40, 50, 60), [False] * 6),
        ((10, 10, 10, 20, 20, 20, 20), [False] * 6 + [True]),
        ((0, 0, 0), [False, False, True]),
    ],
)
def test_a_trial_that_loses_its_node_and_comes_further_each_time_goes_on(
    kept: tuple[float, ...], expected: list[bool]
) -> None:
    """Retries are counted from the last progress on, by the journal alone."""
    suite_state, spec = SuiteState(), SuiteSpec(retries=2)
    suite_state.take(Added(trial=trial(1)))
    row, finals = suite_state.rows[1], []
    for number, each in enumerate(kept, start=1):
        started = Started(number=1, attempt=number, node="n", machines=("m-1",))
        suite_state.take(started)
        entry = judge(row, ended(started, _result("lost", "lost"), (), each), spec)
        suite_state.take(Ended.model_validate_json(entry.model_dump_json()))
        finals.append(entry.is_final)
    assert finals == expected


def test_the_same_error_again_on_the_same_machine_ends_a_trial() -> None:
    fault = _result("failed", "infrastructure", error="StepError")
    started = Started(number=1, attempt=2, node="n", machines=("m-1",))
    before = Attempt(
        failure_class=FailureClass.INFRASTRUCTURE, error="StepError", message="m", machines="m-1"
    )
    row = TrialState(trial(1), failed=(before,), started=started)
    entry = judge(row, ended(started, fault, ()), SuiteSpec(retries=9))
    assert entry.is_final
    assert "the same way" in entry.message


@pytest.mark.parametrize(
    ("metrics", "values", "problem"),
    [
        ({"loss": 1.0, "acc": 0.5}, (1.0, 0.5), ""),
        ({"loss": 1.0, "val": 0.5}, (), "no metric 'acc', the suite's objective; it has: loss, v"),
        ({}, (), "it has: none"),
        ({"loss": math.nan, "acc": 0.5}, (), "objective loss is nan"),
        ({"loss": 1.0, "acc": math.inf}, (), "objective acc is inf"),
    ],
)
def test_objectives(metrics: dict[str, float], values: tuple[float, ...], problem: str) -> None:
    found, told = values_of(metrics, (Objective(metric="loss"), Objective(metric="acc")))
    assert found == values
    assert problem in told


def test_what_a_trial_gives_that_is_no_number_is_left_out() -> None:
    given = {"loss": "low", "ok": True, "acc": 1, "val": math.nan}
    held = {"gpus": 0.5, "cpus": 4.0, "machines": ("i-7", "i-8"), "asked_at": 9.0}
    on = {"node": "node-7", "lease_id": "lease-1", "node_share": 0.25}
    started = Started(number=3, attempt=2, **on, **held)
    result = _result("succeeded", outputs={"metrics": given})
    entry = ended(started, result, (Objective(metric="loss"),))
    assert (entry.number, entry.attempt, entry.usage.node) == (3, 2, "node-7")
    assert (entry.lease_id, entry.node_share) == ("lease-1", 0.25)
    assert (entry.machines, entry.asked_at) == (("i-7", "i-8"), 9.0)
    assert (entry.usage.nodes, entry.usage.gpus, entry.usage.cpus) == (2, 0.5, 4.0)
    assert (set(entry.metrics), entry.objectives) == ({"acc", "val"}, ())
    assert entry.message.startswith("It has no metric 'loss'")
    strange = _result("succeeded", outputs={"metrics": ["loss"]})
    assert ended(started, strange, ()).metrics == {}
