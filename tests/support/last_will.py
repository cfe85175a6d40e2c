"""What is to be done when the test process itself is killed before it can clean up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_WAIT = "import sys\nif not sys.stdin.read():\n"


@contextmanager
def last_will(statement: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a statement of Python when this process dies inside the context, whatever kills it.

    Args:
        statement: One line.
        environment: Environment variables in which it is run.
    """
    executor = subprocess.Popen(
        [sys.executable, "-c", f"{_WAIT}    {statement}"],
        stdin=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        yield
    finally:
        executor.communicate(b"alive")
