"""The pages of datasets: what the ledger knows of them, and what their manifests say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import UnknownNameError
from headrace.files.manifest import Manifest, Quarantined
from headrace.files.manifest_file import read_manifest, write_manifest
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import LeaseState, StepState
from headrace.status.dataset import dataset_page, datasets_page
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.shards import write_dataset, write_identified


def images(folder: Path, first: int = 0) -> Manifest:
    """Thirty pictures of three classes."""
    fields = {
        "image": np.arange(first, first + 30 * 64).reshape(30, 8, 8).astype(np.uint8),
        "label": np.arange(30) % 3,
    }
    return write_dataset(
        folder, fields, splits={"train": 20, "val": 10}, shard_samples=8, classes=("a", "b", "c")
    )


def packed(location: Path | str, manifest: Manifest, **outputs: Any) -> Run:
    """A run that has packed a dataset."""
    run = make_run()
    told = {
        "dataset": str(location),
        "fingerprint": manifest.fingerprint,
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "num_bytes": manifest.num_bytes,
        "num_quarantined": len(manifest.quarantined),
        "reused": False,
        **outputs,
    }
    attempt_row_of(
        run, "pack", lease_on_disk(run), state=StepState.SUCCEEDED, finished_at=5.0, outputs=told
    )
    return run


def staged(run: Run, fingerprint: str) -> str:
    """The lease on a node of which a run has staged a dataset."""
    lease_id = lease_on_disk(run, "gpu")
    node = {"node": "node-7", "tier": "memory", "num_bytes": 99, "folder": "/dev/shm/x"}
    outputs = {"fingerprint": fingerprint, "nodes": [node]}
    attempt_row_of(run, "stage", lease_id, state=StepState.SUCCEEDED, outputs=outputs)
    return lease_id


def test_a_dataset_is_one_row_whoever_packed_it_or_found_it(tmp_path):
    folder = tmp_path / "digits-0123456789ab"
    manifest = images(folder)
    maker = packed(folder, manifest)
    user = packed(folder, manifest, reused=True)
    lease_id = staged(user, manifest.fingerprint)
    attempt_row_of(user, "train", lease_id)
    (row,) = datasets_page().rows
    assert (row.name, row.fingerprint, row.location) == (
        "digits",
        manifest.fingerprint,
        str(folder),
    )
    assert (row.num_samples, row.num_shards, row.num_bytes) == (30, 5, manifest.num_bytes)
    assert (row.made_by, row.made_at, row.num_runs) == (maker.run_id, 5.0, 1)
    assert (row.is_remote, row.is_there) == (False, True)
    (copy,) = row.staged
    assert [*dict(copy).values()] == ["node-7", "memory", 99, lease_id]
    open_ledger().set_lease_state(lease_id, LeaseState.CLOSED, ended_at=9.0)
    assert datasets_page().rows[0].staged == ()


def test_one_that_was_given_or_is_gone_is_listed_with_what_is_known(tmp_path):
    manifest = images(tmp_path / "given")
    packed(tmp_path / "elsewhere", manifest, reused=True)
    packed("s3://bucket/scans-0123456789ab", write_other(tmp_path))
    far, gone = datasets_page().rows
    assert (far.name, far.is_remote, far.is_there) == ("scans", True, None)
    assert (gone.name, gone.is_there, gone.made_by, gone.made_at) == ("elsewhere", False, "", None)
    assert "does not exist" in dataset_page("elsewhere").damage


def write_other(tmp_path: Path) -> Manifest:
    return images(tmp_path / "other", first=1)


def test_a_dataset_tells_what_its_manifest_says_and_who_trained_on_it(tmp_path):
    manifest = images(tmp_path / "small")
    bad = tuple(Quarantined(path=f"<{number}>.png", reason="cut") for number in range(300))
    counts = {"train": {"a": 7, "b": 7, "c": 6}, "val": {"a": 3, "b": 3, "c": 4}}
    more = {"quarantined": bad, "class_counts": counts, "provenance": {"source": "/raw"}}
    write_manifest(tmp_path / "small", manifest.model_copy(update=more))
    run = packed(tmp_path / "small", manifest)
    attempt_row_of(run, "train", f"{run.run_id}-cpu-1")
    page = dataset_page("small")
    assert page.manifest == dataset_page(manifest.fingerprint).manifest
    assert [info.name for info in page.manifest.fields] == ["image", "label"]
    assert (page.manifest.shards, len(page.manifest.quarantined)) == ((), 200)
    assert page.manifest.class_counts == counts
    assert [(it.name, it.num_samples, it.num_shards) for it in page.splits] == [
        ("train", 20, 3), ("val", 10, 2),
    ]  # fmt: skip
    assert [row.run_id for row in page.runs] == [run.run_id]
    assert (page.damage, page.num_missing) == ("", 0)
    (tmp_path / "small" / manifest.shards[0].file).unlink()
    assert dataset_page("small").missing == (manifest.shards[0].file,)


def test_one_to_which_samples_were_added_names_what_lies_there_now(tmp_path):
    folder = tmp_path / "small"
    old = images(folder)
    packed(folder, old)
    new = write_identified(folder, read_manifest(folder).model_copy(update={"classes": ("x",)}))
    packed(folder, new, num_samples=31)
    packed(tmp_path / "small2", images(tmp_path / "small2", first=1))
    assert new.fingerprint in dataset_page(old.fingerprint).damage
    page = dataset_page("small")
    assert page.fingerprint == new.fingerprint
    assert [(it.fingerprint, it.num_samples) for it in page.others] == [(old.fingerprint, 30)]


@pytest.mark.parametrize("name", ["", "smal", "..", "/etc", "%", "../small", "small/manifest.json"])
def test_only_what_the_ledger_knows_is_found(tmp_path, name):
    packed(tmp_path / "small", images(tmp_path / "small"))
    with pytest.raises(UnknownNameError, match="No run of the ledger has a dataset"):
        dataset_page(name)


def test_a_run_folder_or_manifest_that_cannot_be_read_costs_the_page_its_manifest(tmp_path):
    run = packed(tmp_path / "small", images(tmp_path / "small"))
    run.folder.site.write_text("{")
    assert "does not hold a Site" in dataset_page("small").damage
    run.folder.site.unlink()
    (tmp_path / "small" / "manifest.json").write_text("{")
    assert "damaged" in dataset_page("small").damage
    assert dataset_page("small").num_samples == 30
