"""`headrace runs`: each run's main metric whatever its task; `runs show`: attempts and causes."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from headrace.api import list_runs
from headrace.errors import UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.recipe.unix_accounts import account
from headrace.runs.runs import Run
from headrace.runs.trials import note_trials
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import StepStatus
from headrace.suites.records import SuiteSummary
from support.command_line import headrace
from support.runs import attempt_row_of, lease_on_disk, make_run, running
from support.suite_journal import added, ended, journal, make_suite, started

pytestmark = pytest.mark.usefixtures("headrace_home")


def shown(*arguments: str) -> str:
    done = headrace("runs", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def succeeded(overrides: tuple[str, ...] = (), **outputs: Any) -> Run:
    run = make_run(overrides=overrides)
    lease_id = lease_on_disk(run)
    for step, given in outputs.items():
        attempt_row_of(run, step, lease_id)
        open_ledger().set_attempt(run.run_id, step, 1, state=StepState.SUCCEEDED, outputs=given)
    end_run(run, StepState.SUCCEEDED, "a test")
    return run


@pytest.mark.parametrize(
    ("monitor", "trained", "evaluated", "name", "value"),
    [
        ("val_loss", {"loss": 0.5, "val_loss": 0.4}, {"rmse": 2.5}, "val_loss", 0.4),
        ("val_f1", {"loss": 0.5}, {"rmse": 2.5, "mae": 1.5}, "mae", 1.5),
        (None, {"loss": 0.5, "val_loss": 0.4}, {"dice": 0.75, "iou": None}, "dice", 0.75),
        ("accuracy", {"accuracy": 0.25}, {"f1": 0.5, "accuracy": 0.75}, "accuracy", 0.75),
        (None, {"loss": 0.5, "val_loss": 0.4}, {}, "val_loss", 0.4),
        (None, {"loss": 0.5, "grad": 7.0}, {}, "loss", 0.5),
    ],
)
def test_the_main_metric_is_that_of_the_task(
    monitor: str | None, trained: dict, evaluated: dict, name: str, value: float
):
    overrides = (f"trainer.monitor={monitor}",) if monitor else ()
    succeeded(overrides, train={"metrics": trained}, evaluate={"metrics": evaluated})
    assert shown().rstrip().endswith(f"{name} {value:g}")
    assert json.loads(shown("--json"))[0]["metric"] == {"name": name, "value": value, "std": None}


def test_a_run_that_only_packed_and_one_whose_recipe_is_gone_have_none():
    run = succeeded(pack={"num_samples": 5})
    assert json.loads(shown("--json"))[0]["metric"] is None
    for content in ("{", "[]"):
        run.folder.recipe.write_text(content)
        assert "succeeded" in shown().splitlines()[1].split()
    run.folder.recipe.unlink()
    assert json.loads(shown("--json"))[0]["metric"] is None


def test_a_suite_tells_its_trials_and_the_best_value():
    run = make_suite()
    assert "trials" not in shown()
    counts = {"succeeded": 4, "pruned": 1, "failed": 2, "running": 1, "queued": 2}
    summary = SuiteSummary(total=12, counts=counts, best=3, best_value=0.25)
    write_record(run.folder.summary, summary)
    assert "7 of 12 trials, 2 without success, best 0.25 (#3)" in shown()
    run.folder.summary.write_text("{")
    assert "its suite.json is damaged" in shown()


def test_a_row_says_what_differs_who_when_and_how_long():
    run = succeeded(("trainer.max_epochs=3",), train={"metrics": {"loss": 0.5}})
    (row,) = json.loads(shown("--json"))
    assert row["overrides"] == ["trainer.max_epochs=3"]
    assert (row["dataset"], row["seed"], row["user"]) == ("digits", 7, account())
    assert row["metrics"] == {"loss": 0.5}
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created_at"]))
    for words in (run.run_id, account(), when, "trainer.max_epochs=3 seed=7", "loss 0.5"):
        assert words in " ".join(shown().split())


def test_the_list_is_filtered_and_sorted_by_a_metric_whose_direction_is_known():
    runs = [
        succeeded((f"seed={k}", "trainer.monitor=score", "trainer.monitor_mode=min"),
                  train={"metrics": {"score": k, "loss": k, "f1": k, "other": k}})
        for k in (1, 3, 2)
    ]  # fmt: skip
    packed = make_run(kind="pack")
    assert "seed=2 trainer.monitor=score trainer.monitor_mode=min" in shown()
    longer = make_run(overrides=("train.nodes=1", "data.workers=0", "seed=4", "name=x"))
    assert "train.nodes=1 data.workers=0 seed=4 and 2 more" in " ".join(shown().split())
    end_run(longer, StepState.CANCELLED, "a test")

    def seeds(*options: str) -> list[int]:
        given = (*options, "--state", "succeeded", "--json")
        return [row["seed"] for row in json.loads(shown(*given))]

    assert seeds() == [2, 3, 1]
    for sort in ("score", "loss", "other:min"):
        assert seeds("--sort", sort) == [1, 2, 3]
    for sort in ("f1", "other:max", "score:max"):
        assert seeds("--sort", sort) == [3, 2, 1]
    assert seeds("--where", "score>1", "--where", "seed=2", "--since", "1d") == [2]
    assert "score 3" in " ".join(shown("--sort", "score:max", "--limit", "1").split())
    table = list_runs(limit=1, sort="score:max", where=["seed!=9"], state="succeeded")
    (row,) = table.to_dict("records") if hasattr(table, "to_dict") else table.to_pylist()
    assert (row["metrics.score"], row["overrides"].split()[0]) == (3, "seed=3")
    assert packed.run_id not in shown()
    (row,) = json.loads(shown("--kind", "pack", "--json"))
    assert row["run_id"] == packed.run_id
    done = headrace("mark", runs[0].run_id, "--tag", "paper", "--note", "first try", "--star")
    assert done.exit_code == 0
    for options in (("--tag", "Paper"), ("--starred",), ("--text", "FIRST T")):
        assert seeds(*options) == [1]
    assert "*, paper, first try" in " ".join(shown("--starred").split())
    (act,) = (each for each in open_ledger().acts(run_id=runs[0].run_id) if each.what == "mark")
    assert json.loads(act.details) == {"tag": ["paper"], "note": "first try", "star": True}


def test_a_running_training_and_a_suite_that_failed_are_found_by_their_metrics():
    status = StepStatus(state=StepState.RUNNING, metrics={"val_loss": 0.25, "f1": 0.5})
    trained = running("train", status)
    suite = make_suite(key="of a suite")
    journal(suite.folder, added(1, seed=1), started(1), ended(1, 0.5), added(2, seed=2))
    write_record(suite.folder.summary, SuiteSummary(total=2, counts={"succeeded": 1}, best=1))
    end_run(suite, StepState.FAILED, "a test")
    note_trials(suite.folder)
    rows = json.loads(shown("--sort", "val_loss", "--json"))
    assert [row["run_id"] for row in rows] == [trained.run_id, suite.run_id]
    assert [row["metric"]["value"] for row in rows] == [0.25, 0.5]
    (row,) = json.loads(shown("--where", "f1=0.5", "--json"))
    assert row["metrics"] == {"val_loss": 0.25, "f1": 0.5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs", "--where", "a>b"), "'a>b' is not a condition"),
        (("runs", "--text", "x" * 201), "200"),
        (("diff", "x"), "nothing to compare with"),
        (("runs", "--where", "lr"), "'lr' is not a condition"),
        (("runs", "--since", "yesterday"), "'yesterday' is not a day"),
        (("runs", "--until", "2026-13"), "'2026-13' is not a day"),
        (("audit", "--since", "2026-02-30"), "'2026-02-30' is not a day"),
        (("mark", "x", "--tag", "a b"), "a b"),
        (("mark", "x", "--note", "n" * 2001), "2000"),
        (("mark", "x"), "nothing to change"),
        (("mark", "x", "--star"), "no run 'x'"),
    ],
)
def test_a_wrong_filter_or_mark_is_refused_by_name(words: tuple[str, ...], message: str):
    with pytest.raises((UserError, UnknownNameError), match=re.escape(message)):
        headrace(*words)


@pytest.mark.parametrize("command", ["runs", "audit"])
def test_a_limit_has_a_bound(command: str):
    assert headrace(command, "--limit", "1" * 20).exit_code == 2


def test_show_tells_every_attempt_with_its_cause():
    run = make_run()
    lease_id = lease_on_disk(run)
    attempt_row_of(run, "pack", lease_id)
    open_ledger().set_attempt(
        run.run_id, "pack", 1, state=StepState.LOST, failure_class=FailureClass.LOST,
        message="The node vanished\n  and more", started_at=100.0, finished_at=190.0,
    )  # fmt: skip
    attempt_row_of(run, "pack", lease_id, attempt=2, key="again", state=StepState.RUNNING)
    told = shown("show", run.run_id)
    first, second, third = (" ".join(line.split()) for line in told.splitlines()[2:])
    assert first.startswith("pack 1 lost")
    assert "1:30 cpu-1 lost: The node vanished" in first
    assert second == "and more"
    assert third.startswith("pack 2 running")
    attempts = json.loads(shown("show", run.run_id, "--json"))["attempts"]
    causes = [(each["attempt"], each["failure_class"]) for each in attempts]
    assert causes == [(1, "lost"), (2, None)]
    with pytest.raises(UnknownNameError, match="There is no run 'x'"):
        shown("show", "x")
