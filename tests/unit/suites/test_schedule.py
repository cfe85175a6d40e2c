"""Which trial begins where, and what the end of an attempt means for its trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.recipe.suite import Objective, SuiteSpec
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace.steps.retry_policy import Attempt
from headrace.suites.records import PRUNED, Added, Ended, Started
from headrace.suites.schedule import NodeResources, Placement, Queue, Resources, place
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_policy import ended, judge, values_of
from support.scripted_trials import trial

ONE_GPU = Resources(gpus=1)
HALF = Resources(gpus=1, share=0.5)


def _queue(*needs: Resources) -> Queue:
    queue = Queue()
    for number, each in enumerate(needs, 1):
        queue.push(number, each)
    return queue


def _boxes(*gpus: int, cpus: int = 8) -> list[NodeResources]:
    return [NodeResources(f"node-{index}", count, range(cpus)) for index, count in enumerate(gpus)]


def _where(placements: Sequence[Placement]) -> list[tuple[int, list[tuple[str, tuple[int, ...]]]]]:
    return [
        (each.number, [(allocation.node.name, allocation.gpus) for allocation in each.allocations])
        for each in placements
    ]


@pytest.mark.parametrize(
    ("nodes", "needs", "expected"),
    [
        (_boxes(1, 1), [ONE_GPU] * 3, [(1, [("node-0", (0,))]), (2, [("node-1", (0,))])]),
        (
            _boxes(2),
            [HALF] * 5,
            [(1, [("node-0", (0,))]), (2, [("node-0", (1,))]), (3, [("node-0", (0,))]),
             (4, [("node-0", (1,))])],
        ),
        (_boxes(1, 4), [Resources(gpus=4)], [(1, [("node-1", (0, 1, 2, 3))])]),
        (
            _boxes(2, 2), [Resources(nodes=2, gpus=2)],
            [(1, [("node-0", (0, 1)), ("node-1", (0, 1))])],
        ),
        (_boxes(0), [ONE_GPU, Resources(cpus=1)], [(2, [("node-0", ())])]),
        (_boxes(1), [Resources(nodes=2, gpus=1), ONE_GPU], [(2, [("node-0", (0,))])]),
    ],
)  # fmt: skip
def test_trials_are_placed(
    nodes: list[NodeResources], needs: list[Resources], expected: list[tuple[int, list[object]]]
) -> None:
    assert _where(place(_queue(*needs), nodes)) == expected


def test_a_trial_that_is_queued_again_counts_once() -> None:
    queue = _queue(ONE_GPU, HALF)
    queue.push(1, ONE_GPU, priority=2.0)
    for _ in range(2):
        queue.drop(2)
        queue.push(2, ONE_GPU)
    assert queue.kinds() == {ONE_GPU: 2}
    assert [each.number for each in place(queue, _boxes(4))] == [1, 2]
    assert queue.kinds() == {}


def test_cpus_are_shared_out() -> None:
    nodes = [NodeResources("node-0", 0, range(4)), NodeResources("node-1", 0, range(4), most=3)]
    placements = place(_queue(*[Resources(cpus=2)] * 9), nodes)
    assert [(one.node.name, one.cpus) for each in placements for one in each.allocations] == [
        ("node-0", (0, 1)), ("node-1", (0,)), ("node-1", (1,)), ("node-0", (2, 3)),
        ("node-1", (2,)),
    ]  # fmt: skip
    (with_gpus,) = place(_queue(HALF), [NodeResources("node-0", 2, range(8))])
    assert with_gpus.allocations[0].cpus == (0, 1)
    allocations = [*placements[0].allocations, *placements[1].allocations, *with_gpus.allocations]
    assert [allocation.node_share for allocation in allocations] == [0.5, 1 / 3, 0.25]
    (large,) = place(_queue(Resources(cpus=16)), [NodeResources("node-0", 0, range(4))])
    assert large.allocations[0].cpus == (0, 1, 2, 3)


def test_the_longest_begin_first_and_the_limit_holds() -> None:
    queue = Queue()
    for number, seconds in enumerate((10.0, 30.0, 20.0, 30.0), 1):
        queue.push(number, ONE_GPU, expected_s=seconds)
    assert [each.number for each in place(queue, _boxes(1, 1, 1), most=2)] == [2, 4]
    queue.reorder({1: 5.0, 3: 1.0})
    assert [each.number for each in place(queue, _boxes(1, 1))] == [1, 3]
    assert len(queue) == 0


def test_the_most_urgent_begin_first_whatever_they_take() -> None:
    queue = Queue()
    for number, (seconds, priority) in enumerate(((10.0, 0), (30.0, 0), (1.0, 2), (5.0, 2)), 1):
        queue.push(number, ONE_GPU, expected_s=seconds, priority=priority)
    queue.push(5, HALF, priority=-1)  # another line
    assert [each.number for each in place(queue, _boxes(1))] == [4]
    queue.reorder({number: float(number) for number in range(1, 5)})
    queue.push(1, ONE_GPU, priority=1)
    assert [each.number for each in place(queue, _boxes(1, 1, 1, 1))] == [3, 1, 2, 5]


def test_a_trial_avoids_nodes_where_it_failed_while_there_are_others() -> None:
    queue = Queue()
    queue.push(1, ONE_GPU, avoids=["node-0"])
    queue.push(2, ONE_GPU)
    assert _where(place(queue, _boxes(2, 1))) == [
        (1, [("node-1", (0,))]),
        (2, [("node-0", (0,))]),
    ]
    queue.push(1, ONE_GPU, avoids=["node-0"])
    assert _where(place(queue, _boxes(1))) == [(1, [("node-0", (0,))])]
    queue.push(1, ONE_GPU, avoids=["m-0"])
    again = [
        NodeResources("node-0", 1, range(2), machine="m-9"),
        NodeResources("node-1", 2, (), machine="m-0"),
    ]
    assert _where(place(queue, again)) == [(1, [("node-0", (0,))])]  # another machine by now


def test_a_trial_goes_where_its_data_lies_and_there_is_time_for_it() -> None:
    nodes = _boxes(2, 3, 2, 3)
    nodes[0].is_staged = nodes[1].is_staged = True
    nodes[1].left_s, nodes[3].left_s = 100.0, 1.0
    queue = Queue()
    for number, seconds in ((1, 300.0), (2, 200.0), (3, 150.0), (4, 120.0), (5, 90.0), (6, 9.0)):
        queue.push(number, ONE_GPU, expected_s=seconds)
    queue.push(7, Resources(nodes=3, gpus=3))  # node-3 is about to go, and its place is not kept
    assert _where(place(queue, nodes)) == [
        (1, [("node-0", (0,))]), (2, [("node-0", (1,))]),  # data and time
        (3, [("node-2", (0,))]), (4, [("node-2", (1,))]),  # time, but no data
        (5, [("node-1", (0,))]), (6, [("node-1", (1,))]),
    ]  # fmt: skip
    queue.push(8, ONE_GPU, expected_s=1000.0)
    assert _where(place(queue, nodes)) == [(8, [("node-1", (2,))])]  # better than not at all
    queue.push(9, ONE_GPU)
    assert place(queue, nodes) == []  # there is room on node-3 only


def test_a_large_trial_is_not_overtaken_for_ever() -> None:
    nodes = _boxes(2)
    queue = _queue(ONE_GPU, Resources(gpus=2), *[ONE_GPU] * 6)
    running = place(queue, nodes)
    begun = [each.number for each in running]
    assert begun == [1]  # the second GPU is kept for the trial that takes both
    while running:
        done = running.pop(0)
        for allocation in done.allocations:
            nodes[0].give_back(allocation)
        more = place(queue, nodes)
        begun += [each.number for each in more]
        running += more
    assert begun == list(range(1, 9))


def test_trials_that_were_dropped_or_pushed_again_begin_once() -> None:
    queue = _queue(ONE_GPU, ONE_GPU, ONE_GPU)
    queue.drop(1)
    queue.push(2, HALF)
    assert (1 in queue, 2 in queue, len(queue)) == (False, True, 2)
    assert sorted(each.number for each in place(queue, _boxes(4))) == [2, 3]
    assert place(queue, _boxes(4)) == []


def test_a_trial_on_several_nodes_takes_them_whole() -> None:
    nodes = _boxes(1, 1, 1)
    (single,) = place(_queue(ONE_GPU), nodes)
    across = Resources(nodes=2, gpus=1, alone=True)
    (gang,) = place(_queue(across), nodes)
    assert [(one.node.name, one.gpus, len(one.cpus)) for one in gang.allocations] == [
        ("node-1", (0,), 8), ("node-2", (0,), 8),
    ]  # fmt: skip
    assert single.allocations[0].node.name == "node-0"
    assert (
        place(_queue(across, Resources(cpus=1)), nodes) == []
    )  # nothing overtakes it on its nodes


NEEDS = st.builds(
    Resources,
    nodes=st.integers(1, 2),
    gpus=st.integers(0, 4),
    share=st.sampled_from([1.0, 1 / 2, 1 / 3]),
    cpus=st.integers(1, 6),
    alone=st.booleans(),
)
ROOMS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 8), st.one_of(st.none(), st.integers(1, 3))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            NEEDS,
            st.sampled_from([0.0, 1.0, 5.0]),
            st.sets(st.integers(0, 3)),
            st.integers(-1, 1),
        )
    ),
    ROOMS,
    st.data(),
)
def test_nothing_is_given_twice_and_nothing_starves(
    trials: list[tuple[Resources, float, set[int], int]],
    sizes: list[tuple[int, int, int | None]],
    data: st.DataObject,
) -> None:
    nodes = [
        NodeResources(f"node-{index}", gpus, range(cpus), most)
        for index, (gpus, cpus, most) in enumerate(sizes)
    ]
    queue, able = Queue(), set()
    urgencies = {number: trial[3] for number, trial in enumerate(trials, 1)}
    for number, (needs, expected_s, avoids, priority) in enumerate(trials, 1):
        names = [f"node-{n}" for n in avoids]
        queue.push(number, needs, expected_s=expected_s, avoids=names, priority=priority)
        if sum(node.could(needs) for node in nodes) >= needs.nodes:
            able.add(number)
    running: list[Placement] = []
    begun: set[int] = set()
    while True:
        fresh = place(queue, nodes)
        assert not begun & {each.number for each in fresh}
        told = [urgencies[each.number] for each in fresh]
        assert told == sorted(told, reverse=True)
        begun |= {each.number for each in fresh}
        running += fresh
        _check_shares(running, sizes)
        if not running:
            break
        ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
        for allocation in ended.allocations:
            allocation.node.give_back(allocation)
    assert begun == able


def _check_shares(running: list[Placement], sizes: list[tuple[int, int, int | None]]) -> None:
    allocations = [allocation for each in running for allocation in each.allocations]
    for index, (gpus, cpus, most) in enumerate(sizes):
        here = [allocation for allocation in allocations if allocation.node.name == f"node-{index}"]
        for gpu in range(gpus):
            assert (
                sum(allocation.share for allocation in here if gpu in allocation.gpus) <= 1 + 1e-6
            )
        alone = [cpu for allocation in here for cpu in allocation.cpus]
        assert len(alone) == len(set(alone)) <= cpus
        assert all(gpu < gpus for allocation in here for gpu in allocation.gpus)
        assert most is None or sum(not allocation.gpus for allocation in here) <= most
    for each in running:
        assert len({allocation.node for allocation in each.allocations}) == len(each.allocations)


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
