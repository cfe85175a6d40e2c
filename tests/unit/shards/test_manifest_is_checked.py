"""Changes of a manifest or shard are found and named, whatever the bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, ManifestError, UnknownNameError
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import (
    FILE_NAME,
    parse_manifest,
    read_manifest,
    sealed,
    write_manifest,
)
from headrace.recipe.site import Tier
from headrace.shards.dataset import ShardedDataset
from headrace.shards.inspection import DatasetSummary, ShardSummary, summarise, verify_dataset
from headrace.staging.staged import ensure_staged
from support.command_line import headrace
from support.shards import reseal, write_identified

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


MANIFEST = json.loads((Path(__file__).parent / "format_1/manifest.json").read_bytes())
SHARD = Path(__file__).parent / "format_1/shards/train-00000.h5"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)

MUTATE = """
import random, sys
from pathlib import Path
from headrace.errors import HeadraceError
from headrace.shards.foreign import ForeignFile
from headrace.shards.reader import read_layout

content, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
generator, refused = random.Random(int(sys.argv[3])), 0
for _ in range(int(sys.argv[4])):
    damaged = bytearray(content)
    for _ in range(generator.randrange(1, 4)):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    path.write_bytes(damaged)
    for look in (read_layout, lambda path: ForeignFile(path, "a.h5").columns()):
        try:
            look(path)
        except HeadraceError:
            refused += 1
print(refused)
"""


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*MANIFEST, "more"]), min_size=1, max_size=3), JSON, st.booleans())
def test_manifests(keys: list[str], value: Any, is_sealed: bool) -> None:
    content = json.loads(json.dumps(MANIFEST))
    for key in keys:
        content[key] = value
    text = json.dumps(content, indent=1)
    with suppress(ManifestError):
        parse_manifest(sealed(text) if is_sealed else text.encode(), "m")


def test_headers_of_hdf5(tmp_path: Path) -> None:
    """In a process of its own, since HDF5 may crash on what it reads."""
    command = [sys.executable, "-c", MUTATE, str(SHARD), str(tmp_path / "a.h5"), "7", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 300  # ForeignFile refuses shards anyhow


SECOND = "shards/train-00001.h5"


def test_intact_dataset_has_no_findings(dataset_folder: Path) -> None:
    read: list[int] = []
    assert verify_dataset(dataset_folder, read.append) == ()
    assert sum(read) == read_manifest(dataset_folder).num_bytes


def test_a_damaged_shard_is_named_with_its_samples(dataset_folder: Path) -> None:
    path = dataset_folder / SECOND
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (finding,) = verify_dataset(dataset_folder)
    assert (finding.file, finding.split) == (SECOND, "train")
    assert (finding.first_sample, finding.last_sample) == (4, 7)
    assert "checksum" in finding.problem


def test_truncated_and_missing_shards(dataset_folder: Path) -> None:
    path = dataset_folder / SECOND
    path.write_bytes(path.read_bytes()[:-1])
    (dataset_folder / "shards/val-00000.h5").unlink()
    findings = verify_dataset(dataset_folder)
    assert "bytes, not" in findings[0].problem
    assert (findings[-1].file, findings[-1].problem) == (
        "shards/val-00000.h5",
        "the file is missing",
    )


def test_repeated_sample_ids(make_dataset: Callable[..., Path]) -> None:
    folder = make_dataset("twice", {"shards/val-00000.h5": 7})
    (finding,) = verify_dataset(folder)
    assert finding.file == "shards/val-00000.h5"
    assert "2 sample ids occur more than once, such as 7" in finding.problem


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("fields/label", [0, 1, 2, 0], "a label is not one of the 2 classes"),
        ("fields/blob/offsets", [0, 9, 4, 9, 12], "offsets of 'blob' do not fit"),
        ("fields/image", [[[1.0] * 3] * 2] * 4, "'image' is float64"),
    ],
)
def test_wrong_content_under_a_right_checksum(dataset_folder, key, value, problem):
    with h5py.File(dataset_folder / SECOND, "r+") as file:
        del file[key]
        file[key] = value
    reseal(dataset_folder, SECOND)
    (finding,) = verify_dataset(dataset_folder)
    assert problem in finding.problem


def test_shard_of_another_split(dataset_folder: Path) -> None:
    with h5py.File(dataset_folder / SECOND, "r+") as file:
        file.attrs["split"] = "val"
    reseal(dataset_folder, SECOND)
    (finding,) = verify_dataset(dataset_folder)
    assert finding.problem == "it belongs to split 'val', not 'train'"


def test_verify_command(dataset_folder: Path) -> None:
    run = headrace("verify", str(dataset_folder))
    assert run.exit_code == 0, run.output
    assert "intact" in run.stdout
    (dataset_folder / SECOND).unlink()
    run = headrace("verify", str(dataset_folder))
    assert run.exit_code == 1
    assert SECOND in run.stdout
    assert "4 to 7" in run.stdout
    run = headrace("verify", str(dataset_folder), "--json")
    assert run.exit_code == 1
    assert '"intact": false' in run.stdout


def test_summary_of_dataset_and_shard(dataset_folder: Path) -> None:
    summary = summarise(dataset_folder)
    assert isinstance(summary, DatasetSummary)
    assert (summary.num_samples, summary.missing) == (12, ())
    assert summarise(dataset_folder / "manifest.json") == summary
    shard = summarise(dataset_folder / SECOND)
    assert isinstance(shard, ShardSummary)
    assert shard.num_samples == 4
    assert [array.name for array in shard.arrays][:2] == [
        "fields/blob/data",
        "fields/blob/offsets",
    ]
    for path in (dataset_folder, dataset_folder / SECOND):
        for arguments in (["inspect", str(path)], ["inspect", str(path), "--json"]):
            run = headrace(*arguments)
            assert run.exit_code == 0, run.output


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="does not exist"):
        summarise(tmp_path / "no")
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(UnknownNameError, match=r"recipe\.yaml is not a shard"):
        summarise(tmp_path / "recipe.yaml")
    with pytest.raises(ManifestError, match=r"holds no manifest\.json"):
        summarise(tmp_path)
