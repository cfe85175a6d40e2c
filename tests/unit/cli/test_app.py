"""What the command itself tells, whichever of its commands was asked for."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from headrace.cli import app
from headrace.examples import digits


def test_a_full_disk_is_told_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(digits, "_write", full)
    monkeypatch.setattr(app, "outlive_readers", lambda: None)  # it changes the test's own output
    monkeypatch.setattr(app, "end_quickly", lambda: None)
    monkeypatch.setattr(sys, "argv", ["headrace", "example", "digits", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "the disk or quota is full" in told
    assert "Free some space" in told
