"""What was changed in a dataset is found when it is opened, or by `verify`, before it is read."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError, ManifestError
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import FILE_NAME, read_manifest, write_manifest
from headrace.recipe.site import Tier
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import verify_dataset
from headrace.staging.staged import ensure_staged
from support.command_line import headrace
from support.shards import write_identified

FORMAT_1 = Path(__file__).parent / "format_1"
"""A dataset packed by the release before manifests had a digest."""

Content = dict[str, Any]
NUM_FLIPS = 300


def edited(folder: Path, edit: Callable[[Content], object]) -> None:
    """Change the manifest as a text editor would."""
    content = json.loads((folder / FILE_NAME).read_bytes())
    edit(content)
    (folder / FILE_NAME).write_text(json.dumps(content, indent=1) + "\n")


EDITS: dict[str, Callable[[Content], object]] = {
    "class names": lambda content: content["classes"].reverse(),
    "splits": lambda content: content["splits"].update(train=8),
    "statistics": lambda content: content["statistics"].update(
        image={"count": 1, "mean": [0.5], "std": [1.0], "minimum": 0.0, "maximum": 1.0}
    ),
    "class counts": lambda content: content["class_counts"].update(val={"a": 2, "b": 1}),
    "a dropped shard": lambda content: content["shards"].pop(1),
    "the order of shards": lambda content: content["shards"].reverse(),
    "a foreign fingerprint": lambda content: content.update(fingerprint="ab" * 16),
    "the checksum of a shard": lambda content: content["shards"][0].update(xxh3_128="0" * 32),
    "the name": lambda content: content.update(name="other"),
    "provenance": lambda content: content["provenance"].update(source="elsewhere"),
    "no digest": lambda content: content.pop("digest"),
    "another digest": lambda content: content.update(digest="0" * 32),
}


def test_what_is_written_again_as_it_was_opens(dataset_folder: Path) -> None:
    """So the tests below find the edit, not that somebody wrote."""
    edited(dataset_folder, lambda content: None)
    assert verify_dataset(dataset_folder) == ()


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_is_found_at_open(dataset_folder, edit, tmp_path):
    edited(dataset_folder, edit)
    with pytest.raises(ManifestError, match="is damaged, or was changed by hand"):
        ShardedDataset(dataset_folder, "train")
    with pytest.raises(ManifestError):
        verify_dataset(dataset_folder)
    with pytest.raises(ManifestError):
        ensure_staged(dataset_folder, [Tier(name="disk", folder=str(tmp_path / "tier"))])


def found(folder: Path) -> bool:
    """Whether opening or `verify` finds something."""
    try:
        findings = verify_dataset(folder)
    except HeadraceError:
        return True
    return bool(findings)


@pytest.mark.slow
def test_every_flipped_bit_is_found(dataset_folder: Path) -> None:
    """Anywhere: in the manifest, in samples, in what HDF5 keeps for itself."""
    generator = random.Random(8)
    manifest = dataset_folder / FILE_NAME
    files = [manifest, *sorted((dataset_folder / "shards").iterdir())]
    assert not found(dataset_folder)
    for number in range(NUM_FLIPS):
        path = manifest if number % 3 == 0 else generator.choice(files)
        before = path.read_bytes()
        flipped, bit = bytearray(before), generator.randrange(8 * len(before))
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert found(dataset_folder), f"bit {bit} of {path.name}"
        if path == manifest:
            with pytest.raises(ManifestError):
                read_manifest(dataset_folder)
        path.write_bytes(before)


def test_sums_must_hold_whatever_the_digest_says(dataset_folder: Path) -> None:
    """A faulty program that seals what it writes is found out as well."""
    good = read_manifest(dataset_folder)
    wrong: dict[str, Content] = {
        "its splits": {"splits": {**good.splits, "train": 8}},
        "counts 2 samples of classes": {"class_counts": {"val": {"a": 1, "b": 1}}},
        "classes that it does not name": {"class_counts": {"val": {"zebra": 3}}},
        "its folds": {"folds": {"train": (4, 5)}},
        "occurs twice": {"shards": (good.shards[0], *good.shards[:-1])},
        "outside of its folder": {
            "shards": (good.shards[0].model_copy(update={"file": "/etc/x.h5"}), *good.shards[1:])
        },
        "has the fingerprint": {"classes": ("b", "a")},
    }
    for problem, update in wrong.items():
        write_manifest(dataset_folder, good.model_copy(update=update))
        with pytest.raises(ManifestError, match=problem):
            read_manifest(dataset_folder)


def copy_of_format_1(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FORMAT_1, tmp_path / "pets"))


def test_a_dataset_of_the_format_before_opens_and_stages(tmp_path: Path) -> None:
    folder = copy_of_format_1(tmp_path)
    manifest = read_manifest(folder)
    assert manifest.format_version == 1
    assert len(ShardedDataset(folder, "train")) == 4
    assert verify_dataset(folder) == ()
    tiers = [Tier(name="disk", folder=str(tmp_path / "tier"))]
    copy = ensure_staged(folder, tiers, ("train",))
    assert read_manifest(copy.folder).format_version == 2
    assert ensure_staged(folder, tiers, ("train",)).reused


def test_verify_and_inspect_say_that_a_digest_is_missing(tmp_path: Path) -> None:
    folder = copy_of_format_1(tmp_path)
    told = headrace("verify", str(folder))
    assert told.exit_code == 0
    assert "has no digest" in told.stdout
    assert "are not computed again: they may have been changed" in told.stdout
    assert '"sealed": false' in headrace("verify", str(folder), "--json").stdout
    assert "format 1 (no digest)" in headrace("inspect", str(folder)).stdout


@pytest.mark.parametrize("what", ["class names", "splits", "a dropped shard", "the order of shards",
                                  "a foreign fingerprint", "the checksum of a shard"])  # fmt: skip
def test_what_can_be_told_without_a_digest_is_found(tmp_path: Path, what: str) -> None:
    folder = copy_of_format_1(tmp_path)
    edited(folder, EDITS[what])
    with pytest.raises(ManifestError):
        read_manifest(folder)


def test_a_part_under_a_foreign_fingerprint_does_not_get_the_copy_of_another(
    make_dataset, tmp_path
):
    """A part is staged as what it lists, whatever fingerprint it bears."""
    tiers = [Tier(name="disk", folder=str(tmp_path / "tier"))]
    good = ensure_staged(make_dataset("good"), tiers)
    other = make_dataset("other", {"shards/val-00000.h5": 70})
    manifest = read_manifest(other).model_copy(
        update={"is_part": True, "fingerprint": good.folder.name}
    )
    write_manifest(other, manifest)
    staged = ensure_staged(other, tiers)
    assert staged.folder != good.folder
    assert not staged.reused
    assert ShardedDataset(staged.folder, "val").gather("sample_id", range(3)).tolist() == [
        70, 71, 72
    ]  # fmt: skip


def test_a_copy_whose_manifest_was_changed_is_not_reused(dataset_folder: Path) -> None:
    tiers = [Tier(name="disk", folder=str(dataset_folder.parent / "tier"))]
    copy = ensure_staged(dataset_folder, tiers)
    path = copy.folder / FILE_NAME
    status, text = path.stat(), path.read_text()
    path.write_text(text.replace('"a"', '"z"'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    again = ensure_staged(dataset_folder, tiers)
    assert path.read_text() == text
    assert again.copied_bytes == 0


def test_equal_content_with_other_statistics_gets_its_own_figures(make_dataset, tmp_path):
    tiers = [Tier(name="disk", folder=str(tmp_path / "tier"))]
    ensure_staged(make_dataset("one"), tiers)
    other = make_dataset("other")
    manifest: Manifest = read_manifest(other)
    edit: Content = {"count": 1, "mean": (9.0,), "std": (1.0,), "minimum": 9.0, "maximum": 9.0}
    write_identified(
        other,
        Manifest.model_validate({**manifest.model_dump(), "statistics": {"image": edit}}),
    )
    copy = ensure_staged(other, tiers)
    assert read_manifest(copy.folder).statistics["image"].mean == (9.0,)
