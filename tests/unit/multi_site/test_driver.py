"""The driver of a suite over several sites, whose parts are scripted, in simulated time."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import BudgetError
from headrace.files.lines import append_line
from headrace.informing import inform
from headrace.recipe.suite import Objective
from headrace.states import FailureClass, StepState
from headrace.suites.records import Added, Assigned, Control, Ended, Started, Withdrawn
from support.scripted_parts import Clock, ScriptedSuite, patched

_FAULTS = ("unreachable", "long unreachable", "fail", "driver", "leave", "pause")
_SHORT, _LONG = 40, 260
_TURNS = 6000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    patched(monkeypatch, clock)
    return clock


def _suite(path: Path, clock: Clock, num_trials: int = 12, **spec: Any) -> ScriptedSuite:
    given = {"sites": ["a", "b"], "policy": "spread", **spec}
    return ScriptedSuite(path, num_trials, clock, given)


def _ask(suite: ScriptedSuite, what: Any, **fields: Any) -> None:
    append_line(suite.run.controls, Control(what=what, by="test", **fields).model_dump_json())


def _until_over(suite: ScriptedSuite, turns: int = _TURNS) -> None:
    for _ in range(turns):
        suite.turn()
        if suite.is_over:
            return
    raise AssertionError(f"not over: {suite.driver.suite_state.counts}, {suite.driver._plan}")


def _check_whole(suite: ScriptedSuite) -> None:
    """All trials have ended once, each with the figure that its values give."""
    ends = suite.ends()
    assert Counter(each.number for each in ends) == dict.fromkeys(range(1, suite.num_trials + 1), 1)
    assert {each.number: each.metrics["loss"] for each in ends} == {
        number: float(number - 1) for number in range(1, suite.num_trials + 1)
    }
    for each in ends:  # the folder is that of the part where it ended
        result = suite.run.trial(each.number).step(each.attempt).result
        assert result.is_file(), f"trial {each.number} at {each.site}"


def test_trials_are_shared_out_and_each_runs_once(tmp_path: Path, clock: Clock) -> None:
    suite = _suite(tmp_path, clock)
    begun_s = clock.now
    _until_over(suite)
    _check_whole(suite)
    assert sorted(n for part in suite.parts for n in part.executed) == list(range(1, 13))
    assert all(len(part.executed) >= 5 for part in suite.parts)
    assert clock.now - begun_s < 1.3 * 12 * 5 / 4  # four slots, five seconds each


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    faults=st.lists(
        st.tuples(st.integers(0, 150), st.sampled_from(_FAULTS), st.integers(0, 1)), max_size=6
    )
)
def test_no_fault_of_a_site_loses_or_repeats_a_trial(
    tmp_path_factory: pytest.TempPathFactory, clock: Clock, faults: list[tuple[int, str, int]]
) -> None:
    suite = _suite(tmp_path_factory.mktemp("suite"), clock)
    back: dict[int, int] = {}
    for turn in range(_TURNS):
        for _, what, index in (each for each in faults if each[0] == turn):
            part = suite.parts[index]
            if what == "driver":
                suite.begin()
            elif what == "fail":
                part.kill()
            elif what in ("leave", "pause"):
                _ask(suite, f"{what}-site", site=part.run.run_id)
            else:
                part.is_reachable = False
                back[index] = turn + (_SHORT if what == "unreachable" else _LONG)
            if what in ("leave", "pause"):
                back[index + 2] = turn + _SHORT
        for index in [index for index, end in back.items() if end == turn]:
            if index < 2:
                suite.parts[index].is_reachable = True
            else:
                _ask(suite, "resume-site", site=suite.parts[index - 2].run.run_id)
        suite.turn()
        if suite.is_over and turn > 200:
            break
    assert suite.is_over, suite.driver.suite_state.counts
    _check_whole(suite)


def test_a_site_that_is_left_gives_its_trials_to_the_others(tmp_path: Path, clock: Clock) -> None:
    suite = _suite(tmp_path, clock)
    for _ in range(10):
        suite.turn()
    assert suite.parts[0].running
    _ask(suite, "leave-site", site="a")
    _until_over(suite)
    _check_whole(suite)
    assert suite.parts[0].executed == []
    taken = [e for e in suite.journal.entries() if isinstance(e, Assigned) and not e.site]
    assert len(taken) >= 2


def test_the_sites_of_an_ended_suite_have_no_further_cost(tmp_path: Path, clock: Clock) -> None:
    suite = _suite(tmp_path, clock)
    for site in suite.driver._sites.values():
        site.usd_per_hour = 3.0
    _until_over(suite)
    assert suite.driver._is_over()
    rows = suite.driver._summary(None).sites
    assert [(each.expected_usd, each.eta_s) for each in rows] == [(0.0, None)] * 2


@pytest.mark.parametrize("num_full", [1, 2])
def test_trials_of_a_site_with_a_full_disk_go_to_others(
    tmp_path: Path, clock: Clock, num_full: int
) -> None:
    suite = _suite(tmp_path, clock)
    for part in suite.parts[:num_full]:
        part.is_full = True
    _until_over(suite)
    if num_full == 1:
        _check_whole(suite)
        assert sorted(suite.parts[1].executed) == list(range(1, 13))
        (site, _) = suite.driver._sites.values()
        assert site.failures > 0
    else:  # each site has tried each of them
        assert {each.failure_class for each in suite.ends()} == {FailureClass.CAPACITY}
        entries = suite.journal.entries()
        tried = {(each.number, each.site) for each in entries if isinstance(each, Ended)}
        assert len(tried) == 24


@pytest.mark.parametrize("num_small", [1, 2])
def test_trials_that_are_too_large_for_a_site_run_at_another(
    tmp_path: Path, clock: Clock, num_small: int
) -> None:
    suite = _suite(tmp_path, clock)
    for part in suite.parts[:num_small]:
        part.too_large = {1, 2, 7}
    _until_over(suite)
    if num_small == 1:
        _check_whole(suite)
        assert {1, 2, 7} <= {*suite.parts[1].executed}
        assert all(site.failures == 0 for site in suite.driver._sites.values())
    else:
        failed = {each.number for each in suite.ends() if each.state is StepState.FAILED}
        assert failed == {1, 2, 7}


def test_what_a_silent_site_has_not_let_go_begins_nowhere_else(
    tmp_path: Path, clock: Clock
) -> None:
    suite = _suite(tmp_path, clock)
    for site in suite.driver._sites.values():
        object.__setattr__(site.site.limits, "lost_after", 60.0)
    suite.turn()
    assert suite.parts[0].running
    suite.parts[0].is_reachable = False  # before it is known that they run
    for _ in range(100):
        suite.turn()
    suite.parts[0].is_reachable = True
    _until_over(suite)
    _check_whole(suite)
    assert sum(len(part.executed) for part in suite.parts) == 12


def test_a_trial_that_left_a_site_and_came_again_stays_when_the_driver_is_replaced(
    tmp_path: Path, clock: Clock
) -> None:
    suite = _suite(tmp_path, clock)
    suite.turn()
    row = next(row for row in suite.driver.suite_state.waiting() if row.site == "a")
    number = row.trial.number
    entries = suite.parts[0].entries
    at = next(at for at, each in enumerate(entries) if isinstance(each, Started))
    entries[at:at] = [Withdrawn(number=number), Added(trial=row.trial)]
    suite.begin()
    suite.driver._collect()
    row = suite.driver.suite_state.rows[number]
    assert row.site == "a"
    assert row.started is not None


def test_a_user_moves_running_trials_off_a_site_that_is_out_of_reach(
    tmp_path: Path, clock: Clock
) -> None:
    suite = _suite(tmp_path, clock, num_trials=4)
    for _ in range(5):
        suite.turn()
    assert suite.driver.suite_state.running
    suite.parts[0].is_reachable = False
    _ask(suite, "leave-site", site="a")
    for _ in range(80):  # 36 s; without the command they are given up after 50 s
        suite.turn()
    assert {each.site for each in suite.ends()} == {"b"}
    assert len(suite.ends()) == 4
    entries = suite.journal.entries()
    lost = [each for each in entries if isinstance(each, Ended) and each.state is StepState.LOST]
    assert lost
    assert all(each.finished_at - each.started_at < 5.0 for each in lost)  # as long as it was seen


def test_what_a_part_had_finished_before_it_failed_keeps_its_site(
    tmp_path: Path, clock: Clock
) -> None:
    suite = _suite(tmp_path, clock, num_trials=4)
    for _ in range(5):
        suite.turn()
    part = suite.parts[0]
    number = next(iter(part.running))
    part.end(number, StepState.SUCCEEDED)
    part.entries.pop()  # its driver was killed before it could note it
    part.kill()
    _until_over(suite)
    _check_whole(suite)
    assert suite.driver.suite_state.rows[number].site == "a"


@pytest.mark.parametrize("what", ["cancel", "limit", "retry"])
def test_commands_to_trials_reach_their_sites(tmp_path: Path, clock: Clock, what: str) -> None:
    suite = _suite(tmp_path, clock)
    fields: dict[str, Any] = {"limit": 1} if what == "limit" else {"numbers": (1, 2, 12)}
    most = 0
    _ask(suite, "cancel" if what == "retry" else what, **fields)
    for _ in range(_TURNS):
        suite.turn()
        most = max(most, sum(len(part.running) for part in suite.parts))
        if suite.is_over:
            break
    if what == "retry":
        _ask(suite, "retry", numbers=(1, 2, 12))
        for _ in range(10):
            suite.turn()
        _until_over(suite)
    executed = sorted(n for part in suite.parts for n in part.executed)
    assert executed == (list(range(3, 12)) if what == "cancel" else list(range(1, 13)))
    if what == "limit":
        assert most == 1


def test_results_of_a_site_that_was_given_up_count(tmp_path: Path, clock: Clock) -> None:
    """Its trials ended while it was out of reach: they do not run again once it is back."""
    suite = _suite(tmp_path, clock, num_trials=4)
    for _ in range(10):
        suite.turn()
    running = set(suite.parts[0].running)
    assert running
    suite.parts[0].is_reachable = suite.parts[1].is_reachable = False
    for _ in range(_LONG):
        suite.turn()
    assert suite.driver.suite_state.num_ended == 0
    suite.parts[0].is_reachable = suite.parts[1].is_reachable = True
    _until_over(suite)
    _check_whole(suite)
    assert sum(len(part.executed) for part in suite.parts) == 4


def test_the_folder_of_a_trial_is_that_of_the_part_where_it_ended(
    tmp_path: Path, clock: Clock
) -> None:
    """It was given up at one site, begun and taken back at another, and ended at the first."""
    suite = _suite(tmp_path, clock, num_trials=2)
    suite.parts[1].slots = 1
    for _ in range(10):
        suite.turn()
    assert suite.parts[0].running
    suite.parts[0].is_reachable = False
    suite.parts[1].trial_s = 600.0
    while not all(row.site == "b" for row in suite.driver.suite_state.running.values()):
        suite.turn()
    _ask(suite, "leave-site", site="b")
    for _ in range(100):
        suite.turn()
    suite.parts[0].is_reachable = True
    _until_over(suite)
    _check_whole(suite)


def _kept(suite: ScriptedSuite) -> dict[str, set[int]]:
    """Return the trials at each site that have checkpoints."""
    return {
        part.run.run_id: {
            number for number in part.executed if part.run.trial(number).checkpoints.is_dir()
        }
        for part in suite.parts
    }


def _best(path: Path, clock: Clock, num_trials: int) -> ScriptedSuite:
    """Return a suite whose last trial is the best, and alone keeps its checkpoints."""
    objectives = (Objective(metric="loss", mode="max"),)
    return _suite(path, clock, num_trials, objectives=objectives, keep_checkpoints="best")


@pytest.mark.parametrize("spec", ["best", "none", "all"])
def test_checkpoints_stay_of_the_best_trial_of_all_sites(
    tmp_path: Path, clock: Clock, spec: str
) -> None:
    objectives = (Objective(metric="loss", mode="max"),)
    suite = _suite(tmp_path, clock, objectives=objectives, keep_checkpoints=spec)
    _until_over(suite)
    suite.turn()
    left = {"best": {12}, "none": set[int](), "all": {*range(1, 13)}}
    assert set().union(*_kept(suite).values()) == left[spec]


def test_checkpoints_at_a_site_out_of_reach_are_removed_once_it_is_back(
    tmp_path: Path, clock: Clock
) -> None:
    """Neither this driver nor the next one touches the folder, which could hang."""
    suite = _best(tmp_path, clock, num_trials=9)
    first = suite.parts[0]
    while not first.executed:
        suite.turn()
    suite.driver._turn()
    first.is_reachable = False
    (best,) = _kept(suite)["a"]
    first.running = {}
    first.slots = 0
    _until_over(suite)
    suite.turn()
    assert _kept(suite) == {"a": {best}, "b": {9}}
    suite.begin()
    assert (best,) in [message.surplus for message in first.messages]
    suite.turn()
    assert _kept(suite) == {"a": {best}, "b": {9}}
    first.is_reachable = True
    suite.turn()
    assert _kept(suite) == {"a": set(), "b": {9}}


def test_checkpoints_are_removed_where_the_trial_ended(tmp_path: Path, clock: Clock) -> None:
    """It was given up at one site, was to run at another, and has ended at the first after all."""
    suite = _best(tmp_path, clock, num_trials=3)
    first, second = suite.parts
    first.slots = 1
    second.trial_s = 60.0
    for _ in range(10):
        suite.turn()
    assert first.running
    first.is_reachable = False
    while not all(row.site == "b" for row in suite.driver.suite_state.rows.values()):
        suite.turn()
    assert first.executed
    first.is_reachable = True
    _until_over(suite)
    suite.turn()
    assert any(each.site == "a" for each in suite.ends())
    assert set().union(*_kept(suite).values()) == {3}


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), OSError(errno.ESTALE, "stale")])
def test_a_folder_that_fails_when_its_part_has_failed_ends_no_driver(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    asked = []

    def fails(*_: object) -> None:
        asked.append(1)
        raise error

    monkeypatch.setattr("headrace.multi_site.driver.left_by", fails)
    monkeypatch.setattr("headrace.multi_site.driver.inform", inform)
    suite = _suite(tmp_path, clock, num_trials=4)
    for _ in range(10):
        suite.turn()
    assert suite.parts[0].running
    suite.parts[0].kill()
    _until_over(suite)
    assert asked
    assert {each.number for each in suite.ends()} == {1, 2, 3, 4}


def _rented(suite: ScriptedSuite, *names: str) -> None:
    """Let a second of a slot at these sites cost a dollar."""
    for name in names:
        suite.driver._sites[name].usd_per_hour, suite.driver._sites[name].is_own = 3600.0, False


@pytest.mark.parametrize("state", ["open", "failed", "paused"])
def test_a_suite_ends_when_the_rest_of_its_budget_pays_no_trial(
    tmp_path: Path, clock: Clock, state: str
) -> None:
    suite = _suite(tmp_path, clock, budget=300.0)
    _rented(suite, "a", "b")
    for _ in range(20):
        suite.turn()
    assert all(part.running for part in suite.parts)
    suite.parts[0].usd = 299.0
    suite.turn()
    assert any(part.running for part in suite.parts)  # they come to their end
    if state == "failed":
        suite.parts[0].kill()
    elif state == "paused":
        _ask(suite, "pause-site", site="a")
    with pytest.raises(BudgetError, match=r"The rest, \$1\.00, of `suite\.budget`") as caught:
        _until_over(suite)
    assert "headrace results S" in str(caught.value)
    assert 0 < suite.driver.suite_state.num_ended < 12
    assert not suite.driver.suite_state.running


def test_a_suite_ends_when_the_rest_of_its_budget_opens_no_lease(
    tmp_path: Path, clock: Clock
) -> None:
    """One of its trials it would pay, but not the 90 s of both slots that a lease needs."""
    suite = _suite(tmp_path, clock, budget=1000.0)
    _rented(suite, "a", "b")
    for _ in range(20):
        suite.turn()
    for part in suite.parts:
        part.usd = 435.0
        part.kill()
    suite.turn()
    with pytest.raises(BudgetError, match=r"The rest, \$130\.00, .* opens no lease"):
        _until_over(suite)


@pytest.mark.parametrize("what", ["pause-site", "unreachable", "pause"])
def test_a_site_without_a_price_goes_on_once_it_is_back(
    tmp_path: Path, clock: Clock, what: str
) -> None:
    suite = _suite(tmp_path, clock, budget=300.0)
    _rented(suite, "b")
    for _ in range(20):
        suite.turn()
    suite.parts[1].usd = 300.0
    if what == "unreachable":
        suite.parts[0].is_reachable = False
    else:
        _ask(suite, what, site="a" if what == "pause-site" else "")
    for _ in range(_LONG):
        suite.turn()
    assert not suite.driver.suite_state.running
    suite.parts[0].is_reachable = True
    if what != "unreachable":
        _ask(suite, what.replace("pause", "resume"), site="a" if what == "pause-site" else "")
    _until_over(suite)
    _check_whole(suite)
