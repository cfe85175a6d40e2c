"""What a node lacks of the split that it evaluates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule

from headrace.errors import ShardError, StepError
from headrace.evaluation.merge import ScoredSamples
from headrace.evaluation.predictor import Predictor
from headrace.evaluation.write_report import sample_ids, split_on_node
from headrace.files.manifest import Manifest
from headrace.objects.store import LocalStore
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site, Tier
from headrace.shards.dataset import ShardedDataset
from headrace.staging import cache as soundness
from headrace.staging.gang_member import Relay
from headrace.staging.peers import PeerGroup, ShardServer, groups_of
from support.shards import write_dataset
from support.training import make_recipe

NUM_SAMPLES, SHARD_SAMPLES = 60, 5
MARGIN_BYTES = 2**20
"""That staging leaves free."""


class Sums(LightningModule):
    def predict_step(self, batch, index):
        total = batch["array"].sum(1)
        return torch.stack([total, -total], 1)


@pytest.fixture
def manifest(tmp_path) -> Manifest:
    array = np.random.default_rng(1).normal(size=(NUM_SAMPLES, 10_000)).astype(np.float32)
    return write_dataset(
        tmp_path / "source",
        {"array": array, "label": np.arange(NUM_SAMPLES) % 2},
        splits={"test": NUM_SAMPLES},
        shard_samples=SHARD_SAMPLES,
        classes=("even", "odd"),
    )


@pytest.fixture
def site(tmp_path, manifest) -> Site:
    """Its tier has room for some shards only."""
    budget = MARGIN_BYTES + 5 * max(shard.num_bytes for shard in manifest.shards)
    tier = Tier(name="disk", folder=str(tmp_path / "tier"), reserve=0, budget=budget)
    return Site(name="test", folder=str(tmp_path), roles={"gpu": Role()}, tiers=(tier,))


@pytest.fixture
def peers(tmp_path, manifest) -> Iterator[tuple[PeerGroup, list[ShardServer]]]:
    """Three nodes, of which two hold copies of all shards and serve them."""
    first, *others = groups_of(tmp_path, [f"127.0.0.{n}" for n in (1, 2, 3)], "auto")
    assert first is not None
    servers = [serving(group, manifest, tmp_path) for group in others if group is not None]
    yield first, servers
    for server in servers:
        server.close()


def serving(group: PeerGroup, manifest: Manifest, folder: Path) -> ShardServer:
    held = folder / f"held-{group.index}"
    for shard in manifest.shards:
        (held / shard.file).parent.mkdir(parents=True, exist_ok=True)
        (held / shard.file).write_bytes((folder / "source" / shard.file).read_bytes())
    files = [shard.file for shard in manifest.shards]
    server = ShardServer(group, Relay(LocalStore("none"), held, manifest.shards, files).holding)
    group.announce(server.server_port, files, is_staged=True)
    return server


def recipe(dataset: Path) -> Recipe:
    model = {"_target_": "headrace.examples.digits_model.DigitsClassifier"}
    data = {"name": "d", "path": str(dataset)}
    return make_recipe({"dataset": data, "stage": {"partial": True}, "model": model})


def predictor(dataset: ShardedDataset) -> Predictor:
    return Predictor(
        model=Sums(),
        transforms=(),
        dataset=dataset,
        spec=EvaluateSpec(batch_size=SHARD_SAMPLES),
        device=torch.device("cpu"),
    )


def equal(found: ScoredSamples, expected: ScoredSamples, first: int = 0) -> bool:
    rows = slice(first, first + len(found.sample_id))
    return bool(
        np.array_equal(found.sample_id, expected.sample_id[rows])
        and np.array_equal(found.columns["preds"], expected.columns["preds"][rows])
    )


def test_what_a_node_lacks_it_takes_from_the_others_until_they_have_gone(
    tmp_path, manifest, site, peers
):
    """Pains 27, 33: then from where the dataset lies, and the predictions are the same."""
    group, servers = peers
    source = tmp_path / "source"
    expected = predictor(ShardedDataset(source, "test")).predict(0, NUM_SAMPLES)
    half = NUM_SAMPLES // 2
    with split_on_node(recipe(source), site, str(source), "test", None):
        pass  # staged, as `serving` does
    with split_on_node(recipe(source), site, str(source), "test", group) as split:
        here = {shard.file for shard in manifest.shards if (split.folder / shard.file).exists()}
        assert 0 < len(here) < len(manifest.shards) // 2, "some of the first half is elsewhere"
        (source / "shards").rename(tmp_path / "away")
        assert equal(predictor(split).predict(0, half), expected), "without the source"
        (tmp_path / "away").rename(source / "shards")
        servers.pop(0).close()
        assert equal(predictor(split).predict(half, 10), expected, half), "from the other one"
        servers.pop().close()
        assert equal(predictor(split).predict(half, half), expected, half)
        assert np.array_equal(sample_ids(split), expected.sample_id), "more than are held at once"


def test_what_comes_from_the_source_is_checked(tmp_path, manifest, site):
    """Pains 27."""
    source = tmp_path / "source"
    with split_on_node(recipe(source), site, str(source), "test", _alone(tmp_path)) as split:
        (missing, *_) = [s for s in manifest.shards if not (split.folder / s.file).exists()]
        content = bytearray((source / missing.file).read_bytes())
        content[-100] ^= 1
        (source / missing.file).write_bytes(content)
        with pytest.raises(ShardError, match=Path(missing.file).name):
            predictor(split).predict(0, NUM_SAMPLES)


def test_what_fails_by_a_damaged_copy_is_told_as_such(tmp_path, manifest, site, monkeypatch):
    """The damaged shard is taken out, so that the next attempt stages it anew."""
    monkeypatch.setattr(soundness, "SMALL_BYTES", 0)
    source = tmp_path / "source"

    def reading(fault: str) -> None:
        with split_on_node(recipe(source), site, str(source), "test", None) as split:
            nonlocal copy
            copy = split.folder / manifest.shards[0].file
            raise StepError(fault)

    copy = Path()
    with pytest.raises(StepError, match="were predicted exactly once"):
        reading("were predicted exactly once")
    status, content = copy.stat(), bytearray(copy.read_bytes())
    content[-100] ^= 1
    copy.write_bytes(content)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ShardError, match=copy.name):
        reading("were predicted exactly once")
    assert not copy.exists()


def _alone(folder: Path) -> PeerGroup:
    """A group whose other node never came."""
    first, _ = groups_of(folder, ["127.0.0.1", "127.0.0.2"], "auto")
    assert first is not None
    return first
