"""A dataset that no tier holds whole, far away, gives the weights of one that is staged whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.files.manifest_file import FILE_NAME, read_manifest
from headrace.objects.store import open_store
from headrace.training.train_step import train
from support.s3_servers import S3Server
from support.shards import write_dataset
from support.training import (
    CODE,
    ThisProcessFleet,
    make_context,
    make_recipe,
    make_site,
    streamed_recipe,
)

pytestmark = pytest.mark.slow

BALLAST_BYTES = 64 * 2**10
"""Of each sample, so that few shards fit on the tier."""


@pytest.fixture
def dataset(tmp_path) -> Path:
    generator = np.random.default_rng(3)
    label = generator.integers(0, 3, 90)
    array = generator.normal(size=(90, 8)) + 2 * np.eye(3, 8)[label]
    fields = {
        "array": array.astype(np.float32),
        "ballast": np.zeros((90, BALLAST_BYTES), dtype=np.uint8),
        "label": label,
    }
    splits = {"train": 80, "val": 10}
    write_dataset(tmp_path / "dataset", fields, splits=splits, shard_samples=5)
    return tmp_path / "dataset"


def trained(folder: Path, dataset: str, manifest_of: Path, site: dict[str, Any]) -> dict[str, Any]:
    recipe = make_recipe(streamed_recipe(folder / "notes"))
    context = make_context(folder, recipe, make_site(folder, allowed_code=[str(CODE)], **site))
    return train(context, ThisProcessFleet(), dataset, read_manifest(manifest_of))


def test_what_is_far_and_what_is_near_train_alike(
    dataset, tmp_path, moto_server: S3Server, moto_bucket, no_leftover_processes
):
    """Two ranks; five MiB for six, of which some are left for what is fetched from S3."""
    url = f"{moto_bucket}/blobs"
    store = open_store(url, moto_server.options)
    for path in [dataset / FILE_NAME, *(dataset / "shards").iterdir()]:
        store.upload(path, str(path.relative_to(dataset)))
    small = {"name": "disk", "folder": str(tmp_path / "small"), "reserve": 0, "budget": "5MiB"}
    site = {"s3": moto_server.options.model_dump(), "tiers": [small]}
    streamed = trained(tmp_path / "streamed", url, dataset, site)
    (copy,) = (tmp_path / "small" / "datasets").glob("*/shards")
    assert 0 < len(list(copy.glob("*.h5"))) < 18
    assert not list(copy.parent.glob("stream/*/*.h5"))

    whole = trained(tmp_path / "whole", str(dataset), dataset, {})
    assert streamed["weights_xxh3"] == whole["weights_xxh3"]
    assert streamed["metrics"] == whole["metrics"]
    fetched = streamed["streamed"]["node-0"]
    assert fetched["source_bytes"] > 0
    assert fetched["peer_bytes"] == 0
    assert "streamed" not in whole
