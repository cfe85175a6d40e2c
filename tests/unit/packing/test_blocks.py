"""Blocks of large files, and plans that are written while workers pack."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.files.manifest_file import read_manifest
from headrace.packing.blocks import FileSlots
from headrace.packing.pack_shard import PackTask
from headrace.packing.pack_step import pack
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace.steps.context import StepContext
from support.packing import InProcess

MakeContext = Callable[..., StepContext]

NUM, SIDE = 60, 150


@pytest.fixture
def large_source(tmp_path: Path) -> Path:
    """Sixty arrays of 90 KB of two classes: several blocks a shard."""
    for number in range(NUM):
        folder = tmp_path / "large" / f"c{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number:02d}.npy", array(number))
    return tmp_path / "large"


def array(number: int) -> Any:
    return np.random.default_rng(number).normal(number, 1, (SIDE, SIDE)).astype(np.float32)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_blocks_of_large_files_hold_each_sample_once(large_source, make_context, in_process, codec):
    options = {"statistics": "all", "shard_samples": 25, "fields": {"array": {"codec": codec}}}
    odd = large_source / "c1/31.npy"
    np.save(odd, np.asfortranarray(array(31)))  # this block is looked at one by one
    (large_source / "c1/33.npy").write_bytes(b"")
    context = make_context(
        large_source, {"splits": {"test": 1.0}}, {**options, "max_quarantined": 0.1}
    )
    outputs = pack(context, in_process)
    folder = Path(outputs["dataset"])
    dataset, manifest = ShardedDataset(folder, "test"), read_manifest(folder)
    places = np.arange(NUM - 1)
    numbers = [int(Path(path).stem) for path in dataset.sources(places)]
    assert sorted(numbers) == [number for number in range(NUM) if number != 33]
    expected = np.stack([array(number) for number in numbers])
    assert np.array_equal(dataset.gather("array", places), expected)
    assert dataset.gather("label", places).tolist() == [number % 2 for number in numbers]
    found = manifest.statistics["array"]
    assert found.mean[0] == pytest.approx(expected.mean(dtype=np.float64), rel=1e-6)
    assert found.std[0] == pytest.approx(expected.std(dtype=np.float64), rel=1e-6)
    assert found.minimum == expected.min()
    assert [sample.path for sample in manifest.quarantined] == ["c1/33.npy"]
    assert not verify_dataset(folder)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_files_read_many_at_once_give_the_same_shards(
    large_source, make_context, in_process, monkeypatch, tmp_path, codec
):
    def packed(name: str) -> dict[str, bytes]:
        options = {"fields": {"array": {"codec": codec}}}
        context = make_context(large_source, pack=options, site_folder=tmp_path / name)
        shards = (Path(pack(context, in_process)["dataset"]) / "shards").iterdir()
        return {path.name: path.read_bytes() for path in shards}

    filled: list[bool] = []
    read = FileSlots.read

    def watched(*arguments: Any) -> bool:
        filled.append(read(*arguments))
        return filled[-1]

    monkeypatch.setattr(FileSlots, "read", watched)
    at_once = packed("at once")
    assert filled
    assert all(filled)
    monkeypatch.setattr(FileSlots, "read", lambda *_: False)
    assert packed("one by one") == at_once


def test_a_large_file_that_changes_while_it_is_packed_ends_the_step(large_source, make_context):
    def change(task: PackTask) -> None:
        np.save(large_source / "c0/20.npy", array(20))

    with pytest.raises(DataError, match=r"20\.npy was written to since"):
        pack(make_context(large_source), InProcess(before=change))


def test_plans_are_written_while_workers_pack(large_source, make_context):
    counts: list[int] = []

    def count(task: PackTask) -> None:
        counts.append(len(list((task.target.folder.parts).glob("*.plan.arrow"))))

    pack(make_context(large_source), InProcess(before=count))
    assert counts == list(range(1, len(counts) + 1))
