"""`headrace results`: the best, means, what matters, tables for programs, and the report."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.cli import results
from headrace.cli.console import Console
from headrace.errors import UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.files.lines import append_line
from headrace.recipe.recipe import Recipe
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps.history import HistoryRow, training_file
from support.command_line import headrace
from support.runs import make_run
from support.suite_journal import added, ended, failed, journal, make_suite, started

pytestmark = pytest.mark.usefixtures("headrace_home")


def told(*arguments: str) -> str:
    done = headrace("results", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def sweep() -> list:
    """Entries of 24 trials: two keys and two seeds, one of them failed and one was pruned."""
    entries = []
    for number in range(24):
        lr, act = 10.0 ** -(number % 6), "relu" if number % 12 < 6 else "gelu, or so"
        values = {"model__lr": lr, "model__act": act, "seed": number // 12}
        each = added(number + 1, group=1 + number % 12, **values)
        loss = (number % 6 - 3) ** 2 + 0.1 * (number // 12)
        entries += [each, started(number + 1, at=100.0 * number)]
        done = {"metrics": {"val_loss": loss, "val_acc": 1 / (1 + loss)}}
        entries.append(ended(number + 1, loss, finished_at=100.0 * number + 50, **done))
    entries[5] = failed(2, message="CUDA <b>out</b>")
    entries[8] = ended(3, 0.0, pruned=True)
    return entries


@pytest.fixture
def suite(sweep: list) -> Run:
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    journal(run.folder, *sweep)
    for number in (4, 10):
        file = training_file(run.folder.trial(number))
        file.parent.mkdir(parents=True)
        for step in (10, 20):
            row = HistoryRow(at=1.0, launch=1, step=step, epoch=0, metrics={"val_loss": 1 / step})
            append_line(file, row.model_dump_json())
    return run


def test_people_are_told_the_best_means_and_what_matters(suite: Run):
    shown = told()
    assert re.search(r"Best trial:\n.*\n *4 +succeeded", shown)
    assert re.search(r"act=relu lr=0.001 +2 +0.05 ± 0.071", shown)
    assert re.search(r"  1e-05 +4 +4.05 ± 0.058", shown)
    share = re.search(r"\nlr, importance (\d+)%", shown)
    assert int(share[1]) > 80


def test_trials_of_other_hardware_are_named_and_can_be_left_out():
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    where = {1: "A100; torch 2.9; 8 threads", 2: "H200; torch 2.9; 8 threads"}
    for number, loss in enumerate((0.5, 0.1, 0.4), 1):
        known = {"environment": where.get(number, where[1]), "weights": f"w{number}"}
        journal(run.folder, added(number, model__lr=float(number)), started(number))
        journal(run.folder, ended(number, loss, **known))
    journal(run.folder, added(4), started(4), failed(4))
    assert re.search(r"differ in hardware.*\n.*\n *A100 +2 +1\n *H200 +1 +2\n", told())
    found = json.loads(told("--json"))
    assert found["best"] == 2
    assert [each["weights"] for each in found["trials"]] == ["w1", "w2", "w3", ""]
    assert found["environments"][1] == {"differs": "H200", "numbers": [2]}
    found = json.loads(told("--json", "--comparable"))
    assert (found["best"], len(found["environments"])) == (3, 1)
    assert [each["number"] for each in found["trials"]] == [1, 3, 4]
    assert "H200" not in told("--csv", "--comparable")
    assert "--comparable" not in told("--comparable").partition("Best trial")[0]


def test_trials_on_more_ranks_show_speed_up_and_efficiency():
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    for number, (ranks, rates) in enumerate([(1, (90, 100, 110)), (2, (190,)), (4, (300,))], 1):
        values = {"train__ranks_per_node": ranks}
        journal(run.folder, added(number, **values), started(number), ended(number, 0.1))
        file = training_file(run.folder.trial(number))
        file.parent.mkdir(parents=True)
        for step, rate in enumerate((None, *rates)):
            row = HistoryRow(at=1.0, launch=1, step=step, epoch=0, samples_per_s=rate)
            append_line(file, row.model_dump_json())
    assert re.search(r"4 +300 +3\.00 +75%", told(run.run_id))
    found = json.loads(told(run.run_id, "--json"))["scaling"]
    assert [(each["size"]["train.ranks_per_node"], each["speedup"]) for each in found] == [
        (1, 1.0), (2, 1.9), (4, 3.0),
    ]  # fmt: skip


def test_that_it_works_is_told_on_standard_error(suite: Run, monkeypatch: pytest.MonkeyPatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    own = results.open_console
    monkeypatch.setattr(results, "open_console", lambda **where: console if where else own())
    assert "Best trial" in told()
    assert "trials …" in console.file.getvalue()
    assert "Best trial" not in console.file.getvalue()


def test_programs_get_the_same(suite: Run, tmp_path: Path):
    found = json.loads(told(suite.run_id, "--json"))
    assert found["best"] == 4
    assert found["points"][0]["numbers"] == [4, 16]
    assert found["points"][0]["spread"]["mean"] == pytest.approx(0.05)
    assert max(found["importance"], key=found["importance"].get) == "model.lr"
    told(suite.run_id, "--json", "-o", str(tmp_path / "found.json"))
    assert json.loads((tmp_path / "found.json").read_text()) == found


def test_csv_and_parquet_have_a_row_for_each_trial(suite: Run, tmp_path: Path):
    rows = list(csv.DictReader(io.StringIO(told("--csv"))))
    assert len(rows) == 24
    assert (rows[3]["number"], rows[3]["model.lr"], rows[3]["model.act"]) == ("4", "0.001", "relu")
    assert (rows[6]["model.act"], rows[3]["metrics.val_acc"]) == ("gelu, or so", "1.0")
    assert (rows[1]["state"], rows[1]["failure_class"]) == ("failed", "user_error")
    assert (rows[1]["objective.val_loss"], rows[2]["state"]) == ("", "pruned")
    file = tmp_path / "trials.parquet"
    told("--parquet", "-o", str(file))
    table = pq.read_table(file).to_pylist()
    assert [row["number"] for row in table] == list(range(1, 25))
    assert table[3] == table[3] | {"model.lr": 0.001, "objective.val_loss": 0.0, "usd": None}


def test_values_of_several_types_and_lists_have_a_column_too(tmp_path: Path):
    run = make_suite()
    journal(run.folder, added(1, depth=3), added(2, depth="deep"), added(3, depth=[1, 2]), added(4))
    told("--parquet", "-o", str(tmp_path / "x.parquet"))
    column = pq.read_table(tmp_path / "x.parquet").column("depth").to_pylist()
    assert column == ["3", "deep", "[1, 2]", None]


def test_of_several_objectives_there_is_a_front():
    run = make_suite()
    spec = {"objectives": [{"metric": "loss"}, {"metric": "accuracy", "mode": "max"}]}
    content = {**run.recipe.model_dump(mode="json", by_alias=True), "suite": spec}
    write_record(run.folder.recipe, Recipe.model_validate(content))
    values = {1: (0.1, 0.5), 2: (0.2, 0.9), 3: (0.3, 0.8)}
    for number, each in values.items():
        journal(run.folder, added(number), started(number), ended(number, objectives=each))
    found = json.loads(told("--json"))
    assert (found["best"], found["front"]) == (None, [1, 2])
    shown = told()
    assert [
        words for words in ("no other one beats", "accuracy", "0.9") if words not in shown
    ] == []
    page = Path(told("--report").strip()).read_text()
    assert "loss and accuracy" in page


def test_trials_can_be_judged_by_other_metrics_than_the_suite_sought(suite: Run, tmp_path: Path):
    found = json.loads(told("--json", "--by", "val_acc:min"))
    assert found["best"] == 13  # the greatest loss
    found = json.loads(told("--json", "--by", "val_acc:max", "--by", "val_loss:min"))
    assert (found["best"], found["front"]) == (None, [4, 10])
    other = tmp_path / "suite.html"
    assert told("--report", "--by", "val_acc:max", "-o", str(other)).strip() == str(other)
    assert "val_acc by model.lr" in other.read_text()
    with pytest.raises(UnknownNameError, match="No trial has the metric 'val_ac'"):
        told("--by", "val_ac:max")
    with pytest.raises(UserError, match="'val_acc' is not METRIC:min or METRIC:max"):
        told("--by", "val_acc")


def test_the_report_is_one_file_that_needs_nothing_else(suite: Run):
    place = Path(told("--report").strip())
    assert place == suite.folder.report / "report.html"
    page = place.read_text()
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert titles == [
        "val_loss of the trials as they ended",
        "Values of the trials",
        "Share of val_loss that comes from each key",
        "val_loss by model.act",
        "val_loss by model.lr",
        "val_loss of the best trials",
    ]
    assert page.count("data:image/png;base64,") == len(titles)
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "CUDA &lt;b&gt;out&lt;/b&gt;" in page
    assert "0.05 ± 0.071" in page


def test_a_suite_gets_its_report_when_it_ends():
    suite = make_suite(overrides=("trainer.monitor=val_loss",))
    journal(suite.folder, added(1), started(1), ended(1, 0.5))
    end_run(suite, StepState.SUCCEEDED, "a test")
    assert "val_loss of the trials" in (suite.folder.report / "report.html").read_text()
    other = make_run()
    end_run(other, StepState.SUCCEEDED, "a test")
    assert not other.folder.report.exists()


@pytest.mark.parametrize("entries", [(), (added(1),), (added(1), started(1), failed(1))])
def test_a_suite_that_gave_nothing_yet_is_told_so(entries: tuple):
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    journal(run.folder, *entries)
    assert "No trial has ended with a value yet" in told()
    assert json.loads(told("--json"))["best"] is None
    assert run.run_id in Path(told("--report").strip()).read_text()
    assert len(list(csv.DictReader(io.StringIO(told("--csv"))))) == bool(entries)


def test_what_cannot_be_given_is_refused(suite: Run):
    with pytest.raises(UserError, match="Several formats"):
        told("--csv", "--json")
    with pytest.raises(UserError, match="Name a file"):
        told("--parquet")
    with pytest.raises(UserError, match="is not a suite"):
        told(make_run().run_id)


def test_folds_are_told_by_number_with_their_mean_and_none_is_the_best(tmp_path: Path):
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    for number, value in enumerate((0.5, 0.25, 0.75), 1):
        fold = added(number, group=1, data__fold=number - 1)
        journal(run.folder, fold, started(number), ended(number, value))
    shown = told()
    assert "Best trial" not in shown
    assert "By the value" not in shown
    lines = [line.split() for line in shown.partition("Folds:")[2].splitlines()[1:6]]
    assert lines[:4] == [
        ["fold", "trials", "val_loss"], ["0", "1", "0.5"], ["1", "1", "0.25"], ["2", "1", "0.75"]
    ]  # fmt: skip
    assert lines[4] == ["all", "3", "0.5", "±", "0.25"]
    found = json.loads(told("--json"))
    assert (found["best"], found["marginals"], len(found["points"][0]["folds"])) == (None, {}, 3)
    page = Path(told("--report").strip()).read_text()
    assert "Folds" in page
    of_trials = (
        "best val_loss",
        "the best first",
        "Values of the trials",
        "by data.fold",
        "so far",
    )
    assert [words for words in of_trials if words in page] == []


def test_values_of_a_sampled_key_are_told_in_ranges_with_where_the_best_lie():
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    for number in range(1, 13):
        each = added(number, model__lr=10.0**-number, model__depth=number % 2)
        journal(run.folder, each, started(number), ended(number, abs(number - 2.0)))
    shown = told()
    assert re.search(r"0.001 to 0.1, 3 of the best 3 +3", shown)
    assert re.search(r"1e-12 to 1e-10, 0 of the best 3 +3", shown)
    assert "0.001 to 0.1, 3 of the best 3" in Path(told("--report").strip()).read_text()
