"""What is asked of a suite while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.states import StepState
from headrace.suites.records import ENTRY, Added, CommandsApplied, Control, Entry
from headrace.suites.suite_state import Controls, SuiteState
from support.scripted_trials import Listed, trial
from support.suite_journal import ended, failed


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
    assert (controls.is_paused, controls.limit) == (True, 7)
    _ask(run, "limit")
    _ask(run, "resume")
    _note_commands(controls, suite_state)
    assert (controls.is_paused, controls.limit) == (False, None)


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
    assert (later.is_paused, suite_state.rows[1].state.value, len(suite_state.rows)) == (
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
