"""The history of a training, as it is written and as it is read after kills and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.informing import failures_of
from headrace.steps import history
from headrace.steps.history import (
    History,
    HistoryRow,
    NodeLoad,
    RankRow,
    RowWriter,
    interval_s,
    newest_use,
    rank_file,
    read_history,
    read_ranks,
    read_usage,
    training_file,
    usage_file,
)


class Clock:
    """In place of the module `time`."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(history, "time", made)
    return made


def row(step: int, launch: int = 1, at: float = 0.0, **others: object) -> HistoryRow:
    return HistoryRow(at=at, launch=launch, epoch=step // 10, step=step, **others)


def steps(found: History) -> list[tuple[int, int]]:
    return [(each.step, each.launch) for each in found.rows]


def test_what_a_dead_launch_did_and_another_repeated_counts_once() -> None:
    """pains 30: launch 2 goes on from step 15, and launch 3 even from step 12."""
    told = (
        row(0, starts=True), row(5), row(10), row(14), row(17),
        row(15, 2, starts=True), row(16, 2), row(20, 2, metrics={"loss": 1.0}), row(21, 2),
        row(12, 3, starts=True), row(13, 3), row(20, 3), row(20, 3, metrics={"loss": 2.0}),
    )  # fmt: skip
    found = History(told)
    assert steps(found) == [(5, 1), (10, 1), (13, 3), (20, 3), (20, 3)]
    assert [each.metrics for each in found.metrics] == [{"loss": 2.0}]
    assert [(each.step, each.launch) for each in found.starts] == [(0, 1), (15, 2), (12, 3)]


def test_a_later_row_of_a_step_replaces_the_earlier_one() -> None:
    found = History((row(10, metrics={"a": 1.0}), row(10, metrics={"a": 1.0, "b": 2.0})))
    assert [each.metrics for each in found.rows] == [{"a": 1.0, "b": 2.0}]


@pytest.mark.parametrize(("mode", "step"), [("min", 20), ("max", 30)])
def test_the_best_row_is_the_first_with_the_best_number(mode: str, step: int) -> None:
    values = {10: 2.0, 20: 1.0, 30: 3.0, 40: float("nan"), 50: 1.0, 60: 3.0}
    found = History(tuple(row(at, metrics={"m": value}) for at, value in values.items()))
    best = found.best("m", mode)
    assert best.step == step
    assert found.best("other", mode) is None


def test_a_line_torn_by_a_kill_is_lost_alone(tmp_path: Path) -> None:
    """pains 34: also when the next launch appends after it."""
    run = RunFolder(tmp_path)
    writer = RowWriter(training_file(run), HistoryRow, 0.0)
    writer.append(row(1))
    whole = training_file(run).read_bytes()
    writer.append(row(2, metrics={"loss": float("nan")}))
    text = training_file(run).read_bytes()
    training_file(run).write_bytes(text[: len(whole) + 9])
    assert [each.step for each in read_history(run).all_rows] == [1]
    RowWriter(training_file(run), HistoryRow, 0.0).append(row(3))
    assert [each.step for each in read_history(run).all_rows] == [1, 3]


def test_there_may_be_no_history(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert read_history(run) == History(())
    assert read_usage(run) == {}
    usage_file(run, 0).parent.mkdir()
    append_line(usage_file(run, 0), "no usage")
    assert read_usage(run) == {"node-0": []}
    assert newest_use(run) == NodeLoad()


def test_the_newest_use_leaves_out_what_an_earlier_launch_had_more(tmp_path: Path) -> None:
    """A line that is being written or was torn does not hide the one before it."""
    run = RunFolder(tmp_path)
    rows = {
        rank: RankRow(at=1e6 - 700 * (rank == 10), rank=rank, node="n", cores=1, rss_bytes=1)
        for rank in (2, 10, 0)
    }
    for rank, each in rows.items():
        RowWriter(rank_file(run, rank), RankRow, 0.0).append(each.model_copy(update={"at": 1.0}))
        append_line(rank_file(run, rank), each.model_dump_json())
    with rank_file(run, 2).open("a") as file:
        file.write('{"at": 3')
    assert newest_use(run) == NodeLoad(ranks=(rows[0], rows[2]))
    assert list(read_ranks(run)) == [0, 2, 10]


def test_rows_of_ten_days_are_some_thousand_and_go_on_thinned_after_a_restart(
    tmp_path: Path, clock: Clock
) -> None:
    gaps, elapsed_s = [], 0.0
    while elapsed_s < 10 * 86400:
        gaps.append(interval_s(elapsed_s, 0.1))
        elapsed_s += gaps[-1]
    assert 2000 < len(gaps) < 8000
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (0.1, 300.0)
    file = training_file(RunFolder(tmp_path))
    first = RowWriter(file, HistoryRow, 0.1)
    first.append(row(1, at=clock.now_s))
    clock.now_s += 0.11
    assert first.is_due
    clock.now_s += 10_000
    again = RowWriter(file, HistoryRow, 0.1)
    clock.now_s += 19
    assert not again.is_due
    clock.now_s += 2
    assert again.is_due


def test_a_large_history_takes_no_row_that_is_not_due(tmp_path: Path, clock: Clock) -> None:
    file = training_file(RunFolder(tmp_path))
    writer = RowWriter(file, HistoryRow, 10.0)
    assert writer.has_room
    with file.open("wb") as content:
        content.truncate(33 * 2**20)
    assert not writer.has_room
    clock.now_s += 11
    assert writer.has_room


@pytest.mark.parametrize("device", ["/dev/full", "/proc/self/oom_score_adj"])
def test_what_cannot_be_written_costs_the_row_and_not_the_training(
    device: str, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)
    writer = RowWriter(training_file(run), HistoryRow, 0.1)
    training_file(run).symlink_to(device)
    writer.append(row(1))
    assert not writer.is_due
    assert failures_of(run).count == 1
