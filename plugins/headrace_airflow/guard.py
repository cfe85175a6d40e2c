"""Ends what is left of Airflow when its supervisor is gone: `python -m headrace_airflow.guard`.

The supervisor holds the other end of this process's standard input and never writes to it; the end
of the file is the end of the supervisor, however it came about.
"""

from __future__ import annotations

import signal
import sys

from headrace.cli.airflow_server import ASKED_BEFORE_S, processes
from headrace.processes import end_processes


def main() -> int:
    """Wait for the supervisor's end, then end every process that carries the service's mark."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_processes(processes(), grace_s=ASKED_BEFORE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
