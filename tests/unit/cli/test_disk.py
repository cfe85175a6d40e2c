"""`headrace disk` and `headrace clean` as commands, and what each door says of a removed run."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from headrace.cli import origins
from headrace.cli.commands import build
from headrace.errors import HeadraceError, UnknownNameError
from headrace.ledger.database import default_url
from headrace.ledger.ledger import open_ledger
from headrace.recipe.unix_accounts import account
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.logs import log_page, report_file
from headrace.status.run_page import run_page
from headrace.status.suite import suite_page
from support.ledger_rows import run_row
from support.runs import lease_on_disk, make_run
from support.suite_journal import added, ended, journal, make_suite, started

pytestmark = pytest.mark.usefixtures("own_account", "headrace_home")


def call(*words: str) -> tuple[int, str]:
    """Exit code and output of a command; an error of headrace counts as 2."""
    done = CliRunner().invoke(build(), words)
    if isinstance(done.exception, HeadraceError):
        return 2, str(done.exception)
    return done.exit_code, done.output


@pytest.fixture
def run(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has ended, with a checkpoint."""
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    made = make_run()
    lease_on_disk(made)
    (made.folder.checkpoints).mkdir()
    (made.folder.checkpoints / "final.ckpt").write_bytes(b"x" * 20_000)
    open_ledger().finish_run(made.run_id, StepState.FAILED, time.time())
    return made


def test_the_plan_is_shown_and_nothing_goes_without_an_answer(run: Run):
    code, shown = call("clean", run.run_id)
    assert code == 2
    assert "Nothing is removed: standard input is not a terminal" in shown
    assert run.folder.checkpoints.exists()
    resumable = f"Stays: {run.run_id}: `headrace resume` can continue it"
    assert resumable in " ".join(call("clean", "--older-than", "0s")[1].split())
    assert "No run has the tag 'papre'" in call("clean", "--keep-tag", "papre", "--yes")[1]
    assert call("clean", run.run_id, "--older-than", "30d", "--yes") == (
        2, "Runs are named, and older_than is given\n  Name runs, or select them by options."
    )  # fmt: skip
    code, shown = call("clean", run.run_id, "--yes", "--json")
    assert code == 0
    (item,) = json.loads(shown)
    assert (item["kind"], item["name"], item["stays"]) == ("run", run.run_id, "")
    assert not run.folder.checkpoints.exists()
    assert "Nothing to remove" in call("clean", "--older-than", "0s")[1]


def doors(name: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """Commands that say that a run or trial was removed, all but those that need its record."""
    return {
        **{each: (each, name) for each in ("status", "attach", "logs", "evaluate")},
        "runs show": ("runs", "show", name),
        "export": ("export", name, "-o", str(folder / "weights.pt")),
        "init_from": ("run", "digits", f"train.init_from={name}"),
    }


def check_doors(found: dict[str, tuple[str, ...]], name: str, by: str) -> None:
    """Compare what commands, pages and REST say."""
    words = f"removed on {time.strftime('%Y-%m-%d', time.gmtime())} by {by}"
    said = {door: " ".join(call(*given)[1].split()) for door, given in found.items()}
    assert {door: text for door, text in said.items() if words not in text} == {}
    removal = run_page(name, can_act=True).removed
    assert removal is not None
    assert removal.words == words
    for request in (partial(log_page, name, "train", 1, "driver", 10), partial(report_file, name)):
        with pytest.raises(UnknownNameError, match=words):
            request()


@pytest.mark.parametrize("by", ["user", "hand"])
def test_every_door_says_the_same_of_a_removed_run(
    by: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By their records, runs that headrace removed are run again and compared."""
    repeated: list[str] = []
    monkeypatch.setattr(origins, "carry_out", lambda job, *_, **__: repeated.append(job.run_id))
    by_record = {each: (each, run.run_id) for each in ("rerun",)}
    by_record["diff"] = ("diff", run.run_id, run.run_id)
    found = {"runs": ("runs",), **doors(run.run_id, tmp_path)}
    found |= {each: (each, run.run_id) for each in ("resume", "package")}
    if by == "hand":
        run.folder.path.rename(tmp_path / "moved")
        found |= by_record
    else:
        by = account()
        assert call("clean", run.run_id, "--yes")[0] == 0
        assert {door: call(*given)[0] for door, given in by_record.items()} == {
            "rerun": 0, "diff": 0,
        }  # fmt: skip
        open_ledger().finish_run(*repeated, StepState.FAILED, time.time())
        assert call("clean", *repeated, "--yes")[0] == 0
        assert call("clean", *repeated, "--yes")[0] == 0
    check_doors(found, run.run_id, by)
    (row,) = json.loads(call("runs", "--json")[1])
    assert row["removed"]["by"] == by
    assert call("clean", run.run_id, "--yes")[0] == 0
    assert run.run_id not in call("runs", "--json")[1]


@pytest.mark.parametrize("by", ["user", "hand"])
def test_every_door_says_the_same_of_a_trial_of_a_removed_suite(
    by: str, headrace_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    suite = make_suite()
    journal(suite.folder, added(1, seed=1), started(1), ended(1, 0.5))
    suite.folder.trial(1).checkpoints.mkdir(parents=True)
    open_ledger().finish_run(suite.run_id, StepState.SUCCEEDED, time.time())
    name = f"{suite.run_id}:1"
    assert call("status", name)[0] == 0
    if by == "hand":
        suite.folder.path.rename(tmp_path / "moved")
    else:
        by = account()
        assert call("clean", suite.run_id, "--yes")[0] == 0
    check_doors({**doors(name, tmp_path), "rerun": ("rerun", name)}, name, by)
    assert suite_page(suite.run_id, can_act=True).removed is not None
    assert "train succeeded" in " ".join(call("status", name)[1].replace("│", " ").split())


def test_a_ledger_of_many_runs(headrace_home: Path, monkeypatch: pytest.MonkeyPatch):
    """Figures are printed; a machine under load has no limit here."""
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    folder = headrace_home / "runs"
    number = int(os.environ.get("HEADRACE_TEST_RUNS", "200"))
    row = run_row(state=StepState.SUCCEEDED, finished_at=2.0)
    open_ledger()
    with Session(create_engine(default_url())) as session, session.begin():
        for k in range(number):
            name = f"digits-20260101-000000-{k:08x}"
            (folder / name / "checkpoints").mkdir(parents=True)
            (folder / name / "checkpoints" / "final.ckpt").write_bytes(b"x" * 5000)
            (folder / name / "recipe.json").write_text("{}")
            session.add(replace(row, run_id=name, key=name, folder=str(folder / name)))
    for what in ("measured once", "from the ledger"):
        began = time.perf_counter(), time.process_time()
        code, shown = call("disk", "--json")
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        print(f"headrace disk, {number:,} runs, {what}: {took[0]:.2f} s, of CPU {took[1]:.2f} s")
    assert code == 0
    kinds = Counter(item["kind"] for item in json.loads(shown))
    assert kinds["checkpoints of runs"] == number
    table = " ".join(call("disk")[1].split())
    assert f"checkpoints of runs {number:,}" in table
    began = time.perf_counter(), time.process_time()
    code, shown = call("clean", "--older-than", "1d", "--json")
    print(f"headrace clean: {time.perf_counter() - began[0]:.2f} s")
    assert code == 2  # standard input is not a terminal
