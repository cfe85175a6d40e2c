"""Lists on terminals of 80 columns: nothing is cut, ids can be copied, no colour is needed."""

from __future__ import annotations

import io
import json

import pytest

from headrace.cli.console import Console
from headrace.cli.listing import Listing
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from headrace.states import FailureClass, StepState
from headrace.suites.points import trial_recipe
from headrace.suites.records import RunningTrial, SuiteSummary
from support.command_line import on_a_terminal
from support.ledger_rows import machine_row, usage_row
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.suite_journal import added, ended, failed, journal, make_suite, started

LONG = "resnet-50-of-a-name-that-goes-on"
WHY = "Rank 1 on node-a: training_step raised ValueError: sizes of tensors must match"


def printed(listed: Listing, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(listed)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_it_is_a_table_where_that_fits_else_a_block_for_each_row() -> None:
    listed = Listing("run", "state", "time", "why", figures=("time",))
    listed.add("a" * 12, "failed", "1:00", "the node vanished and was not seen again for long")
    listed.add("b" * 12, "ready", "10:00", "")
    assert printed(listed, 90) == [
        "run           state    time  why",
        "aaaaaaaaaaaa  failed   1:00  the node vanished and was not seen again for long",
        "bbbbbbbbbbbb  ready   10:00",
    ]
    assert printed(listed, 72)[1:3] == [  # there is room for 40 characters
        "aaaaaaaaaaaa  failed   1:00  the node vanished and was not seen again",
        "                             for long",
    ]
    assert printed(listed, 60) == [
        "aaaaaaaaaaaa",
        "  failed · time 1:00 · the node vanished and was not seen",
        "  again for long",
        "bbbbbbbbbbbb",
        "  ready · time 10:00",
    ]
    assert "".join(line.strip() for line in printed(listed, 6)).count("a" * 12) == 1
    short = Listing("#", "why", "time", figures=("time",))
    short.add("7", "the node vanished and was not seen again", "1:00")
    assert printed(short, 40) == ["7  the node vanished and was not seen", "   again · time 1:00"]


@pytest.fixture
def suite(headrace_home: object) -> Run:
    """A suite that runs, a run that has failed, and leases, all with long names."""
    running = RunningTrial(number=3, name="lr0.3-" * 8, attempt=1, node=LONG, started_at=1.0)
    run = make_suite(overrides=(f"name={LONG}", "trainer.monitor=val_loss"))
    entries = (
        added(n, model__learning_rate=n / 10, data__global_batch_size=64) for n in range(1, 5)
    )
    journal(run.folder, *entries, *(started(n, node=LONG) for n in range(1, 4)))
    journal(run.folder, ended(1, 0.5), failed(2, message=WHY))
    values = {"model.learning_rate": 0.1, "data.global_batch_size": 64}
    recipe = trial_recipe(json.loads(run.folder.source.read_bytes()), values)
    write_record(run.folder.trial(1).recipe, recipe)
    write_record(run.folder.summary, SuiteSummary(total=6, running=(running,), eta_s=90))
    other = make_run(overrides=(f"name={LONG}",))
    lease_id = lease_on_disk(other)
    attempt_row_of(other, "train", lease_id)
    open_ledger().set_attempt(
        other.run_id, "train", 1, state=StepState.FAILED, message=WHY, started_at=1.0,
        failure_class=FailureClass.USER_ERROR, finished_at=2.0,
    )  # fmt: skip
    end_run(other, StepState.FAILED, "a test")
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    open_ledger().put_machines([machine_row(lease_id=lease_id, usd_per_hour=1.44)])
    open_ledger().put_usage([usage_row(run_id=run.run_id, lease_id=lease_id)])
    return run


def test_nothing_is_cut_at_80_columns(suite: Run) -> None:
    other = next(row.run_id for row in open_ledger().runs() if row.run_id != suite.run_id)
    ids = (suite.run_id, other)
    for words, whole in (
        (("runs",), ids),
        (("runs", "show", other), (other,)),
        (("runs", "--kind", "suite"), (suite.run_id,)),
        (("suite", "show", suite.run_id), ()),
        (("status", suite.run_id), (suite.run_id,)),
        (("results", suite.run_id), ()),
        (("lease", "list", "--all"), [f"{each}-cpu-1" for each in ids]),
        (("diff", *ids), ids),
        (("plan", "digits"), ()),
        (("cache", "list"), ()),
    ):
        told = on_a_terminal(*words)
        assert [line for line in told.splitlines() if len(line) > 80] == [], words
        assert "…" not in told, words
        assert [each for each in whole if each not in told] == [], words
