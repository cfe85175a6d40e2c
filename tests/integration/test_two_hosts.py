"""A gang on two hosts with addresses and storage of their own, too small for the dataset."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.leases import client
from headrace.leases.queued import job_name
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.records import StepResult, StepSpec
from headrace.storage.atomic import read_record, write_record
from headrace.storage.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.storage.manifest import read_manifest
from headrace.storage.peer_group import PeerGroup
from headrace.storage.placing import Wanted
from support.leases import opened
from support.shards import write_dataset
from support.training import CODE, make_context, make_recipe, make_site, train_here
from support.two_hosts import DATA, TwoHosts
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BALLAST_BYTES = 32 * 2**10
NUM_SAMPLES, SHARD_SAMPLES = 180, 5


@pytest.fixture
def dataset(tmp_path) -> Path:
    """36 shards, most of whose bytes the model does not look at."""
    generator = np.random.default_rng(3)
    label = generator.integers(0, 3, NUM_SAMPLES)
    array = generator.normal(size=(NUM_SAMPLES, 8)) + 2 * np.eye(3, 8)[label]
    fields = {
        "array": array.astype(np.float32),
        "ballast": np.zeros((NUM_SAMPLES, BALLAST_BYTES), dtype=np.uint8),
        "label": label,
    }
    splits = {"train": NUM_SAMPLES - 20, "val": 20}
    write_dataset(tmp_path / "dataset", fields, splits=splits, shard_samples=SHARD_SAMPLES)
    return tmp_path / "dataset"


def _sizes(dataset: Path) -> tuple[int, int]:
    """Storage of the nodes: for eight and twelve shards, besides what a node leaves free."""
    manifest, group = read_manifest(dataset), PeerGroup(folder=dataset, hosts=("a", "b"), index=0)
    wanted = Wanted(manifest=manifest, splits=("train",), partial=True, group=group)
    largest = max(shard.num_bytes for shard in manifest.shards)
    return (wanted.spare_bytes + 8 * largest + 2**17, wanted.spare_bytes + 12 * largest + 2**17)


def _recipe(folder: Path) -> Recipe:
    (folder / "notes").mkdir(parents=True, exist_ok=True)
    return make_recipe(
        {
            "seed": 5,
            "code": [str(CODE)],
            "stage": {"partial": True},
            "data": {"global_batch_size": 8, "shuffle_window": 2},
            "model": {"_target_": "blob_models.BlobModel", "notes": str(folder / "notes")},
            "trainer": {"accelerator": "cpu", "max_epochs": 2},
        }
    )


def _step(lease: LeaseFolder, kind: str, run: Path, dataset: Path) -> StepFolder:
    spec = StepSpec(
        key=f"demo/{kind}/1", kind=kind, run_id="demo", name=kind, attempt=1,
        run_folder=str(run), inputs={"dataset": str(dataset)},
    )  # fmt: skip
    return mailbox.submit(lease, spec)


def _outputs(step: StepFolder, look: Callable[[], object]) -> dict[str, Any]:
    def ended() -> bool:
        look()
        return step.result.exists()

    wait_until(ended, 150, f"step {step.path.name}")
    result = read_record(step.result, StepResult)
    assert result is not None
    assert result.state is StepState.SUCCEEDED, result
    return result.outputs


class Watch:
    """Looks at which addresses the ports of a step's peers are open."""

    def __init__(self, two_hosts: TwoHosts, step: StepFolder) -> None:
        self._hosts = two_hosts.hosts
        self._step = step
        self.seen: set[tuple[int, str]] = set()

    def __call__(self) -> None:
        for index, host in enumerate(self._hosts):
            ports = {
                path.read_text().strip()
                for path in self._step.path.glob(f"parts/**/peers-*/node-{index}")
            }
            for address, port in host.listeners() if any(ports) else ():
                if str(port) in ports:
                    self.seen.add((index, address))


def test_together_they_hold_what_neither_does(
    no_leftover_processes, two_hosts, dataset, tmp_path, headrace_home
):
    """Pains 33; each byte that a node holds was read once, and weights are those of one machine."""
    both: TwoHosts = two_hosts(_sizes(dataset))
    batch = {"interface": DATA, "poll": 0.2, "hosts": both.logins, "python": sys.executable}
    role = Role(backend="ssh", kind="gang", nodes=2, lifetime=600, batch=batch)
    tiers = [{"name": "own", "folder": str(both.storage / "tier"), "reserve": 0}]
    folder = SiteFolder(tmp_path / "site").run("demo")
    folder.path.mkdir(parents=True)
    site = make_site(tmp_path / "site", ranks=1, nodes=2, allowed_code=[str(CODE)], tiers=tiers)
    write_record(folder.recipe, _recipe(tmp_path / "here"))
    write_record(folder.site, site)
    lease = opened(tmp_path / "site", role)
    job = Path.home() / ".headrace" / "ssh-jobs" / job_name(lease)
    try:
        stage = _step(lease, "stage", folder.path, dataset)
        staging = Watch(both, stage)
        staged = _outputs(stage, staging)
        train = _step(lease, "train", folder.path, dataset)
        training = Watch(both, train)
        trained = _outputs(train, training)
    finally:
        client.end(lease, grace_s=20, reason="the test is over")
        shutil.rmtree(job)
    assert [row["peer_bytes"] for row in staged["nodes"]] == [0, 0]
    total = read_manifest(dataset).num_bytes
    held = [row["source_bytes"] for row in staged["nodes"]]
    assert 0 < held[0] < held[1]
    addresses = {(index, host.address) for index, host in enumerate(both.hosts)}
    assert training.seen == addresses, "peers listen there and nowhere else"
    assert staging.seen <= addresses
    streamed = trained["streamed"].values()
    assert sum(each["peer_bytes"] for each in streamed) > sum(held)
    nowhere = total - sum(held)
    assert staged["left_out_bytes"] == nowhere
    assert 0 < sum(each["source_bytes"] for each in streamed) <= 2.5 * nowhere
    whole = tmp_path / "whole"
    context = make_context(whole, _recipe(whole), make_site(whole, allowed_code=[str(CODE)]))
    assert trained["weights_xxh3"] == train_here(context, dataset)["weights_xxh3"]
