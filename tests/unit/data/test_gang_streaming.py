"""Nodes that hold a part each and take the rest from one another, while they train.

The other node is a process with a tier of its own; nodes meet at real sockets.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.data.loaders import DataSettings
from headrace.data.module import HeadraceDataModule
from headrace.data.streaming import shards_held
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.objects.store import LocalStore
from headrace.recipe.recipe import DataSpec
from headrace.recipe.site import Tier
from headrace.shards.shard_locations import ShardSource
from headrace.staging.gang_store import Brought, GangStore, Traffic, node_source
from headrace.staging.peers import PeerGroup, groups_of
from headrace.staging.staged import StagedCopy, staged
from headrace.staging.tier_choice import StagingOptions, Wanted
from support.shards import write_dataset
from support.staged_datasets import counted_reads, tier

NUM_SHARDS, SHARD, BATCH = 40, 5, 12
SPEC = DataSpec(global_batch_size=BATCH, drop_last=False, shuffle_window=2, read_ahead=2)


@pytest.fixture
def afar(tmp_path) -> Path:
    """36 shards to train on, four to validate on."""
    num_samples = NUM_SHARDS * SHARD
    generator = np.random.default_rng(1)
    fields = {
        "image": generator.integers(0, 256, (num_samples, 20_000), dtype=np.uint8),
        "label": np.arange(num_samples, dtype=np.int64) % 3,
    }
    write_dataset(tmp_path / "afar", fields, splits={"train": 180, "val": 20}, shard_samples=SHARD)
    return tmp_path / "afar"


@pytest.fixture
def reads(monkeypatch) -> Counter[str]:
    """How often this process has read each shard where the dataset lies."""
    return counted_reads(monkeypatch)


def tier_for(home: Path, manifest: Manifest, group: PeerGroup, num_shards: int) -> Tier:
    """One with room for so many shards, and for what is fetched."""
    wanted = Wanted(
        manifest=manifest, splits=("train",), options=StagingOptions(partial=True, group=group)
    )
    size = max(shard.num_bytes for shard in manifest.shards)
    budget = wanted.spare_bytes + num_shards * size
    return tier(home / f"tier-{group.index}", budget=budget)


@contextmanager
def on_node(home: Path, group: PeerGroup, num_shards: int) -> Iterator[StagedCopy]:
    tiers = [tier_for(home, read_manifest(home / "afar"), group, num_shards)]
    options = StagingOptions(partial=True, group=group, serves_readers=True)
    with staged(home / "afar", tiers, options=options) as copy:
        yield copy


def _be_a_node(home: Path, group: PeerGroup, num_shards: int, test: Connection) -> None:
    """Stage and serve until the test hangs up; then tell what was read for others."""
    with on_node(home, group, num_shards) as copy:
        test.send("staged")
        test.recv()
        test.send(copy.relayed.brought if copy.relayed else None)
    os._exit(0)  # nothing of the test's own process is tidied up here


@contextmanager
def other_node(home: Path, group: PeerGroup, num_shards: int) -> Iterator[tuple[Any, Connection]]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    node = context.Process(target=_be_a_node, args=(home, group, num_shards, theirs))
    node.start()
    try:
        yield node, ours
    finally:
        node.kill()
        node.join()


def module(folder: Path, source: ShardSource | None = None) -> HeadraceDataModule:
    return HeadraceDataModule(
        DataSettings(folder=folder, spec=SPEC, seed=1, source=source, num_epochs=2)
    )


def gang_source(afar: Path, group: PeerGroup, traffic: Traffic) -> ShardSource:
    return node_source(str(afar), None, shards_held(SPEC), group, traffic)


def batches_of(data: HeadraceDataModule) -> Iterator[dict[str, Any]]:
    for epoch in range(2):
        data.train_dataloader().set_epoch(epoch)
        yield from data.train_dataloader()
    yield from data.val_dataloader()


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) for name in wanted
    )


def held(copy: StagedCopy) -> set[str]:
    return {f"shards/{path.name}" for path in copy.folder.glob("shards/*.h5")}


def test_nodes_of_different_size_hold_different_parts_and_read_what_one_that_holds_all_reads(
    afar, tmp_path, reads
):
    """Ten shards on this node, fourteen on the other: 16 of the forty lie nowhere but afar."""
    manifest = read_manifest(afar)
    files = {shard.file for shard in manifest.shards}
    group, others = groups_of(tmp_path, ["127.0.0.1", "127.0.0.2"], "auto")
    traffic = Traffic()
    with other_node(tmp_path, others, 14) as (_, connection), on_node(tmp_path, group, 10) as copy:
        connection.recv()
        assert len(held(copy)) == len(reads) == 10
        far_held = group.held_by(1)
        assert len(far_held) == 14
        assert not far_held & held(copy)
        reads.clear()
        data = module(copy.folder, gang_source(afar, group, traffic))
        found = list(batches_of(data))
        connection.send("end")
        relayed = connection.recv()
    wanted = list(batches_of(module(afar)))
    assert len(found) == len(wanted)
    assert all(map(same, found, wanted))
    nowhere = files - far_held - held(copy)
    assert set(reads) < nowhere, "some of them are for the other node to fetch"
    sizes = {shard.file: shard.num_bytes for shard in manifest.shards}
    assert traffic.brought.source_bytes == sum(sizes[file] * reads[file] for file in reads)
    assert traffic.brought.peer_bytes > sum(sizes[file] for file in far_held)
    assert relayed.source_bytes >= sum(sizes[file] for file in nowhere - set(reads))


def test_a_node_killed_in_mid_epoch_is_done_without(afar, tmp_path, reads, caplog):
    """Pains 27, 34: the batches stay what they were."""
    group, others = groups_of(tmp_path, ["127.0.0.1", "127.0.0.2"], "auto")
    traffic = Traffic()
    with other_node(tmp_path, others, 14) as (node, _), on_node(tmp_path, group, 2) as copy:
        reads.clear()
        found = batches_of(module(copy.folder, gang_source(afar, group, traffic)))
        first = [next(found) for _ in range(2)]
        before = traffic.brought
        node.kill()
        node.join()
        rest = list(found)
    assert before.peer_bytes > 0
    assert traffic.brought.source_bytes > before.source_bytes
    assert len(reads) > NUM_SHARDS // 2
    assert "Node 1 is not asked for 60 s" in caplog.text
    wanted = list(batches_of(module(afar)))
    assert len(first + rest) == len(wanted)
    assert all(map(same, first + rest, wanted))


def test_nobody_listens_when_all_hold_the_whole(afar, tmp_path):
    group, others = groups_of(tmp_path, ["127.0.0.1", "127.0.0.2"], "auto")
    other = other_node(tmp_path, others, NUM_SHARDS)
    with other as (_, connection), on_node(tmp_path, group, NUM_SHARDS):
        connection.recv()
        for node in (0, 1):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(
                    (group.hosts[node], group.notice_of(node).port), timeout=10
                )


def test_nothing_of_a_node_alone_goes_through_others(afar, tmp_path):
    traffic = Traffic()

    (tmp_path / "near" / "shards").mkdir(parents=True)
    (tmp_path / "near" / "manifest.json").write_bytes((afar / "manifest.json").read_bytes())
    store = LocalStore(str(afar))
    source = ShardSource(open=lambda shards: GangStore(store, shards, None, traffic), room=4)
    assert len(list(module(tmp_path / "near", source).val_dataloader())) == 2
    sizes = [shard.num_bytes for shard in read_manifest(afar).shards_of("val")]
    assert traffic.brought == Brought(source_bytes=sum(sizes))
