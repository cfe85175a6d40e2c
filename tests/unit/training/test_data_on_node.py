"""Staging beside the ranks of a node: what goes wrong there ends the training."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ShardError
from headrace.files.manifest_file import read_manifest
from headrace.training.data_on_node import data_on_node
from support.shards import write_dataset
from support.training import make_launch, make_recipe, make_site
from support.waiting import wait_until


def test_a_shard_that_comes_damaged_later_stops_the_ranks(tmp_path):
    write_dataset(
        tmp_path / "source",
        {"label": np.arange(20)},
        splits={"train": 15, "val": 5},
        shard_samples=5,
    )
    damaged = tmp_path / "source" / "shards" / "val-00000.h5"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    recipe = make_recipe({"model": {"_target_": "x.Y"}, "stage": {"overlap": True}})
    manifest = read_manifest(tmp_path / "source")
    here = make_launch(tmp_path, dataset=str(tmp_path / "source"))
    here.folder.path.mkdir(parents=True)
    site = make_site(tmp_path)
    with data_on_node(here, recipe, site, manifest) as data:
        assert len(list((data.folder / "shards").glob("train-*.h5"))) == 3
        wait_until(lambda: not data.keep_on(), 90, "the fault")
        with pytest.raises(ShardError, match=r"val-00000\.h5 is damaged"):
            data.check()
    assert "val-00000.h5" in here.folder.stop.read_text()
    assert not here.folder.staged(0).exists()
