"""Processes that outlive their maker."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import psutil

from headrace.processes import spawn_detached
from support.waiting import wait_until


def test_a_detached_process_is_let_go_without_a_warning_and_leaves_no_zombie(tmp_path: Path):
    go_on = tmp_path / "go-on"
    code = (
        f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.02)"
    )
    child = spawn_detached([sys.executable, "-c", code], tmp_path / "log")
    gc.collect()  # a process object that was dropped while its process runs complains here
    assert child.is_alive
    go_on.touch()
    wait_until(lambda: not psutil.pid_exists(child.pid), 30.0, "the process to be gone")
