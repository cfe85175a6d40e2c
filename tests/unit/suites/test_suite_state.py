"""The event log of a suite, the state of its trials, and commands to it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.recipe.suite import Objective
from headrace.states import StepState
from headrace.suites.event_log import Journal, TakenOverError
from headrace.suites.records import ENTRY, Added, CommandsApplied, Control, Ended, Entry
from headrace.suites.suite_state import Controls, SuiteState
from support.scripted_trials import Listed, trial
from support.suite_journal import ended, failed, started


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def _ask(run: RunFolder, what: Any, **fields: Any) -> None:
    append_line(run.controls, Control(what=what, by="test", **fields).model_dump_json())


def _suite_state(*states: str) -> SuiteState:
    suite_state = SuiteState()
    for number, state in enumerate(states, 1):
        suite_state.take(Added(trial=trial(number)))
        if state:
            suite_state.take(ended(number, attempt=0, state=StepState(state)))
    return suite_state


def _note_commands(controls: Controls, suite_state: SuiteState) -> list[Entry]:
    source = Listed()
    source.watch(suite_state)
    entries = controls.apply_commands(suite_state, source.add)
    for entry in entries:
        suite_state.take(entry)
    return entries


def test_pause_and_limit_are_as_they_were_asked_last(run: RunFolder) -> None:
    controls, suite_state = Controls(run, 3), _suite_state("")
    assert _note_commands(controls, suite_state) == []
    _ask(run, "pause")
    _ask(run, "limit", limit=7)
    _note_commands(controls, suite_state)
    assert (controls.whole.is_paused, controls.whole.limit) == (True, 7)
    _ask(run, "limit")
    _ask(run, "resume")
    _note_commands(controls, suite_state)
    assert (controls.whole.is_paused, controls.whole.limit) == (False, None)


def test_retry_and_cancel_take_those_that_they_can(run: RunFolder) -> None:
    suite_state = _suite_state("succeeded", "failed", "lost", "")
    _ask(run, "retry", numbers=(1, 2, 9))
    _ask(run, "cancel")
    (applied,) = _note_commands(Controls(run, None), suite_state)
    assert isinstance(applied, CommandsApplied)
    assert (applied.retried, applied.cancelled) == ((2,), (4,))
    assert [row.state.value for row in suite_state.rows.values()] == [
        "succeeded", "queued", "lost", "queued",
    ]  # fmt: skip


def test_a_trial_that_is_assigned_again_is_not_cancelled_by_an_earlier_command(
    run: RunFolder,
) -> None:
    suite_state = _suite_state("")
    for what in ("cancel", "withdraw", "assign"):
        trials = (Added(trial=trial(1)),) if what == "assign" else ()
        _ask(run, what, numbers=(1,), trials=trials)
    (*_, applied) = _note_commands(Controls(run, None), suite_state)
    assert isinstance(applied, CommandsApplied)
    assert (applied.cancelled, applied.leaving) == ((), ())


def test_priorities_are_those_that_were_asked_last(run: RunFolder) -> None:
    suite_state = _suite_state("", "", "")
    _ask(run, "prioritize", numbers=(1, 2), priority=5)
    _ask(run, "prioritize", numbers=(2,), priority=-1)
    _ask(run, "add", points=({"lr": 1},), priority=7)
    entries = _note_commands(Controls(run, None), suite_state)
    assert {number: row.priority for number, row in suite_state.rows.items()} == {
        1: 5,
        2: -1,
        3: 0,
        4: 7,
    }
    again = SuiteState()  # of a later driver
    for entry in (*(Added(trial=trial(number)) for number in (1, 2, 3)), *entries):
        again.take(ENTRY.validate_json(entry.model_dump_json()))
    assert again.rows == {**suite_state.rows, 3: again.rows[3]}


def test_points_are_kept_as_they_are_also_infinite_ones() -> None:
    """JSON has no such numbers: two points must not become one, `null`."""
    point = {"clip": math.inf, "fill": [-math.inf, math.nan], "lr": 0.1}
    added = Added(trial=trial(1).model_copy(update={"values": point}))
    command = Control(what="assign", by="ada", points=(point,), trials=(added,))
    for each, kind in ((added, Added), (command, Control)):
        assert repr(kind.model_validate_json(each.model_dump_json())) == repr(each)


def test_a_later_driver_does_not_heed_twice_but_stays_paused(run: RunFolder) -> None:
    suite_state = _suite_state("failed")
    _ask(run, "retry")
    _ask(run, "add", points=({"lr": 1},))
    _ask(run, "pause")
    added, _ = _note_commands(Controls(run, None), suite_state)
    assert isinstance(added, Added)
    assert added.trial.values == {"lr": 1}
    suite_state.take(failed(1))
    later = Controls(run, None)
    assert _note_commands(later, suite_state) == []
    assert (later.whole.is_paused, suite_state.rows[1].state.value, len(suite_state.rows)) == (
        True,
        "failed",
        2,
    )


def test_a_point_that_cannot_be_used_costs_that_point(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    _ask(run, "add", points=({"bad": 1}, {"lr": 2}))
    suite_state = _suite_state("")
    _note_commands(Controls(run, None), suite_state)
    assert [row.trial.values for row in suite_state.rows.values()] == [{}, {"lr": 2}]
    assert "bad is no key" in caplog.text


def test_a_half_written_line_is_read_when_it_is_whole(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    controls, suite_state = Controls(run, None), _suite_state("failed")
    line = Control(what="retry", by="test").model_dump_json()
    run.controls.write_text(f"garbage\n{line[:20]}")
    (applied,) = _note_commands(controls, suite_state)
    assert isinstance(applied, CommandsApplied)
    assert (applied.lines, applied.retried) == (1, ())
    with run.controls.open("a") as file:
        file.write(f"{line[20:]}\n")
    _note_commands(controls, suite_state)
    assert suite_state.rows[1].state is StepState.QUEUED
    assert "Line 1 of" in caplog.text


def _ended(number: int, attempt: int, state: str, **fields: object) -> Ended:
    return ended(number, None, attempt, state=StepState(state), **fields)


def _state_after(entries: Iterable[Entry]) -> SuiteState:
    suite_state = SuiteState(objectives=(Objective(metric="loss"),))
    for entry in entries:
        suite_state.take(entry)
    return suite_state


def test_of_equal_trials_the_first_is_best_whichever_ended_first() -> None:
    added = (Added(trial=trial(number)) for number in (1, 2))
    ends = (_ended(number, 1, "succeeded", objectives=(0.5,)) for number in (2, 1))
    suite_state = _state_after([*added, started(1, 1), started(2, 1), *ends])
    assert suite_state.best is not None
    assert suite_state.best.trial.number == 1


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(run: RunFolder) -> None:
    entries: list[Entry] = [Added(trial=trial(1)), started(1, 1), _ended(1, 1, "succeeded")]
    with Journal(run, "first") as journal:
        journal.add(*entries)
    whole = run.journal.read_bytes()
    ends = [0, *(at + 1 for at, char in enumerate(whole) if char == ord("\n"))]
    for size in (0, 1, ends[1] - 1, ends[1], ends[1] + 5, ends[2], len(whole) - 1, len(whole)):
        run.journal.write_bytes(whole[:size])
        kept = sum(end <= size for end in ends) - 1
        with Journal(run, "second") as journal:
            assert list(journal.entries()) == entries[:kept]
            journal.add(CommandsApplied(lines=3))
        with Journal(run, "third") as journal:
            assert [each.event for each in journal.entries()][kept:] == ["heeded"]
    run.journal.write_bytes(whole + b"x" * 3_000_000)  # longer than a block
    with Journal(run, "fourth"):
        assert run.journal.read_bytes() == whole


def test_a_damaged_line_costs_that_line(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    with Journal(run, "first") as journal:
        journal.add(Added(trial=trial(1)), Added(trial=trial(2)), started(1, 1))
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(lines[0] + b"\xff{]\n" + lines[2])
    with Journal(run, "second") as journal:
        suite_state = _state_after(journal.entries())
    assert (set(suite_state.rows), set(suite_state.running)) == ({1}, {1})
    assert "has a malformed line" in caplog.text


def test_an_earlier_writer_writes_no_more(run: RunFolder) -> None:
    with Journal(run, "first") as first:
        first.add(Added(trial=trial(1)))
        with Journal(run, "second") as second:
            second.add(started(1, 1))
            with pytest.raises(TakenOverError, match="second has taken this suite over"):
                first.add(started(1, 1))
            with pytest.raises(TakenOverError):
                first.sync_now_and_then()
            assert len(list(second.entries())) == 2


def test_a_full_disk_leaves_no_part_of_a_line(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with Journal(run, "first") as journal:
        journal.add(Added(trial=trial(1)))
        size = run.journal.stat().st_size
        monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
        with pytest.raises(OSError, match="No space left"):
            journal.add(started(1, 1))
        assert run.journal.stat().st_size == size


def test_the_board_counts_and_finds_the_best() -> None:
    suite_state = _state_after(
        [
            *(Added(trial=trial(number)) for number in range(1, 8)),
            started(1, 1),
            _ended(1, 1, "succeeded", objectives=(3.0,)),
            started(2, 1),
            _ended(2, 1, "succeeded", objectives=(2.0,)),
            started(3, 1),
            _ended(3, 1, "succeeded"),
            started(4, 1),
            _ended(4, 1, "succeeded", objectives=(1.0,), pruned=True),
            started(5, 1),
            _ended(5, 1, "failed", is_final=False, machines=("m-0",)),
            started(5, 2),
            started(6, 1),
            _ended(6, 1, "lost", is_final=False, is_counted=False),
            _ended(7, 0, "cancelled"),
            started(99, 1),  # of a trial whose line is damaged
        ]
    )
    told = {state: count for state, count in suite_state.counts.items() if count}
    assert told == {"succeeded": 3, "pruned": 1, "running": 1, "queued": 1, "cancelled": 1}
    assert (suite_state.best, suite_state.num_ended) == (suite_state.rows[2], 5)
    five, six = suite_state.rows[5], suite_state.rows[6]
    assert (len(five.failed), five.attempts, five.avoids) == (1, 2, {"m-0"})
    assert (len(six.failed), six.avoids) == (0, frozenset())
    assert [row.trial.number for row in suite_state.waiting()] == [6]


def test_the_best_of_folds_is_kept_but_not_told() -> None:
    fold = trial(1).model_copy(update={"values": {"data.fold": 0}})
    over = _ended(1, 1, "succeeded", objectives=(3.0,))
    suite_state = _state_after([Added(trial=fold), started(1, 1), over])
    assert suite_state.best is not None
    assert suite_state.shown_best is None


@pytest.mark.parametrize("state", ["preempted", "lost"])
def test_a_machine_that_went_away_is_not_avoided_when_it_is_back(state: str) -> None:
    gone = _ended(1, 1, state, is_final=False, machines=("m-0",))
    row = _state_after([Added(trial=trial(1)), started(1, 1), gone]).rows[1]
    assert (len(row.failed), row.avoids) == (1, frozenset())


def test_an_end_that_is_told_twice_counts_once() -> None:
    suite_state = _state_after(
        [
            Added(trial=trial(1)),
            started(1, 1),
            _ended(1, 1, "failed", is_final=False),
            _ended(1, 1, "failed", is_final=False),
        ]
    )
    assert (len(suite_state.rows[1].failed), suite_state.counts["queued"]) == (1, 1)
    for state in ("succeeded", "failed"):
        suite_state.take(_ended(1, 1, state))
    assert {state: count for state, count in suite_state.counts.items() if count} == {
        "succeeded": 1
    }


def test_controls_change_trials() -> None:
    suite_state = _state_after(
        [
            *(Added(trial=trial(number)) for number in (1, 2)),
            started(1, 1),
            _ended(1, 1, "failed"),
            CommandsApplied(lines=2, retried=(1, 9), cancelled=(2, 9)),
        ]
    )
    assert (suite_state.applied, suite_state.num_failed, suite_state.counts["queued"]) == (2, 0, 2)
    assert (len(suite_state.rows[1].failed), suite_state.rows[2].unwanted) == (0, True)
    suite_state.take(CommandsApplied(lines=3, retried=(2,)))
    assert not suite_state.rows[2].unwanted


ENTRIES = st.lists(
    st.one_of(
        st.builds(lambda number: Added(trial=trial(number)), st.integers(1, 3)),
        st.builds(started, st.integers(1, 3), st.integers(1, 3)),
        st.builds(
            lambda number, attempt, state, final: _ended(number, attempt, state, is_final=final),
            st.integers(1, 3),
            st.integers(0, 3),
            st.sampled_from(["succeeded", "failed", "lost", "cancelled"]),
            st.booleans(),
        ),
        st.builds(
            lambda numbers: CommandsApplied(lines=1, retried=tuple(numbers)),
            st.sets(st.integers(1, 4)),
        ),
    )
)


@given(ENTRIES)
def test_counts_hold_whatever_the_journal_says(entries: list[Entry]) -> None:
    suite_state = _state_after(entries)
    assert sum(suite_state.counts.values()) == len(suite_state.rows)
    assert min(suite_state.counts.values(), default=0) >= 0
    assert set(suite_state.running) == {
        number for number, row in suite_state.rows.items() if row.state is StepState.RUNNING
    }
    assert suite_state.num_ended == sum(row.state.is_final for row in suite_state.rows.values())
