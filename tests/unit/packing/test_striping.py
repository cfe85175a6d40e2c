"""Lustre striping: the command is a pure function of the sizes, and never stands in the way."""

import logging
from pathlib import Path

import pytest

from headrace.packing.target import set_stripes, stripe_command


@pytest.mark.parametrize(
    ("shard_bytes", "count"),
    [(0, 1), (64 * 2**20, 1), (2**30, 1), (2**30 + 1, 2), (5 * 2**30, 5), (2**40, 8)],
)
def test_large_shards_are_spread(shard_bytes: int, count: int) -> None:
    expected = ["lfs", "setstripe", "--stripe-count", str(count), "/lustre/data/shards"]
    assert stripe_command(Path("/lustre/data/shards"), shard_bytes) == expected


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the mounts call Lustre, and a tool that writes down how it was called."""
    folder, tools = tmp_path / "shards", tmp_path / "bin"
    folder.mkdir()
    tools.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/x / ext4 rw 0 0\nmgs:/x {tmp_path} lustre rw 0 0\n")
    monkeypatch.setattr("headrace.files.machine.TABLE", mounts)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    return folder


def tool(folder: Path, last: str) -> Path:
    calls = folder.parent / "calls"
    lfs = folder.parent / "bin" / "lfs"
    lfs.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{last}\n')
    lfs.chmod(0o755)
    return calls


def test_the_tool_is_run_on_lustre(lustre: Path) -> None:
    calls = tool(lustre, "exit 0")
    set_stripes(lustre, [10, 3 * 2**30])
    assert calls.read_text() == f"setstripe --stripe-count 3 {lustre}\n"


def test_elsewhere_nothing_is_run(lustre: Path) -> None:
    calls = tool(lustre, "exit 0")
    (lustre.parent / "mounts").write_text("/dev/x / ext4 rw 0 0\n")
    set_stripes(lustre, [10])
    assert not calls.exists()


def test_a_refusal_is_told_and_packing_goes_on(
    lustre: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = tool(lustre, "echo 'no such pool' >&2; exit 22")
    with caplog.at_level(logging.WARNING):
        set_stripes(lustre, [10])
    assert calls.exists()
    assert "no such pool" in caplog.text
