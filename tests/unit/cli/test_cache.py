"""`headrace cache list|evict|verify`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from headrace.errors import UnknownNameError, UserError
from headrace.files.manifest_file import read_manifest
from headrace.staging.staged import ensure_staged, staged
from support.command_line import Ended, headrace
from support.staged_datasets import copy_in, make_dataset, tier


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site whose only tier holds one staged dataset."""
    make_dataset(tmp_path / "source")
    ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    file = tmp_path / "site.yaml"
    file.write_text(
        f"name: here\nfolder: {tmp_path}/site\nroles: {{}}\n"
        f"tiers:\n  - {{name: disk, folder: {tmp_path}/tier, budget: 5MB, reserve: 0}}\n"
    )
    return file


def call(site: Path, *arguments: str) -> Ended:
    return headrace("cache", *arguments, "--site", str(site))


def test_list_tells_what_lies_there_and_how_much_room_is_left(site: Path, tmp_path: Path) -> None:
    copied = read_manifest(tmp_path / "source").fingerprint
    shown = call(site, "list")
    assert shown.exit_code == 0, shown.output
    for word in ("bytes", "disk", "idle", "test, train", copied[:6], "of a budget of 5.0 MB"):
        assert word in shown.stdout
    content = json.loads(call(site, "list", "--json").stdout)
    assert [copy["fingerprint"] for copy in content["copies"]] == [copied]
    assert content["tiers"][0]["budget_bytes"] == 5_000_000


def test_verify_finds_removes_and_tells_damage(site: Path, tmp_path: Path) -> None:
    assert "intact, 4 shards" in call(site, "verify").stdout
    shard = copy_in(tmp_path / "tier", tmp_path / "source") / "shards/train-00001.h5"
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(content)
    found = call(site, "verify", "bytes", "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)[0]["damaged"] == ["shards/train-00001.h5"]
    again = ensure_staged(tmp_path / "source", [tier(tmp_path / "tier")])
    assert again.copied_bytes == len(content)
    assert call(site, "verify").exit_code == 0


def test_evict_leaves_what_is_in_use(site: Path, tmp_path: Path) -> None:
    with staged(tmp_path / "source", [tier(tmp_path / "tier")]) as copy:
        refused = call(site, "evict", copy.folder.name[:3])
        assert refused.exit_code == 1
        assert "it is in use" in refused.stdout
        assert copy.folder.exists()
    removed = call(site, "evict", copy.folder.name)
    assert removed.exit_code == 0
    assert f"evicted bytes ({copy.folder.name[:12]}) on disk" in removed.stdout
    assert not copy.folder.exists()
    assert "Nothing to evict." in call(site, "evict", "--all").stdout
    assert "No staged datasets" in call(site, "list").stdout


def test_evict_without_names_takes_what_is_past_the_keep_of_its_tier(
    site: Path, tmp_path: Path
) -> None:
    assert "Nothing to evict." in call(site, "evict").stdout
    copy = copy_in(tmp_path / "tier", tmp_path / "source")
    long_ago = time.time() - 31 * 86400
    os.utime(copy.with_suffix(".use"), (long_ago, long_ago))
    with staged(tmp_path / "source", [tier(tmp_path / "tier")]):
        os.utime(copy.with_suffix(".use"), (long_ago, long_ago))
        in_use = call(site, "evict")
        assert (in_use.exit_code, copy.exists()) == (0, True)
    assert copy.exists()  # its use has just ended
    os.utime(copy.with_suffix(".use"), (long_ago, long_ago))
    assert f"evicted bytes ({copy.name[:12]})" in call(site, "evict").stdout
    assert not copy.exists()


def test_wrong_names_are_told(site: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"called 'bites'(.|\n)*bytes"):
        call(site, "evict", "bites")
    with pytest.raises(UserError, match="cannot be combined"):
        call(site, "evict", "abc", "--all")
