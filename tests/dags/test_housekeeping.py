"""What is kept small while Airflow is up for long."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from headrace_airflow import housekeeping
from headrace_airflow.housekeeping import Housekeeping, remove_logs, shorten
from support.waiting import wait_until


def test_logs_of_the_reaper_are_removed_when_they_are_old(tmp_path: Path) -> None:
    for name, at in (("run_id=old", 1000.0), ("run_id=new", 3000.0)):
        log = tmp_path / name / "task_id=reap" / "attempt=1.log"
        log.parent.mkdir(parents=True)
        log.write_text("nothing\n")
        os.utime(tmp_path / name, (at, at))
    remove_logs(tmp_path, datetime.fromtimestamp(2000.0, timezone.utc))
    assert [each.name for each in tmp_path.iterdir()] == ["run_id=new"]


def test_a_long_log_begins_anew_under_who_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "MOST_LOG_BYTES", 10)
    log = tmp_path / "scheduler.log"
    with log.open("ab", buffering=0) as written:
        written.write(b"0123456789")
        shorten(log)
        written.write(b"x")
        assert log.read_bytes() == b"0123456789x"
        shorten(log)
        written.write(b"new")
    assert log.read_bytes() == b"new"
    assert (tmp_path / "scheduler.log.1").read_bytes() == b"0123456789x"


def test_a_full_disk_puts_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scheduler.log").write_text("long")
    monkeypatch.setattr(housekeeping, "_FIRST_S", 0.0)
    monkeypatch.setattr(housekeeping, "MOST_LOG_BYTES", 1)
    monkeypatch.setattr(housekeeping.shutil, "copyfile", _full)
    Housekeeping(tmp_path, {}, tmp_path).look()
    assert "old runs of the reaper are removed later" in caplog.text
    assert (tmp_path / "scheduler.log").read_text() == "long"


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_it_is_done_again_and_again_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; print('words'); sys.exit(3)"
    monkeypatch.setattr(housekeeping, "_FIRST_S", 0.0)
    monkeypatch.setattr(housekeeping, "_EVERY_S", 0.0)
    monkeypatch.setattr(housekeeping, "clean_command", lambda _: [sys.executable, "-c", program])
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **more: begun.append(popen(*given, **more)) or begun[-1]
    )
    kept = Housekeeping(tmp_path, {}, tmp_path)

    def looked() -> bool:
        kept.look()
        return len(begun) == 2

    wait_until(looked, 30, "a second time")
    assert "old rows of the reaper were not removed" in caplog.text
    begun[-1].wait(30)
    assert (tmp_path / "housekeeping.log").read_text() == "words\n"
