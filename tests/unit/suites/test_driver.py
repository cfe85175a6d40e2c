"""The driver of suites on a real lease of two nodes, with trials that do what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters import lease_client
from headrace.errors import LeaseEndsError, SiteError, StepCancelledError, SuiteFailedError
from headrace.files.atomic import read_record, write_marker
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.files.lines import append_line
from headrace.recipe.site import Role
from headrace.recipe.suite import Objective
from headrace.steps.context import StepContext
from headrace.steps.node_facts import software
from headrace.suites.event_log import Journal, TakenOverError
from headrace.suites.records import Control, Ended, Entry, Started, SuiteSummary, Trial
from headrace.suites.suite_state import SuiteState
from headrace.suites.suite_step import run_suite
from support.leases import opened
from support.scripted_trials import (
    GARBAGE,
    NUM_CPUS,
    Listed,
    executions,
    late_capacity,
    suite_context,
    work,
)
from support.waiting import wait_until


@pytest.fixture(scope="module")
def lease(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeaseFolder]:
    folder = opened(
        tmp_path_factory.mktemp("site"),
        Role(kind="gang", nodes=2, threads_per_node=1, idle_stop=3600),
    )
    yield folder
    lease_client.end(folder)


@pytest.fixture
def begin(lease: LeaseFolder) -> Iterator[Callable[..., threading.Thread]]:
    """Begins a suite in a thread; it is cancelled at the end of the test."""
    begun: list[tuple[StepContext, threading.Thread]] = []

    def start(context: StepContext, *points: dict[str, Any]) -> threading.Thread:
        def run() -> None:
            with pytest.raises(StepCancelledError):
                run_suite(context, Listed(*points), work())

        thread = threading.Thread(target=run)
        thread.start()
        begun.append((context, thread))
        return thread

    yield start
    for context, thread in begun:
        write_marker(context.folder.cancel, "the test is over")
        thread.join()


def _ask(run: RunFolder, what: Any, **fields: Any) -> None:
    append_line(run.controls, Control(what=what, by="test", **fields).model_dump_json())


def _summary(run: RunFolder) -> SuiteSummary:
    return read_record(run.summary, SuiteSummary) or SuiteSummary(total=0)


def _entries(run: RunFolder) -> list[Entry]:
    with Journal(run, "the test") as journal:
        return list(journal.entries())


def _attempts(run: RunFolder, number: int) -> int:
    return sum(each == number for each, _ in executions(run))


def _suite_state(run: RunFolder) -> SuiteState:
    suite_state = SuiteState()
    for entry in _entries(run):
        suite_state.take(entry)
    return suite_state


def test_trials_run_in_all_places_and_the_best_is_told(lease: LeaseFolder) -> None:
    context = suite_context(lease, "many", objectives=(Objective(metric="loss"),))
    source = Listed(*({"loss": float(abs(number - 7))} for number in range(12)))
    outputs = run_suite(context, source, work())
    assert outputs == {"total": 12, "counts": {"succeeded": 12}, "best": 8, "best_value": 0.0}
    assert sorted(executions(context.run_folder)) == [(number, 1) for number in range(1, 13)]
    assert sorted(source.told) == list(range(1, 13))
    nodes = {each.node for each in _entries(context.run_folder) if isinstance(each, Started)}
    assert nodes == {"node-0", "node-1"}
    ends = [each for each in _entries(context.run_folder) if isinstance(each, Ended)]
    assert {each.lease_id for each in ends} == {lease.lease_id}
    assert all(0 < each.node_share <= 1 for each in ends)
    summary = _summary(context.run_folder)
    assert (summary.counts, summary.best, summary.running) == ({"succeeded": 12}, 8, ())
    run_suite(suite_context(lease, "many", objectives=()), Listed(*[{}] * 12), work())
    assert len(executions(context.run_folder)) == 12  # a second driver finds all done


class _OneByOne(Listed):
    """Adds a trial when there is room for one, and notes how many had not begun by then."""

    def __init__(self, *points: dict[str, Any]) -> None:
        super().__init__(*points)
        self.most_ahead = 0

    def more(self, wanted: int) -> Sequence[Trial]:
        if wanted <= 0 or not self._left:
            return ()
        block = [self._left.pop(0)]
        waiting = [row for row in self._suite_state.rows.values() if not row.attempts]
        self.most_ahead = max(self.most_ahead, len(waiting) + 1)
        return block


def test_a_pool_without_a_node_grows_for_its_trials(tmp_path: Path) -> None:
    """And no more trials are proposed than there is room for, before a node is there, too."""
    lease = opened(tmp_path / "site", Role(kind="pool", nodes=2, threads_per_node=1))
    try:
        context, source = suite_context(lease, "grows"), _OneByOne(*({} for _ in range(12)))
        outputs = run_suite(context, source, work())
    finally:
        lease_client.end(lease)
    assert outputs["counts"] == {"succeeded": 12}
    assert source.most_ahead <= 2 * NUM_CPUS


def test_few_trials_are_spread_over_nodes_that_answer_late(lease: LeaseFolder) -> None:
    context = suite_context(lease, "few", trials_per_node=2)
    run_suite(context, Listed({}, {}), replace(work(), capacity=late_capacity))
    nodes = {each.node for each in _entries(context.run_folder) if isinstance(each, Started)}
    assert nodes == {"node-0", "node-1"}


def test_a_site_with_other_versions_is_named_before_its_first_trial(lease: LeaseFolder) -> None:
    context = suite_context(lease, "other", sites=("laptop", "box"))
    spec = context.spec.model_copy(update={"inputs": {"software": "headrace 0.0.9, Python 3.9"}})
    with pytest.raises(SiteError) as error:
        run_suite(replace(context, spec=spec), Listed({}, {}), work())
    assert error.value.what == (
        f"Nodes of site 'laptop' have {software()}; those of this suite need headrace 0.0.9, "
        "Python 3.9"
    )
    assert "headrace suite site laptop --leave" in error.value.hint
    assert executions(context.run_folder) == []


@pytest.mark.parametrize(("keep", "left"), [("best", {2, 3}), ("none", {3}), ("all", {1, 2, 3, 4})])
def test_checkpoints_stay_of_the_best_trial_and_of_those_that_failed(
    lease: LeaseFolder, keep: str, left: set[int]
) -> None:
    objectives = (Objective(metric="loss"),)
    context = suite_context(lease, f"keeps-{keep}", objectives=objectives, keep_checkpoints=keep)
    for number in range(1, 5):
        context.run_folder.trial(number).checkpoints.mkdir(parents=True)
    points = ({"loss": 2.0}, {"loss": 1.0}, {"fail": "user_error"}, {"loss": 3.0})
    run_suite(context, Listed(*points), work())
    trials = {number: context.run_folder.trial(number) for number in range(1, 5)}
    assert {number for number, trial in trials.items() if trial.checkpoints.exists()} == left


def test_failures_are_tried_again_elsewhere_by_their_class(lease: LeaseFolder) -> None:
    context = suite_context(lease, "failing", retries=2)
    source = Listed(
        {"fail": "user_error"}, {"fail": "infrastructure", "times": 1}, {"fail": "out_of_memory"}
    )
    outputs = run_suite(context, source, work())
    assert outputs["counts"] == {"succeeded": 1, "failed": 2}
    assert [_attempts(context.run_folder, number) for number in (1, 2, 3)] == [1, 2, 3]
    entries = _entries(context.run_folder)
    first, second = [
        each.node for each in entries if isinstance(each, Started) and each.number == 2
    ]
    assert first != second
    told = {each.number: each for each in entries if isinstance(each, Ended) and each.is_final}
    assert told[3].failure_class == "out_of_memory"
    assert told[3].message == "as the test says"


def test_a_trial_whose_worker_dies_is_tried_again(lease: LeaseFolder) -> None:
    context = suite_context(lease, "dying", trials_per_node=1)
    outputs = run_suite(context, Listed({"die": 1}, {}, {}), work())
    assert outputs["counts"] == {"succeeded": 3}
    assert _attempts(context.run_folder, 1) == 2
    lost = next(
        each
        for each in _entries(context.run_folder)
        if isinstance(each, Ended) and each.number == 1
    )
    assert (lost.state, lost.is_final, bool(lost.usage.node)) == ("lost", False, True)


def test_nonsense_of_a_trial_costs_that_trial_alone(lease: LeaseFolder) -> None:
    objectives = (Objective(metric="loss"),)
    context = suite_context(lease, "nonsense", objectives=objectives, trials_per_node=1)
    bad = [{"gives": name} for name in GARBAGE]
    strange = [{"scribbles": True, "die": 1, "loss": 3.0}, {"back": 3600, "loss": 2.0}]
    outputs = run_suite(context, Listed(*bad, *strange), work())
    total = len(bad) + len(strange)
    assert outputs["counts"] == {"succeeded": total}
    assert (outputs["best"], outputs["best_value"]) == (total, 2.0)
    ends = {each.number: each for each in _entries(context.run_folder) if isinstance(each, Ended)}
    assert all("objective" in ends[number].message for number in range(1, len(bad) + 1))
    assert all(not ends[number].objectives for number in range(1, len(bad) + 1))
    assert _attempts(context.run_folder, total - 1) == 2
    assert _suite_state(context.run_folder).rows[total].took_s == 0.0


def test_a_suite_gives_up_when_so_many_trials_have_failed(lease: LeaseFolder) -> None:
    context = suite_context(lease, "useless", stop_after_failures=2, trials_per_node=1)
    points = [{"fail": "user_error"}] * 20
    with pytest.raises(SuiteFailedError, match=r"is 2; \d of them: as the test says"):
        run_suite(context, Listed(*points), work())
    assert 2 <= len(executions(context.run_folder)) <= 4
    _ask(context.run_folder, "retry")
    again = suite_context(lease, "useless", trials_per_node=1)
    with pytest.raises(
        SuiteFailedError, match="All 20 trials have failed; 20 of them: as the test says"
    ):
        run_suite(again, Listed(*points), work())
    assert len(executions(context.run_folder)) == 20 + len(
        [number for number, attempt in executions(context.run_folder) if attempt == 2]
    )


def test_a_suite_is_steered_while_it_runs(
    lease: LeaseFolder, tmp_path: Path, begin: Callable[..., Any]
) -> None:
    go = str(tmp_path / "go")
    context = suite_context(lease, "steered", max_running=1)
    run = context.run_folder
    begin(context, {"until": go}, {"until": go, "prune": True}, {"until": go}, {"until": go})
    wait_until(lambda: len(_summary(run).running) == 1, 60, "one trial to run")
    assert _summary(run).running[0].done == 0.25
    _ask(run, "pause")
    _ask(run, "limit", limit=2)
    _ask(run, "cancel", numbers=(3,))
    _ask(run, "add", points=({"bad": 1}, {"loss": 0.5}))
    _ask(run, "prioritize", numbers=(5,), priority=1)
    wait_until(lambda: _summary(run).counts.get("cancelled") == 1, 60, "the third to be cancelled")
    assert (_summary(run).paused, _summary(run).total) == (True, 5)
    assert [number for number, _ in executions(run)] == [1]
    _ask(run, "resume")
    wait_until(lambda: _summary(run).counts.get("pruned") == 1, 60, "the second to be pruned")
    wait_until(lambda: _summary(run).counts.get("succeeded") == 1, 60, "the added one to succeed")
    assert executions(run)[1:3] == [(5, 1), (2, 1)]
    _ask(run, "cancel", numbers=(1,))
    wait_until(lambda: _summary(run).counts.get("cancelled") == 2, 60, "the first to be cancelled")
    _ask(run, "retry", numbers=(3,))
    wait_until(lambda: (3, 1) in executions(run), 60, "the third to run after all")


def test_a_running_trial_that_is_withdrawn_does_not_begin_again(
    lease: LeaseFolder, tmp_path: Path, begin: Callable[..., Any]
) -> None:
    context = suite_context(lease, "withdrawn")
    run, go = context.run_folder, str(tmp_path / "go")
    begin(context, {"until": go}, {"until": go})
    wait_until(lambda: len(_summary(run).running) == 2, 60, "both trials to run")
    _ask(run, "withdraw", numbers=(1,), stops=True)
    wait_until(lambda: '"withdrawn"' in run.journal.read_text(), 60, "the first to leave")
    assert run.trial(1).step(1).cancel.read_text() == "Its suite took it back from this site"
    time.sleep(1.5)  # more than one look
    assert (_attempts(run, 1), len(_summary(run).running)) == (1, 1)


def test_a_suite_whose_trials_are_all_cancelled_is_cancelled(lease: LeaseFolder) -> None:
    context = suite_context(lease, "unwanted")
    _ask(context.run_folder, "cancel")
    with pytest.raises(StepCancelledError, match="2 of 2 trials were cancelled"):
        run_suite(context, Listed({}, {}), work())


def test_a_suite_that_is_cancelled_after_some_trials_have_succeeded_is_cancelled(
    lease: LeaseFolder, tmp_path: Path, begin: Callable[..., Any]
) -> None:
    go, context = tmp_path / "go", suite_context(lease, "half")
    points, run = [{}, {"until": str(go)}], context.run_folder
    thread = begin(context, *points)
    wait_until(lambda: _summary(run).counts.get("succeeded") == 1, 60, "the first to succeed")
    _ask(run, "cancel")
    thread.join()
    go.touch()
    with pytest.raises(StepCancelledError, match="1 of 2 trials were cancelled"):
        run_suite(suite_context(lease, "half"), Listed(*points), work())
    _ask(run, "retry")
    outputs = run_suite(suite_context(lease, "half"), Listed(*points), work())
    assert outputs["counts"] == {"succeeded": 2}


def test_a_trial_on_two_nodes_runs_when_both_are_free(lease: LeaseFolder) -> None:
    context = suite_context(lease, "across")
    points = [{"s": 0.3}, {"train.nodes": 2, "s": 0.3}, {"s": 0.3}, {"train.nodes": 3}]
    outputs = run_suite(context, Listed(*points), work())
    assert outputs["counts"] == {"succeeded": 3, "failed": 1}
    run = context.run_folder
    assert executions(run, "node-0") == executions(run, "node-1") == [(2, 1)]
    (held,) = [each for each in _entries(run) if isinstance(each, Started) and each.number == 2]
    assert sorted(held.machines) == ["m-node-0", "m-node-1"]
    assert (held.cpus, held.node_share) == (2 * NUM_CPUS, 1.0)
    assert held.asked_at is not None
    assert held.asked_at < held.at
    times = {each.number: each for each in _entries(run) if isinstance(each, Ended)}
    two = times.pop(2)
    assert "at most 2" in times.pop(4).message
    assert all(
        each.finished_at <= two.started_at or each.started_at >= two.finished_at
        for each in times.values()
    )


def test_another_driver_goes_on_where_one_was_stopped(
    lease: LeaseFolder, tmp_path: Path, begin: Callable[..., Any]
) -> None:
    go = tmp_path / "go"
    points = [{}, {"until": str(go)}, {"until": str(go)}, {}]
    context = suite_context(lease, "stopped")
    run = context.run_folder
    thread = begin(context, *points)
    wait_until(lambda: _summary(run).counts.get("succeeded") == 2, 60, "two to succeed")
    write_marker(context.folder.cancel, "Ctrl-C")
    thread.join()
    assert _suite_state(run).counts["queued"] == 2
    go.touch()
    outputs = run_suite(suite_context(lease, "stopped"), Listed(*points), work())
    assert outputs["counts"] == {"succeeded": 4}
    assert sorted(executions(run)) == [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1)]


def test_a_driver_that_was_replaced_stops_and_writes_nothing(
    lease: LeaseFolder, tmp_path: Path, begin: Callable[..., Any]
) -> None:
    context = suite_context(lease, "replaced", max_running=1)
    thread = begin(context, {"until": str(tmp_path / "go")}, {}, {})
    run = context.run_folder
    wait_until(lambda: len(executions(run)) == 1, 60, "one trial to run")
    with Journal(run, "another driver"):
        size = run.journal.stat().st_size
        (tmp_path / "go").touch()
        thread.join()
        assert run.journal.stat().st_size == size


def test_of_two_drivers_on_one_lease_the_later_one_goes_on(
    lease: LeaseFolder, tmp_path: Path
) -> None:
    go, points = tmp_path / "go", [{"until": str(tmp_path / "go")}, {}, {}]
    earlier, later = (suite_context(lease, "twice", max_running=1) for _ in range(2))
    run = earlier.run_folder
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_suite, earlier, Listed(*points), work())
        wait_until(lambda: len(executions(run)) == 1, 60, "one trial to run")
        second = pool.submit(run_suite, later, Listed(*points), work())
        with pytest.raises(TakenOverError, match=later.spec.key):
            first.result(60)
        wait_until(lambda: len(executions(run)) == 2, 60, "the later one to begin it anew")
        go.touch()
        assert second.result(60)["counts"] == {"succeeded": 3}
    assert sorted(executions(run)) == [(1, 1), (1, 2), (2, 1), (3, 1)]
    ends = [each.number for each in _entries(run) if isinstance(each, Ended) and each.is_final]
    assert sorted(ends) == [1, 2, 3]


def test_nothing_more_begins_when_a_trial_tells_that_its_lease_ends(lease: LeaseFolder) -> None:
    context = suite_context(lease, "taken", max_running=1)
    leave = {"fail": "preempted", "error": "LeaseTakenError"}
    with pytest.raises(LeaseEndsError, match="0 of 3 trials ended, just before"):
        run_suite(context, Listed(leave, {}, {}), work())
    suite_state = _suite_state(context.run_folder)
    assert (suite_state.counts["queued"], suite_state.rows[1].failed) == (3, ())
    assert executions(context.run_folder) == [(1, 1)]
