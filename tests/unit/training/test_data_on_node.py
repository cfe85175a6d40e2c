"""Staging beside the ranks of a node: what goes wrong there ends the training."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ShardError
from headrace.files.manifest_file import read_manifest
from headrace.training.data_on_node import data_on_node
from headrace.training.launch_records import NodeLaunch
from support.shards import write_dataset
from support.training import make_recipe, make_site
from support.waiting import wait_until


def launch(tmp_path) -> NodeLaunch:
    made = NodeLaunch(
        run_folder=str(tmp_path / "run"),
        step_folder=str(tmp_path / "step"),
        dataset=str(tmp_path / "source"),
        number=1,
        node_index=0,
        node_name="node-0",
        num_nodes=1,
        ranks_per_node=1,
        host="127.0.0.1",
        master_address="127.0.0.1",
        master_port=0,
        resume=None,
    )
    made.folder.path.mkdir(parents=True)
    return made


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
    here, site = launch(tmp_path), make_site(tmp_path)
    with data_on_node(here, recipe, site, manifest) as data:
        assert len(list((data.folder / "shards").glob("train-*.h5"))) == 3
        wait_until(lambda: not data.keep_on(), 90, "the fault")
        with pytest.raises(ShardError, match=r"val-00000\.h5 is damaged"):
            data.check()
    assert "val-00000.h5" in here.folder.stop.read_text()
    assert not here.folder.staged(0).exists()
