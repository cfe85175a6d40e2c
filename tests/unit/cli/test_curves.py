"""What a training under way shows of its figures: newest, best, and how they went."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.view import curve, history_of, metrics_table
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.steps.history import History, HistoryRow, training_file


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((), ""),
        ((1.0,), ""),
        ((1.0, math.nan), ""),
        ((0.0, 1.0), "▁█"),
        ((2.0, 2.0, 2.0), "▁▁▁"),
        ((0.0, 0.0, 7.0, 7.0, 3.0, 5.0), "▁█▅"),
    ],
)
def test_a_curve_goes_from_the_least_to_the_greatest(values: tuple[float, ...], shown: str) -> None:
    assert curve(values, width=3) == shown


def row(step: int, loss: float | None = None, **metrics: float) -> HistoryRow:
    return HistoryRow(at=step, launch=1, epoch=0, step=step, loss=loss, metrics=metrics)


def test_the_loss_comes_first_then_what_has_a_best_value() -> None:
    history = History((row(1, 0.9), row(2, 0.5, val_acc=0.25, auc=0.5), row(3, 0.1, val_acc=0.75)))
    newest = {"auc": 0.5, "val_acc": 0.7512345, "best val_acc": 0.75, "samples_per_s": 3.0}
    console = Console(file=io.StringIO(), width=80)
    console.print(metrics_table(newest, history))
    lines = [line.split() for line in console.file.getvalue().splitlines()[1:]]
    assert lines == [
        ["loss", "0.1", "█▅▁"],
        ["val_acc", "0.7512", "0.75", "▁█"],
        ["auc", "0.5"],
    ]
    assert metrics_table({"samples_per_s": 3.0}, History(())) is None


def test_a_history_is_read_anew_when_it_has_grown(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert history_of(run).all_rows == ()
    run.history.mkdir()
    for count in (1, 2):
        append_line(training_file(run), row(count, 0.5).model_dump_json())
        assert len(history_of(run).all_rows) == count
    assert history_of(run) is history_of(run)
