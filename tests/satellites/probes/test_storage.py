"""Storage: what fio prints, the same without fio, and nothing that is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import StepError
from headrace.recipe.site import Tier
from headrace_probes.on_node import NodeJob, _targets
from headrace_probes.probe_records import ProbedFolder, ProbeOptions, ProbeRequest
from headrace_probes.storage import fio_command, measure, rate_of

REAL = (Path(__file__).parent / "fio-3.33.json").read_text()
"""What fio 3.33 printed of random reads, less its tables; a line of a warning is put before it."""


def test_rates_are_read_from_what_fio_prints():
    assert rate_of(REAL, "randread") == pytest.approx(11636.363636)
    assert rate_of(REAL, "read") == 47662545
    assert rate_of(REAL, "write") == 0


@pytest.mark.parametrize("output", ["", "fio: no such engine", '{"jobs": []}', '{"jobs": [{}]}'])
def test_what_is_no_output_of_fio_is_told(output):
    with pytest.raises(StepError, match="fio's output cannot be read"):
        rate_of(output, "read")


def test_an_error_of_fio_is_told():
    failed = json.loads(REAL[REAL.index("{") :])
    failed["jobs"][0]["error"] = 28
    with pytest.raises(StepError, match="error 28"):
        rate_of(json.dumps(failed), "read")


def test_fio_is_asked_for_bounded_work():
    words = fio_command("randread", "/scratch/x", 2**30, 4, direct=True)
    for word in ("--size=1073741824", "--numjobs=4", "--direct=1", "--runtime=3",
                 "--io_size=67108864", "--directory=/scratch/x"):  # fmt: skip
        assert word in words
    assert "--end_fsync=1" in fio_command("write", "/scratch/x", 2**30, 1, direct=False)


def request_of(folder: Path) -> ProbeRequest:
    return ProbeRequest(
        part="storage",
        options=ProbeOptions(quick=True),
        node="node-0",
        targets=(ProbedFolder(name="disk", folder=str(folder)),),
        clients=(1, 2),
    )


@pytest.mark.slow
def test_without_fio_the_same_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("headrace_probes.storage._RANDOM_READS", 64)
    found = measure(request_of(tmp_path))
    names = [each.name for each in found.measurements]
    of_one = ["sequential write", "sequential read", "random 4 KiB reads", "files made"]
    assert names == [f"disk: {what}, {who}" for who in ("1 client", "2 clients") for what in of_one]
    assert all(each.settings.startswith("own") for each in found.measurements)
    assert all(len(each.values) == 3 and min(each.values) > 0 for each in found.measurements)
    assert found.notes == ()


def test_folders_that_were_measured_are_removed_whatever_happens(tmp_path: Path):
    kept = tmp_path / "tier" / "kept"
    kept.parent.mkdir(mode=0o700)
    kept.touch()
    job = NodeJob(
        requests=(),
        folder="",
        label="",
        env={},
        logs="",
        tiers=(Tier(name="disk", folder=str(kept.parent)), Tier(name="gone", folder="/proc/no")),
        shared=str(tmp_path),
    )

    def fail() -> None:
        with _targets(job) as (targets, notes):
            assert [each.name for each in targets] == ["disk", "shared"]
            (Path(targets[0].folder) / "client-0").touch()
            assert "tier gone: /proc/no cannot be created" in notes[0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [*kept.parent.iterdir()] == [kept]
    assert [*tmp_path.iterdir()] == [kept.parent]
