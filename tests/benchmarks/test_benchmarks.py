"""A small size of every benchmark: all rows are there, and what each delivers is compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.growth import growth
from benchmarks.ledger import ledger
from headrace.errors import UserError
from headrace_bench.compressed import bench_compressed
from headrace_bench.contest import BenchOptions
from headrace_bench.decode import bench_decode
from headrace_bench.pack import bench_pack
from headrace_bench.pack_table import bench_table
from headrace_bench.read import bench_read
from headrace_bench.records import BenchReport, BenchTable
from headrace_bench.report import all_peers
from headrace_bench.s3 import WORK, bench_s3
from headrace_bench.stage import bench_stage
from headrace_bench.train import TrainOptions, bench_train
from support.command_line import headrace


def small(folder: Path, **changes) -> BenchOptions:
    options = {
        "sizes": (3072, 110_592),
        "total_bytes": 2**21,
        "rounds": 1,
        "lap_s": 0.01,
        "folder": folder,
    }
    return BenchOptions(**{**options, **changes})


def check_rows(table: BenchTable, names: set[str]) -> None:
    """Each row has laps, or says that its library is not installed."""
    assert {row.name for row in table.rows} == names
    for row in table.rows:
        assert row.laps or row.problem.startswith("not installed"), row
        assert bool(row.laps) == (row.name in table.of_limit)
    for kind in ("limit", "headrace"):
        assert table.yardstick(kind) is not None


def test_reading_with_all_peers(tmp_path):
    ticks: list[str] = []
    tables = bench_read(small(tmp_path, peers=all_peers()), ticks.append)
    peers = {peer.name for peer in all_peers()}
    for table in tables:
        limits = {row.name for row in table.rows if row.kind == "limit"}
        assert limits
        own = {"headrace", "headrace, prefetch off", "headrace, samples verified"}
        check_rows(table, {*limits, *own, *peers})
        assert table.headrace_over["DataLoader over files"] > 0
        assert table.headrace_over["h5py, a read a sample"] > 0
    assert [table.title.split()[3] for table in tables] == ["3,072", "110,592"]
    assert "samples of 3,072 bytes (1 of 2): headrace, round 1 of 1" in ticks
    assert list(tmp_path.iterdir()) == []


def test_reading_jpeg_images(tmp_path):
    (table,) = bench_decode(small(tmp_path, total_bytes=4 * 2**20), lambda _: None)
    check_rows(table, {"limit", "headrace", "DataLoader over files"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("codec", "size"), [("blosc", 300), ("zstd", 12_000)])
def test_reading_compressed_arrays(tmp_path, codec, size):
    options = small(tmp_path, sizes=(size,), total_bytes=2**19)
    (table,) = bench_compressed(options, codec, lambda _: None)
    check_rows(table, {"limit", "headrace", "h5py, a read a sample"})
    assert list(tmp_path.iterdir()) == []


def test_packing_with_all_peers(tmp_path):
    options = small(tmp_path, sizes=(3072,), total_bytes=2**19, peers=all_peers())
    (table,) = bench_pack(options, lambda _: None)
    peers = {peer.name for peer in all_peers() if peer.packs}
    limits = {"limit", "limit, bare system calls"}
    check_rows(table, {*limits, "headrace", "headrace, no statistics", *peers})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_packing_a_table(tmp_path, form):
    (table,) = bench_table(small(tmp_path, total_bytes=2**17), form, lambda _: None)
    check_rows(table, {"limit", "headrace"})
    assert list(tmp_path.iterdir()) == []


def test_staging(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (table,) = bench_stage(source, small(target, peers=all_peers()), lambda _: None)
    check_rows(table, {"limit", "headrace", "cp -r", "rsync -aW"})
    assert [*source.iterdir(), *target.iterdir()] == []


def test_packing_staging_and_uploads_with_s3(tmp_path):
    tables = bench_s3(WORK, small(tmp_path, sizes=(3072,), total_bytes=2**18), lambda _: None)
    for table in tables:
        check_rows(table, {"limit", "headrace"})
    assert [table.title.split()[0] for table in tables] == ["pack", "stage", "upload"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_tells_figures_machine_and_load(tmp_path, as_json):
    arguments = ["bench", "stage", "--total", "1MiB", "--source", str(tmp_path)]
    arguments += ["--folder", str(tmp_path), *(["--json"] if as_json else [])]
    done = headrace(*arguments)
    assert done.exit_code == 0
    if as_json:
        computed = {"gb_per_s", "median_gb_per_s", "samples_per_s", "spread"}
        report = json.loads(done.stdout)
        assert report["tables"][0]["of_limit"]["headrace"] > 0
        assert computed < set(report["tables"][0]["rows"][0])
        assert report["machine"]["num_cores"] > 0
        assert report["machine"]["versions"]["headrace"]
        assert set(BenchReport.model_fields) == set(report)
    else:
        for word in ("limit", "headrace", "cp -r", "cores", "load", "numpy"):
            assert word in done.stdout


def test_training_with_and_without_headrace(tmp_path, no_leftover_processes):
    options = TrainOptions(ranks=1, batch_size=4, side=8, steps=4, rounds=1, folder=tmp_path)
    tables = bench_train(options, lambda _: None)
    for table in tables:
        check_rows(table, {"torchrun", "headrace"})
    rate, start = tables
    assert rate.title.startswith("train, ResNet-50, 8 x 8 pictures, 1 ranks with ")
    assert [row.laps[0].num_samples for row in (*rate.rows, *start.rows)] == [4, 4, 4, 4]
    share = start.of_limit["headrace"]
    assert f"{1 / share:.2f} of that; goal: at most 1.3." in start.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_a_training_too_short_to_be_measured_is_refused(tmp_path):
    with pytest.raises(UserError, match="first 3 steps do not count"):
        bench_train(TrainOptions(steps=3, folder=tmp_path), lambda _: None)


def test_the_ledger_is_timed_with_each_table(
    headrace_home: Path, capsys: pytest.CaptureFixture[str]
):
    ledger(rows=300)
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 300
    assert {"enter all", "by month", "by trial", "its 50 best trials"} <= told["seconds"].keys()
    assert min(told["seconds"].values()) > 0


def test_growth_packs_all_samples_of_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    growth(samples="20000", folder=tmp_path)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["kind"] for row in rows] == ["files", "rows", "webdataset"]
    assert {row["samples"] for row in rows} == {20_000}
    assert all(row["us"]["plans"] > 0 and row["us"]["packs"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="fill no whole files of 10,000"):
        growth(samples="10001")
    with pytest.raises(UserError, match="--kinds 'tables' is not known"):
        growth(kinds="files,tables")
