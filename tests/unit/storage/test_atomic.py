"""Files are whole or not there."""

from __future__ import annotations

import os

import pytest

from headrace.storage.atomic import publish_folder, write_bytes, write_text


def test_replace_and_no_leftovers(tmp_path):
    path = tmp_path / "deep" / "file"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old")

    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_folder_is_published_once(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "content").write_text(name)
    assert publish_folder(tmp_path / "a", tmp_path / "final")
    assert not publish_folder(tmp_path / "b", tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "a"
