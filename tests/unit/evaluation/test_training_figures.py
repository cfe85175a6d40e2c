"""The figures of how training went."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from matplotlib.figure import Figure
from PIL import Image

from headrace.evaluation import training_figures as curves
from headrace.evaluation.training_figures import training_figures
from headrace.steps.history import EvaluatedRow, History, HistoryRow, NodeRow, RankRow

NAMES = ("Learning rate", "Throughput", "Waiting for data, and use of the nodes")


def history(**metrics: float) -> History:
    """Forty steps, of which a second launch repeated those after 20."""
    rows = [HistoryRow(at=100.0, launch=1, starts=True, epoch=0, step=0)]
    for step in (*range(5, 31, 5), *range(20, 41, 5)):
        if len(rows) == 7:
            rows.append(HistoryRow(at=190.0, launch=2, starts=True, epoch=2, step=20))
        launch = 2 if len(rows) > 7 else 1
        rows.append(
            HistoryRow(
                at=40.0 + 60 * launch + 5 * len(rows),
                launch=launch,
                epoch=step // 10,
                step=step,
                loss=1 / step,
                learning_rates=(0.1,),
                samples_per_s=100.0,
                data_wait=0.1,
                metrics=metrics if step % 10 == 0 else {},
            )
        )
    return History(tuple(rows))


USAGE = {
    f"node-{index}": [
        NodeRow(at=102.0 + at, node="a", cpu=0.5, memory=0.1, gpu=gpu) for at in range(0, 60, 3)
    ]
    for index, gpu in enumerate((None, 0.7, None, None, None))
}


RANKS = {
    rank: [
        RankRow(
            at=102.0, rank=rank, node="a", cores=1.0, rss_bytes=rank * 10**9, gpu_peak_bytes=gpu
        )
    ]
    for rank, gpu in enumerate((None, None, 10**9, None, None))
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures, without what takes longest: that they become PNG."""
    found: list[Figure] = []
    monkeypatch.setattr(curves, "png", lambda each: found.append(each) or b"")
    return found


def lines(figure: Figure) -> dict[str, list[float]]:
    """The x of all named lines."""
    found = figure.axes[0].get_lines()
    return {
        str(line.get_label()): [float(x) for x in line.get_xdata()]
        for line in found
        if not str(line.get_label()).startswith("_")
    }


def test_training_and_validation_share_a_figure_with_its_restart(drawn: list[Figure]) -> None:
    told = history(**{"train/acc": 0.4, "val/acc": 0.5, "val_loss": 0.6, "lpips": 1e-5})
    figures = training_figures(told, USAGE, evaluated=30)
    assert tuple(figures) == ("Loss", "Acc", "Lpips", *NAMES)
    loss, accuracy, *_ = map(lines, drawn)
    assert loss["loss of training"] == list(range(5, 41, 5))
    assert loss["val_loss"] == [10, 20, 30, 40]
    assert loss["restart"] == [20, 20]
    assert loss["evaluated"] == [30, 30]
    assert set(accuracy) == {"train/acc", "val/acc", "restart", "evaluated"}
    *_, speed, use = drawn
    pieces = [len(line.get_xdata()) for line in speed.axes[0].get_lines()]
    assert pieces[:2] == [6, 5]  # the line breaks where nothing ran
    assert lines(speed)["restart"] == [90, 90]
    assert {"waiting for data", "CPU of node-0", "GPUs of node-1"} <= set(lines(use))
    assert "CPU of node-4" not in lines(use)
    legend = use.axes[0].get_legend()
    assert legend.get_title().get_text() == "4 of 5 nodes"


def test_parts_of_steps_traffic_and_memory_are_drawn_where_they_are_known(
    drawn: list[Figure],
) -> None:
    told = History(
        tuple(
            row.model_copy(update={"parts": {"forward": 0.25, "communication": 0.5}})
            for row in history().all_rows
        )
    )
    rates = {"network_in_bytes_per_s": 3e6, "disk_read_bytes_per_s": 2e6}
    usage = {place: [row.model_copy(update=rates) for row in rows] for place, rows in USAGE.items()}
    figures = training_figures(told, usage, ranks=RANKS)
    assert tuple(figures)[-3:] == (
        "What the time of steps goes to",
        "Disks and network of the nodes",
        "Memory of the ranks",
    )
    parts, traffic, memory = (each.axes[0] for each in drawn[-3:])
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in parts.collections]
    assert tops == pytest.approx([0.1, 0.35, 0.85])
    rate = {str(line.get_label()): line.get_ydata()[0] for line in traffic.get_lines()}
    assert (rate["received, node-0"], rate["read from disk, node-1"]) == (3, 2)
    peak = {str(line.get_label()): line.get_ydata()[0] for line in memory.get_lines()}
    assert peak["rank 4"] == 4
    assert peak["its GPU's peak, rank 2"] == 1
    assert "rank 0" not in peak  # it has the least


def test_equal_histories_give_equal_pictures() -> None:
    figures = training_figures(history(**{"val/acc": 0.5}), USAGE)
    assert figures == training_figures(history(**{"val/acc": 0.5}), USAGE)
    for content in figures.values():
        with Image.open(BytesIO(content)) as image:
            assert min(image.size) > 400


def test_no_more_figures_than_a_reader_takes_in(drawn: list[Figure]) -> None:
    told = history(**{f"metric_{index}": float(index) for index in range(40)})
    assert len(training_figures(told, {})) == len(drawn) == 12 + len(NAMES)


def test_without_a_history_there_is_no_figure() -> None:
    assert training_figures(History(()), {}) == {}


def test_checkpoints_that_were_evaluated_meanwhile_are_points_of_a_curve(drawn: list[Figure]):
    rows = tuple(
        EvaluatedRow(
            at=1.0, run_id="r", step=step, split="val", metrics={"acc": step / 100}, report=""
        )
        for step in (40, 10)
    )
    found = replace(history(**{"train/acc": 0.5}), evaluated=rows)
    assert "Acc" in training_figures(found, {})
    shown = drawn[1].axes[0].get_lines()
    points = {line.get_label(): line.get_xydata().tolist() for line in shown}
    assert "train/acc" in points
    assert points["val/acc"] == [[10, 0.1], [40, 0.4]]
