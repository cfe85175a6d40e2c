"""`headrace disk` and `headrace clean` as commands, and what each door says of a removed run."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from headrace.cli.commands import build
from headrace.errors import HeadraceError, UnknownNameError
from headrace.ledger.database import default_url
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.logs import log_page, report_file
from headrace.status.run_page import run_page
from support.ledger_rows import run_row
from support.runs import lease_on_disk, make_run

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
    assert (
        "1 runs stay: `headrace resume` can continue it" in call("clean", "--older-than", "0s")[1]
    )
    code, shown = call("clean", run.run_id, "--yes", "--json")
    assert code == 0
    (item,) = json.loads(shown)
    assert (item["kind"], item["name"], item["stays"]) == ("run", run.run_id, "")
    assert not run.folder.checkpoints.exists()
    assert "Nothing to remove" in call("clean", "--older-than", "0s")[1]


@pytest.mark.parametrize("by", ["ada", "hand"])
def test_every_door_says_the_same_of_a_removed_run(by: str, run: Run, tmp_path: Path):
    if by == "hand":
        run.folder.path.rename(tmp_path / "moved")
    else:
        assert call("clean", run.run_id, "--yes")[0] == 0
    who = "hand" if by == "hand" else "root" if os.getuid() == 0 else ""
    words = f"removed on {time.strftime('%Y-%m-%d', time.gmtime())} by {who}"
    doors = {
        "runs": ("runs",),
        "runs show": ("runs", "show", run.run_id),
        "status": ("status", run.run_id),
        "logs": ("logs", run.run_id),
        "resume": ("resume", run.run_id),
        "evaluate": ("evaluate", run.run_id),
        "export": ("export", run.run_id, "-o", str(tmp_path / "weights.pt")),
        "init_from": ("run", "digits", f"train.init_from={run.run_id}"),
        "package": ("package", run.run_id),
    }
    if by == "hand":  # else its record is there
        doors["rerun"] = ("rerun", run.run_id)
        doors["diff"] = ("diff", run.run_id, make_run().run_id)
    said = {name: " ".join(call(*given)[1].split()) for name, given in doors.items()}
    assert {name: text for name, text in said.items() if words not in text} == {}
    assert run_page(run.run_id, can_act=True).removed is not None
    with pytest.raises(UnknownNameError, match=words):
        log_page(run.run_id, "train", 1, "driver", 10)
    with pytest.raises(UnknownNameError, match=words):
        report_file(run.run_id)
    row = json.loads(call("runs", "--json")[1])[-1]
    assert (row["run_id"], row["removed"]["by"]) == (run.run_id, who)
    assert call("clean", run.run_id, "--yes")[0] == 0
    assert run.run_id not in call("runs", "--json")[1]


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
