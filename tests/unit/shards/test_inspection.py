"""Verification names the damaged shard and its samples; the summary tells what is there."""

from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from headrace.errors import ManifestError, UnknownNameError
from headrace.files.manifest_file import read_manifest
from headrace.shards.inspection import DatasetSummary, ShardSummary, summarise, verify_dataset
from support.command_line import headrace
from support.shards import reseal

SECOND = "shards/train-00001.h5"


def test_intact_dataset_has_no_findings(dataset_folder: Path) -> None:
    read: list[int] = []
    assert verify_dataset(dataset_folder, read.append) == ()
    assert sum(read) == read_manifest(dataset_folder).num_bytes


def test_every_flipped_bit_is_found(dataset_folder: Path) -> None:
    path = dataset_folder / SECOND
    content = path.read_bytes()
    for position in range(0, len(content), 499):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        findings = verify_dataset(dataset_folder)
        assert {finding.file for finding in findings} == {SECOND}
        assert "checksum" in findings[0].problem
        assert (findings[0].split, findings[0].first_sample, findings[0].last_sample) == (
            "train",
            4,
            7,
        )


def test_truncated_and_missing_shards(dataset_folder: Path) -> None:
    path = dataset_folder / SECOND
    path.write_bytes(path.read_bytes()[:-1])
    (dataset_folder / "shards/val-00000.h5").unlink()
    findings = verify_dataset(dataset_folder)
    assert "bytes, not" in findings[0].problem
    assert (findings[-1].file, findings[-1].problem) == (
        "shards/val-00000.h5",
        "the file is missing",
    )


def test_repeated_sample_ids(make_dataset: Callable[..., Path]) -> None:
    folder = make_dataset("twice", {"shards/val-00000.h5": 7})
    (finding,) = verify_dataset(folder)
    assert finding.file == "shards/val-00000.h5"
    assert "2 sample ids occur more than once, such as 7" in finding.problem


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("fields/label", [0, 1, 2, 0], "a label is not one of the 2 classes"),
        ("fields/blob/offsets", [0, 9, 4, 9, 12], "offsets of 'blob' do not fit"),
        ("fields/image", [[[1.0] * 3] * 2] * 4, "'image' is float64"),
    ],
)
def test_wrong_content_under_a_right_checksum(dataset_folder, key, value, problem):
    with h5py.File(dataset_folder / SECOND, "r+") as file:
        del file[key]
        file[key] = value
    reseal(dataset_folder, SECOND)
    (finding,) = verify_dataset(dataset_folder)
    assert problem in finding.problem


def test_shard_of_another_split(dataset_folder: Path) -> None:
    with h5py.File(dataset_folder / SECOND, "r+") as file:
        file.attrs["split"] = "val"
    reseal(dataset_folder, SECOND)
    (finding,) = verify_dataset(dataset_folder)
    assert finding.problem == "it belongs to split 'val', not 'train'"


def test_verify_command(dataset_folder: Path) -> None:
    run = headrace("verify", str(dataset_folder))
    assert run.exit_code == 0, run.output
    assert "intact" in run.stdout
    (dataset_folder / SECOND).unlink()
    run = headrace("verify", str(dataset_folder))
    assert run.exit_code == 1
    assert SECOND in run.stdout
    assert "4 to 7" in run.stdout
    run = headrace("verify", str(dataset_folder), "--json")
    assert run.exit_code == 1
    assert '"intact": false' in run.stdout


def test_summary_of_dataset_and_shard(dataset_folder: Path) -> None:
    summary = summarise(dataset_folder)
    assert isinstance(summary, DatasetSummary)
    assert (summary.num_samples, summary.missing) == (12, ())
    assert summarise(dataset_folder / "manifest.json") == summary
    shard = summarise(dataset_folder / SECOND)
    assert isinstance(shard, ShardSummary)
    assert shard.num_samples == 4
    assert [array.name for array in shard.arrays][:2] == [
        "fields/blob/data",
        "fields/blob/offsets",
    ]
    for path in (dataset_folder, dataset_folder / SECOND):
        for arguments in (["inspect", str(path)], ["inspect", str(path), "--json"]):
            run = headrace(*arguments)
            assert run.exit_code == 0, run.output


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="does not exist"):
        summarise(tmp_path / "no")
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UnknownNameError, match=r"recipe\.yaml is not a shard"):
        summarise(tmp_path / "recipe.yaml")
    with pytest.raises(ManifestError, match=r"holds no manifest\.json"):
        summarise(tmp_path)
