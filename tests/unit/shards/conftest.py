"""A small dataset, made by the shard writer alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import content_fingerprint, write_manifest
from headrace_bench.shards import ShardWriter

FIELDS = (
    FieldInfo(name="image", dtype="uint8", shape=(2, 3), layout="fixed"),
    FieldInfo(name="blob", dtype="uint8", layout="ragged", encoding="png"),
    FieldInfo(name="label", dtype="int64", layout="fixed"),
)
SIZES = {"train": (4, 4, 1), "val": (3,), "test": ()}


def write_dataset(folder: Path, first_ids: dict[str, int] | None = None) -> Path:
    """Write shards of SIZES; sample `i` has the image `i, i, …`, the blob `i` times `i`."""
    (folder / "shards").mkdir(parents=True)
    shards = []
    next_id = 0
    for split, sizes in SIZES.items():
        for number, size in enumerate(sizes):
            file = f"shards/{split}-{number:05d}.h5"
            start = (first_ids or {}).get(file, next_id)
            ids = np.arange(start, start + size)
            writer = ShardWriter(split, ids, [f"{i}.png" for i in ids])
            writer.add_fixed(
                "image", np.broadcast_to(ids[:, None, None], (size, 2, 3)).astype(np.uint8)
            )
            writer.add_ragged("blob", [bytes([i]) * i for i in ids])
            writer.add_fixed("label", ids % 2)
            written = writer.publish(folder / file)
            shards.append(
                ShardInfo(
                    file=file,
                    split=split,
                    num_samples=size,
                    num_bytes=written.num_bytes,
                    xxh3_128=written.xxh3_128,
                )
            )
            next_id += size
    manifest = Manifest(
        name="tiny",
        fingerprint=content_fingerprint(FIELDS, ("a", "b"), shards),
        pack_key="0",
        fields=FIELDS,
        classes=("a", "b"),
        splits={split: sum(sizes) for split, sizes in SIZES.items()},
        shards=tuple(shards),
    )
    write_manifest(folder, manifest)
    return folder


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Path]:
    """Write a dataset to `tmp_path / name`."""

    def make(name: str = "tiny", first_ids: dict[str, int] | None = None) -> Path:
        return write_dataset(tmp_path / name, first_ids)

    return make


@pytest.fixture
def dataset_folder(make_dataset: Callable[..., Path]) -> Path:
    """Folder of a small dataset."""
    return make_dataset()
