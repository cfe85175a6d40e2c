"""Outlives a host that is killed, just long enough to end what the host left running.

`python -m headrace.leases.guard LEASE_DIR`, standard input a pipe from the host. The kernel
closes the pipe when the host dies, whatever the cause.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from headrace.leases.backends import backend
from headrace.leases.marks import end_marked
from headrace.leases.records import LeaseSpec
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

_DONE = b"done"
_STOP_TIMEOUT_S = 5.0


class Guard:
    """The host's handle of its guard process."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.leases.guard", str(folder.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the guard: the host has ended everything itself."""
        try:
            self._process.communicate(_DONE, timeout=_STOP_TIMEOUT_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()


def main(arguments: list[str]) -> int:
    """Entry point of the guard process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s guard: %(message)s")
    if sys.stdin.buffer.read() == _DONE:
        return 0
    folder = LeaseFolder(Path(arguments[0]))
    num_ended = end_marked(folder)
    logger.warning("The host was killed; ended %d processes that it left", num_ended)
    spec = read_record(folder.spec, LeaseSpec)
    if spec is not None:
        backend(spec.role.backend).kill_leftovers(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
