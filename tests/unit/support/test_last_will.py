"""What was asked for is done when the asking process is killed, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.last_will import last_will
from support.waiting import wait_until

_KILLED_WITHIN = """
import os, signal, sys
from support.last_will import last_will
with last_will(sys.argv[1], os.environ):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_statement_is_run_after_a_kill(tmp_path: Path):
    done = tmp_path / "done"
    statement = f"open({str(done)!r}, 'w').close()"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _KILLED_WITHIN, statement]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    wait_until(done.exists, 90, "the statement to be run")


def test_the_statement_is_not_run_otherwise(tmp_path: Path):
    done = tmp_path / "done"
    with last_will(f"open({str(done)!r}, 'w').close()", os.environ):
        pass
    assert not done.exists()
