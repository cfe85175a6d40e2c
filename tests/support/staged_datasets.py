"""Datasets for tests of staging: shards of plain bytes, since staging does not look into them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import xxhash

from headrace.files.manifest import FieldInfo, Manifest, ShardInfo
from headrace.files.manifest_file import content_fingerprint, read_manifest, write_manifest
from headrace.objects.store import LocalStore
from headrace.recipe.site import Tier

SHARD_BYTES = 300_000


FIELDS = (FieldInfo(name="array", dtype="uint8", layout="fixed"),)


def make_dataset(folder: Path, num_bytes: int = SHARD_BYTES, name: str = "bytes") -> Manifest:
    """A dataset whose shards are plain bytes, others for another name.

    Staging does not look into shards.
    """
    (folder / "shards").mkdir(parents=True)
    shards = []
    for split, number in (("train", 0), ("train", 1), ("train", 2), ("test", 0)):
        content = f"{split}-{number}-{name}".encode() * (num_bytes // 7)
        content = content[:num_bytes]
        file = f"shards/{split}-{number:05d}.h5"
        (folder / file).write_bytes(content)
        shards.append(
            ShardInfo(
                file=file,
                split=split,
                num_samples=10,
                num_bytes=len(content),
                xxh3_128=xxhash.xxh3_128_hexdigest(content),
            )
        )
    manifest = Manifest(
        name=name,
        fingerprint=content_fingerprint(FIELDS, ("a",), shards),
        pack_key="k",
        fields=FIELDS,
        classes=("a",),
        splits={"train": 30, "test": 10},
        shards=tuple(shards),
        class_counts={"train": {"a": 30}, "test": {"a": 10}},
    )
    write_manifest(folder, manifest)
    return manifest


def copy_in(tier_folder: Path, source: Path) -> Path:
    """Where the copy of a dataset lies on a tier."""
    return tier_folder / "datasets" / read_manifest(source).fingerprint


def tier(folder: Path, name: str = "disk", **more: object) -> Tier:
    return Tier(name=name, folder=str(folder), reserve=0, **more)


def same_bytes(dataset: Path, staged: Path) -> bool:
    names = [shard.file for shard in read_manifest(staged).shards]
    return all((dataset / name).read_bytes() == (staged / name).read_bytes() for name in names)


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often this process reads each shard where the dataset lies, from now on."""
    found: Counter[str] = Counter()
    download = LocalStore.download

    def counted(self: LocalStore, path: str, *more: Any) -> str:
        found[path] += 1
        return download(self, path, *more)

    monkeypatch.setattr(LocalStore, "download", counted)
    return found
