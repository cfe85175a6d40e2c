"""A process that reads samples.

`python -m headrace_pages.sample_process SECONDS FD` starts it.

A damaged shard can hang HDF5, and a shard that is truncated while it is mapped ends the process
that reads it: neither may happen to a server. The process ends when the server closes its
connection, after a time without requests, and by an alarm if it takes too long. It outlives the
thread that started it, which soon ends.
"""

from __future__ import annotations

import signal
import sys

from headrace.processes.call_server import answer_calls
from headrace_pages.samples import Sample, SampleQuestion, read_sample

PATIENCE_S = 20.0
"""Seconds that reading a sample may take."""

IDLE_S = 120.0
"""Seconds without a request after which it ends."""


def main(patience_s: float) -> None:
    """Answer requests until there are no more."""

    def answer(question: SampleQuestion) -> Sample:
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        try:
            return read_sample(question)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    answer_calls(answer, IDLE_S)


if __name__ == "__main__":
    main(float(sys.argv[1]))
