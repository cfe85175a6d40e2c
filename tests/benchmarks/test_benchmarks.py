"""A small size of every benchmark: all rows are there, and what each delivers is compared."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image

from benchmarks import paper_site
from benchmarks import scale as bench
from benchmarks.control import control
from benchmarks.growth import growth
from benchmarks.ledger import ledger
from benchmarks.peers import LIBRARIES
from benchmarks.ray_tune import ray_tune
from benchmarks.scale import Measured, Mode, ScaleReport, drawn, efficiency, numbers, points_of
from headrace.errors import StepError, UserError
from headrace.execution.reap import reap
from headrace.files.layout import SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.recipe.site import Role
from headrace.states import LeaseState, StepState
from headrace.status.lease import leases_page
from headrace_bench.compressed import bench_compressed
from headrace_bench.contest import BenchOptions
from headrace_bench.foresight import Foretold, in_words
from headrace_bench.machine import machine
from headrace_bench.pack import bench_pack
from headrace_bench.pack_table import bench_table
from headrace_bench.peers import PEERS, worker_choices
from headrace_bench.photos import PhotoOptions, bench_decode, bench_photos, decode_batch, trained
from headrace_bench.read import bench_read
from headrace_bench.records import BenchReport, BenchTable
from headrace_bench.s3 import WORK, bench_s3
from headrace_bench.stage import bench_stage
from headrace_bench.train import TrainOptions, bench_train
from support.bad_input import make_place
from support.command_line import headrace

ALL_PEERS = (*PEERS, *LIBRARIES)


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


@pytest.mark.nightly
def test_reading_with_all_peers(tmp_path):
    ticks: list[str] = []
    tables = bench_read(small(tmp_path, peers=ALL_PEERS), ticks.append)
    peers = {peer.name for peer in ALL_PEERS}
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


@pytest.mark.nightly
def test_reading_jpeg_images(tmp_path):
    (table,) = bench_decode(small(tmp_path, total_bytes=4 * 2**20), lambda _: None)
    check_rows(table, {"limit", "headrace", "DataLoader over files"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize(("codec", "size"), [("blosc", 300), ("zstd", 12_000)])
def test_reading_compressed_arrays(tmp_path, codec, size):
    options = small(tmp_path, sizes=(size,), total_bytes=2**19)
    (table,) = bench_compressed(codec, options, lambda _: None)
    check_rows(table, {"limit", "headrace", "h5py, a read a sample"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_packing_with_all_peers(tmp_path):
    options = small(tmp_path, sizes=(3072,), total_bytes=2**19, peers=ALL_PEERS)
    (table,) = bench_pack(options, lambda _: None)
    peers = {peer.name for peer in ALL_PEERS if peer.packs}
    limits = {"limit", "limit, bare system calls"}
    check_rows(table, {*limits, "headrace", "headrace, no statistics", *peers})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_packing_a_table(tmp_path, form):
    (table,) = bench_table(form, small(tmp_path, total_bytes=2**17), lambda _: None)
    check_rows(table, {"limit", "headrace"})
    assert list(tmp_path.iterdir()) == []


def test_staging(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (table,) = bench_stage(source, small(target, peers=ALL_PEERS), lambda _: None)
    check_rows(table, {"limit", "headrace", "cp -r", "rsync -aW"})
    assert [*source.iterdir(), *target.iterdir()] == []


@pytest.mark.nightly
def test_packing_staging_and_uploads_with_s3(tmp_path):
    tables = bench_s3(WORK, small(tmp_path, sizes=(3072,), total_bytes=2**18), lambda _: None)
    for table in tables:
        check_rows(table, {"limit", "headrace"})
    assert [table.title.split()[0] for table in tables] == ["pack", "stage", "upload"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cores", "choices", "total", "batch_size"),
    [
        (1, (0, 1, 2), 2 * 256, 32),
        (2, (0, 1, 2), 2 * 256, 32),
        (16, (0, 2, 8, 16), 16 * 256, 256),
        (64, (0, 2, 32, 64), 16 * 256, 1024),
    ],
)
def test_work_and_workers_of_peers_grow_with_the_cores(
    tmp_path, monkeypatch, cores, choices, total, batch_size
):
    monkeypatch.setattr("headrace_bench.machine.os.sched_getaffinity", lambda _: range(cores))
    assert worker_choices() == choices
    asked: list[BenchOptions] = []
    monkeypatch.setattr(
        "headrace_bench.stage.bench_stage", lambda _, of, __: asked.append(of) or ()
    )
    for more in ((), ("--total", "1MiB")):
        assert headrace("bench", "stage", "--json", *more).exit_code == 0
    assert [of.total_bytes for of in asked] == [total * 2**20, 2**20]
    assert decode_batch(4096) == batch_size


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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_the_ledger_is_timed_with_each_table(
    headrace_home: Path, capsys: pytest.CaptureFixture[str]
):
    ledger(rows=300)
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 300
    assert {"enter all", "by month", "by trial", "its 50 best trials"} <= told["seconds"].keys()
    assert min(told["seconds"].values()) > 0


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_all_is_asked_and_nothing_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_leftover_processes: None,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_process = "benchmarks.control._command"  # six starts of Python take most of the time
    monkeypatch.setattr(in_process, lambda words: headrace(*words.split()[1:]))
    control(leases=2, nodes=2, ended=3, trials=10)
    told = json.loads(capsys.readouterr().out)
    assert (told["leases"], told["nodes"], told["ended"], told["trials"]) == (2, 4, 3, 10)
    assert {"page of leases", "a pass of the reaper", "headrace cost"} < set(told["seconds"])
    assert all(took_s > 0 for took_s in told["seconds"].values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_leases_on_paper_live_as_long_as_their_heartbeats(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    paper_site.make_site(headrace_home, num_leases=2, nodes=2)
    like = paper_site.asked("train")
    first, second = (paper_site.training(like, number) for number in (1, 2))
    paper_site.enter_ended(like, 3)
    with paper_site.beating(SiteFolder(headrace_home)):
        told = {row.lease_id: row for row in leases_page(can_act=True).rows}
        assert len(told) == 5
        for lease in (first, second):
            row = told[lease.lease_id]
            assert (row.state, row.nodes_here, row.usd_per_hour) == (LeaseState.READY, 2, 2.0)
        assert reap(lambda _run: None, lambda _run, _step: False) == ()
    assert len(open_ledger().runs(states=(StepState.RUNNING,))) == 3


@pytest.mark.nightly
def test_trials_are_counted_and_a_missing_peer_is_named() -> None:
    answer = json.loads(headrace("bench", "suite", "--trials", "4", "--json").stdout)
    assert (answer["trials"], answer["workers"]) == (4, 2)
    assert answer["seconds_per_trial"] > 0
    with pytest.raises(StepError, match=r"No module named 'ray'\n.*pip install 'ray\[tune\]'"):
        ray_tune(Path(sys.executable))


@pytest.mark.slow
def test_predictions_are_summed_up_by_how_many_runs_were_known() -> None:
    found = [
        Foretold(what=f"{num}", num_known=num, predicted_s=said, half_s=2.0, took_s=took, parts={})
        for num, said, took in ((0, None, 9.0), (1, 10.0, 9.0), (3, 10.0, 20.0), (4, 10.0, 11.0))
    ]
    assert in_words(found, "one", (1,)) == (
        "with one known: 1 predictions, off by 11% in the median, 11% most; 1 within their "
        "intervals, of ±20% in the median"
    )
    assert in_words(found, "more", range(2, 9)).startswith(
        "with more known: 2 predictions, off by 30% in the median, 50% most; 1 within"
    )
    assert in_words(found[:1], "none", (0,)) == "with none known: no predictions"


@pytest.mark.nightly
def test_what_runs_were_expected_to_take_is_told_beside_what_they_took() -> None:
    words = ("foresight", "--epochs", "1,2", "--suites", "0", "--json")
    first, second = json.loads(headrace("bench", *words).stdout)["runs"]
    assert [each["num_known"] for each in (first, second)] == [0, 1]
    assert (first["predicted_s"], first["error"], first["parts"]) == (None, None, {})
    assert second["error"] == pytest.approx(second["predicted_s"] / second["took_s"] - 1)
    assert second["parts"].keys() == {"pack", "stage", "train", "evaluate", "between"}
    assert sum(took_s for _, took_s in second["parts"].values()) == pytest.approx(second["took_s"])


HERE = Role(kind="gang", nodes=1, ranks_per_node=2)
QUEUE = Role(kind="gang", backend="slurm", nodes=2, ranks_per_node=4)


def shapes(ranks: str, role: Role, *modes: Mode) -> list[tuple[int, int, int, tuple[Mode, ...]]]:
    found = points_of(numbers(ranks), modes or get_args(Mode), 64, role)
    return [(each.ranks, each.nodes, each.global_batch_size, each.modes) for each in found]


def test_each_training_is_done_once_with_nodes_filled_first() -> None:
    assert shapes("2,1", HERE) == [
        (1, 1, 64, ("strong", "weak")), (2, 1, 64, ("strong",)), (2, 1, 128, ("weak",)),
    ]  # fmt: skip
    assert shapes("4,8,16", QUEUE, "weak") == [
        (4, 1, 64, ("weak",)), (8, 2, 128, ("weak",)), (16, 4, 256, ("weak",)),
    ]  # fmt: skip
    with pytest.raises(UserError, match="6 ranks fill no whole nodes of 4 ranks"):
        points_of((6,), ("weak",), 64, QUEUE)
    for wrong in ("", "0,1", "one", "1,,2"):
        with pytest.raises(UserError, match="Write them as in 1,2,4"):
            numbers(wrong)


def measured() -> tuple[Measured, ...]:
    """Strong scaling loses half at each doubling, weak none; the first point is of both."""
    rates = {(1, 64): 100.0, (2, 64): 100.0, (4, 64): 100.0, (2, 128): 200.0, (4, 256): 400.0}
    return tuple(
        Measured(point=point, run_id="r", samples_per_s=rate, data_wait=0.1, communication=None)
        for point in points_of((1, 2, 4), get_args(Mode), 64, HERE)
        for rate in (rates[point.ranks, point.global_batch_size],)
    )


def test_efficiency_is_what_a_rank_still_gives() -> None:
    assert efficiency(measured(), "strong") == {1: 1.0, 2: 0.5, 4: 0.25}
    assert efficiency(measured(), "weak") == {1: 1.0, 2: 1.0, 4: 1.0}
    report = ScaleReport(
        command="", date="", recipe="r", site="s", machine=machine([]), steps=10,
        measured=measured(),
        efficiency={each: efficiency(measured(), each) for each in get_args(Mode)},
    )  # fmt: skip
    with Image.open(BytesIO(drawn(report))) as image:
        assert min(image.size) > 400


@pytest.fixture
def recipe(headrace_home: Path) -> Path:
    """A recipe of blobs that are packed already, whose steps take 20 ms, on site `here`."""
    place = make_place(headrace_home)
    notes = {"notes": str(headrace_home), "pause_s": 0.02}
    model = {"_target_": "blob_models.BlobModel", **notes}
    place.write_recipe("blobs", model=model, trainer={"accelerator": "cpu"})
    return headrace_home / "recipes" / "blobs.yaml"


@pytest.mark.nightly
def test_a_recipe_is_trained_and_measured(
    recipe: Path, capsys: pytest.CaptureFixture[str], no_leftover_processes: None
) -> None:
    plot = recipe.with_suffix(".png")
    bench.scale(str(recipe), site="here", ranks="2", steps=40, plot=plot)
    report = ScaleReport.model_validate_json(capsys.readouterr().out)
    (one,) = report.measured
    assert (one.point.ranks, one.point.nodes, one.point.global_batch_size) == (2, 1, 8)
    assert 0 < one.samples_per_s < 500  # each step of 8 samples sleeps for 20 ms
    assert one.communication is not None
    assert report.efficiency == {"strong": {2: 1.0}, "weak": {2: 1.0}}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_too_few_steps_cannot_be_measured(monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    monkeypatch.setattr(bench, "execute", lambda run, tick: None)
    with pytest.raises(StepError, match="told its speed only 0 times in 10 steps"):
        bench.scale(str(recipe), site="here", ranks="1", steps=10)
    with pytest.raises(UserError, match="--mode 'fast' is not known"):
        bench.scale(mode="fast")


@pytest.mark.nightly
def test_photographs_are_cropped_by_headrace_and_by_a_peer(tmp_path):
    options = PhotoOptions(size=32, batch_size=4, unlike=8, rounds=1, lap_s=0.01, folder=tmp_path)
    (table,) = bench_photos(options, lambda _: None)
    assert [row.name for row in table.rows] == ["headrace", "DataLoader over files"]
    assert all(row.laps for row in table.rows), table.rows
    assert table.headrace_over["DataLoader over files"] > 0
    assert list(tmp_path.iterdir()) == []


def test_photographs_are_trained_on():
    batch = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8), torch.arange(2)
    epoch = trained(lambda: iter([batch, batch]), "cpu")
    assert [numbers.tolist() for _, numbers in epoch()] == [[0, 1], [0, 1]]
