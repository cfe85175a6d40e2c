"""A staged copy that changes after it was verified leaves no trace in the weights."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import pytest

from headrace.staging import cache
from headrace.staging import cache as soundness
from headrace.staging.staged import ensure_staged
from headrace.steps.context import StepContext
from headrace.training import checkpoints
from support.training import CODE, make_context, make_recipe, make_site, train_here
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftover_processes")]

SHARD = "shards/train-00000.h5"
FLIPPED_AT, BROKEN_AT = 14, 25
"""Steps of epochs 2 and 3 of four: small batches of an epoch are read all at once, as it begins."""
LONG_S = 300.0


def start(folder: Path, holds: tuple[int, ...] = (), **more: Any) -> StepContext:
    """A step of 40 optimizer steps, with a checkpoint each third."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    recipe = make_recipe(
        {
            "seed": 5,
            "code": [str(CODE)],
            "data": {"global_batch_size": 8},
            "model": {
                "_target_": "blob_models.BlobModel",
                "notes": str(notes),
                "holds": list(holds),
                **more,
            },
            "trainer": {
                "accelerator": "cpu",
                "max_epochs": 4,
                "checkpoint_every_steps": 3,
                "keep_checkpoints": 2,
            },
        }
    )
    return make_context(folder, recipe, make_site(folder, allowed_code=[str(CODE)]))


@pytest.fixture(scope="module")
def undisturbed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    outputs = train_here(start(tmp_path_factory.mktemp("undisturbed")), dataset)
    assert outputs["restarts"] == 0
    return str(outputs["weights_xxh3"])


def staged_shard(folder: Path) -> Path:
    [found] = (folder / "tier/datasets").glob(f"*/{SHARD}")
    return found


def flip(shard: Path, *, unseen: bool) -> None:
    """Change every sample of a shard.

    Args:
        shard: The file.
        unseen: Nothing shows it but the bytes, as when memory or a disk fails.
    """
    status = shard.stat()
    with h5py.File(shard, "r+") as file:
        file["fields/array"][...] *= -1
    if unseen:
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


class Running:
    """A training in a thread, which waits at some steps.

    Args:
        context: The step.
        dataset: What it trains on.
    """

    def __init__(self, context: StepContext, dataset: Path) -> None:
        self.outputs: dict[str, Any] = {}
        self._context, self._dataset = context, dataset
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    @contextmanager
    def held_at(self, step: int) -> Iterator[None]:
        """Run the block while ranks wait in a step; they go on afterwards."""
        notes = Path(self._context.recipe.model.as_config()["notes"])
        wait_until((notes / f"held-{step}").exists, LONG_S, f"step {step}")
        try:
            yield
        finally:
            (notes / f"go-{step}").touch()

    def end(self) -> dict[str, Any]:
        """Outputs of the step."""
        self._thread.join()
        return self.outputs

    def _work(self) -> None:
        self.outputs = train_here(self._context, self._dataset)


def events(context: StepContext, name: str) -> list[dict[str, Any]]:
    file = context.folder.events
    text = file.read_text() if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["event"] == name]


def numbers(context: StepContext) -> list[int]:
    folder = context.run_folder.checkpoints
    return [checkpoints.step_of(path) or 0 for path in checkpoints.newest_first(folder)]


def test_what_was_trained_on_damage_is_trained_again_after_sigbus(undisturbed, dataset, tmp_path):
    """A flip, checkpoints on top of it, then a truncation: the newest checkpoints are no good."""
    context = start(tmp_path, holds=(FLIPPED_AT, BROKEN_AT))
    running = Running(context, dataset)
    with running.held_at(FLIPPED_AT):
        flip(staged_shard(tmp_path), unseen=True)
    with running.held_at(BROKEN_AT):
        assert numbers(context)[0] == 24
        os.truncate(staged_shard(tmp_path), 0)
    outputs = running.end()
    assert outputs["weights_xxh3"] == undisturbed
    assert outputs["restarts"] == len(outputs["restart_causes"]) >= 1
    assert SHARD in outputs["restart_causes"][0]
    [damaged] = events(context, "damaged_data")
    assert damaged["files"] == [SHARD]
    assert damaged["sound_step"] == 0
    assert events(context, "launch")[-1]["resume"] is None


def test_what_nobody_saw_is_found_at_the_end(undisturbed, dataset, tmp_path):
    context = start(tmp_path, holds=(FLIPPED_AT,))
    running = Running(context, dataset)
    with running.held_at(FLIPPED_AT):
        flip(staged_shard(tmp_path), unseen=True)
    outputs = running.end()
    assert outputs["weights_xxh3"] == undisturbed
    assert SHARD in outputs["restart_causes"][0]


def test_a_rank_that_dies_beside_the_damage_does_not_hide_it(undisturbed, dataset, tmp_path):
    """The next launch stages the changed shard anew, and so learns that it was changed."""
    context = start(tmp_path, holds=(FLIPPED_AT,), dies=[[0, BROKEN_AT]])
    running = Running(context, dataset)
    with running.held_at(FLIPPED_AT):
        flip(staged_shard(tmp_path), unseen=False)
    outputs = running.end()
    assert outputs["weights_xxh3"] == undisturbed
    assert any("SIGKILL" in cause for cause in outputs["restart_causes"])
    assert any(SHARD in cause for cause in outputs["restart_causes"])


def test_a_small_copy_is_looked_at_before_it_is_used(undisturbed, dataset, tmp_path):
    context = start(tmp_path)
    ensure_staged(dataset, context.site.tiers)
    flip(staged_shard(tmp_path), unseen=True)
    outputs = train_here(context, dataset)
    assert outputs["weights_xxh3"] == undisturbed
    assert not any(SHARD in cause for cause in outputs["restart_causes"])


def test_a_large_copy_is_looked_at_beside_the_first_epoch(
    undisturbed, dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(soundness, "SMALL_BYTES", 0)
    context = start(tmp_path, holds=(FLIPPED_AT,))
    ensure_staged(dataset, context.site.tiers)
    flip(staged_shard(tmp_path), unseen=True)
    running = Running(context, dataset)
    wait_until(lambda: events(context, "damaged_data"), LONG_S, "the damage to be found")
    with running.held_at(FLIPPED_AT):
        pass
    assert running.end()["weights_xxh3"] == undisturbed


def test_what_a_user_removes_from_the_copy_meanwhile_is_found(undisturbed, dataset, tmp_path):
    """`headrace cache verify` beside a training takes the damage out of its sight."""
    context = start(tmp_path, holds=(FLIPPED_AT, BROKEN_AT))
    running = Running(context, dataset)
    with running.held_at(FLIPPED_AT):
        flip(staged_shard(tmp_path), unseen=True)
    with running.held_at(BROKEN_AT):
        [copy] = cache.copies_of(context.site.tiers)
        assert cache.verify(copy) == (SHARD,)
        ensure_staged(dataset, context.site.tiers)
    outputs = running.end()
    assert outputs["weights_xxh3"] == undisturbed
    assert SHARD in outputs["restart_causes"][0]
