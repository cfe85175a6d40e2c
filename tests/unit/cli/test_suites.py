"""`headrace suite`: how trials stand, and what is asked of a suite while it runs."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from headrace.cli.console import Console
from headrace.cli.suite_view import closing, counts_words, live, trials_list
from headrace.errors import HeadraceError, RecipeError, UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.runs.suites import has_more_to_do, sought_by
from headrace.runs.trials import note_trials
from headrace.states import FailureClass, StepState
from headrace.status.run import run_views
from headrace.status.suite import SuiteView, suite_page, suite_views, trials_page
from headrace.steps.mailbox import StepStatus
from headrace.suites.records import CommandsApplied, Control, RunningTrial, SuiteSummary
from support.command_line import headrace
from support.runs import ended_owner, make_run
from support.suite_journal import (
    added,
    ended,
    failed,
    journal,
    make_suite,
    over_sites,
    started,
)

pytestmark = pytest.mark.usefixtures("headrace_home")


def shown(*arguments: str, columns: int = 200) -> str:
    done = headrace("suite", *arguments, columns=columns)
    assert done.exit_code == 0, done.output
    return done.stdout


def watched(run: Run, exit_code: int = 0) -> str:
    done = headrace("status", run.run_id, "--watch")
    assert done.exit_code == exit_code, done.output
    return done.stdout


@pytest.fixture
def suite() -> Run:
    """Four trials: one has succeeded, one was pruned, one has failed, one runs."""
    run = make_suite(overrides=("trainer.monitor=val_loss", "suite.points=[{}]"))
    journal(
        run.folder,
        *(added(n, model__lr=n / 10, data__global_batch_size=64, seed=7) for n in range(1, 5)),
        *(started(n) for n in range(1, 4)),
        ended(1, 0.5),
        ended(2, 0.1, pruned=True),
        failed(3, is_final=False, failure_class=FailureClass.LOST),
        started(3, 2, node="node-b"),
        failed(3, 2),
        started(4),
    )
    running = RunningTrial(
        number=4, name="lr0.4", attempt=1, node="node-a", started_at=1, done=0.5,
        waits="waits for 1 GPU of box: ann holds 2",
    )  # fmt: skip
    write_record(
        run.folder.summary,
        SuiteSummary(total=6, counts={"pruned": 1}, running=(running,), eta_s=90, eta_error_s=10),
    )
    return run


def view_of(run: Run) -> SuiteView:
    return suite_views([open_ledger().run(run.run_id)])[0]


def test_a_suite_has_trials_by_state_the_best_and_the_time_left(suite: Run):
    view = view_of(suite)
    assert view.trials.total == 6
    assert view.trials.counts == {"succeeded": 1, "failed": 1, "pruned": 1, "running": 1}
    assert (view.best, view.best_value, view.eta_s) == (1, 0.5, 90)
    for words in ("val_loss 0.5 (#1", "2 to come", "1:30 ± 10.0 s"):
        assert words in counts_words(view)


def test_show_tells_what_differs_and_why_a_trial_failed_within_80_columns(suite: Run):
    told = shown("show", suite.run_id)  # without global_batch_size, which is the same in all
    rows = [" ".join(line.split()) for line in told.splitlines()[1:4]]
    assert rows == [
        "1 succeeded lr=0.1 0.5 1:00 node-a",
        "2 pruned lr=0.2 0.1 1:00 node-a",
        "3 failed (2) lr=0.3 1:00 node-b user_error: it broke",
    ]


def test_show_names_a_cancellation_once() -> None:
    run = make_suite()
    cancelled = {"state": StepState.CANCELLED, "failure_class": FailureClass.CANCELLED}
    journal(run.folder, added(1), started(1), failed(1, **cancelled, message="Cancelled: by ann"))
    assert shown("show", run.run_id).splitlines()[1].endswith(" node-a  Cancelled: by ann")


def test_the_table_of_trials_fits_a_terminal_of_80_columns(suite: Run):
    note_trials(suite.folder)
    console = Console(width=80, record=True, force_terminal=True, color_system=None)
    rows = open_ledger().trials(suite.run_id)
    console.print(trials_list(rows, sought_by(suite.folder).objectives))
    view = view_of(suite)
    console.print(live(view))
    console.print(closing(view))
    told = console.export_text()
    assert max(len(line.rstrip()) for line in told.splitlines()) <= 80
    for words in ("lr=0.4", "50%", "#4 waits for 1 GPU of box: ann holds 2"):
        assert words in told


def test_show_sorts_chooses_and_limits(suite: Run):
    def numbers(*arguments: str) -> list[int]:
        return [each["number"] for each in json.loads(shown("show", *arguments, "--json"))]

    assert numbers() == [1, 2, 3, 4]  # the newest suite
    assert numbers(suite.run_id, "--sort", "-objective") == [1, 2, 3, 4]
    assert numbers(suite.run_id, "--sort", "objective") == [2, 1, 3, 4]
    assert numbers(suite.run_id, "--state", "failed") == [3]
    assert numbers(suite.run_id, "--state", "succeeded") == [1]
    assert numbers(suite.run_id, "--state", "pruned") == [2]
    assert numbers(suite.run_id, "--limit", "2") == [1, 2]
    assert "2 of 4 trials" in shown("show", "--limit", "2")
    with pytest.raises(UnknownNameError, match=r"no order 'objectiv'.*\n.*objective"):
        shown("show", "--sort", "objectiv")
    assert headrace("suite", "show", "--state", "broken").exit_code == 2


def test_points_are_told_by_mean_deviation_and_interval():
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    journal(
        run.folder,
        *(
            added(n, group=1 + 2 * (n > 2), trainer__max_epochs=1 + (n > 2), seed=n % 2)
            for n in (1, 2, 3, 4)
        ),
        *(started(n) for n in (1, 2, 3)),
        *(ended(n, value) for n, value in ((1, 0.4), (2, 0.6), (3, 0.3))),
    )
    told = shown("show", run.run_id, "--points").splitlines()
    assert "val_loss" in told[0]
    assert told[1].split() == ["max_epochs=1", "2", "0.5", "±", "0.14", "0.4,", "0.6"]
    assert told[2].split() == ["max_epochs=2", "1/2", "0.3"]
    first = json.loads(shown("show", run.run_id, "--points", "--json"))[0]
    assert (first["values"], first["numbers"]) == ({"trainer.max_epochs": 1}, [1, 2])


def asked(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    lines = run.folder.controls.read_text().splitlines()
    controls = [Control.model_validate_json(line) for line in lines]
    assert all("@" in each.by for each in controls)
    return [(each.what, each.numbers) for each in controls]


def test_what_is_asked_is_appended_for_the_driver(suite: Run):
    shown("pause", suite.run_id)
    shown("resume", suite.run_id, "--limit", "4")
    shown("cancel", suite.run_id, "4")
    shown("retry", suite.run_id, "3")
    assert "trials 3, 3" in shown("retry", suite.run_id, "3", "3")
    shown("cancel", suite.run_id)
    assert "asked to give trial 4 priority -2" in shown(
        "prioritize", suite.run_id, "4", "--priority", "-2"
    )
    assert asked(suite) == [
        ("pause", ()), ("limit", ()), ("resume", ()), ("cancel", (4,)), ("retry", (3,)),
        ("retry", (3, 3)), ("cancel", ()), ("prioritize", (4,)),
    ]  # fmt: skip
    lines = [json.loads(line) for line in suite.folder.controls.read_text().splitlines()]
    assert (lines[1]["limit"], lines[-1]["priority"]) == (4, -2)


def test_added_trials_are_checked_before_anybody_is_asked(suite: Run):
    told = shown("add", suite.run_id, "trainer.max_epochs=3", "data.global_batch_size=16,32")
    assert "asked to add 2 trials" in told
    (line,) = suite.folder.controls.read_text().splitlines()
    assert json.loads(line)["points"] == [
        {"trainer.max_epochs": 3, "data.global_batch_size": 16},
        {"trainer.max_epochs": 3, "data.global_batch_size": 32},
    ]
    for word, why in {
        "trainer.max_epoch=3": "max_epochs",
        "trainer.max_epochs=many": "max_epochs",
        "dataset.seed=3": "cannot differ between trials",
        "~seed": "not a value of a trial",
        "model.learning_rat=3": "Did you mean 'learning_rate'",
        "model.lr=interval(1,2)": "An interval is not a value",
    }.items():
        with pytest.raises(UserError, match=why):
            shown("add", suite.run_id, word)
    assert len(suite.folder.controls.read_text().splitlines()) == 1
    shown("add", suite.run_id, "seed=1,2", "--priority", "3")
    control = json.loads(suite.folder.controls.read_text().splitlines()[1])
    assert (control["points"], control["priority"]) == ([{"seed": 1}, {"seed": 2}], 3)


def test_an_added_point_has_the_seeds_of_the_suite_unless_it_names_one():
    run = make_suite(overrides=("suite.seeds=3", "suite.skip=[model.dropout > 0.4]"))
    assert "add 3 trials" in shown("add", run.run_id, "model.dropout=0.1")
    assert "add 1 trial;" in shown("add", run.run_id, "model.dropout=0.1", "seed=99")
    journal(run.folder, added(1, model__dropout=0.2, seed=8))
    for words, why in (
        (("model.dropout=0.2", "seed=8"), "Trials 1 and 2 are the same"),
        (("model.dropout=0.2",), "Trials 1 and 3 are the same"),
        (("model.dropout=0.5",), "leaves out all of them"),
    ):
        with pytest.raises(RecipeError, match=why):
            shown("add", run.run_id, *words)
    assert len(run.folder.controls.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("cancel", "1"), "Trial 1 has ended already: succeeded"),
        (("cancel", "3"), "Trial 3 has ended already: failed"),
        (("cancel", "4", "9"), "has no trial 9"),
        (("prioritize", "1"), "Trial 1 has ended already: succeeded"),
        (("retry", "1"), "Trial 1 is succeeded, not failed"),
        (("retry", "4"), "Trial 4 is running, not failed"),
        (("cancel", "x"), "'x' is not a trial's number"),
        (("prioritize",), "A trial's number is missing"),
    ],
)
def test_what_cannot_be_asked_of_a_trial_is_refused(suite: Run, words: tuple[str, ...], why: str):
    with pytest.raises(HeadraceError, match=why):
        shown(words[0], suite.run_id, *words[1:])
    assert not suite.folder.controls.exists()


def test_of_a_suite_that_has_ended_more_trials_can_be_asked_for(suite: Run):
    end_run(suite, StepState.SUCCEEDED, "a test")
    assert not has_more_to_do(suite.folder)
    assert f"headrace resume {suite.run_id}" in shown("retry", suite.run_id, "3")
    assert has_more_to_do(suite.folder)
    assert not has_more_to_do(suite.folder, "pack")
    journal(suite.folder, CommandsApplied(lines=1, retried=(3,)))
    assert not has_more_to_do(suite.folder)
    assert f"headrace resume {suite.run_id}" in shown("add", suite.run_id, "seed=9")
    assert has_more_to_do(suite.folder)


@pytest.mark.parametrize("word", ["pause", "resume", "cancel"])
def test_a_run_that_is_no_suite_and_one_that_has_ended_are_asked_nothing(suite: Run, word: str):
    other = make_run()
    with pytest.raises(UserError, match="is not a suite"):
        shown(word, other.run_id)
    with pytest.raises(UnknownNameError, match="There is no run 'nothing'"):
        shown(word, "nothing")
    end_run(suite, StepState.CANCELLED, "a test")
    with pytest.raises(UserError, match="has ended already: cancelled"):
        shown(word, suite.run_id)


def test_without_suites_there_is_nothing_to_show():
    for words in ("show", "cancel"):
        with pytest.raises(UnknownNameError, match="no suites yet"):
            shown(words)


def test_logs_of_a_trial_are_those_of_all_its_attempts(suite: Run):
    for attempt, text in ((1, "first\nsecond\n"), (2, "third\n")):
        file = suite.folder.trial(3).step(attempt).logs / "rank-0.log"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    told = headrace("logs", f"{suite.run_id}:3").stdout.splitlines()
    assert told == ["train/1 rank-0 | first", "train/1 rank-0 | second", "train/2 rank-0 | third"]
    assert headrace("logs", f"{suite.run_id}:1").stdout == ""
    with pytest.raises(UnknownNameError, match="no trial 9"):
        headrace("logs", f"{suite.run_id}:9")


def test_watch_tells_changes_and_stays_until_the_end(suite: Run):
    told: list[str] = []
    watcher = threading.Thread(target=lambda: told.append(watched(suite)))
    watcher.start()
    journal(suite.folder, ended(4, 0.2))
    end_run(suite, StepState.SUCCEEDED, "a test")
    watcher.join(timeout=60)
    assert "best: val_loss 0.2 (#4" in told[0]
    assert "succeeded" in told[0]


def test_a_suite_whose_process_was_killed_is_told_and_not_watched_for_ever():
    run = make_suite(owner=ended_owner())
    journal(run.folder, added(1))
    told = watched(run, exit_code=1)
    assert f"headrace resume {run.run_id}" in told


def test_a_trial_that_a_suite_left_running_waits_and_its_time_has_stopped(suite: Run) -> None:
    counts = {"running": 1, "queued": 2}
    write_record(suite.folder.summary, SuiteSummary(total=6, counts=counts))
    journal(suite.folder, added(5), added(6), started(6), failed(6, is_final=False))
    version = trials_page(suite.run_id).version
    attempt = suite.folder.trial(4).step(1)
    write_record(attempt.status, StepStatus(state=StepState.RUNNING, updated_at=130.0))
    end_run(suite, StepState.CANCELLED, "a test")
    rows = json.loads(shown("show", suite.run_id, "--json"))
    at = open_ledger().run(suite.run_id).finished_at
    assert [(row["state"], row["finished_at"]) for row in rows[3:]] == [
        ("queued", at),
        ("queued", None),
        ("queued", at),
    ]
    assert "running" not in shown("show", suite.run_id, "--state", "running").splitlines()[-1]
    columns = trials_page(suite.run_id, since=version).columns
    assert columns.state[columns.number.index(4)] == "queued"
    (row,) = run_views([open_ledger().run(suite.run_id)])
    assert row.trials is not None
    assert row.trials.counts == {"queued": 3}
    trial = headrace("status", f"{suite.run_id}:4").stdout
    assert "running" not in trial
    assert trial.split("headrace resume ")[1].split()[:1] == [suite.run_id]
    view = json.loads(headrace("status", f"{suite.run_id}:4", "--json").stdout)
    assert view["elapsed_s"] == at - 100.0


def test_a_trial_of_an_abandoned_suite_names_the_suite_to_resume() -> None:
    run = make_suite(owner=ended_owner())
    journal(run.folder, added(1), started(1))
    for command in (("status",), ("runs", "show")):
        told = headrace(*command, f"{run.run_id}:1").stdout
        assert told.split("headrace resume ")[1].split()[:1] == [run.run_id]


def test_a_trial_that_a_suite_left_running_runs_again_once_it_is_resumed(suite: Run) -> None:
    end_run(suite, StepState.CANCELLED, "a test")
    shown("show", suite.run_id)
    open_ledger().reopen_run(suite.run_id)
    journal(suite.folder, failed(4, is_final=False), started(4, 2))
    row = json.loads(shown("show", suite.run_id, "--json"))[3]
    assert (row["state"], row["finished_at"], row["attempts"]) == ("running", None, 2)


def test_a_damaged_summary_leaves_what_the_journal_tells(suite: Run):
    suite.folder.summary.write_text("{")
    assert (view_of(suite).trials.total, view_of(suite).trials.counts["succeeded"]) == (4, 2)
    end_run(suite, StepState.FAILED, "a test")
    assert "its suite.json is damaged" in watched(suite, exit_code=1)


def test_of_a_cross_validation_the_mean_is_told_and_no_trial_is_the_best():
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    for number, value in enumerate((0.5, 0.25, 0.75), 1):
        fold = added(number, group=1, data__fold=number - 1)
        journal(run.folder, fold, started(number), ended(number, value))
    end_run(run, StepState.SUCCEEDED, "a test")
    view = view_of(run)
    assert (view.best, view.best_value) == (None, None)
    assert view.point is not None
    assert view.point.spread is not None
    assert view.point.spread.mean == 0.5
    told = watched(run)
    assert "mean: val_loss 0.5 ± 0.25 of 3 folds" in told
    assert "best" not in told
    page = suite_page(run.run_id, can_act=False)
    assert page.best is None
    means = [(fold, each.mean) for fold, each in page.point.folds.items()]
    assert means == [(0, 0.5), (1, 0.25), (2, 0.75)]


def test_the_only_suite_need_not_be_named() -> None:
    ended = make_suite()
    end_run(ended, StepState.FAILED, "a test")
    suite = make_suite(overrides=("suite.points=[{}]",))
    journal(suite.folder, added(1), added(2))
    for words in (
        ("pause",), ("resume",), ("cancel", "1", "2"), ("cancel",), ("prioritize", "2"),
        ("add", "seed=9"),
    ):  # fmt: skip
        assert f"{suite.run_id}: asked to" in headrace("suite", *words).stdout
    assert asked(suite) == [
        ("pause", ()), ("resume", ()), ("cancel", (1, 2)), ("cancel", ()), ("prioritize", (2,)),
        ("add", ()),
    ]  # fmt: skip
    assert not ended.folder.controls.exists()
    end_run(suite, StepState.FAILED, "a test")
    for run in (ended, suite):  # none goes on: both may be meant
        with pytest.raises(UserError, match=f"There are several suites: .*{run.run_id}"):
            headrace("suite", "retry")


def test_sites_of_a_suite_are_shown_with_what_each_does_costs_and_takes(suite: Run) -> None:
    assert "slot/h" not in shown("show", suite.run_id)
    lanes = shown("show", over_sites(suite).run_id).split("differs in")[0]
    lab, box, aws = (line.split() for line in lanes.splitlines()[1:4])
    assert lab == ["lab", "open", "free", "2/8", "3", "5", "$0.00", "$0.00", "1:02:05"]
    assert " ".join(box) == "box unreachable: ssh: no route to host ? 0/2 0 1 ? ?"
    assert aws == ["aws", "opening", "$0.55", "0/2", "2", "0", "$0.12", "$3.50", "10:00"]
    view = view_of(suite)
    assert [each.site for each in view.sites] == ["lab", "box", "aws"]
    console = Console(width=80, record=True, force_terminal=True, color_system=None)
    console.print(live(view), closing(view), counts_words(view))
    told = console.export_text().splitlines()
    assert max(len(line.rstrip()) for line in told) <= 80
    assert [sum(line.split()[:1] == [word] for line in told) for word in ("lab", "aws")] == [2, 2]
    assert "  aws: 0 running, 2 waiting, 0 ended, $0.12 so far, opening" in told
    journal(suite.folder, ended(4, 0.3, site="box"))
    assert "box" in shown("show", suite.run_id).split("differs in")[1]
    status, trial = (
        json.loads(headrace("status", name, "--json").stdout)
        for name in (suite.run_id, f"{suite.run_id}:4")
    )
    assert [each["site"] for each in status["sites"]] == ["lab", "box", "aws"]
    assert (status["site"], trial["site"]) == ("laptop", "box")
    end_run(suite, StepState.CANCELLED, "a test")  # its driver has written no more
    lanes = shown("show", suite.run_id).split("differs in")[0].splitlines()[1:4]
    assert [" ".join(line.split()[:4]) for line in lanes] == [
        "lab closed free 0/8", "box closed ? 0/2", "aws closed $0.55 0/2",
    ]  # fmt: skip
    assert not any("1:02:05" in line for line in lanes)
    assert {(each.state, each.running) for each in view_of(suite).sites} == {("closed", 0)}


@pytest.mark.parametrize(
    ("options", "asked", "command"),
    [
        (["box", "--pause"], "start no more trials on box", {"what": "pause-site"}),
        (["box", "--resume"], "start trials on box", {"what": "resume-site"}),
        (["aws", "--limit", "4"], "run at most 4 trials", {"what": "limit-site", "limit": 4}),
        (["aws", "--limit", "0"], "not limit aws", {"what": "limit-site", "limit": None}),
        (["aws", "--leave"], "move its trials off aws", {"what": "leave-site"}),
    ],
)
def test_a_site_of_a_suite_is_paused_limited_and_left(
    suite: Run, options: list[str], asked: str, command: dict[str, Any]
) -> None:
    assert f"asked to {asked}" in shown("site", over_sites(suite).run_id, *options)
    control = Control.model_validate_json(suite.folder.controls.read_text())
    assert control.model_dump(include={*command, "site"}) == {**command, "site": options[0]}
    act, *_ = open_ledger().acts(run_id=suite.run_id)
    assert (act.what, act.details.partition(":")[0]) == (command["what"], options[0])


def test_a_site_of_a_suite_that_was_cancelled_is_used_again_before_it_is_resumed(
    suite: Run,
) -> None:
    words = ("site", over_sites(suite).run_id, "box", "--resume")
    end_run(suite, StepState.CANCELLED, "a test")
    assert f"headrace resume {suite.run_id}" in shown(*words)
    assert '"resume-site"' in suite.folder.controls.read_text()


@pytest.mark.parametrize(
    ("words", "sites", "why"),
    [
        (["bx", "--pause"], (), "no site 'bx'\n  Did you mean 'box'"),
        (["lab", "--pause"], None, "has only one site"),
        (["lab"], (), "given 0 options"),
        (["lab", "--leave", "--limit", "1"], (), "given 2 options"),
        (["lab", "box", "--pause"], (), "given 3 names"),
    ],
)
def test_what_cannot_be_asked_of_a_site_is_refused(
    suite: Run, words: list[str], sites: tuple[()] | None, why: str
) -> None:
    if sites is not None:
        over_sites(suite, *sites)
    with pytest.raises(UserError, match=why):
        shown("site", suite.run_id, *words)
    assert not suite.folder.controls.exists()
