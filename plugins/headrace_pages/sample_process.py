"""Reads samples in a process of its own.

`python -m headrace_pages.sample_process SECONDS FD` starts it.

A shard that is damaged can hang HDF5, and one that is cut short while it is mapped ends the process
that reads it: neither may happen to a server. The process ends with the server's end of its line,
when nobody asks for a while, and by an alarm when it takes too long. It does not die with the
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
"""Seconds without a question after which it ends."""


def main(patience_s: float) -> None:
    """Answer questions until there are no more."""

    def answer(question: SampleQuestion) -> Sample:
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        try:
            return read_sample(question)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    answer_calls(answer, IDLE_S)


if __name__ == "__main__":
    main(float(sys.argv[1]))
