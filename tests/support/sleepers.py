"""Processes that do nothing but look like those of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def sleeper(home: Path, comment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with this home of headrace, and these words in its command line."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(600)  # {comment}"],
        env={**os.environ, "HEADRACE_HOME": str(home)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
